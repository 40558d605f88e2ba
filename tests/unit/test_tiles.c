/* SPDX-License-Identifier: MIT
 *
 * Every tile kernel gives the bits of a loop that follows tile.h word for word.
 *
 * test: slow
 */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/tile.h"
#include "lib/base/base.h"
#include "tests/support/data.h"

#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))

enum { TILE_MOST = 65536, GUARD = 16, BEFORE = 3 };

typedef struct tile_case {
    uint32_t length;
    int pattern;
    uint32_t threshold;
    unsigned acc_shift, grad_shift; /* floats past a 64-byte boundary */
    bool clear, search;
    float scale, decay; /* decay: 0 means 1 */
} tile_case;

/* All that a kernel may write, with guards around it. */
typedef struct tile_memory {
    float acc[TILE_MOST + 2 * GUARD], grad[TILE_MOST + 2 * GUARD];
    uint32_t index[TILE_MOST + BEFORE + TAM_TILE_SLACK + GUARD];
    uint32_t magnitude[TILE_MOST + BEFORE + TAM_TILE_SLACK + GUARD];
} tile_memory;

enum { SMOOTH, FEW_VALUES, ZEROS, TINY, BAD_GRADIENT, OVERFLOWING, BAD_RESIDUAL, TILE_PATTERNS };

static float choose(uint64_t random, const float *values, size_t count) {
    return values[random % count];
}

static void fill_tile(int pattern, uint32_t i, float *acc, float *grad) {
    static const float few[] = {0, -0.0f, 1, -1, 2};
    static const float tiny[] = {0, -0.0f, 1e-45f, -1e-45f, 1e-39f, FLT_MIN, -FLT_MIN};
    static const float bad[] = {NAN, INFINITY, -INFINITY, -NAN};
    static const float huge[] = {FLT_MAX, -FLT_MAX, FLT_MAX / 2, 1};
    uint64_t a = data_mix(2 * (uint64_t)i), b = data_mix(2 * (uint64_t)i + 1);
    float smooth = (float)(int64_t)(a >> 40) / 16777216.0f - 0.5f;
    *acc = smooth * smooth * smooth * 8;
    *grad = (float)(int64_t)(b >> 40) / 16777216.0f - 0.5f;
    if (pattern == FEW_VALUES) {
        *acc = choose(a, few, LENGTH(few));
        *grad = choose(b, few, LENGTH(few));
    } else if (pattern == ZEROS) {
        *acc = a & 1 ? 0 : -0.0f;
        *grad = b & 1 ? 0 : -0.0f;
    } else if (pattern == TINY) {
        *acc = choose(a, tiny, LENGTH(tiny));
        *grad = choose(b, tiny, LENGTH(tiny));
    } else if (pattern == BAD_GRADIENT && b % 97 == 0) {
        *grad = choose(a, bad, LENGTH(bad));
    } else if (pattern == OVERFLOWING) {
        *acc = choose(a, huge, LENGTH(huge));
        *grad = choose(b, huge, LENGTH(huge));
    } else if (pattern == BAD_RESIDUAL && a % 61 == 0) {
        *acc = choose(b, bad, LENGTH(bad));
    }
}

static void prepare(const tile_case *c, tile_memory *m) {
    for (size_t i = 0; i < LENGTH(m->acc); i++)
        m->acc[i] = m->grad[i] = 12345;
    for (uint32_t i = 0; i < c->length; i++)
        fill_tile(c->pattern, i, &m->acc[c->acc_shift + i], &m->grad[c->grad_shift + i]);
    memset(m->index, 0x5a, sizeof m->index);
    memset(m->magnitude, 0x5a, sizeof m->magnitude);
}

static tam_tile_job job_of(const tile_case *c, tile_memory *m) {
    return (tam_tile_job){
        .acc = m->acc + c->acc_shift,
        .grad = c->search ? NULL : m->grad + c->grad_shift,
        .decay = c->decay != 0.0f ? c->decay : 1.0f,
        .scale = c->scale,
        .clear = c->clear,
        .length = c->length,
        .base = 1000,
        .threshold = c->threshold,
    };
}

static void oracle_append(const tam_tile_job *job, uint32_t i, tam_tile_out *out) {
    uint32_t m = tam_magnitude(job->acc[i]);
    if (m < job->threshold || job->threshold == TAM_INFINITE_BITS)
        return;
    out->index[out->count] = job->base + i;
    out->magnitude[out->count++] = m;
}

static void oracle_sum(const float *s, uint32_t length, double *sum) {
    for (uint32_t at = 0; at < length; at += TAM_TILE_CHUNK) {
        float u[TAM_TILE_LANES] = {0};
        for (uint32_t i = at; i < length && i < at + TAM_TILE_CHUNK; i++)
            u[i % TAM_TILE_LANES] += s[i] * s[i];
        for (int half = TAM_TILE_LANES / 2; half > 0; half /= 2) {
            for (int l = 0; l < half; l++)
                u[l] += u[l + half];
        }
        *sum += (double)u[0];
    }
}

static void oracle_tile(const tam_tile_job *job, tam_tile_out *out) {
    for (uint32_t i = 0; i < job->length; i++) {
        if (job->grad) {
            float kept = job->decay * job->acc[i], s = kept + job->scale * job->grad[i];
            job->acc[i] = isfinite(s) ? s : kept;
            out->nonfinite += !isfinite(s);
            if (job->clear)
                job->grad[i] = 0;
        }
        oracle_append(job, i, out);
    }
    if (job->grad)
        oracle_sum(job->acc, job->length, &out->sum);
}

