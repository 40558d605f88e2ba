/* SPDX-License-Identifier: MIT
 *
 * Floating-point traps that the program has enabled (feenableexcept) stay away while numbers of the
 * caller are worked on, which may be anything: what comes out is looked at, not what the processor
 * says on the way. Of one thread; flags and traps are then as they were.
 *
 *     passes of the kernels   each thread for itself: threads of OpenMP keep an environment of their own
 *     jobs                    sums, cuts, control
 */
#ifndef TAM_BASE_TRAPS_H
#define TAM_BASE_TRAPS_H

#include <fenv.h>

static inline void tam_traps_hold(fenv_t *kept) {
    feholdexcept(kept);
}

static inline void tam_traps_release(const fenv_t *kept) {
    fesetenv(kept);
}

#endif
