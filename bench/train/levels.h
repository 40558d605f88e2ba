/* SPDX-License-Identifier: MIT
 *
 * Compiles one loop for three instruction sets and chooses the best one at run time. The loop is an
 * inline function NAME_loop that works element by element, so all three give the same bits:
 *
 *     LEVELS_LOOP add_loop(size_t n, float *restrict x) { ... }
 *     LEVELS(add, (size_t n, float *restrict x), (n, x))       defines void add(size_t n, float *x)
 *
 * This does not use target_clones, whose resolver runs before the sanitizers are ready.
 */
#ifndef TAMIS_TRAIN_LEVELS_H
#define TAMIS_TRAIN_LEVELS_H

#define LEVELS_INLINE static inline __attribute__((always_inline))
#define LEVELS_LOOP LEVELS_INLINE void

#if defined(__x86_64__)

#define LEVELS(name, parameters, arguments)                                                        \
    static void name##_plain parameters {                                                          \
        name##_loop arguments;                                                                     \
    }                                                                                              \
    __attribute__((target("avx2"))) static void name##_avx2 parameters {                           \
        name##_loop arguments;                                                                     \
    }                                                                                              \
    __attribute__((target("avx512f"))) static void name##_avx512 parameters {                      \
        name##_loop arguments;                                                                     \
    }                                                                                              \
    void name parameters {                                                                         \
        if (__builtin_cpu_supports("avx512f"))                                                     \
            name##_avx512 arguments;                                                               \
        else if (__builtin_cpu_supports("avx2"))                                                   \
            name##_avx2 arguments;                                                                 \
        else                                                                                       \
            name##_plain arguments;                                                                \
    }

#else

#define LEVELS(name, parameters, arguments)                                                        \
    void name parameters {                                                                         \
        name##_loop arguments;                                                                     \
    }

#endif

#endif
