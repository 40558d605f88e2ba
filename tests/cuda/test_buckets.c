/* SPDX-License-Identifier: MIT
 *
 * Host path on a fake runtime (with the kernels on the CPU below it): steps of several buckets that
 * the device runs by itself. Every bit is that of the CPU with the same buckets, in whatever order
 * segments become ready. What goes wrong is test_buckets_faults.c's.
 *
 * test: slow
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
#include <tamis/overlap.h>
#include <tamis/state.h>
#include <tamis/stats.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

enum { STEPS = 7, BAD = 3, BUCKETS = 5 /* of the usual order */ };

#define PAIRS "all+global+exact+pairs"

static const uint64_t lengths[] = {PAIR_N / 2, PAIR_N / 3, PAIR_N / 5, PAIR_N / 7};

static tamis_update adam(double norm_matching) {
    tamis_update update = TAMIS_UPDATE_INIT;
    update.beta1 = 0.9;
    update.norm_matching = norm_matching;
    return update;
}

static tamis_update momentum(void) {
    tamis_update update = TAMIS_UPDATE_INIT;
    update.rule = TAMIS_UPDATE_MOMENTUM;
    return update;
}

/* -- bits ------------------------------------------------------------------------------------- */

static void run_steps(test_rank *self) {
    pair p;
    if (!pair_open(self, self->shared, &p))
        return;
    uint32_t count = tamis_reducer_nbuckets(p.cuda);
    RANK_CHECK(self, count >= 2 && count <= BUCKETS, "%u buckets", count);
    for (uint32_t i = 0; i < STEPS && !self->failure[0]; i++)
        pair_step(&p, i, (pair_ready)((i + self->id) % PAIR_WAYS), TAMIS_OK);
    pair_close(&p);
}

static void test_every_scheme_gives_the_bits_of_the_cpu(void **state) {
    static const struct {
        const char *name;
        double capacity;
    } schemes[] = {{"tamis", 0.0},
                   {"topk", 0.0},
                   {PAIRS, 0.0},
                   {"rotate+norm+exact+union", 0.0},
                   {"all+norm+predict+union", 0.0},
                   {"micro", 1.5},
                   {"threshold", 1.5},
                   {"cltk", 0.0},
                   {"dense", 0.0}};
    (void)state;
    for (uint32_t i = 0; i < sizeof schemes / sizeof schemes[0]; i++) {
        for (uint32_t nranks = 1 + i % test_stride(3); nranks <= 3; nranks += test_stride(3)) {
            pair_order order = pair_usual();
            order.scheme = schemes[i].name;
            order.capacity = schemes[i].capacity;
            order.bucket_length = lengths[(i + nranks) % 4];
            order.bucket_budget =
                (i + nranks) % 3 ? TAMIS_BUCKET_BUDGET_NORM : TAMIS_BUCKET_BUDGET_LENGTH;
            order.by_segment = nranks == 2;
            test_context("%s, %u ranks, buckets of %llu", order.scheme, nranks,
                         (unsigned long long)order.bucket_length);
            ranks_run(nranks, 0, run_steps, &order);
        }
    }
}

static void test_options_give_the_bits_of_the_cpu(void **state) {
    pair_order order = pair_usual();
    (void)state;
    order.output = TAMIS_OUTPUT_SPARSE;
    test_context("sparse output");
    ranks_run(2, 0, run_steps, &order);
    order = pair_usual();
    order.type = TAMIS_DTYPE_BFLOAT16;
    order.by_segment = true;
    test_context("bfloat16 by segment");
    ranks_run(2, 0, run_steps, &order);
    order.scheme = "dense";
    ranks_run(2, 0, run_steps, &order);
    order = pair_usual();
    order.real = false; /* heavy tails: budgets and counts change much */
    order.density = 0.02;
    test_context("heavy tails, few entries");
    ranks_run(3, 0, run_steps, &order);
}

static void test_updates_give_the_bits_of_the_cpu(void **state) {
    const tamis_update rules[] = {adam(0.0), adam(2.0), momentum()};
    static const char *const schemes[] = {"tamis", "topk", PAIRS, "tamis-update"};
    (void)state;
    for (uint32_t i = 0; i < 12; i += test_stride(3)) {
        pair_order order = pair_usual();
        order.update = &rules[i % 3];
        order.scheme = schemes[i % 4];
        order.by_segment = i % 2;
        test_context("update %u, %s", i % 3, order.scheme);
        ranks_run(1 + i % 3, 0, run_steps, &order);
    }
}

