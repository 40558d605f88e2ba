/* SPDX-License-Identifier: MIT
 *
 * The cost of rows: exactly the bytes of the model, whichever way they are summed; a whole segment
 * if its list would cost more than it saves, and rows again afterwards.
 */
#include "lib/base/base.h"
#include "tests/support/data.h"
#include "tests/support/ranks.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <tamis/stats.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

enum { RANKS = 4, ROWS = 2048, LENGTH = 64, N = ROWS * LENGTH, STEPS = 3 };
enum { HEADER = 28 + 56 }; /* with counters */

/* Rows that a rank touches at a step: `count` from `first` on, every `stride`-th. */
typedef struct span {
    size_t first, stride, count;
} span;

typedef struct bytes_case {
    bool dense; /* no rows, scheme dense */
    bool one;   /* only rank 0 touches anything */
    bool shuffled;
    tamis_index_codec index_codec;
    size_t apart; /* between the first rows of two ranks */
    span touched[STEPS];
    /* by the ranks */
    uint64_t bytes[STEPS][RANKS];
    uint64_t hash[STEPS][RANKS];
} bytes_case;

static void fill(const bytes_case *c, uint32_t rank, uint32_t step, float *grad) {
    const span *s = &c->touched[step];
    memset(grad, 0, N * sizeof *grad);
    for (size_t i = 0; i < s->count && (!c->one || rank == 0); i++) {
        size_t row = (s->first + rank * c->apart + i * s->stride) % ROWS;
        if (c->shuffled)
            row = data_mix((uint64_t)rank << 32 | (uint64_t)step << 16 | i) % ROWS;
        for (size_t j = 0; j < LENGTH; j++)
            grad[row * LENGTH + j] = (float)(1 + (row + j + rank) % 9);
    }
}

static tamis_status make(test_rank *self, const bytes_case *c, tamis_reducer **out) {
    const tamis_segment segment = {"words", N};
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    tamis_layout *layout = NULL;
    tamis_status status = tamis_layout_create(&segment, 1, &layout);
    config.index_codec = c->index_codec;
    if (c->dense)
        config.scheme = "dense";
    else if (status == TAMIS_OK)
        status = tamis_layout_set_rows(layout, 0, LENGTH);
    if (status == TAMIS_OK)
        status = tamis_reducer_create(self->comm, layout, &config, out);
    tamis_layout_destroy(layout);
    return status;
}

static void run_bytes(test_rank *self) {
    bytes_case *c = self->shared;
    tamis_reducer *reducer = NULL;
    tamis_stats stats = TAMIS_STATS_INIT;
    float *grad = malloc(N * sizeof *grad);
    const tamis_step step = data_step(grad);
    RANK_OK(self, make(self, c, &reducer));
    for (uint32_t number = 0; number < STEPS; number++) {
        fill(c, self->id, number, grad);
        RANK_OK(self, tamis_reducer_start(reducer, &step));
        RANK_OK(self, tamis_reducer_wait(reducer));
        RANK_OK(self, tamis_reducer_stats(reducer, &stats));
        c->bytes[number][self->id] = stats.wire_bytes;
        c->hash[number][self->id] = data_hash(0, grad, N * sizeof *grad);
    }
    tamis_reducer_destroy(reducer);
    free(grad);
}

static void run(bytes_case *c) {
    ranks_run(RANKS, 0, run_bytes, c);
    for (uint32_t step = 0; step < STEPS; step++)
        for (uint32_t r = 1; r < RANKS; r++)
            assert_int_equal(c->bytes[step][r], c->bytes[step][0]);
}

/* -- the model -------------------------------------------------------------------------------- */

/* Bytes of a rank's list of u32, sent to all others. */
static uint64_t lists(uint64_t longest) {
    return (RANKS - 1) * (HEADER + 4 * longest);
}

static uint64_t reduced(uint64_t rows) {
    return 8 * rows * LENGTH * (RANKS - 1) / RANKS;
}

static uint64_t gathered(uint64_t longest) {
    return 4 * longest * LENGTH * (RANKS - 1);
}

static void expect(const bytes_case *c, uint32_t step, uint64_t bytes) {
    if (c->bytes[step][0] != bytes)
        fail_msg("[%s] step %u: %llu bytes, not %llu", test_context_text(), step,
                 (unsigned long long)c->bytes[step][0], (unsigned long long)bytes);
}

