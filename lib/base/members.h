/* SPDX-License-Identifier: MIT
 *
 * Some ranks of a communicator, or all: member i is rank first + i * stride. C11 and CUDA C++.
 */
#ifndef TAM_BASE_MEMBERS_H
#define TAM_BASE_MEMBERS_H

#include <stdint.h>

typedef struct tam_members {
    uint32_t first, stride, count;
    uint32_t member; /* which of them this rank is */
} tam_members;

#endif
