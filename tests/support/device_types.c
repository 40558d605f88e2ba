/* SPDX-License-Identifier: MIT
 *
 * Gradients of every type, flat and by segment, aligned to one element only: a step gives the bits
 * that the CPU's row gives for a plain float32 gradient of the same values.
 */
#include "kernels/cpu/cpu.h"
#include "lib/base/half.h"
#include "tests/support/data.h"
#include "tests/support/device_body.h"
#include "tests/support/world.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

enum { APART = 3, MARGIN = 16, FILLER = 0x5a };

/* A gradient on a device, flat or segment by segment, with a filler around and between:
 *
 *     memory   filler | segment 0 | filler | segment 1 | ...
 */
typedef struct gradient {
    world *w;
    tamis_dtype type;
    bool by_segment;
    size_t shift;                  /* elements before the first segment */
    unsigned char *memory, *image; /* on the device, and of the host */
    size_t bytes;                  /* of memory */
    void *grads[GROUPS];
} gradient;

static size_t offset_of(const gradient *g, uint32_t segment) {
    size_t apart = g->by_segment ? APART * segment : 0;
    return (g->shift + g->w->begins[segment] + apart) * tam_type_bytes(g->type);
}

static void gradient_open(gradient *g, const float *values) {
    const tam_device *row = g->w->row;
    g->bytes = (g->w->grid.n + g->shift + APART * GROUPS + MARGIN) * tam_type_bytes(g->type);
    g->memory = row->alloc(g->w->device, g->bytes);
    g->image = test_malloc(g->bytes);
    assert_non_null(g->memory);
    memset(g->image, FILLER, g->bytes);
    for (uint32_t s = 0; s < GROUPS; s++) {
        tam_narrow(values + g->w->begins[s], g->w->groups[s].length, g->type,
                   g->image + offset_of(g, s));
        g->grads[s] = g->memory + offset_of(g, s);
    }
    assert_int_equal(row->write(g->w->device, g->image, g->bytes, g->memory), TAMIS_OK);
}

/* Read the gradient, widened; the filler around it must be unchanged. */
static void gradient_look(gradient *g, float *values) {
    const tam_device *row = g->w->row;
    size_t at = 0;
    assert_int_equal(row->read(g->w->device, g->memory, g->bytes, g->image), TAMIS_OK);
    for (uint32_t s = 0; s < GROUPS; s++) {
        uint32_t length = g->w->groups[s].length;
        for (; at < offset_of(g, s); at++)
            assert_int_equal(g->image[at], FILLER);
        tam_widen(g->type, g->image + at, length, values + g->w->begins[s]);
        at += length * tam_type_bytes(g->type);
    }
    for (; at < g->bytes; at++)
        assert_int_equal(g->image[at], FILLER);
}

static void gradient_close(gradient *g) {
    g->w->row->release(g->w->device, g->memory);
    test_free(g->image);
}

static tam_accumulate job_of(const gradient *g, bool clear) {
    return (tam_accumulate){.acc = g->w->acc,
                            .grad = g->by_segment ? NULL : g->grads[0],
                            .grads = g->by_segment ? g->grads : NULL,
                            .type = g->type,
                            .seg_begin = g->w->begins,
                            .decay = 1.0f,
                            .scale = 0.7f,
                            .clear = clear};
}

/* Accumulate, select, and write the chosen entries back divided. */
static size_t run_step(gradient *g, bool clear, uint32_t mine, float *values) {
    const uint32_t thresholds[GROUPS] = {tam_bits(30.0f), 1, tam_bits(10.0f), 1, tam_bits(90.0f)};
    world *w = g->w;
    tam_accumulate job = job_of(g, clear);
    job.mine = mine;
    job.thresholds = thresholds;
    assert_int_equal(w->row->accumulate(w->device, &job, &w->seen), TAMIS_OK);
    world_look(w);
    tam_select_result r = world_select(w, &(tam_select_job){.kind = TAM_SELECT_TOTAL,
                                                            .acc = w->acc,
                                                            .mine = mine,
                                                            .k = w->grid.n / 150,
                                                            .candidates = &w->seen.candidates,
                                                            .floor_key = 91.0f});
    size_t count = r.count;
    assert_int_equal(w->row->gather(w->device, w->acc, w->indices, count, values), TAMIS_OK);
    assert_int_equal(w->row->apply(w->device, &job, w->indices, count, 3.0f, values), TAMIS_OK);
    assert_int_equal(w->row->put(w->device, w->acc, w->indices, count, NULL), TAMIS_OK);
    return count;
}