static void test_rows_take_the_bytes_of_the_model(void **state) {
    (void)state;
    test_context("rows that no other rank touches");
    bytes_case c = {.index_codec = TAMIS_INDEX_U32, .apart = 100};
    c.touched[0] = (span){0, 1, 20};
    c.touched[2] = (span){5, 3, 33};
    run(&c);
    expect(&c, 0, lists(20) + gathered(20));
    expect(&c, 1, lists(0)); /* no rank touched any row */
    expect(&c, 2, lists(33) + gathered(33));

    test_context("rows that all ranks touch");
    c.apart = 0;
    run(&c);
    expect(&c, 0, lists(20) + reduced(20));
    expect(&c, 2, lists(33) + reduced(33));

    test_context("rows of one rank"); /* it would send them to all, its place at the others empty */
    c.one = true;
    run(&c);
    expect(&c, 0, lists(20) + reduced(20));
}

static void test_rows_that_are_too_many_to_gather_are_reduced(void **state) {
    (void)state;
    test_context("a quarter of the rows each, all different");
    bytes_case c = {.index_codec = TAMIS_INDEX_U32, .apart = ROWS / 4};
    c.touched[0] = (span){0, 1, ROWS / 4};
    c.touched[1] = (span){0, 1, ROWS / 9 - 1}; /* U + (P + 1) c = 9 c rows */
    c.touched[2] = (span){0, 1, ROWS / 9 + 1};
    run(&c);
    expect(&c, 0, lists(ROWS / 4) + reduced(ROWS));
    expect(&c, 1, lists(ROWS / 9 - 1) + gathered(ROWS / 9 - 1));
    expect(&c, 2, lists(ROWS / 9 + 1) + reduced(4 * (ROWS / 9 + 1)));
}

/* -- against dense ---------------------------------------------------------------------------- */

static double share_of_dense(bytes_case *c) {
    bytes_case dense = *c;
    dense.dense = true;
    run(&dense);
    run(c);
    expect(&dense, 0, reduced(ROWS));
    double most = 0.0;
    for (uint32_t step = 0; step < STEPS; step++) {
        double share = (double)c->bytes[step][0] / (double)dense.bytes[step][0];
        most = share > most ? share : most;
        for (uint32_t r = 0; r < RANKS; r++)
            assert_int_equal(c->hash[step][r], dense.hash[step][r]);
    }
    return most;
}

static void test_a_hundredth_of_the_rows_takes_3_percent_of_dense_at_most(void **state) {
    static const struct {
        const char *name;
        size_t apart;
        bool shuffled;
        double most;
    } kinds[] = {
        {"others", 100, false, 0.0205}, {"the same", 0, false, 0.0105}, {"any", 0, true, 0.03}};
    (void)state;
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
        bytes_case c = {.apart = kinds[k].apart, .shuffled = kinds[k].shuffled};
        for (uint32_t step = 0; step < STEPS; step++)
            c.touched[step] = (span){7 * step, 4, ROWS / 100};
        test_context("1 %% of the rows, %s", kinds[k].name);
        double share = share_of_dense(&c);
        print_message("1 %% of the rows touched by each of 4 ranks, %s: %.2f %% of dense\n",
                      kinds[k].name, 100 * share);
        assert_true(share <= kinds[k].most);
    }
}

/* -- the switch ------------------------------------------------------------------------------- */

/* The most rows for which a list pays, P bytes(c) <= 8 (rows - c) L, in gap8, the automatic choice
 * for so many rows. With u32 the same rows must be summed. */
static size_t most_listed(void) {
    size_t most = 0;
    for (size_t c = 0; c <= ROWS; c++) {
        size_t bytes = c + (ROWS - c) / 255;
        if (RANKS * ((bytes + 7) / 8 * 8) <= 8 * (ROWS - c) * LENGTH)
            most = c;
    }
    return most;
}

static void test_a_list_that_does_not_pay_gives_way_to_the_whole_segment(void **state) {
    size_t most = most_listed();
    (void)state;
    assert_true(most > ROWS / 2 && most < ROWS);
    test_context("around %zu rows", most);
    bytes_case c = {.index_codec = TAMIS_INDEX_U32, .one = true};
    c.touched[0] = (span){0, 1, most};
    c.touched[1] = (span){0, 1, most + 1};
    c.touched[2] = (span){0, 1, 11};
    run(&c);
    expect(&c, 0, lists(most) + reduced(most));
    expect(&c, 1, lists(0) + reduced(ROWS));
    expect(&c, 2, lists(11) + reduced(11));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows_take_the_bytes_of_the_model),
        cmocka_unit_test(test_rows_that_are_too_many_to_gather_are_reduced),
        cmocka_unit_test(test_a_hundredth_of_the_rows_takes_3_percent_of_dense_at_most),
        cmocka_unit_test(test_a_list_that_does_not_pay_gives_way_to_the_whole_segment),
    };
    return cmocka_run_group_tests_name("rows_bytes", tests, NULL, NULL);
}
