/* SPDX-License-Identifier: MIT
 *
 * Kernels on the CPU and host path on a fake runtime: nodes whose steps the device drives by itself
 * beside the same on the CPU, over what happens to a reducer, and messages that are damaged.
 *
 * test: release
 */
#include "tests/cuda/fake.h"
#include "tests/cuda/pair.h"
#include "tests/support/data.h"
#include "tests/support/scratch.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <tamis/state.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

enum { NRANKS = 4, SIZE = 2, BAD = 2 };

static pair_order usual(void) {
    pair_order order = pair_usual();
    order.ranks_per_node = SIZE;
    order.bucket_length = 0;
    return order;
}

/* -- what is not finite ----------------------------------------------------------------------- */

static void put_nan(uint32_t rank, uint32_t number, float *grad) {
    if (number == BAD && rank == 2)
        grad[77] = NAN;
}

/* Finite on every rank and in the sum of every node, but not in that of all. */
static void put_large(uint32_t rank, uint32_t number, float *grad) {
    if (number == BAD && rank % 2 == 0)
        grad[78] = 3e38f;
}

static void step_on_bad(test_rank *self) {
    const pair_order *order = self->shared;
    pair p;
    if (!pair_open(self, order, &p))
        return;
    for (uint32_t i = 0; i < 5 && !self->failure[0]; i++) {
        bool fails = i == BAD && order->nonfinite == TAMIS_NONFINITE_ERROR;
        pair_step(&p, i, PAIR_START, fails ? TAMIS_E_NONFINITE : TAMIS_OK);
        if (fails && order->touch == put_nan)
            RANK_SAYS(self, "first in the sum of ranks 2 to 3");
    }
    pair_close(&p);
}

static void test_all_ranks_decide_the_same_way_on_nan(void **state) {
    static void (*const touches[])(uint32_t, uint32_t, float *) = {put_nan, put_large};
    (void)state;
    for (int i = 0; i < 6; i++) {
        pair_order order = usual();
        order.nonfinite = (tamis_nonfinite)(i % 3);
        order.touch = touches[i / 3];
        order.bucket_length = i % 2 ? PAIR_N / 3 : 0;
        test_context("policy %d, touch %d", i % 3, i / 3);
        ranks_run(NRANKS, 0, step_on_bad, &order);
    }
}

/* -- graphs, the host, states ----------------------------------------------------------------- */

static tamis_step step_of(const pair *p) {
    tamis_step step = TAMIS_STEP_INIT;
    step.grad = p->grad;
    step.stream = p->stream;
    return step;
}

static void start_alone(test_rank *self, pair *p) {
    tamis_step step = step_of(p);
    RANK_OK(self, tamis_reducer_start(p->cuda, &step));
    RANK_OK(self, tamis_reducer_join(p->cuda, p->stream));
}

static void run_ahead(test_rank *self) {
    const pair_order *order = self->shared;
    pair p;
    if (!pair_open(self, order, &p))
        return;
    pair_step(&p, 0, PAIR_START, TAMIS_OK);
    RANK_BARRIER(self);
    uint64_t before = fake_cuda_forbidden_calls(), replays = fake_cuda_calls("cudaGraphLaunch");
    RANK_BARRIER(self);
    for (int i = 0; i < 5 && !self->failure[0]; i++)
        start_alone(self, &p);
    RANK_BARRIER(self);
    RANK_CHECK(self, fake_cuda_forbidden_calls() == before,
               "allocations or synchronising calls in steps");
    RANK_CHECK(self, fake_cuda_calls("cudaGraphLaunch") > replays, "no step was replayed");
    RANK_BARRIER(self);
    tamis_step step = step_of(&p);
    RANK_OK(self, tamis_reducer_start(p.cuda, &step));
    RANK_OK(self, tamis_reducer_wait(p.cuda));
    pair_close(&p);
}

static void test_steps_need_no_host(void **state) {
    pair_order order = usual();
    (void)state;
    for (int several = 0; several < 2; several++) {
        order.bucket_length = several ? PAIR_N / 4 : 0;
        test_context("several buckets: %d", several);
        ranks_run(NRANKS, 0, run_ahead, &order);
    }
}

static void replay(test_rank *self, pair *p, cudaGraphExec_t graph, uint32_t number) {
    tamis_step host = TAMIS_STEP_INIT;
    pair_fill(p, number);
    host.grad = p->host;
    RANK_CUDA(self, cudaGraphLaunch(graph, p->stream));
    RANK_CUDA(self, cudaStreamSynchronize(p->stream));
    RANK_OK(self, tamis_reducer_start(p->cpu, &host));
    RANK_OK(self, tamis_reducer_wait(p->cpu));
    pair_compare_vectors(p);
}