static void same_candidates(const world *a, const world *b) {
    const tam_candidates *x = &a->seen.candidates, *y = &b->seen.candidates;
    size_t bytes = x->count * sizeof x->index[0];
    assert_int_equal(x->complete, y->complete);
    assert_int_equal(x->count, y->count);
    uint32_t *have = test_malloc(bytes + 1);
    assert_int_equal(a->row->read(a->device, x->index, bytes, have), TAMIS_OK);
    assert_memory_equal(have, y->index, bytes);
    assert_int_equal(a->row->read(a->device, x->magnitude, bytes, have), TAMIS_OK);
    assert_memory_equal(have, y->magnitude, bytes);
    test_free(have);
}

/* Write to the first and the last entry of every segment. */
static void apply_at_edges(gradient *g) {
    float values[2 * GROUPS];
    uint32_t edges[2 * GROUPS], count = 0;
    const world *w = g->w;
    for (uint32_t s = 0; s < GROUPS; s++) {
        edges[count++] = w->begins[s];
        if (w->groups[s].length > 1)
            edges[count++] = w->begins[s] + w->groups[s].length - 1;
    }
    for (uint32_t i = 0; i < count; i++)
        values[i] = (float)(i + 1);
    tam_accumulate job = job_of(g, true);
    assert_int_equal(w->row->apply(w->device, &job, edges, count, 3.0f, values), TAMIS_OK);
}

/* Some entries are bad, some exceed binary16, some are subnormal there. */
static float gradient_value(const world *w, uint32_t i) {
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    float x = world_value(HEAVY, i + 1234567, (uint32_t)w->grid.n);
    return i % 211 == 5 ? bad[i % 3] : i % 5 == 0 ? x * 1e-6f : x;
}

typedef struct twin_case {
    tamis_dtype type;
    bool by_segment, clear;
    size_t shift;
    int parts;
    uint32_t n, block, threads;
} twin_case;

/* The row under test with this gradient, the CPU's with a plain one of the same values. */
typedef struct twins {
    world tested, plain;
    gradient odd, even;
    float *values, *have, *want; /* [n] */
} twins;

static void twins_open(twins *t, const twin_case *c) {
    world_plan plan = {
        .n = c->n, .block = c->block, .parts = c->parts, .capacity = c->n, .threads = c->threads};
    world_open(&t->tested, plan);
    plan.row = &tam_device_cpu;
    plan.threads = 1;
    world_open(&t->plain, plan);
    world_fill(&t->tested, HEAVY);
    world_fill(&t->plain, HEAVY);
    t->values = test_calloc(c->n, sizeof t->values[0]);
    t->have = test_calloc(c->n, sizeof t->have[0]);
    t->want = test_calloc(c->n, sizeof t->want[0]);
    for (uint32_t i = 0; i < c->n; i++)
        t->values[i] = gradient_value(&t->plain, i);
    t->odd = (gradient){
        .w = &t->tested, .type = c->type, .by_segment = c->by_segment, .shift = c->shift};
    t->even = (gradient){.w = &t->plain};
    gradient_open(&t->odd, t->values);
    gradient_look(&t->odd, t->values); /* now rounded to the type */
    gradient_open(&t->even, t->values);
}

static void twins_close(twins *t) {
    gradient_close(&t->odd);
    gradient_close(&t->even);
    world_close(&t->tested);
    world_close(&t->plain);
    test_free(t->values);
    test_free(t->have);
    test_free(t->want);
}

static void same_step(twins *t, size_t count) {
    const world *a = &t->tested, *b = &t->plain;
    size_t n = a->grid.n;
    assert_memory_equal(a->mirror, b->mirror, n * sizeof a->mirror[0]);
    assert_memory_equal(a->seen.group_sums, b->seen.group_sums, sizeof(double[GROUPS]));
    assert_int_equal(a->seen.nonfinite, b->seen.nonfinite);
    same_candidates(a, b);
    assert_memory_equal(a->indices, b->indices, count * sizeof a->indices[0]);
    assert_memory_equal(t->have, t->want, count * sizeof t->have[0]);
    world_look(&t->tested);
    world_look(&t->plain);
    assert_memory_equal(a->mirror, b->mirror, n * sizeof a->mirror[0]);
}

/* One gradient must hold the other's values, rounded. */
static void same_gradients(twins *t) {
    size_t n = t->tested.grid.n;
    gradient_look(&t->odd, t->have);
    gradient_look(&t->even, t->want);
    for (size_t i = 0; i < n; i++) {
        uint16_t narrow[2]; /* room for any type */
        tam_narrow(&t->want[i], 1, t->odd.type, narrow);
        tam_widen(t->odd.type, narrow, 1, &t->want[i]);
    }
    assert_memory_equal(t->have, t->want, n * sizeof t->have[0]);
}

