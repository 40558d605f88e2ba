/* SPDX-License-Identifier: MIT
 *
 * Which tile kernel runs: the best that the processor has, or the one that TAMIS_CPU names.
 */
#include "kernels/cpu/tile.h"

#include "lib/base/base.h"

#include <stdatomic.h>

static bool always(void) {
    return true;
}

#ifdef TAM_HAVE_X86_KERNELS
static bool have_avx2(void) {
    return __builtin_cpu_supports("avx2");
}

static bool have_avx512(void) {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("bmi");
}
#endif

const tam_tile_level tam_tile_levels[] = {
    {"portable", tam_tile_portable, tam_widen_portable, always, "any processor"},
#ifdef TAM_HAVE_X86_KERNELS
    {"avx2", tam_tile_avx2, tam_widen_avx2, have_avx2, "AVX2"},
    {"avx512", tam_tile_avx512, tam_widen_avx512, have_avx512, "AVX-512 F, DQ, BW and VL, and BMI"},
#endif
#ifdef TAM_HAVE_NEON_KERNELS
    {"neon", tam_tile_neon, tam_widen_neon, always, "64-bit Arm"},
#endif
    {NULL, NULL, NULL, NULL, NULL},
};

static const tam_tile_level *best_available(void) {
    const tam_tile_level *best = tam_tile_levels;
    for (const tam_tile_level *level = tam_tile_levels; level->name; level++) {
        if (level->available())
            best = level;
    }
    return best;
}

static const tam_tile_level *named(const char *name) {
    for (const tam_tile_level *level = tam_tile_levels; level->name; level++) {
        if (strcmp(level->name, name) == 0 && level->available())
            return level;
    }
    return NULL;
}

const tam_tile_level *tam_tile_best(void) {
    static atomic_flag warned = ATOMIC_FLAG_INIT;
    const char *name = tam_setting_text(TAM_SETTING_CPU);
    const tam_tile_level *level = strcmp(name, "auto") == 0 ? NULL : named(name);
    if (level)
        return level;
    level = best_available();
    if (strcmp(name, "auto") != 0 && !atomic_flag_test_and_set(&warned))
        tam_log(TAM_WARN, "TAMIS_CPU=%s: this processor or this build lacks it; using %s", name,
                level->name);
    return level;
}
