/* SPDX-License-Identifier: MIT
 *
 * Host path on a fake runtime (with the kernels on the CPU below it): segments with rows in steps
 * that the device runs by itself, because config.rows_capacity bounds their lists. Every bit is
 * that of the CPU. What the host drives is test_rows.c's; shapes and damage are
 * test_rows_exchange.c's.
 *
 * test: release
 */
#include "tests/cuda/fake.h"
#include "tests/cuda/pair.h"
#include "tests/support/scratch.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tamis/state.h>
#include <tamis/stats.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

enum { STEPS = 5, BAD = 3 };

/* Segments of 1, 37, 700, 5, 420, 255, 233, 3, 1, 37 and 408. */
static const uint64_t mixed[] = {0, 1, 70, 0, 3, 0, 0, 0, 0, 0, 0};
static const uint64_t several[] = {0, 0, 1, 5, 60, 0, 0, 0, 0, 0, 4};
static const uint64_t first[] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8}; /* of bucket 0 */
static const uint64_t last[] = {1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
static const uint64_t every[] = {1, 1, 1, 5, 60, 3, 233, 1, 1, 37, 4};
static const uint64_t *const layouts[] = {mixed, several, first, last, every};

static const uint64_t lengths[] = {1, 37, 700, 5, 420, 255, 233, 3, 1, 37, 408};

/* What is being tried; ranks only read it. */
static const uint64_t *rows;
static uint32_t nranks;

/* Steps take turns: some rows, others on each rank, the same, none, all. */
static bool touches(uint32_t rank, uint32_t number, uint64_t row) {
    switch (number % 5) {
    case 0:
        return data_mix(row << 20 ^ (uint64_t)rank << 10 ^ number) % 4 == 0;
    case 1:
        return row % nranks == rank;
    case 2:
        return row % 3 == 1;
    case 3:
        return false;
    default:
        return true;
    }
}

static void leave_out(uint32_t rank, uint32_t number, float *grad) {
    for (size_t s = 0, at = 0; s < 11; at += lengths[s++])
        for (size_t i = 0; rows[s] && i < lengths[s]; i++) {
            if (!touches(rank, number, i / rows[s]))
                grad[at + i] = 0.0f;
        }
}

static pair_order usual(size_t layout, uint32_t capacity) {
    pair_order order = pair_usual();
    rows = order.rows = layouts[layout];
    order.rows_capacity = capacity;
    order.touch = leave_out;
    return order;
}

static void go(uint32_t count, rank_body body, pair_order *order) {
    nranks = count;
    ranks_run(count, 0, body, order);
}

/* -- bits ------------------------------------------------------------------------------------- */

/* Whoever says phases of the device lets it drive. */
static _Atomic uint32_t driven;

static void record_phase(void *context, const tamis_phase_event *event) {
    (void)context;
    driven += event->phase == TAMIS_PHASE_DEVICE;
}

static void run_steps(test_rank *self) {
    pair p;
    if (!pair_open(self, self->shared, &p))
        return;
    for (uint32_t i = 0; i < STEPS && !self->failure[0]; i++)
        pair_step(&p, i, (pair_ready)((i + self->id) % PAIR_WAYS), TAMIS_OK);
    pair_close(&p);
}

static void run_driven(uint32_t count, pair_order *order) {
    driven = 0;
    order->on_phase = record_phase;
    go(count, run_steps, order);
    assert_int_not_equal(driven, 0);
}

static void test_every_layout_gives_the_bits_of_the_cpu(void **state) {
    static const uint32_t capacities[] = {1, 4, 40, 1000};
    (void)state;
    for (uint32_t count = 1; count <= 5; count++)
        for (size_t l = 0; l < 4; l++)
            for (size_t c = 0; c < 4; c++) {
                if (!test_drawn(31))
                    continue;
                pair_order order = usual(l, capacities[c]);
                order.bucket_budget = c % 2 ? TAMIS_BUCKET_BUDGET_NORM : TAMIS_BUCKET_BUDGET_LENGTH;
                order.by_segment = l % 2;
                order.output = (l + c) % 3 ? TAMIS_OUTPUT_DENSE : TAMIS_OUTPUT_SPARSE;
                order.bucket_length = count % 2 ? PAIR_N / 5 : 0;
                test_context("layout %zu, capacity %u, P=%u", l, order.rows_capacity, count);
                run_driven(count, &order);
            }
}

static void test_every_scheme_gives_the_bits_of_the_cpu(void **state) {
    static const struct {
        const char *name;
        double capacity;
        tamis_dtype type;
        uint32_t ranks;
    } schemes[] = {{"topk", 0.0, TAMIS_DTYPE_FLOAT32, 2},
                   {"all+global+exact+pairs", 0.0, TAMIS_DTYPE_BFLOAT16, 3},
                   {"rotate+norm+exact+union", 0.0, TAMIS_DTYPE_FLOAT32, 2},
                   {"micro", 1.5, TAMIS_DTYPE_FLOAT16, 2},
                   {"cltk", 0.0, TAMIS_DTYPE_FLOAT32, 3}};
    (void)state;
    for (size_t i = 0; i < sizeof schemes / sizeof schemes[0]; i++) {
        if (!test_drawn(4))
            continue;
        pair_order order = usual(0, 9);
        order.scheme = schemes[i].name;
        order.capacity = schemes[i].capacity;
        order.type = schemes[i].type;
        order.real = i % 2;
        test_context("%s", order.scheme);
        run_driven(schemes[i].ranks, &order);
    }
}

static void test_every_index_codec_gives_the_bits_of_the_cpu(void **state) {
    (void)state;
    for (tamis_index_codec f = TAMIS_INDEX_AUTO; f < TAMIS_INDEX_END; f++) {
        if (!test_drawn(3))
            continue;
        pair_order order = usual(2, f % 2 ? 40 : 7);
        order.index_codec = f;
        test_context("index codec %d", (int)f);
        run_driven(2, &order);
    }
}

static void test_a_layout_may_have_rows_alone(void **state) {
    pair_order order = usual(4, 2);
    (void)state;
    test_context("rows alone");
    run_driven(2, &order);
}

/* Without a bound, and for scheme dense. */
static void test_other_rows_are_left_to_the_host(void **state) {
    (void)state;
    for (int i = 0; i < 2; i++) {
        pair_order order = usual(0, 0);
        order.scheme = i ? "dense" : "tamis";
        order.on_phase = record_phase;
        order.by_host = true;
        driven = 0;
        test_context("%s without a bound", order.scheme);
        go(2, run_steps, &order);
        assert_int_equal(driven, 0);
    }
}

/* -- numbers that are not finite -------------------------------------------------------------- */

/* In a row of segment 2, or in the sums of one of segment 4. */
static void put_nan(uint32_t rank, uint32_t number, float *grad) {
    leave_out(rank, number, grad);
    if (number == BAD && rank == 1)
        grad[38 + 75] = NAN;
}

static void put_large(uint32_t rank, uint32_t number, float *grad) {
    leave_out(rank, number, grad);
    if (number == BAD)
        grad[743 + 100] = 3e38f;
}

static void step_on_bad_numbers(test_rank *self) {
    const pair_order *order = self->shared;
    bool fails = order->nonfinite == TAMIS_NONFINITE_ERROR;
    pair p;
    if (!pair_open(self, order, &p))
        return;
    for (uint32_t i = 0; i < STEPS && !self->failure[0]; i++) {
        tamis_stats stats = TAMIS_STATS_INIT;
        pair_step(&p, i, PAIR_START, i == BAD && fails ? TAMIS_E_NONFINITE : TAMIS_OK);
        if (self->failure[0])
            break;
        RANK_OK(self, tamis_reducer_stats(p.cuda, &stats));
        RANK_CHECK(self, i != BAD || stats.nonfinite > 0, "nothing was found");
    }
    pair_close(&p);
}

static void test_bad_numbers_in_rows_are_found_as_on_the_cpu(void **state) {
    (void)state;
    for (int i = 0; i < 6; i++) {
        if (!test_drawn(5))
            continue;
        pair_order order = usual(0, i == 1 ? 3 : 200);
        order.nonfinite = (tamis_nonfinite)(i % 3);
        order.touch = i < 3 ? put_nan : put_large;
        test_context("policy %d, %s", i % 3, i < 3 ? "NaN" : "large sums");
        go(2, step_on_bad_numbers, &order);
    }
}

/* -- micro-batches, states -------------------------------------------------------------------- */

static void run_batches(test_rank *self) {
    pair p;
    if (!pair_open(self, self->shared, &p))
        return;
    for (uint32_t i = 0; i < 3 * STEPS && !self->failure[0]; i++) {
        if (i % 3 < 2)
            pair_accumulate(&p, i);
        else
            pair_step(&p, i, PAIR_START, TAMIS_OK);
    }
    pair_close(&p);
}

static void test_micro_batches_give_the_bits_of_the_cpu(void **state) {
    pair_order order = usual(0, 5);
    (void)state;
    test_context("micro-batches");
    go(2, run_batches, &order);
}

static void move_state(test_rank *self) {
    char name[32], path[SCRATCH_PATH];
    pair p;
    snprintf(name, sizeof name, "rows.%u", self->id);
    scratch_path(name, path);
    if (!pair_open(self, self->shared, &p))
        return;
    for (uint32_t i = 0; i < 9 && !self->failure[0]; i++) {
        pair_step(&p, i, PAIR_READY, TAMIS_OK);
        if (self->failure[0] || i % 3 < 2)
            continue;
        tamis_reducer *from = i < 5 ? p.cuda : p.cpu, *to = i < 5 ? p.cpu : p.cuda;
        RANK_OK(self, tamis_reducer_save(from, path));
        RANK_OK(self, tamis_reducer_load(to, path)); /* `from` just goes on */
        pair_compare_buckets(&p);
    }
    pair_close(&p);
}

static void test_a_state_moves_between_devices(void **state) {
    char path[SCRATCH_PATH];
    (void)state;
    scratch_path("rows", path);
    pair_order order = usual(0, 3);
    test_context("states");
    go(2, move_state, &order);
}

/* Three ranks save; ranks 0 and 1 go on alone, with what waits divided among them. */
typedef struct crew {
    pair_order order;
    float *residuals[3];
    void *control;
    size_t bytes;
} crew;

static void leave_state(test_rank *self) {
    crew *c = self->shared;
    pair p;
    if (!pair_open(self, &c->order, &p))
        return;
    for (uint32_t i = 0; i < 4 && !self->failure[0]; i++)
        pair_step(&p, i, PAIR_START, TAMIS_OK);
    if (self->failure[0])
        return;
    size_t bytes;
    RANK_OK(self, tamis_reducer_control_bytes(p.cuda, &bytes));
    void *control = malloc(bytes);
    RANK_OK(self, tamis_reducer_save_control(p.cuda, control, bytes));
    RANK_OK(self, tamis_reducer_save_residual(p.cuda, c->residuals[self->id]));
    if (self->id == 0) {
        c->control = control;
        c->bytes = bytes;
    } else {
        free(control);
    }
    pair_close(&p);
}

static void take_state(test_rank *self) {
    crew *c = self->shared;
    float *mine = c->residuals[self->id];
    pair p;
    for (size_t i = 0; i < PAIR_N; i++)
        mine[i] += self->id == 0 ? c->residuals[2][i] : 0.0f;
    if (!pair_open(self, &c->order, &p))
        return;
    tamis_reducer *both[] = {p.cpu, p.cuda};
    for (int i = 0; i < 2; i++) {
        RANK_OK(self, tamis_reducer_load_memory(both[i], c->control, c->bytes, NULL));
        RANK_OK(self, tamis_reducer_load_memory(both[i], NULL, 0, mine));
    }
    for (uint32_t i = 4; i < 8 && !self->failure[0]; i++)
        pair_step(&p, i, PAIR_START, TAMIS_OK);
    pair_close(&p);
}

static void test_fewer_ranks_go_on(void **state) {
    crew c = {.order = usual(0, 3)};
    (void)state;
    for (int r = 0; r < 3; r++)
        c.residuals[r] = malloc(PAIR_N * sizeof(float));
    test_context("fewer ranks");
    nranks = 3;
    ranks_run(3, 0, leave_state, &c);
    nranks = 2;
    ranks_run(2, 0, take_state, &c);
    free(c.control);
    for (int r = 0; r < 3; r++)
        free(c.residuals[r]);
}

/* -- ahead of the device, and in a graph of the caller ---------------------------------------- */

enum { AHEAD = 12, WARM = 3 };

static void enqueue(pair *p, const float *given, float *got, uint32_t number) {
    test_rank *self = p->self;
    tamis_step step = TAMIS_STEP_INIT;
    step.grad = p->grad;
    step.stream = p->stream;
    RANK_CUDA(self, cudaMemcpyAsync(p->grad, given + number * PAIR_N, p->bytes,
                                    cudaMemcpyHostToDevice, p->stream));
    RANK_OK(self, tamis_reducer_start(p->cuda, &step));
    RANK_OK(self, tamis_reducer_join(p->cuda, p->stream));
    RANK_CUDA(self, cudaMemcpyAsync(got + number * PAIR_N, p->grad, p->bytes,
                                    cudaMemcpyDeviceToHost, p->stream));
}

static void take_pinned(pair *p, float **given, float **got) {
    size_t bytes = (size_t)AHEAD * PAIR_N * sizeof(float);
    RANK_CUDA(p->self, cudaMallocHost((void **)given, bytes));
    RANK_CUDA(p->self, cudaMallocHost((void **)got, bytes));
    for (uint32_t i = 0; i < AHEAD; i++) {
        data_fill_real(p->self->id, i, PAIR_N, *given + i * PAIR_N);
        leave_out(p->self->id, i, *given + i * PAIR_N);
    }
}

static void run_ahead(test_rank *self) {
    float *given = NULL, *got = NULL;
    pair p;
    if (!pair_open(self, self->shared, &p))
        return;
    take_pinned(&p, &given, &got);
    for (uint32_t i = 0; i < WARM && !self->failure[0]; i++)
        enqueue(&p, given, got, i);
    RANK_BARRIER(self);
    uint64_t before = fake_cuda_forbidden_calls(), replays = fake_cuda_calls("cudaGraphLaunch");
    RANK_BARRIER(self);
    for (uint32_t i = WARM; i < AHEAD && !self->failure[0]; i++)
        enqueue(&p, given, got, i);
    RANK_BARRIER(self);
    RANK_CHECK(self, fake_cuda_forbidden_calls() == before,
               "allocations or synchronising calls in steps");
    RANK_CHECK(self, fake_cuda_calls("cudaGraphLaunch") > replays || getenv("TAMIS_GRAPHS"),
               "no step was replayed");
    RANK_BARRIER(self);
    RANK_CUDA(self, cudaStreamSynchronize(p.stream));
    pair_follow(&p, given, got, AHEAD);
    pair_step(&p, AHEAD, PAIR_START, TAMIS_OK); /* after which all of them have landed */
    cudaFreeHost(given);
    cudaFreeHost(got);
    pair_close(&p);
}

static void test_joined_steps_run_without_the_host(void **state) {
    pair_order order = usual(0, 4);
    (void)state;
    test_context("ahead");
    go(2, run_ahead, &order);
}

static void capture(pair *p, const float *given, float *got, cudaGraphExec_t *out) {
    cudaGraph_t graph;
    RANK_CUDA(p->self, cudaStreamBeginCapture(p->stream, cudaStreamCaptureModeThreadLocal));
    enqueue(p, given, got, 0);
    RANK_CUDA(p->self, cudaStreamEndCapture(p->stream, &graph));
    RANK_CUDA(p->self, cudaGraphInstantiate(out, graph, 0));
    RANK_CUDA(p->self, cudaGraphDestroy(graph));
}

/* Each replay works on the first gradient, which holds that of its step. */
static void run_captured(test_rank *self) {
    float *given = NULL, *got = NULL, *all = malloc((size_t)AHEAD * PAIR_N * sizeof *all);
    float *kept = malloc((size_t)AHEAD * PAIR_N * sizeof *kept);
    cudaGraphExec_t graph = NULL;
    pair p;
    if (!pair_open(self, self->shared, &p))
        return;
    take_pinned(&p, &given, &got);
    memcpy(all, given, (size_t)AHEAD * PAIR_N * sizeof *all);
    capture(&p, given, got, &graph);
    for (uint32_t i = 0; i < AHEAD && !self->failure[0]; i++) {
        memcpy(given, all + i * PAIR_N, p.bytes);
        RANK_CUDA(self, cudaGraphLaunch(graph, p.stream));
        RANK_CUDA(self, cudaStreamSynchronize(p.stream));
        memcpy(kept + i * PAIR_N, got, p.bytes);
    }
    if (!self->failure[0])
        pair_follow(&p, all, kept, AHEAD);
    cudaGraphExecDestroy(graph);
    cudaFreeHost(given);
    cudaFreeHost(got);
    free(all);
    free(kept);
    pair_close(&p);
}

static void test_captured_steps_replay_with_the_bits_of_the_cpu(void **state) {
    pair_order order = usual(0, 4);
    (void)state;
    test_context("captured");
    go(2, run_captured, &order);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_layout_gives_the_bits_of_the_cpu),
        cmocka_unit_test(test_every_scheme_gives_the_bits_of_the_cpu),
        cmocka_unit_test(test_every_index_codec_gives_the_bits_of_the_cpu),
        cmocka_unit_test(test_a_layout_may_have_rows_alone),
        cmocka_unit_test(test_other_rows_are_left_to_the_host),
        cmocka_unit_test(test_bad_numbers_in_rows_are_found_as_on_the_cpu),
        cmocka_unit_test(test_micro_batches_give_the_bits_of_the_cpu),
        cmocka_unit_test(test_a_state_moves_between_devices),
        cmocka_unit_test(test_fewer_ranks_go_on),
        cmocka_unit_test(test_joined_steps_run_without_the_host),
        cmocka_unit_test(test_captured_steps_replay_with_the_bits_of_the_cpu),
    };
    return cmocka_run_group_tests_name("rows_alone", tests, NULL, NULL);
}
