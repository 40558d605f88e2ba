/* SPDX-License-Identifier: MIT
 *
 * Which ranks share a host: those with the same number, which tells apart the kernel's boot, the
 * host's name and the network that the process sees. Containers of one machine count as hosts of
 * their own.
 */
#ifndef TAM_BASE_HOST_H
#define TAM_BASE_HOST_H

#include <stdint.h>

uint64_t tam_host_id(void);

#endif