/* -- numbers that are not finite -------------------------------------------------------------- */

/* In the first segments, which the last bucket holds. */
static void put_nan(uint32_t rank, uint32_t number, float *grad) {
    if (number == BAD && rank == 1)
        grad[3] = NAN;
}

/* Finite on every rank; the sums are not. In the last elements, which bucket 0 holds. */
static void put_large(uint32_t rank, uint32_t number, float *grad) {
    (void)rank;
    for (uint32_t i = PAIR_N - 40; number == BAD && i < PAIR_N; i += 13)
        grad[i] = i % 2 ? 3e38f : -3e38f;
}

/* The headers of the last bucket end a step whose first bucket has sums that nobody looks at. */
static void put_both(uint32_t rank, uint32_t number, float *grad) {
    put_nan(rank, number, grad);
    put_large(rank, number, grad);
}

static void step_on_bad_numbers(test_rank *self) {
    const pair_order *order = self->shared;
    bool skips = order->nonfinite != TAMIS_NONFINITE_DROP;
    pair p;
    if (!pair_open(self, order, &p))
        return;
    for (uint32_t i = 0; i < STEPS && !self->failure[0]; i++) {
        /* What only the headers report stays in the residual, and makes the next sums infinite. */
        bool bad = i == BAD || (i == BAD + 1 && order->touch == put_both);
        bool fails = bad && order->nonfinite == TAMIS_NONFINITE_ERROR;
        tamis_stats stats = TAMIS_STATS_INIT;
        pair_step(&p, i, (pair_ready)(i % PAIR_WAYS), fails ? TAMIS_E_NONFINITE : TAMIS_OK);
        if (self->failure[0])
            break;
        RANK_OK(self, tamis_reducer_stats(p.cuda, &stats));
        RANK_CHECK(self, i != BAD || stats.nonfinite > 0, "nothing was found");
        RANK_CHECK(self, stats.skipped == (bad && skips), "step %u: skipped %llu", i,
                   (unsigned long long)stats.skipped);
    }
    pair_close(&p);
}

static void test_bad_numbers_in_one_bucket_are_found_in_all(void **state) {
    static void (*const touches[])(uint32_t, uint32_t, float *) = {put_nan, put_large, put_both};
    static const char *const schemes[] = {"tamis", PAIRS};
    const tamis_update update = adam(2.0), masked = momentum();
    const tamis_update *const updates[] = {NULL, &update, NULL, &masked};
    (void)state;
    for (uint32_t i = 0; i < 36; i += test_stride(5)) {
        pair_order order = pair_usual();
        order.update = updates[i / 9];
        if (order.update && i / 3 % 3 == 2) /* there the step after is another matter */
            continue;
        order.nonfinite = (tamis_nonfinite)(i % 3);
        order.touch = touches[i / 3 % 3];
        order.scheme = schemes[i % 2];
        test_context("policy %u, kind %u, %s, updates %u", i % 3, i / 3 % 3, order.scheme, i / 9);
        ranks_run(2, 0, step_on_bad_numbers, &order);
    }
}

static void test_dense_clears_all_buckets_for_one(void **state) {
    (void)state;
    for (int policy = 0; policy < 3; policy++) {
        pair_order order = pair_usual();
        order.scheme = "dense";
        order.nonfinite = (tamis_nonfinite)policy;
        order.touch = put_nan;
        test_context("dense, policy %d", policy);
        ranks_run(2, 0, step_on_bad_numbers, &order);
    }
}

/* -- states ----------------------------------------------------------------------------------- */

static void move_state(test_rank *self) {
    char name[32], path[SCRATCH_PATH];
    pair p;
    snprintf(name, sizeof name, "buckets.%u", self->id);
    scratch_path(name, path);
    if (!pair_open(self, self->shared, &p))
        return;
    for (uint32_t i = 0; i < 3 && !self->failure[0]; i++)
        pair_step(&p, i, PAIR_READY, TAMIS_OK);
    if (self->failure[0])
        return;
    RANK_OK(self, tamis_reducer_save(p.cuda, path));
    RANK_OK(self, tamis_reducer_load(p.cpu, path)); /* the device just goes on */
    for (uint32_t i = 3; i < 6 && !self->failure[0]; i++)
        pair_step(&p, i, PAIR_START, TAMIS_OK);
    if (self->failure[0])
        return;
    RANK_OK(self, tamis_reducer_save(p.cpu, path)); /* and the other way round */
    RANK_OK(self, tamis_reducer_load(p.cuda, path));
    for (uint32_t i = 6; i < 9 && !self->failure[0]; i++)
        pair_step(&p, i, PAIR_SOME_READY, TAMIS_OK);
    pair_close(&p);
}

