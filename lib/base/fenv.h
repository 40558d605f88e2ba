/* SPDX-License-Identifier: MIT
 *
 * The floating-point environment in which the library computes: round to nearest, denormals kept,
 * no traps. A program may have another one (fesetround, feenableexcept, torch.set_flush_denormal, a
 * library linked with -ffast-math). Then ranks would get different bits, or SIGFPE, since the
 * caller's numbers may be anything. The library checks results, not exception flags. The
 * environment is per thread; afterwards everything is restored, flags too. It is held in:
 *
 *     passes of the kernels   by each thread: threads of OpenMP have environments of their own
 *     jobs                    sums, selection, control
 *     public calls            options, states, target of a step, joules
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
