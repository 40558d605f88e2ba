/* SPDX-License-Identifier: MIT
 *
 * Whether the process may use enough address space (ulimit -v). OpenBLAS tries again without end
 * where it gets none for its buffers, and nobody would know why nothing happens.
 */
#ifndef TAMIS_TRAIN_MEMORY_H
#define TAMIS_TRAIN_MEMORY_H

#include <stdint.h>

/** End the process with a sentence, status 1, if its limit is too low for so many ranks in it. */
void memory_check(uint32_t ranks);

#endif
