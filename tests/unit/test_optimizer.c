/* SPDX-License-Identifier: MIT
 *
 * Updates in the tile kernels: every level gives the bits of a loop that follows optimizer.h word
 * for word, in residual, moments, candidates and counts.
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

enum { MOST = 4100, BASE = 5, GUARD = 32, PASSES = 3 };

enum { ADAM, ADAM_WITHOUT_FIRST, MOMENTUM, RULES };

typedef struct optimizer_case {
    uint32_t length, threshold;
    int rule;
    unsigned shift;
    bool clear, bad;
    float decay, scale;
} optimizer_case;

/* Moments begin BASE elements before those of the tile. */
typedef struct memory {
    float acc[MOST + GUARD], grad[MOST + GUARD];
    float first[BASE + MOST + GUARD], second[BASE + MOST + GUARD];
    uint32_t index[MOST + TAM_TILE_SLACK], magnitude[MOST + TAM_TILE_SLACK];
} memory;

static float value(uint64_t i) {
    return (float)(int64_t)(data_mix(i) >> 40) / 16777216.0f - 0.5f;
}

static float bad_value(uint64_t random) {
    static const float bad[] = {NAN, INFINITY, -INFINITY, 1e30f, -3e38f};
    return bad[random % 5];
}

static void fill_gradient(const optimizer_case *c, uint32_t pass, memory *m) {
    for (uint32_t i = 0; i < c->length; i++) {
        uint64_t random = data_mix(i + 7919u * pass);
        m->grad[c->shift + i] = value(i + 4099u * pass) * (random % 7 == 0 ? 1e-24f : 3.0f);
        if (random % 11 == 0)
            m->grad[c->shift + i] = 0.0f;
        if (c->bad && random % 53 == 0)
            m->grad[c->shift + i] = bad_value(random / 53);
    }
}

static void prepare(const optimizer_case *c, memory *m) {
    memset(m, 0, sizeof *m);
    for (uint32_t i = 0; i < c->length; i++)
        m->acc[c->shift + i] = value(i + 31) * 4;
    for (uint32_t i = 0; i < GUARD; i++)
        m->first[BASE + c->length + i] = m->second[BASE + c->length + i] = 77;
}

static tam_optimizer optimizer_of(const optimizer_case *c, memory *m, uint32_t pass) {
    double power1 = pow(0.9, pass + 1), power2 = pow(0.99, pass + 1);
    return (tam_optimizer){
        .rule = c->rule == MOMENTUM ? TAMIS_UPDATE_MOMENTUM : TAMIS_UPDATE_ADAM,
        .first = c->rule == ADAM_WITHOUT_FIRST ? NULL : m->first,
        .second = c->rule == MOMENTUM ? NULL : m->second,
        .keep1 = 0.9f,
        .take1 = c->rule == MOMENTUM ? 1.0f : 0.1f,
        .keep2 = 0.99f,
        .take2 = 0.01f,
        .correct1 = c->rule == ADAM ? (float)(1.0 / (1.0 - power1)) : 1.0f,
        .correct2 = (float)(1.0 / (1.0 - power2)),
        .epsilon = 1e-8f,
    };
}

/* One entry. @return false: it does not come out finite, and nothing has moved */
static bool oracle_take(const tam_optimizer *p, size_t i, float g, float *u) {
    float m = g, v = 0.0f, spread = 0.0f;
    if (p->first)
        m = p->keep1 * p->first[i] + p->take1 * g;
    *u = m;
    if (p->second) {
        v = p->keep2 * p->second[i] + (p->take2 * g) * g;
        spread = v * p->correct2;
        *u = (m * p->correct1) / (sqrtf(spread) + p->epsilon);
    }
    if (!isfinite(*u) || !isfinite(spread))
        return false;
    if (p->first)
        p->first[i] = m;
    if (p->second)
        p->second[i] = v;
    return true;
}

static void oracle(const tam_tile_job *job, tam_tile_out *out) {
    for (uint32_t i = 0; i < job->length; i++) {
        float u, kept = job->decay * job->acc[i];
        bool sound = oracle_take(job->optimizer, job->base + i, job->scale * job->grad[i], &u);
        sound = sound && isfinite(kept + u); /* then the moments have moved */
        job->acc[i] = sound ? kept + u : kept;
        out->nonfinite += !sound;
        if (job->clear)
            job->grad[i] = 0.0f;
        if (tam_magnitude(job->acc[i]) >= job->threshold) {
            out->index[out->count] = job->base + i;
            out->magnitude[out->count++] = tam_magnitude(job->acc[i]);
        }
    }
}