static void in_a_graph_of_the_caller(test_rank *self) {
    const pair_order *order = self->shared;
    cudaGraph_t graph;
    cudaGraphExec_t made;
    pair p;
    if (!pair_open(self, order, &p))
        return;
    pair_step(&p, 0, PAIR_START, TAMIS_OK);
    RANK_CUDA(self, cudaStreamBeginCapture(p.stream, cudaStreamCaptureModeThreadLocal));
    start_alone(self, &p);
    RANK_CUDA(self, cudaStreamEndCapture(p.stream, &graph));
    RANK_CUDA(self, cudaGraphInstantiate(&made, graph, 0));
    RANK_CUDA(self, cudaGraphDestroy(graph));
    for (uint32_t i = 1; i < 4 && !self->failure[0]; i++)
        replay(self, &p, made, i);
    RANK_CUDA(self, cudaGraphExecDestroy(made));
    pair_close(&p);
}

static void test_a_graph_of_the_caller_holds_steps(void **state) {
    pair_order order = usual();
    (void)state;
    ranks_run(NRANKS, 0, in_a_graph_of_the_caller, &order);
    order.bucket_length = PAIR_N / 3;
    ranks_run(NRANKS, 0, in_a_graph_of_the_caller, &order);
}

typedef struct journey {
    pair_order order;
    char path[SCRATCH_PATH];
} journey;

/* What the device saved goes on on the CPU, and the other way round. */
static void change_places(test_rank *self) {
    const journey *j = self->shared;
    char of_cuda[SCRATCH_PATH + 32], of_cpu[SCRATCH_PATH + 32];
    pair p;
    snprintf(of_cuda, sizeof of_cuda, "%s.cuda.%u", j->path, self->id);
    snprintf(of_cpu, sizeof of_cpu, "%s.cpu.%u", j->path, self->id);
    if (!pair_open(self, &j->order, &p))
        return;
    for (uint32_t i = 0; i < 3; i++)
        pair_step(&p, i, PAIR_START, TAMIS_OK);
    RANK_OK(self, tamis_reducer_save(p.cuda, of_cuda));
    RANK_OK(self, tamis_reducer_save(p.cpu, of_cpu));
    pair_step(&p, 3, PAIR_START, TAMIS_OK);
    RANK_OK(self, tamis_reducer_load(p.cuda, of_cpu));
    RANK_OK(self, tamis_reducer_load(p.cpu, of_cuda));
    for (uint32_t i = 3; i < 6; i++)
        pair_step(&p, i, PAIR_START, TAMIS_OK);
    pair_close(&p);
}

static void test_states_go_from_devices_to_cpus_and_back(void **state) {
    journey j = {.order = usual()};
    (void)state;
    scratch_path("nodes", j.path);
    ranks_run(NRANKS, 0, change_places, &j);
    j.order.bucket_length = PAIR_N / 3;
    ranks_run(NRANKS, 0, change_places, &j);
}

/* -- messages that are damaged ---------------------------------------------------------------- */

enum { STEPS = 3, MESSAGES_MOST = 16 };

typedef struct damage {
    unsigned nth; /* message of the middle step; 0: none */
    int to;
    size_t bit;
    tamis_value_codec value_codec;
    uint64_t hashes[NRANKS][STEPS];
    tamis_status status[NRANKS][STEPS];
} damage;

static void step_once(test_rank *self, pair *p, uint32_t number, damage *d) {
    tamis_step step = step_of(p);
    pair_fill(p, number);
    RANK_CUDA(self, cudaStreamSynchronize(p->stream));
    RANK_BARRIER(self);
    if (number == 1 && self->id == 0 && d->nth > 0)
        fake_nccl_flip_message(d->nth, 0, d->to, d->bit);
    RANK_BARRIER(self);
    RANK_OK(self, tamis_reducer_start(p->cuda, &step));
    d->status[self->id][number] = tamis_reducer_wait(p->cuda);
    RANK_CUDA(self, cudaStreamSynchronize(p->stream));
    d->hashes[self->id][number] = data_hash(0, p->grad, p->bytes);
}

static bool any_failed(const damage *d) {
    bool any = false;
    for (uint32_t r = 0; r < NRANKS; r++)
        for (uint32_t i = 0; i < STEPS; i++)
            any = any || (d->status[r][i] != TAMIS_OK && d->status[r][i] != TAMIS_E_STATE);
    return any;
}

