/* SPDX-License-Identifier: MIT
 *
 * The samples of a step, against whole epochs.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

#include "bench/common/random.h"
#include "bench/train/order.h"

/* A step is a piece of its epoch's permutation, one after another; what is left is left out. */
static void try_order(uint64_t count, uint64_t seed, uint64_t together) {
    order o, whole;
    uint64_t steps = count / together;
    order_open(count, seed, together, &o);
    order_open(count, seed, count, &whole);
    assert_int_equal(order_epoch_steps(&o), steps);
    for (uint64_t step = 0; step < 60; step++) {
        const uint32_t *epoch = order_of(&whole, step / steps), *mine = order_of(&o, step);
        assert_memory_equal(mine, epoch + step % steps * together, together * sizeof mine[0]);
    }
    order_close(&whole);
    order_close(&o);
}

static void steps_follow_each_other(void **state) {
    (void)state;
    for (uint64_t seed = 0; seed < 40; seed++) {
        try_order(1, seed, 1);
        try_order(2 + seed, seed, 1 + bench_random(seed, 0) % (2 + seed));
        try_order(97, seed, 1 + bench_random(seed, 1) % 97);
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
    assert_int_equal(order_epoch_steps(&o), 10);
    order_close(&o);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_follow_each_other),
        cmocka_unit_test(every_sample_once_an_epoch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
