/* SPDX-License-Identifier: MIT
 *
 * Updates and decay through the device contract: passes over gradients of every type, with any
 * number of threads, give the bits of the CPU's row for float32 in one thread, moments included.
 */
#include "kernels/cpu/cpu.h"
#include "lib/base/half.h"
#include "tests/support/device_body.h"
#include "tests/support/world.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

enum { PASSES = 4 };

enum { ADAM, ADAM_WITHOUT_FIRST, MOMENTUM, RULES };

/* A vector with its moments. */
typedef struct side {
    world w;
    tamis_dtype type;
    float *first, *second;
    void *grad;
} side;

static void *take(const side *s, size_t bytes) {
    void *memory = s->w.row->alloc(s->w.device, bytes);
    assert_non_null(memory);
    return memory;
}

static void side_open(side *s, world_plan plan, tamis_dtype type, unsigned shift) {
    world_open(&s->w, plan);
    world_fill(&s->w, HEAVY);
    s->type = type;
    s->first = take(s, plan.n * sizeof(float));
    s->second = take(s, plan.n * sizeof(float));
    s->grad = (char *)take(s, (plan.n + shift) * sizeof(float)) + shift * tam_type_bytes(type);
}

static void side_close(side *s, unsigned shift) {
    s->w.row->release(s->w.device, (char *)s->grad - shift * tam_type_bytes(s->type));
    s->w.row->release(s->w.device, s->second);
    s->w.row->release(s->w.device, s->first);
    world_close(&s->w);
}

static void run_pass(side *s, int rule, const uint16_t *halves, const float *values,
                     uint32_t pass) {
    static const uint32_t thresholds[GROUPS] = {0x41000000, 1, 0x41800000, 1, 0x40000000};
    static const float decays[PASSES] = {0.6f, 1.0f, 0.0f, 0.6f};
    const world *w = &s->w;
    bool wide = s->type == TAMIS_DTYPE_FLOAT32;
    size_t bytes = w->grid.n * tam_type_bytes(s->type);
    tam_optimizer optimizer = {.rule = rule == MOMENTUM ? TAMIS_UPDATE_MOMENTUM : TAMIS_UPDATE_ADAM,
                               .first = rule == ADAM_WITHOUT_FIRST ? NULL : s->first,
                               .second = rule == MOMENTUM ? NULL : s->second,
                               .keep1 = 0.9f,
                               .take1 = rule == MOMENTUM ? 1.0f : 0.1f,
                               .keep2 = 0.99f,
                               .take2 = 0.01f,
                               .correct1 = 10.0f / (1.0f + (float)pass),
                               .correct2 = 100.0f / (1.0f + (float)pass),
                               .epsilon = 1e-8f};
    tam_accumulate job = {.acc = w->acc,
                          .grad = s->grad,
                          .type = s->type,
                          .seg_begin = w->begins,
                          .decay = decays[pass],
                          .scale = 0.7f,
                          .clear = pass == 2,
                          .mine = pass % PARTS,
                          .thresholds = thresholds,
                          .optimizer = &optimizer};
    const void *from = wide ? (const void *)values : (const void *)halves;
    assert_int_equal(w->row->write(w->device, from, bytes, s->grad), TAMIS_OK);
    assert_int_equal(w->row->accumulate(w->device, &job, &s->w.seen), TAMIS_OK);
}

static void same_vector(const side *a, const float *x, const side *b, const float *y) {
    size_t bytes = a->w.grid.n * sizeof(float);
    float *have = test_malloc(bytes), *want = test_malloc(bytes);
    assert_int_equal(a->w.row->read(a->w.device, x, bytes, have), TAMIS_OK);
    assert_int_equal(b->w.row->read(b->w.device, y, bytes, want), TAMIS_OK);
    assert_memory_equal(have, want, bytes);
    test_free(want);
    test_free(have);
}

static void same_sides(const side *a, const side *b) {
    const tam_accumulated *x = &a->w.seen, *y = &b->w.seen;
    same_vector(a, a->w.acc, b, b->w.acc);
    same_vector(a, a->first, b, b->first);
    same_vector(a, a->second, b, b->second);
    assert_int_equal(x->nonfinite, y->nonfinite);
    assert_int_equal(x->candidates.count, y->candidates.count);
    assert_memory_equal(x->group_sums, y->group_sums, GROUPS * sizeof x->group_sums[0]);
}

/* Some entries are bad; the type can represent all. */
static void fill(tamis_dtype type, uint32_t n, uint32_t pass, uint16_t *halves, float *values) {
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    for (uint32_t i = 0; i < n; i++) {
        values[i] = world_value(HEAVY, i + 1234567 * (pass + 1), n) / 16;
        if (i % 301 == 7)
            values[i] = bad[i % 3];
    }
    if (type == TAMIS_DTYPE_FLOAT32)
        return;
    tam_narrow(values, n, type, halves);
    tam_widen(type, halves, n, values);
}

static void check(uint32_t n, uint32_t block, tamis_dtype type, int rule, uint32_t threads) {
    unsigned shift = threads - 1;
    side a, b;
    uint16_t *halves = test_calloc(n, sizeof *halves);
    float *values = test_calloc(n, sizeof *values);
    side_open(&a, (world_plan){.n = n, .block = block, .capacity = n, .threads = threads}, type,
              shift);
    side_open(&b, (world_plan){.row = &tam_device_cpu, .n = n, .block = block, .capacity = n},
              TAMIS_DTYPE_FLOAT32, 0);
    for (uint32_t pass = 0; pass < PASSES; pass++) {
        fill(type, n, pass, halves, values);
        run_pass(&a, rule, halves, values, pass);
        run_pass(&b, rule, NULL, values, pass);
        same_sides(&a, &b);
    }
    side_close(&b, 0);
    side_close(&a, shift);
    test_free(values);
    test_free(halves);
}

static void test_updates_have_the_same_bits_for_every_type_and_number_of_threads(void **state) {
    (void)state;
    const tamis_dtype types[] = {TAMIS_DTYPE_FLOAT32, TAMIS_DTYPE_FLOAT16, TAMIS_DTYPE_BFLOAT16};
    for (int rule = 0; rule < RULES; rule++) {
        for (size_t t = 0; t < sizeof types / sizeof types[0]; t++) {
            check(world_length(3000), 700, types[t], rule, 1);
            check(world_length(200000), 5001, types[t], rule, 3);
        }
    }
}

int device_updates(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_updates_have_the_same_bits_for_every_type_and_number_of_threads),
    };
    return cmocka_run_group_tests_name("updates", tests, NULL, NULL);
}