static void test_a_state_moves_between_devices(void **state) {
    static const char *const schemes[] = {"tamis", "topk", "micro", "dense", "tamis", "topk"};
    const tamis_update matched = adam(2.0), masked = momentum();
    char path[SCRATCH_PATH];
    (void)state;
    scratch_path("buckets", path);
    for (int i = 0; i < 6; i++) {
        pair_order order = pair_usual();
        order.scheme = schemes[i];
        order.update = i == 4 ? &matched : i == 5 ? &masked : NULL;
        order.capacity = i == 2 ? 1.5 : 0.0;
        order.bucket_budget = i == 1 ? TAMIS_BUCKET_BUDGET_LENGTH : TAMIS_BUCKET_BUDGET_NORM;
        test_context("%s", order.scheme);
        ranks_run(2, 0, move_state, &order);
    }
}

/* A state that no step was made after holds what the last one held. */
static void save_twice(test_rank *self) {
    char name[32], path[SCRATCH_PATH];
    size_t bytes[2];
    void *files[2];
    pair p;
    snprintf(name, sizeof name, "twice.%u", self->id);
    scratch_path(name, path);
    if (!pair_open(self, self->shared, &p))
        return;
    for (uint32_t i = 0; i < 3 && !self->failure[0]; i++)
        pair_step(&p, i, PAIR_START, TAMIS_OK);
    for (int i = 0; i < 2 && !self->failure[0]; i++) {
        RANK_OK(self, tamis_reducer_save(p.cuda, path));
        files[i] = scratch_read(path, &bytes[i]);
        RANK_OK(self, tamis_reducer_load(p.cuda, path));
    }
    if (self->failure[0])
        return;
    RANK_CHECK(self, bytes[0] == bytes[1] && memcmp(files[0], files[1], bytes[0]) == 0,
               "the second file differs");
    free(files[0]);
    free(files[1]);
    pair_close(&p);
}

static void test_a_loaded_state_is_saved_as_it_was(void **state) {
    char path[SCRATCH_PATH];
    pair_order order = pair_usual();
    (void)state;
    scratch_path("twice", path);
    ranks_run(2, 0, save_twice, &order);
}

/* -- ahead of the device ---------------------------------------------------------------------- */

enum { AHEAD = 20, FIRST = 3 };

/* What a training loop does, all in stream order; segments from the last to the first. */
static void enqueue_steps(pair *p, const float *given, float *got, uint32_t first, uint32_t end) {
    test_rank *self = p->self;
    tamis_step step = TAMIS_STEP_INIT;
    step.grad = p->grad;
    step.stream = p->stream;
    for (uint32_t i = first; i < end && !self->failure[0]; i++) {
        RANK_CUDA(self, cudaMemcpyAsync(p->grad, given + i * PAIR_N, p->bytes,
                                        cudaMemcpyHostToDevice, p->stream));
        for (size_t s = p->nsegments; s-- > 0;)
            RANK_OK(self, tamis_reducer_ready(p->cuda, (uint32_t)s, &step));
        RANK_OK(self, tamis_reducer_join(p->cuda, p->stream));
        RANK_CUDA(self, cudaMemcpyAsync(got + i * PAIR_N, p->grad, p->bytes, cudaMemcpyDeviceToHost,
                                        p->stream));
    }
}

static void take_pinned(pair *p, float **given, float **got) {
    size_t bytes = (size_t)AHEAD * PAIR_N * sizeof(float);
    RANK_CUDA(p->self, cudaMallocHost((void **)given, bytes));
    RANK_CUDA(p->self, cudaMallocHost((void **)got, bytes));
    for (uint32_t i = 0; i < AHEAD; i++)
        data_fill_real(p->self->id, i, PAIR_N, *given + i * PAIR_N);
}

