/* SPDX-License-Identifier: MIT */
#include "bench/perf/adamw.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define ADAMW_LOOP(AFTER)                                                                          \
    for (size_t i = 0; i < n; i++) {                                                               \
        m[i] = 0.9f * m[i] + 0.1f * g[i];                                                          \
        v[i] = 0.999f * v[i] + 0.001f * g[i] * g[i];                                               \
        p[i] = p[i] * 0.99999f - 0.001f * (m[i] / (sqrtf(v[i]) + 1e-8f));                          \
        AFTER;                                                                                     \
    }

#define ADAMW_BODY                                                                                 \
    if (clear)                                                                                     \
        ADAMW_LOOP(g[i] = 0.0f)                                                                    \
    else                                                                                           \
        ADAMW_LOOP((void)0)

#define ADAMW_PARAMETERS                                                                           \
    (float *restrict p, float *restrict g, float *restrict m, float *restrict v, size_t n,         \
     bool clear)

typedef void(*adamw_loop) ADAMW_PARAMETERS;

static void adamw_plain ADAMW_PARAMETERS {
    ADAMW_BODY
}

#if defined(__x86_64__)

__attribute__((target("avx2"))) static void adamw_avx2 ADAMW_PARAMETERS {
    ADAMW_BODY
}

__attribute__((target("avx512f"))) static void adamw_avx512 ADAMW_PARAMETERS {
    ADAMW_BODY
}

/* With the instructions of the kernels it is compared with. */
static adamw_loop best(void) {
    const char *asked = getenv("TAMIS_CPU");
    bool less = asked && (strcmp(asked, "avx2") == 0 || strcmp(asked, "portable") == 0);
    if (less && strcmp(asked, "portable") == 0)
        return adamw_plain;
    return !less && __builtin_cpu_supports("avx512f") ? adamw_avx512
           : __builtin_cpu_supports("avx2")           ? adamw_avx2
                                                      : adamw_plain;
}

#else

static adamw_loop best(void) {
    return adamw_plain;
}

#endif

void perf_adamw(float *p, float *g, float *m, float *v, size_t n, bool clear) {
    best()(p, g, m, v, n, clear);
}
