/* SPDX-License-Identifier: MIT
 *
 * Kernels on the CPU and host path on a fake runtime: a segment with rows that is exchanged on the
 * device, of few and of many rows, short and long; and lists of rows that are refused.
 */
#include "kernels/cuda/step.h"
#include "tests/cuda/exchange_world.h"
#include "tests/cuda/fake.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

/* -- shapes ----------------------------------------------------------------------------------- */

static uint32_t row_length; /* of the trial; ranks only read it */

/* Steps take turns: a few rows, all, none, the last entry of some. */
static void leave_out(uint32_t rank, uint32_t step, size_t n, float *grad) {
    for (size_t i = 0; i < n; i++) {
        size_t row = i / row_length;
        bool some = data_mix(row << 8 | rank << 4 | step % 4) % 5 == 0;
        bool last = i % row_length == row_length - 1;
        if (step % 4 == 2 || (step % 4 != 1 && !some) || (step % 4 == 3 && !last))
            grad[i] = 0.0f;
    }
}

static exchange_trial trial_of(uint32_t rows, uint32_t length, uint32_t capacity, uint32_t nranks) {
    exchange_trial t = exchange_usual();
    t.n = (size_t)rows * length;
    t.row_length = row_length = length;
    t.rows_capacity = capacity;
    t.nranks = nranks;
    t.real = true;
    t.touch = leave_out;
    test_context("%u rows of %u, %u of them, %u ranks", rows, length, capacity, nranks);
    return t;
}

static void go_on(exchange_endpoint *s) {
    exchange_go_on(s, 6);
}

static void test_rows_of_every_shape_have_the_bits_of_the_cpu(void **state) {
    static const struct {
        uint32_t rows, length, capacity, nranks;
    } shapes[] = {{1, 64, 1, 2},   {31, 3, 5, 3},    {300, 1, 300, 5}, {65, 31, 20, 2},
                  {64, 32, 63, 3}, {40, 129, 7, 2},  {513, 3, 100, 4}, {17, 64, 100, 1},
                  {33, 33, 1, 5},  {700, 1, 699, 2}, {90, 64, 16, 3}};
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        if (!test_drawn(3))
            continue;
        exchange_trial t =
            trial_of(shapes[i].rows, shapes[i].length, shapes[i].capacity, shapes[i].nranks);
        t.output = i % 2 ? TAMIS_OUTPUT_SPARSE : TAMIS_OUTPUT_DENSE;
        t.direct = i % 3 == 0;
        t.index_codec = (tamis_index_codec)(i % TAMIS_INDEX_END);
        exchange_run(&t, go_on);
    }
}

static void go_on_a_little(exchange_endpoint *s) {
    exchange_go_on(s, 2);
}

/* Lists that several blocks write, and circles that begin in another range than they end. */
static void test_more_rows_than_a_range_have_the_bits_of_the_cpu(void **state) {
    exchange_trial t = trial_of(2 * TAM_RANGE + 1234, 1, TAM_RANGE + 777, 2);
    (void)state;
    exchange_run(&t, go_on_a_little);
}

static void step_by_both(exchange_endpoint *s) {
    for (const char *how = "hggHgh"; *how && !exchange_failed(s); how++) {
        if (*how == 'g')
            exchange_step_by_graph(s);
        else
            exchange_step(s, *how == 'H');
        exchange_follow(s, true);
    }
}

static void test_steps_of_the_host_and_of_a_graph_of_the_caller_mix(void **state) {
    exchange_trial t = trial_of(50, 7, 9, 2);
    (void)state;
    exchange_run(&t, step_by_both);
}

/* -- damage: to what came from rank SENDER ---------------------------------------------------- */

enum { ALL = 7, SENDER = 2, NOT_SENDER = ALL & ~(1 << SENDER), ONE = 1 << 1, FAULT = 2 };

static uint32_t *last_row(exchange_endpoint *at) {
    return exchange_list(at, SENDER) + exchange_header(at, SENDER)->count - 1;
}

static void point_past_the_rows(exchange_endpoint *at) {
    *last_row(at) = at->step->exchange.rows.count;
    exchange_reseal(at, SENDER);
}

static void exchange_neighbours(exchange_endpoint *at) {
    exchange_swap_first(at, SENDER);
}

