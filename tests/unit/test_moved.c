/* SPDX-License-Identifier: MIT
 *
 * Steps given as parameters before and after, in the tile kernels: every level gives the bits of a
 * loop of one line, and of the portable kernel, in residual, parameters, candidates, counts and
 * sums. Lengths, places and numbers are random.
 */
#include "kernels/cpu/tile.h"
#include "lib/base/base.h"
#include "tests/support/data.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

enum { MOST = 4100, BASE = 5, GUARD = 32, SHIFTS = 16, CASES = 400 };

typedef struct moved_case {
    uint64_t seed;
    uint32_t length, threshold;
    unsigned shift; /* of each of the three vectors, in elements */
    bool bad;
    float decay, scale;
} moved_case;

typedef struct memory {
    float acc[SHIFTS + MOST + GUARD], grad[SHIFTS + MOST + GUARD], before[SHIFTS + MOST + GUARD];
    uint32_t index[MOST + TAM_TILE_SLACK], magnitude[MOST + TAM_TILE_SLACK];
} memory;

static float value(uint64_t i) {
    return (float)(int64_t)(data_mix(i) >> 40) / 16777216.0f - 0.5f;
}

static float bad_value(uint64_t random) {
    static const float bad[] = {NAN, INFINITY, -INFINITY, 3e38f, -3e38f};
    return bad[random % 5];
}

static unsigned shift_of(const moved_case *c, unsigned vector) {
    return (c->shift + 5 * vector) % SHIFTS;
}

/* Entries that did not move are frequent, and so are zeros of both signs. */
static void prepare(const moved_case *c, memory *m) {
    memset(m, 0x7b, sizeof *m);
    float *acc = m->acc + shift_of(c, 0), *grad = m->grad + shift_of(c, 1);
    float *before = m->before + shift_of(c, 2);
    for (uint32_t i = 0; i < c->length; i++) {
        uint64_t random = data_mix(c->seed + i);
        acc[i] = value(random + 1) * 4;
        before[i] = value(random + 2) * (random % 7 == 0 ? 1e-30f : 2.0f);
        grad[i] = before[i] + value(random + 3) * 1e-3f;
        if (random % 11 == 0)
            grad[i] = before[i];
        if (random % 13 == 0)
            grad[i] = before[i] = acc[i] = -0.0f;
        if (c->bad && random % 53 == 0)
            grad[i] = bad_value(random / 53);
        if (c->bad && random % 59 == 0)
            before[i] = bad_value(random / 59);
    }
}

static tam_tile_job job_of(const moved_case *c, memory *m) {
    return (tam_tile_job){
        .acc = m->acc + shift_of(c, 0),
        .grad = m->grad + shift_of(c, 1),
        .before = m->before + shift_of(c, 2),
        .decay = c->decay,
        .scale = c->scale,
        .length = c->length,
        .base = BASE,
        .threshold = c->threshold,
    };
}

static void oracle(const tam_tile_job *job, tam_tile_out *out) {
    for (uint32_t i = 0; i < job->length; i++) {
        float u = (job->before[i] - job->grad[i]) * job->scale, kept = job->decay * job->acc[i];
        float s = kept + u;
        out->nonfinite += !isfinite(s);
        job->acc[i] = isfinite(s) ? s : kept;
        job->grad[i] = job->before[i];
        if (tam_magnitude(job->acc[i]) >= job->threshold) {
            out->index[out->count] = job->base + i;
            out->magnitude[out->count++] = tam_magnitude(job->acc[i]);
        }
    }
}

static tam_tile_out run(const moved_case *c, tam_tile_kernel kernel, memory *m) {
    tam_tile_job job = job_of(c, m);
    tam_tile_out out = {.index = m->index, .magnitude = m->magnitude};
    prepare(c, m);
    kernel(&job, &out);
    return out;
}

static bool same(const memory *a, const memory *b, const tam_tile_out *x, const tam_tile_out *y) {
    size_t bytes = x->count * sizeof(uint32_t);
    return x->count == y->count && x->nonfinite == y->nonfinite &&
           memcmp(a->acc, b->acc, sizeof a->acc) == 0 &&
           memcmp(a->grad, b->grad, sizeof a->grad) == 0 &&
           memcmp(a->before, b->before, sizeof a->before) == 0 &&
           memcmp(a->index, b->index, bytes) == 0 && memcmp(a->magnitude, b->magnitude, bytes) == 0;
}

static void check(const tam_tile_level *level, const moved_case *c) {
    static memory want, have, portable;
    tam_tile_out expected = run(c, oracle, &want), got = run(c, level->run, &have);
    tam_tile_out plain = run(c, tam_tile_portable, &portable);
    if (!same(&want, &have, &expected, &got) || got.sum != plain.sum)
        fail_msg("%s: seed %llu, length %u, shift %u, decay %g, bad %d: %zu candidates for %zu, "
                 "%llu dropped for %llu, sum %g for %g",
                 level->name, (unsigned long long)c->seed, c->length, c->shift, (double)c->decay,
                 c->bad, got.count, expected.count, (unsigned long long)got.nonfinite,
                 (unsigned long long)expected.nonfinite, got.sum, plain.sum);
}

static moved_case random_case(uint64_t number) {
    static const float decays[] = {0.0f, 1.0f, 0.7f}, rates[] = {1e-4f, 0.3f, 1.0f, 7.0f};
    static const uint32_t edges[] = {1, 8, 16, 31, 33, 63, 64, 65, 511, 512, 513, 1024};
    uint64_t random = data_mix(number * 1000003 + 17);
    return (moved_case){
        .seed = number * 65537,
        .length = random % 3 ? (uint32_t)(random / 3 % MOST) + 1 : edges[random / 3 % 12],
        .threshold = random / 5 % 5 ? tam_bits((float)(random / 25 % 4) + 0.5f) : TAM_INFINITE_BITS,
        .shift = (unsigned)(random / 101 % SHIFTS),
        .bad = random / 1009 % 3 == 0,
        .decay = decays[random / 3001 % 3],
        .scale = 1.0f / rates[random / 9001 % 4],
    };
}

static void test_every_level_has_the_bits_of_the_plain_loop(void **state) {
    (void)state;
    for (const tam_tile_level *level = tam_tile_levels; level->name; level++) {
        if (!level->available()) {
            print_message("level %s skipped: needs %s\n", level->name, level->needs);
            continue;
        }
        for (uint64_t number = 0; number < CASES; number++) {
            moved_case c = random_case(number);
            check(level, &c);
        }
    }
}

/* The cases hold what the test is about. */
static void test_cases_move_drop_and_find(void **state) {
    static memory m;
    uint64_t dropped = 0, found = 0, moved = 0;
    (void)state;
    for (uint64_t number = 0; number < CASES; number++) {
        moved_case c = random_case(number);
        tam_tile_out out = run(&c, oracle, &m);
        dropped += out.nonfinite;
        found += out.count;
        moved += c.length;
    }
    assert_true(dropped > 1000 && found > 10000 && found < moved);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_level_has_the_bits_of_the_plain_loop),
        cmocka_unit_test(test_cases_move_drop_and_find),
    };
    return cmocka_run_group_tests_name("moved", tests, NULL, NULL);
}