static void run_ahead(test_rank *self) {
    float *given = NULL, *got = NULL;
    pair p;
    if (!pair_open(self, self->shared, &p))
        return;
    take_pinned(&p, &given, &got);
    enqueue_steps(&p, given, got, 0, FIRST);
    RANK_BARRIER(self);
    uint64_t before = fake_cuda_forbidden_calls(), replays = fake_cuda_calls("cudaGraphLaunch");
    RANK_BARRIER(self);
    enqueue_steps(&p, given, got, FIRST, AHEAD);
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
    static const char *const schemes[] = {"tamis", "dense", "tamis-update"};
    const tamis_update update = adam(2.0);
    (void)state;
    for (int i = 0; i < 3; i++) {
        pair_order order = pair_usual();
        order.scheme = schemes[i];
        order.update = i == 2 ? &update : NULL;
        test_context("%s", order.scheme);
        ranks_run(2, 0, run_ahead, &order);
    }
}

/* Pinned memory of the reducer, 4 MiB, and of the communicator. */
static void count_pinned(test_rank *self) {
    pair p;
    if (!pair_open(self, self->shared, &p))
        return;
    RANK_BARRIER(self);
    RANK_CHECK(self, fake_cuda_pinned() < self->nranks * ((size_t)6 << 20),
               "%zu bytes of pinned memory", fake_cuda_pinned());
    RANK_BARRIER(self);
    for (uint32_t i = 0; i < 2 && !self->failure[0]; i++)
        pair_step(&p, i, PAIR_START, TAMIS_OK);
    pair_close(&p);
}

static void test_buckets_share_pinned_memory(void **state) {
    static const char *const schemes[] = {"tamis", "dense", "tamis"};
    (void)state;
    for (uint32_t i = 0; i < 3; i++) {
        pair_order order = pair_usual();
        order.scheme = schemes[i];
        order.ranks_per_node = i == 2 ? 2 : 0;
        test_context("%s, %u ranks a node", order.scheme, order.ranks_per_node);
        ranks_run(4, 0, count_pinned, &order);
    }
}

/* -- in a graph of the caller ----------------------------------------------------------------- */

static void capture(pair *p, const float *given, float *got, cudaGraphExec_t *out) {
    test_rank *self = p->self;
    cudaGraph_t graph;
    RANK_CUDA(self, cudaStreamBeginCapture(p->stream, cudaStreamCaptureModeThreadLocal));
    enqueue_steps(p, given, got, FIRST, FIRST + 2); /* two of them */
    if (self->failure[0])
        return;
    RANK_CUDA(self, cudaStreamEndCapture(p->stream, &graph));
    RANK_CUDA(self, cudaGraphInstantiate(out, graph, 0));
    RANK_CUDA(self, cudaGraphDestroy(graph));
}

/* Steps first and first + 1 by the graph, which works on the gradients of two steps; all results go
 * to `kept`. */
static void replay(pair *p, cudaGraphExec_t graph, float *given, const float *got, uint32_t first,
                   float *kept) {
    float *window = given + FIRST * PAIR_N;
    for (uint32_t j = 0; j < 2; j++)
        data_fill_real(p->self->id, first + j, PAIR_N, window + j * PAIR_N);
    RANK_CUDA(p->self, cudaGraphLaunch(graph, p->stream));
    RANK_CUDA(p->self, cudaStreamSynchronize(p->stream));
    memcpy(kept + first * PAIR_N, got + FIRST * PAIR_N, 2 * p->bytes);
}

/* Steps of the host, replays, steps of the host. */
static void run_and_replay(pair *p, float *given, float *got, float *kept) {
    enum { END = FIRST + 2 * 6 };
    cudaGraphExec_t graph = NULL;
    enqueue_steps(p, given, got, 0, FIRST);
    capture(p, given, got, &graph);
    RANK_CUDA(p->self, cudaStreamSynchronize(p->stream));
    memcpy(kept, got, FIRST * p->bytes);
    for (uint32_t i = FIRST; i < END && !p->self->failure[0]; i += 2)
        replay(p, graph, given, got, i, kept);
    enqueue_steps(p, given, got, END, AHEAD);
    RANK_CUDA(p->self, cudaStreamSynchronize(p->stream));
    memcpy(kept + END * PAIR_N, got + END * PAIR_N, (AHEAD - END) * p->bytes);
    for (uint32_t i = FIRST; i < FIRST + 2; i++) /* as they were */
        data_fill_real(p->self->id, i, PAIR_N, given + i * PAIR_N);
    cudaGraphExecDestroy(graph);
}

static void replay_captured(test_rank *self) {
    float *given = NULL, *got = NULL, *kept = malloc((size_t)AHEAD * PAIR_N * sizeof *kept);
    pair p;
    RANK_CHECK(self, kept, "no memory");
    if (!pair_open(self, self->shared, &p))
        return;
    take_pinned(&p, &given, &got);
    run_and_replay(&p, given, got, kept);
    if (!self->failure[0])
        pair_follow(&p, given, kept, AHEAD);
    if (self->failure[0])
        return;
    pair_step(&p, AHEAD, PAIR_START, TAMIS_OK);
    free(kept);
    cudaFreeHost(given);
    cudaFreeHost(got);
    pair_close(&p);
}