static void check_twins(const twin_case *c) {
    twins t;
    uint32_t mine = c->clear ? 1 : TAM_PART_ALL;
    twins_open(&t, c);
    size_t count = run_step(&t.even, c->clear, mine, t.want);
    assert_in_range(count, 1, c->n);
    assert_true(t.plain.seen.nonfinite > 0 && t.plain.seen.candidates.complete);
    assert_int_equal(run_step(&t.odd, c->clear, mine, t.have), count);
    same_step(&t, count);
    apply_at_edges(&t.odd);
    apply_at_edges(&t.even);
    same_gradients(&t);
    twins_close(&t);
}

static void check_types(twin_case c) {
    for (int type = TAMIS_DTYPE_FLOAT32; type <= TAMIS_DTYPE_BFLOAT16; type++) {
        c.type = (tamis_dtype)type;
        check_twins(&c);
    }
}

static void test_every_type_and_place_of_the_gradient_gives_the_same_bits(void **state) {
    (void)state;
    uint32_t n = world_length(30001);
    for (unsigned i = 0; i < 8; i++) {
        for (int parts = 0; parts < PART_RULES; parts++)
            check_types((twin_case){
                .by_segment = i & 1, .clear = i & 2, .shift = i >> 2, .parts = parts, .n = n});
    }
}

static void test_long_tiles_and_threads_give_the_same_bits(void **state) {
    (void)state;
    uint32_t n = world_length(300001);
    check_types((twin_case){.n = n, .threads = 3, .clear = true});
    check_types((twin_case){.n = n, .threads = 3, .block = 60000, .parts = BY_GROUP});
    check_types((twin_case){.n = n, .block = 5001, .by_segment = true});
}

/* Mostly tiles shorter than chunks, so that there are many chunks; segments begin anywhere. */
static void test_any_division_and_place_gives_the_same_bits(void **state) {
    (void)state;
    for (unsigned i = 0; i < 6; i++) {
        uint64_t random = data_mix(4711 + i);
        check_twins(&(twin_case){.type = (tamis_dtype)(i % 3),
                                 .by_segment = i != 4,
                                 .clear = random & 1,
                                 .shift = random >> 1 & 7,
                                 .parts = (int)(random >> 4 & 0xff) % PART_RULES,
                                 .n = world_length(1000 + (random >> 12 & 0xfff)),
                                 .block = 1 + (random >> 24 & (i == 5 ? 0x7ff : 0x1f)),
                                 .threads = 1 + i % 3});
    }
}

/* Ties of both types in either direction, overflow and underflow, as half.h rounds them. */
static void test_results_are_rounded_to_the_type_of_the_gradient(void **state) {
    (void)state;
    enum { N = 1000, COUNT = 9 };
    static const uint32_t indices[COUNT] = {0, 1, 5, 6, 141, 142, 143, 700, N - 1};
    static const float results[COUNT] = {0x1.002p0f, 0x1.006p0f, 0x1.01p0f, 0x1.03p0f, 65519.996f,
                                         65520.0f,   -1e-8f,     3e-6f,     -3e38f};
    world w;
    world_open(&w, (world_plan){.n = N, .capacity = 10});
    for (unsigned i = 0; i < 4; i++) {
        tamis_dtype type = i & 1 ? TAMIS_DTYPE_FLOAT16 : TAMIS_DTYPE_BFLOAT16;
        float values[COUNT], have[N], want[N] = {0};
        uint16_t narrow[2 * COUNT]; /* room for any type */
        gradient g = {.w = &w, .type = type, .by_segment = i & 2, .shift = 1};
        gradient_open(&g, want);
        tam_accumulate job = job_of(&g, true);
        memcpy(values, results, sizeof values);
        assert_int_equal(w.row->apply(w.device, &job, indices, COUNT, 1.0f, values), TAMIS_OK);
        assert_memory_equal(values, results, sizeof values);
        tam_narrow(results, COUNT, type, narrow);
        for (int j = 0; j < COUNT; j++)
            tam_widen(type, &narrow[j], 1, &want[indices[j]]);
        gradient_look(&g, have);
        assert_memory_equal(have, want, sizeof want);
        gradient_close(&g);
    }
    world_close(&w);
}

int device_divisions(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_any_division_and_place_gives_the_same_bits),
    };
    return cmocka_run_group_tests_name("divisions", tests, NULL, NULL);
}

int device_types(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_type_and_place_of_the_gradient_gives_the_same_bits),
        cmocka_unit_test(test_long_tiles_and_threads_give_the_same_bits),
        cmocka_unit_test(test_results_are_rounded_to_the_type_of_the_gradient),
    };
    return cmocka_run_group_tests_name("types", tests, NULL, NULL);
}
