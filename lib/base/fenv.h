/* SPDX-License-Identifier: MIT
 *
 * The floating-point environment in which the library computes: round to nearest, denormals kept,
 * no traps. A program may have another one (fesetround, feenableexcept, torch.set_flush_denormal, a
 * library that was linked with -ffast-math), and then ranks would get other bits, or SIGFPE for
 * numbers of the caller that may be anything. What comes out is looked at, not what the processor
 * says on the way. Of one thread; afterwards everything is as it was, flags too.
 *
 *     passes of the kernels   each thread for itself: threads of OpenMP keep an environment of
 *                             their own
 *     jobs                    sums, cuts, control
 *     public calls            options, states, what a step is aimed at, joules
 *     threads of the library  they inherit it
 */
#ifndef TAM_BASE_FENV_H
#define TAM_BASE_FENV_H

#include <fenv.h>

static inline void tam_fenv_hold(fenv_t *kept) {
    fegetenv(kept);
    fesetenv(FE_DFL_ENV);
}

static inline void tam_fenv_release(fenv_t *kept) {
    fesetenv(kept);
}

/** Held from here to the end of the block. */
#define TAM_FENV_HELD()                                                                            \
    fenv_t tam_fenv_kept __attribute__((cleanup(tam_fenv_release)));                               \
    tam_fenv_hold(&tam_fenv_kept)

#endif