static void run(const optimizer_case *c, const tam_tile_level *level, uint32_t pass, memory *m,
                tam_tile_out *out) {
    tam_optimizer optimizer = optimizer_of(c, m, pass);
    tam_tile_job job = {.acc = m->acc + c->shift,
                        .grad = m->grad + c->shift,
                        .decay = c->decay,
                        .scale = c->scale,
                        .clear = c->clear,
                        .optimizer = &optimizer,
                        .length = c->length,
                        .base = BASE,
                        .threshold = c->threshold};
    *out = (tam_tile_out){.index = m->index, .magnitude = m->magnitude};
    if (level)
        level->run(&job, out);
    else
        oracle(&job, out);
}

static bool same(const memory *a, const memory *b, const tam_tile_out *x, const tam_tile_out *y) {
    size_t bytes = x->count * sizeof(uint32_t);
    return x->count == y->count && x->nonfinite == y->nonfinite &&
           memcmp(a->acc, b->acc, sizeof a->acc) == 0 &&
           memcmp(a->grad, b->grad, sizeof a->grad) == 0 &&
           memcmp(a->first, b->first, sizeof a->first) == 0 &&
           memcmp(a->second, b->second, sizeof a->second) == 0 &&
           memcmp(a->index, b->index, bytes) == 0 && memcmp(a->magnitude, b->magnitude, bytes) == 0;
}

static void check(const tam_tile_level *level, const optimizer_case *c) {
    static memory want, have;
    tam_tile_out expected, got;
    prepare(c, &want);
    prepare(c, &have);
    for (uint32_t pass = 0; pass < PASSES; pass++) {
        fill_gradient(c, pass, &want);
        fill_gradient(c, pass, &have);
        run(c, NULL, pass, &want, &expected);
        run(c, level, pass, &have, &got);
        if (!same(&want, &have, &expected, &got))
            fail_msg("%s: rule %d, length %u, pass %u, decay %g, bad %d: %zu candidates for %zu, "
                     "%llu dropped for %llu",
                     level->name, c->rule, c->length, pass, (double)c->decay, c->bad, got.count,
                     expected.count, (unsigned long long)got.nonfinite,
                     (unsigned long long)expected.nonfinite);
    }
}

static void check_level(const tam_tile_level *level, int rule) {
    static const uint32_t lengths[] = {1,   7,   8,   31,  32,  33,   63,   64,  65,
                                       127, 255, 511, 512, 513, 1000, 1024, 4097};
    for (size_t l = 0; l < sizeof lengths / sizeof lengths[0]; l++) {
        for (unsigned mode = 0; mode < 6; mode++)
            check(level,
                  &(optimizer_case){.length = lengths[l],
                                    .threshold = mode == 0 ? TAM_INFINITE_BITS : tam_bits(1.5f),
                                    .rule = rule,
                                    .shift = mode % 4,
                                    .clear = mode % 2 == 1,
                                    .bad = mode % 3 == 2,
                                    .decay = mode == 4  ? 0.0f
                                             : mode < 2 ? 1.0f
                                                        : 0.7f,
                                    .scale = mode == 3 ? -0.3f : 1.0f});
    }
}

static void check_levels(int rule) {
    for (const tam_tile_level *level = tam_tile_levels; level->name; level++) {
        if (level->available())
            check_level(level, rule);
        else
            print_message("level %s skipped: needs %s\n", level->name, level->needs);
    }
}

static void test_adam_has_the_bits_of_the_plain_loop_on_every_level(void **state) {
    (void)state;
    check_levels(ADAM);
}

static void test_adam_without_a_first_moment_too(void **state) {
    (void)state;
    check_levels(ADAM_WITHOUT_FIRST);
}

static void test_momentum_too(void **state) {
    (void)state;
    check_levels(MOMENTUM);
}

/* What the published algorithm says, in binary64 and by its own formulas. */
static void test_adam_is_adam(void **state) {
    (void)state;
    static memory m;
    const optimizer_case c = {
        .length = 1, .threshold = TAM_INFINITE_BITS, .rule = ADAM, .decay = 0.0f, .scale = 1.0f};
    double first = 0.0, second = 0.0;
    tam_tile_out out;
    prepare(&c, &m);
    for (uint32_t pass = 0; pass < 50; pass++) {
        double g = (double)value(pass + 1000);
        m.grad[0] = (float)g;
        run(&c, tam_tile_best(), pass, &m, &out);
        first = 0.9 * first + 0.1 * g;
        second = 0.99 * second + 0.01 * g * g;
        double u = first / (1.0 - pow(0.9, pass + 1)) /
                   (sqrt(second / (1.0 - pow(0.99, pass + 1))) + 1e-8);
        assert_true(fabs((double)m.acc[0] - u) < 3e-6 * (fabs(u) + 0.1));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_adam_has_the_bits_of_the_plain_loop_on_every_level),
        cmocka_unit_test(test_adam_without_a_first_moment_too),
        cmocka_unit_test(test_momentum_too),
        cmocka_unit_test(test_adam_is_adam),
    };
    return cmocka_run_group_tests_name("optimizer", tests, NULL, NULL);
}