static void test_captured_steps_replay_with_the_bits_of_the_cpu(void **state) {
    const tamis_update update = momentum(); /* the numbers of all its passes are the same */
    pair_order order = pair_usual();
    (void)state;
    ranks_run(2, 0, replay_captured, &order);
    order.update = &update;
    ranks_run(2, 0, replay_captured, &order);
}

/* What it refuses is not done, and the next step is as ever. */
static void capture_and_fail(test_rank *self) {
    tamis_step step = TAMIS_STEP_INIT;
    cudaGraph_t graph = NULL;
    pair p;
    if (!pair_open(self, self->shared, &p))
        return;
    pair_step(&p, 0, PAIR_START, TAMIS_OK);
    step.grad = p.grad;
    step.stream = p.stream;
    RANK_CUDA(self, cudaStreamBeginCapture(p.stream, cudaStreamCaptureModeThreadLocal));
    RANK_STATUS(self, TAMIS_E_UNSUPPORTED, tamis_reducer_start(p.cuda, &step));
    RANK_SAYS(self, "Adam");
    (void)cudaStreamEndCapture(p.stream, &graph);
    if (graph)
        cudaGraphDestroy(graph);
    for (uint32_t i = 1; i < 3 && !self->failure[0]; i++)
        pair_step(&p, i, PAIR_START, TAMIS_OK);
    pair_close(&p);
}

static void test_a_pass_of_adam_is_not_captured(void **state) {
    const tamis_update update = adam(0.0);
    pair_order order = pair_usual();
    (void)state;
    order.update = &update;
    ranks_run(2, 0, capture_and_fail, &order);
}

/* -- phases ----------------------------------------------------------------------------------- */

typedef struct diary {
    _Atomic uint32_t device, wait, wrong;
} diary;

static diary diaries[RANKS_MOST];

static void record_phase(void *context, const tamis_phase_event *event) {
    const pair *p = context;
    diary *d = &diaries[p->self->id];
    bool ordered = event->begin_ns <= event->end_ns && event->rank == p->self->id;
    if (event->phase == TAMIS_PHASE_DEVICE)
        ordered = ordered && event->bucket == atomic_fetch_add(&d->device, 1) % BUCKETS;
    else if (event->phase == TAMIS_PHASE_WAIT)
        ordered = ordered && event->step == atomic_fetch_add(&d->wait, 1);
    if (!ordered)
        atomic_fetch_add(&d->wrong, 1);
}

static void listen(test_rank *self) {
    diary *d = &diaries[self->id];
    pair p;
    if (!pair_open(self, self->shared, &p))
        return;
    for (uint32_t i = 0; i < 3 && !self->failure[0]; i++)
        pair_step(&p, i, PAIR_START, TAMIS_OK);
    RANK_CHECK(self, d->device == 3 * BUCKETS && d->wait == 3 && d->wrong == 0, "%u, %u, %u",
               (uint32_t)d->device, (uint32_t)d->wait, (uint32_t)d->wrong);
    pair_close(&p);
}

static void test_every_bucket_of_a_step_is_told_of(void **state) {
    pair_order order = pair_usual();
    (void)state;
    order.on_phase = record_phase;
    ranks_run(2, 0, listen, &order);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_scheme_gives_the_bits_of_the_cpu),
        cmocka_unit_test(test_options_give_the_bits_of_the_cpu),
        cmocka_unit_test(test_updates_give_the_bits_of_the_cpu),
        cmocka_unit_test(test_bad_numbers_in_one_bucket_are_found_in_all),
        cmocka_unit_test(test_dense_clears_all_buckets_for_one),
        cmocka_unit_test(test_a_state_moves_between_devices),
        cmocka_unit_test(test_a_loaded_state_is_saved_as_it_was),
        cmocka_unit_test(test_joined_steps_run_without_the_host),
        cmocka_unit_test(test_buckets_share_pinned_memory),
        cmocka_unit_test(test_captured_steps_replay_with_the_bits_of_the_cpu),
        cmocka_unit_test(test_a_pass_of_adam_is_not_captured),
        cmocka_unit_test(test_every_bucket_of_a_step_is_told_of),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
