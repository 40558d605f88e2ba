/* SPDX-License-Identifier: MIT
 *
 * The samples of a step, also where the number that is taken together changes: against a walk that
 * takes them one step after another.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

#include "bench/common/random.h"
#include "bench/train/order.h"

typedef struct walk {
    uint64_t epoch, sample, together;
} walk;

/* Before a step is taken: what is too little for it is left out. */
static void turn(walk *w, uint64_t count) {
    if (w->sample + w->together <= count)
        return;
    w->epoch++;
    w->sample = 0;
}

/* Every epoch is a permutation, and its steps are pieces of that. */
static void check_step(order *o, const walk *w, uint64_t step, uint64_t seed) {
    order fresh;
    order_open(o->count, seed, 1, &fresh);
    const uint32_t *epoch = order_of(&fresh, w->epoch * o->count);
    const uint32_t *mine = order_of(o, step);
    assert_memory_equal(mine, epoch + w->sample, w->together * sizeof mine[0]);
    order_close(&fresh);
}

static void try_walk(uint64_t count, uint64_t seed) {
    uint64_t key = bench_key(seed, 7, count);
    walk w = {.together = 1 + bench_random(key, 0) % count};
    order o;
    order_open(count, seed, w.together, &o);
    for (uint64_t step = 0; step < 60; step++) {
        if (step > 0 && bench_random(key, step) % 8 == 0) {
            w.together = 1 + bench_random(key, 100 + step) % count;
            order_regroup(&o, step, w.together);
        }
        turn(&w, count);
        check_step(&o, &w, step, seed);
        w.sample += w.together;
    }
    order_close(&o);
}

static void steps_follow_each_other(void **state) {
    (void)state;
    for (uint64_t seed = 0; seed < 40; seed++) {
        try_walk(1, seed);
        try_walk(2 + seed, seed);
        try_walk(97, seed);
    }
}

static void every_sample_once_an_epoch(void **state) {
    enum { COUNT = 90 };
    bool seen[COUNT] = {false};
    order o;
    (void)state;
    order_open(COUNT, 3, 9, &o);
    for (uint64_t step = 10; step < 20; step++)
        for (int i = 0; i < 9; i++) {
            uint32_t sample = order_of(&o, step)[i];
            assert_true(sample < COUNT && !seen[sample]);
            seen[sample] = true;
        }
    assert_true(order_epochs(&o, 20) == 2.0 && order_epochs(&o, 25) == 2.5);
    assert_int_equal(order_epoch_steps(&o), 10);
    order_regroup(&o, 25, 15);
    assert_true(order_epochs(&o, 25) == 2.5 && order_epochs(&o, 28) == 3.0);
    order_close(&o);
}

/* Where too little is left of an epoch, the next one begins at once. */
static void the_rest_is_left_out(void **state) {
    order o, whole;
    (void)state;
    order_open(10, 5, 4, &o);
    order_open(10, 5, 10, &whole);
    order_regroup(&o, 2, 3);
    assert_memory_equal(order_of(&o, 2), order_of(&whole, 1), 3 * sizeof(uint32_t));
    order_close(&whole);
    order_close(&o);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_follow_each_other),
        cmocka_unit_test(every_sample_once_an_epoch),
        cmocka_unit_test(the_rest_is_left_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