static bool same_sum(double a, double b) {
    return memcmp(&a, &b, sizeof a) == 0 || (isnan(a) && isnan(b));
}

static void check_tile(const tam_tile_level *level, const tile_case *c) {
    static tile_memory want_memory, have_memory;
    tile_memory *w = &want_memory, *h = &have_memory;
    prepare(c, w);
    prepare(c, h);
    tam_tile_job want_job = job_of(c, w), have_job = job_of(c, h);
    tam_tile_out want = {w->index, w->magnitude, BEFORE, 5, 0.3}, have = want;
    have.index = h->index;
    have.magnitude = h->magnitude;
    oracle_tile(&want_job, &want);
    level->run(&have_job, &have);

    bool ok = have.count == want.count && have.nonfinite == want.nonfinite;
    ok = ok && same_sum(have.sum, want.sum);
    ok = ok && memcmp(h->acc, w->acc, sizeof h->acc) == 0;
    ok = ok && memcmp(h->grad, w->grad, sizeof h->grad) == 0;
    ok = ok && memcmp(h->index, w->index, want.count * sizeof w->index[0]) == 0;
    ok = ok && memcmp(h->magnitude, w->magnitude, want.count * sizeof w->magnitude[0]) == 0;
    size_t end = BEFORE + c->length + TAM_TILE_SLACK;
    ok = ok && h->index[end] == 0x5a5a5a5au && h->magnitude[end] == 0x5a5a5a5au;
    if (!ok)
        fail_msg("%s: length %u, pattern %d, threshold %08x, shifts %u %u, clear %d, search %d: "
                 "count %zu for %zu, sum %a for %a",
                 level->name, c->length, c->pattern, c->threshold, c->acc_shift, c->grad_shift,
                 c->clear, c->search, have.count, want.count, have.sum, want.sum);
}

static void check_lengths(const tam_tile_level *level, tile_case c) {
    static const uint32_t lengths[] = {0,   1,   31,  32,  33,  63,   64,   65,   127,  128,
                                       129, 480, 511, 512, 513, 1000, 1023, 1024, 4096, 4097};
    for (size_t i = 0; i < LENGTH(lengths); i++) {
        c.length = lengths[i];
        check_tile(level, &c);
    }
}

static void check_level(const tam_tile_level *level) {
    const uint32_t thresholds[] = {1,
                                   2,
                                   tam_bits(0.25f),
                                   tam_bits(0.9f),
                                   tam_bits(2.0f),
                                   TAM_INFINITE_BITS - 1,
                                   TAM_INFINITE_BITS};
    for (int pattern = 0; pattern < TILE_PATTERNS; pattern++) {
        for (size_t t = 0; t < LENGTH(thresholds); t++) {
            for (unsigned mode = 0; mode < 3; mode++)
                check_lengths(level, (tile_case){.pattern = pattern,
                                                 .threshold = thresholds[t],
                                                 .clear = mode == 1,
                                                 .search = mode == 2,
                                                 .acc_shift = t % 4,
                                                 .grad_shift = mode,
                                                 .decay = t % 2 ? 0.9f : 0.0f,
                                                 .scale = pattern == FEW_VALUES ? -1.0f : 0.7f});
        }
    }
}

static void test_every_level_gives_the_bits_of_the_plain_loop(void **state) {
    (void)state;
    for (const tam_tile_level *level = tam_tile_levels; level->name; level++) {
        if (level->available())
            check_level(level);
        else
            print_message("level %s skipped: needs %s\n", level->name, level->needs);
    }
}

static void test_the_longest_tile_gives_the_bits_of_the_plain_loop(void **state) {
    (void)state;
    for (const tam_tile_level *level = tam_tile_levels; level->name; level++) {
        for (unsigned mode = 0; level->available() && mode < 3; mode++)
            check_tile(level, &(tile_case){.length = TILE_MOST,
                                           .pattern = BAD_GRADIENT,
                                           .threshold = tam_bits(0.5f),
                                           .clear = mode == 1,
                                           .search = mode == 2,
                                           .acc_shift = 1,
                                           .scale = 0.3f});
    }
}

static void test_an_infinite_scale_changes_nothing_but_the_count_of_bad_entries(void **state) {
    (void)state;
    for (const tam_tile_level *level = tam_tile_levels; level->name; level++) {
        if (level->available())
            check_lengths(
                level,
                (tile_case){.pattern = SMOOTH, .threshold = 1, .clear = true, .scale = INFINITY});
    }
}

static void test_the_level_in_use_is_in_the_table_and_available(void **state) {
    (void)state;
    const tam_tile_level *best = tam_tile_best();
    assert_non_null(best);
    assert_true(best->available());
    const char *name = tam_setting_text(TAM_SETTING_CPU);
    if (strcmp(name, "portable") == 0)
        assert_string_equal(best->name, name);
}
int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_level_gives_the_bits_of_the_plain_loop),
        cmocka_unit_test(test_the_longest_tile_gives_the_bits_of_the_plain_loop),
        cmocka_unit_test(test_an_infinite_scale_changes_nothing_but_the_count_of_bad_entries),
        cmocka_unit_test(test_the_level_in_use_is_in_the_table_and_available),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