static void repeat_row(exchange_endpoint *at) {
    last_row(at)[-1] = *last_row(at);
    exchange_reseal(at, SENDER);
}

static void raise_count(exchange_endpoint *at) {
    exchange_header(at, SENDER)->count = exchange_capacity(at) + 1;
    exchange_reseal(at, SENDER);
}

static void flip_row(exchange_endpoint *at) {
    *last_row(at) ^= 1;
}

static void flip_deferred(exchange_endpoint *at) {
    exchange_counters(at, SENDER)[TAM_COUNTER_DEFERRED] += 1.0f;
}

typedef struct fault {
    const char *what;
    void (*damage)(exchange_endpoint *at);
    exchange_phase phase;
    uint32_t victims, refused;
    const char *words;
} fault;

static const fault faults[] = {
    {"a row past the end", point_past_the_rows, PHASE_PACKETS, NOT_SENDER, TAM_REFUSED_ORDER,
     "past"},
    {"neighbours", exchange_neighbours, PHASE_PACKETS, ONE, TAM_REFUSED_ORDER, "not ascending"},
    {"a row twice", repeat_row, PHASE_PACKETS, NOT_SENDER, TAM_REFUSED_ORDER, "not ascending"},
    {"one row too many", raise_count, PHASE_PACKETS, ONE, TAM_REFUSED_COUNT, "exceeds the size"},
    {"a row", flip_row, PHASE_PACKETS, ONE, TAM_REFUSED_CHECKSUM, "checksum"},
    {"a count", flip_deferred, PHASE_PACKETS, ONE, TAM_REFUSED_CHECKSUM, "checksum"},
    {"packets given up", NULL, PHASE_PACKETS, ALL, TAM_REFUSED_MISSING, "did not arrive"},
    {"values given up", NULL, PHASE_VALUES, ONE, TAM_REFUSED_ABSENT, "sums are missing"},
    {"sums given up", NULL, PHASE_SUMS, ALL, TAM_REFUSED_ABSENT, "sums are missing"},
};

static const fault *now; /* set by the main thread between runs */

/* A rank refuses the first packet that is wrong; nobody refuses his own. Then all ranks refuse. */
static void step_on_fault(exchange_endpoint *s) {
    exchange_go_on(s, FAULT);
    for (int i = 0; i < 2 && !exchange_failed(s); i++) {
        uint32_t rank = now->damage ? SENDER : s->self->id == 0 ? 1 : 0;
        bool knows = now->victims >> s->self->id & 1 && now->refused != TAM_REFUSED_ABSENT;
        exchange_step(s, 0);
        if (knows)
            exchange_check_kept(s, now->refused, rank, now->words);
        else
            exchange_check_kept(s, TAM_REFUSED_ABSENT, s->self->id, "sums are missing");
    }
    exchange_reload(s, EXCHANGE_CONFIG + 1);
    if (!exchange_failed(s))
        exchange_step(s, 0);
    exchange_follow(s, true);
    exchange_go_on(s, 2);
}

static void touch_many(uint32_t rank, uint32_t step, size_t n, float *grad) {
    (void)step;
    for (size_t i = 0; i < n; i++)
        grad[i] = i / row_length % 2 == rank % 2 ? 1.0f + (float)(i % 9) : 0.0f;
}

static void test_rows_that_are_not_as_they_must_be_are_refused_by_all(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++) {
        exchange_trial t = trial_of(40, 6, 9, 3);
        now = &faults[i];
        t.touch = touch_many;
        t.damage = now->damage;
        t.phase = now->phase;
        t.victims = now->victims;
        t.fault_step = FAULT;
        test_context("%s", now->what);
        exchange_run(&t, step_on_fault);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows_of_every_shape_have_the_bits_of_the_cpu),
        cmocka_unit_test(test_more_rows_than_a_range_have_the_bits_of_the_cpu),
        cmocka_unit_test(test_steps_of_the_host_and_of_a_graph_of_the_caller_mix),
        cmocka_unit_test(test_rows_that_are_not_as_they_must_be_are_refused_by_all),
    };
    fake_cuda_reset();
    return cmocka_run_group_tests_name("rows_exchange", tests, NULL, NULL);
}