static void suffer(test_rank *self) {
    pair_order order = usual();
    damage *d = self->shared;
    pair p;
    order.value_codec = d->value_codec;
    if (!pair_open(self, &order, &p))
        return;
    for (uint32_t i = 0; i < STEPS; i++)
        d->status[self->id][i] = TAMIS_E_STATE; /* not run */
    RANK_BARRIER(self);
    for (uint32_t i = 0; i < STEPS && !self->failure[0] && !any_failed(d); i++) {
        step_once(self, &p, i, d);
        RANK_BARRIER(self);
    }
    pair_close(&p);
}

/* @return whether some rank has an error */
static bool check_not_silent(const damage *d, const damage *good) {
    bool refused = false;
    for (uint32_t r = 0; r < NRANKS; r++)
        for (uint32_t i = 0; i < STEPS; i++) {
            refused = refused || d->status[r][i] == TAMIS_E_PROTOCOL;
            if (d->status[r][i] == TAMIS_OK && d->hashes[r][i] != good->hashes[r][i])
                fail_msg("[%s] rank %u, step %u: a wrong result and no word of it",
                         test_context_text(), r, i);
        }
    return refused;
}

static void try_every_message(tamis_value_codec value_codec) {
    damage good = {.value_codec = value_codec};
    unsigned hit = 0, refused = 0;
    ranks_run(NRANKS, 0, suffer, &good);
    for (int to = 1; to < NRANKS; to++)
        for (unsigned nth = 1; nth <= MESSAGES_MOST; nth++) {
            damage d = {
                .nth = nth, .to = to, .bit = 3 + 40 * (unsigned)to, .value_codec = value_codec};
            test_context("value codec %d, message %u to rank %d", value_codec, nth, to);
            ranks_run(NRANKS, 0, suffer, &d);
            if (!fake_nccl_flipped()) /* a step has fewer */
                break;
            hit++;
            refused += check_not_silent(&d, &good);
        }
    assert_in_range(hit, 5, 3 * MESSAGES_MOST - 1);
    assert_in_range(refused, hit - 2, hit); /* an owner without a block sends only padding */
}

static void test_no_damaged_message_is_silent(void **state) {
    (void)state;
    try_every_message(TAMIS_VALUE_FLOAT32);
    try_every_message(TAMIS_VALUE_BFLOAT16);
}

/* -- a device that hangs ---------------------------------------------------------------------- */

/* Read by LeakSanitizer where it is built in; for all tests of this folder. Freeing memory would
 * wait for the device, so what it has in use stays. Events, streams and graphs of a broken device
 * cannot be destroyed; what leaks otherwise is found by counting (fake_cuda_alive). */
__attribute__((visibility("default"))) const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void) {
    return "leak:leave_a_device_that_hangs\n"
           "leak:cudaEventCreateWithFlags\nleak:cudaStreamCreate\nleak:cudaGraphInstantiate\n";
}

static void leave_a_device_that_hangs(test_rank *self) {
    const pair_order *order = self->shared;
    pair p;
    if (!pair_open(self, order, &p))
        return;
    tamis_step step = step_of(&p);
    pair_step(&p, 0, PAIR_START, TAMIS_OK);
    pair_fill(&p, 1);
    RANK_CUDA(self, cudaStreamSynchronize(p.stream));
    RANK_BARRIER(self);
    uint64_t frees = fake_cuda_calls("cudaFree");
    fake_cuda_hold(1);
    RANK_BARRIER(self);
    self->where = "a step that never ends";
    RANK_OK(self, tamis_reducer_start(p.cuda, &step));
    RANK_STATUS(self, TAMIS_E_TIMEOUT, tamis_reducer_wait(p.cuda));
    self->where = "tamis_reducer_destroy";
    tamis_reducer_destroy(p.cuda);
    p.cuda = NULL;
    RANK_CHECK(self, fake_cuda_calls("cudaFree") == frees, "memory in use was freed");
    RANK_BARRIER(self);
    fake_cuda_hold(0);
    RANK_BARRIER(self);
    pair_close(&p);
}

static void test_a_device_that_hangs_holds_nobody(void **state) {
    pair_order order = usual();
    (void)state;
    order.timeout_ms = test_stretch_ms(500);
    for (uint32_t size = 0; size <= SIZE; size += SIZE) {
        order.ranks_per_node = size;
        test_context("nodes of %u", size);
        ranks_run(2, 0, leave_a_device_that_hangs, &order);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_ranks_decide_the_same_way_on_nan),
        cmocka_unit_test(test_steps_need_no_host),
        cmocka_unit_test(test_a_graph_of_the_caller_holds_steps),
        cmocka_unit_test(test_states_go_from_devices_to_cpus_and_back),
        cmocka_unit_test(test_no_damaged_message_is_silent),
        cmocka_unit_test(test_a_device_that_hangs_holds_nobody),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
