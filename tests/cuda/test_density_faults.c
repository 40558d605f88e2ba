/* SPDX-License-Identifier: MIT
 *
 * Host path on a fake runtime (with the kernels on the CPU below it): densities that not all ranks
 * change in the same way, and changes that fail or meet a graph of the caller. Whatever goes wrong
 * is an error of all ranks that says so, and the residual can be saved.
 *
 * test: release
 */
#include "tests/cuda/fake.h"
#include "tests/cuda/pair.h"
#include "tests/support/scratch.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tamis/state.h>
#include <time.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

/* A deadline that a step in good order keeps also under a sanitizer, beside other tests. */
static uint32_t short_ms(void) {
    return test_stretch_ms(3000);
}

static pair_order usual(void) {
    pair_order order = pair_usual();
    order.density_max = 0.3;
    order.timeout_ms = short_ms();
    return order;
}

static tamis_step step_of(const pair *p) {
    tamis_step step = TAMIS_STEP_INIT;
    step.grad = p->grad;
    step.stream = p->stream;
    return step;
}

/* A gradient is there, and the next step changes sizes. */
static bool open_changed(test_rank *self, pair *out) {
    if (!pair_open(self, self->shared, out))
        return false;
    pair_fill(out, 0);
    return rank_status(self, __FILE__, __LINE__, "tamis_reducer_set_density", TAMIS_OK,
                       tamis_reducer_set_density(out->cuda, 0.3));
}

/* -- ranks that ask for other densities ------------------------------------------------------- */

/* 0: nothing is changed */
typedef struct apart {
    pair_order order;
    double densities[4];
} apart;

static void check_kept(test_rank *self, const pair *p) {
    char name[32], path[SCRATCH_PATH];
    snprintf(name, sizeof name, "apart.%u", self->id);
    scratch_path(name, path);
    RANK_OK(self, tamis_reducer_save(p->cuda, path));
}

/* After a step in good order, one that no rank applies. */
static void ask_apart(test_rank *self) {
    const apart *all = self->shared;
    double density = all->densities[self->id];
    pair p;
    if (!pair_open(self, &all->order, &p))
        return;
    tamis_step step = step_of(&p);
    pair_step(&p, 0, PAIR_START, TAMIS_OK);
    if (self->failure[0])
        return;
    if (density > 0.0)
        RANK_OK(self, tamis_reducer_set_density(p.cuda, density));
    pair_fill(&p, 1);
    RANK_BARRIER(self);
    uint64_t begin_ms = now_ms();
    self->where = "a step of two densities";
    tamis_status status = tamis_reducer_start(p.cuda, &step);
    if (status == TAMIS_OK)
        status = tamis_reducer_wait(p.cuda);
    RANK_CHECK(self, status == TAMIS_E_PROTOCOL, "%s", tamis_status_name(status));
    RANK_SAYS(self, "density");
    RANK_CHECK(self, now_ms() - begin_ms < short_ms(), "it took %llu ms",
               (unsigned long long)(now_ms() - begin_ms));
    RANK_STATUS(self, TAMIS_E_PROTOCOL, tamis_reducer_start(p.cuda, &step));
    check_kept(self, &p);
    RANK_BARRIER(self);
    pair_close(&p);
}

static void test_densities_that_differ_are_noticed(void **state) {
    /* To another size, and to another within the same: on one rank, or on several. */
    static const double asked[][4] = {{0.3, 0, 0},   {0, 0.05, 0},    {0.3, 0.3, 0},
                                      {0.101, 0, 0}, {0.101, 0, 0.3}, {0.05, 0.2, 0.0501}};
    static const char *const schemes[] = {"tamis", "topk", "all+global+exact+pairs"};
    (void)state;
    for (uint32_t i = 0; i < sizeof asked / sizeof asked[0]; i++) {
        for (uint32_t one = 0; one < 2; one++) {
            apart all = {.order = usual()};
            all.order.scheme = schemes[(i + one) % 3];
            all.order.bucket_length = one ? 0 : PAIR_N / 5;
            memcpy(all.densities, asked[i], sizeof asked[i]);
            test_context("case %u, %s, %s", i, all.order.scheme, one ? "one bucket" : "buckets");
            ranks_run(3, 0, ask_apart, &all);
        }
    }
}

/* Inter-node groups that agree learn from the others that these have given up. */
static void ask_apart_in_nodes(test_rank *self) {
    const apart *all = self->shared;
    pair p;
    if (!pair_open(self, &all->order, &p))
        return;
    tamis_step step = step_of(&p);
    if (all->densities[self->id] > 0.0)
        RANK_OK(self, tamis_reducer_set_density(p.cuda, all->densities[self->id]));
    pair_fill(&p, 0);
    RANK_BARRIER(self);
    uint64_t begin_ms = now_ms();
    self->where = "a step of two densities in nodes";
    tamis_status status = tamis_reducer_start(p.cuda, &step);
    if (status == TAMIS_OK)
        status = tamis_reducer_wait(p.cuda);
    RANK_CHECK(self, tamis_status_loss(status) == TAMIS_LOST_COMM, "%s", tamis_status_name(status));
    RANK_CHECK(self, now_ms() - begin_ms <= 2 * short_ms() + test_grace_ms(), "it took %llu ms",
               (unsigned long long)(now_ms() - begin_ms));
    check_kept(self, &p);
    RANK_BARRIER(self);
    pair_close(&p);
}

static void test_densities_that_differ_in_nodes_are_errors_of_all(void **state) {
    static const double asked[][4] = {{0.3, 0, 0, 0}, {0, 0.3, 0.3, 0.3}, {0, 0.101, 0, 0}};
    (void)state;
    for (uint32_t i = 0; i < sizeof asked / sizeof asked[0]; i++) {
        apart all = {.order = usual()};
        all.order.ranks_per_node = 2;
        memcpy(all.densities, asked[i], sizeof asked[i]);
        test_context("nodes, case %u", i);
        ranks_run(4, 0, ask_apart_in_nodes, &all);
    }
}

/* -- ranks that differ in something else ------------------------------------------------------ */

/* After a step with another number, and one that changes sizes, in which all have the same. */
static void agree_apart(test_rank *self) {
    const apart *all = self->shared;
    pair p;
    if (!pair_open(self, &all->order, &p))
        return;
    tamis_step step = step_of(&p);
    for (uint32_t number = 0; number < 2; number++) {
        step.agreed = 77 * number + 1;
        pair_fill(&p, number);
        RANK_OK(self, tamis_reducer_start(p.cuda, &step));
        RANK_OK(self, tamis_reducer_wait(p.cuda));
        RANK_OK(self, tamis_reducer_set_density(p.cuda, 0.3));
    }
    RANK_BARRIER(self);
    step.agreed = self->id == 1 ? 5 : 4;
    self->where = "a step of two numbers";
    tamis_status status = tamis_reducer_start(p.cuda, &step);
    if (status == TAMIS_OK)
        status = tamis_reducer_wait(p.cuda);
    bool in_nodes = all->order.ranks_per_node > 0;
    RANK_CHECK(self,
               in_nodes ? tamis_status_loss(status) == TAMIS_LOST_COMM : status == TAMIS_E_PROTOCOL,
               "%s", tamis_status_name(status));
    if (!in_nodes)
        RANK_SAYS(self, "tamis_step.agreed");
    check_kept(self, &p);
    RANK_BARRIER(self);
    pair_close(&p);
}

static void test_numbers_that_differ_are_noticed(void **state) {
    (void)state;
    for (uint32_t i = 0; i < 4; i++) {
        apart all = {.order = usual()};
        all.order.scheme = i == 1 ? "topk" : all.order.scheme;
        all.order.bucket_length = i == 2 ? PAIR_N / 5 : 0;
        all.order.ranks_per_node = i == 3 ? 2 : 0;
        test_context("case %u", i);
        ranks_run(4, 0, agree_apart, &all);
    }
}

/* -- changes that fail ------------------------------------------------------------------------ */

/* Rank 0 cannot make its graph anew, which the others have done. */
static void fail_to_capture(test_rank *self) {
    pair p;
    if (!open_changed(self, &p))
        return;
    tamis_step step = step_of(&p);
    RANK_BARRIER(self);
    if (self->id == 0)
        fake_cuda_fail("cudaGraphInstantiate", 1, cudaErrorMemoryAllocation);
    RANK_BARRIER(self);
    self->where = "a step whose graph cannot be made";
    tamis_status status = tamis_reducer_start(p.cuda, &step);
    if (status == TAMIS_OK)
        status = tamis_reducer_wait(p.cuda);
    RANK_CHECK(self, tamis_status_loss(status) == TAMIS_LOST_COMM, "%s", tamis_status_name(status));
    RANK_STATUS(self, tamis_comm_status(p.comm), tamis_reducer_start(p.cuda, &step));
    RANK_BARRIER(self);
    pair_close(&p);
}

static void test_a_graph_that_cannot_be_made_loses_the_communicator(void **state) {
    pair_order order = usual();
    (void)state;
    ranks_run(2, 0, fail_to_capture, &order);
    fake_cuda_reset();
}

static void start_alone(test_rank *self) {
    pair p;
    if (!open_changed(self, &p))
        return;
    tamis_step step = step_of(&p);
    RANK_BARRIER(self);
    uint64_t begin_ms = now_ms();
    self->where = "a change that one rank does not come to";
    if (self->id != 1) {
        tamis_status status = tamis_reducer_start(p.cuda, &step);
        RANK_CHECK(self, status == TAMIS_E_TIMEOUT, "%s", tamis_status_name(status));
        RANK_SAYS(self, "rank is missing");
        RANK_CHECK(self, now_ms() - begin_ms <= short_ms() + test_grace_ms(), "%llu ms",
                   (unsigned long long)(now_ms() - begin_ms));
    }
    RANK_BARRIER(self);
    pair_close(&p);
}

static void test_a_silent_rank_is_missed_by_the_deadline(void **state) {
    pair_order order = usual();
    (void)state;
    ranks_run(3, 0, start_alone, &order);
}

/* -- in a graph of the caller ----------------------------------------------------------------- */

static tamis_status capture(test_rank *self, pair *p) {
    tamis_step step = step_of(p);
    cudaGraph_t graph = NULL;
    if (cudaStreamBeginCapture(p->stream, cudaStreamCaptureModeThreadLocal) != cudaSuccess)
        rank_fail(self, __FILE__, __LINE__, "no capture");
    tamis_status status = tamis_reducer_start(p->cuda, &step);
    if (status == TAMIS_OK)
        status = tamis_reducer_join(p->cuda, p->stream);
    (void)cudaStreamEndCapture(p->stream, &graph);
    if (graph)
        cudaGraphDestroy(graph);
    return status;
}

/* A graph keeps its sizes: they are tried before, and stay. */
static void change_around_capture(test_rank *self) {
    pair p;
    if (!pair_open(self, self->shared, &p))
        return;
    RANK_OK(self, tamis_reducer_set_density(p.cuda, 0.2));
    RANK_OK(self, tamis_reducer_set_density(p.cpu, 0.2));
    RANK_STATUS(self, TAMIS_E_STATE, capture(self, &p));
    RANK_SAYS(self, "outside of the capture");
    pair_step(&p, 0, PAIR_START, TAMIS_OK);
    if (self->failure[0])
        return;
    RANK_OK(self, capture(self, &p));
    RANK_STATUS(self, TAMIS_E_UNSUPPORTED, tamis_reducer_set_density(p.cuda, 0.1));
    RANK_SAYS(self, "a step in a CUDA graph of the caller");
    pair_step(&p, 1, PAIR_START, TAMIS_OK); /* at 0.2, as if nothing had been asked */
    pair_close(&p);
}

static void test_a_graph_of_the_caller_keeps_its_sizes(void **state) {
    pair_order order = usual();
    (void)state;
    for (uint32_t one = 0; one < 2; one++) {
        order.bucket_length = one ? 0 : PAIR_N / 5;
        ranks_run(2, 0, change_around_capture, &order);
    }
}

/* -- a result that the caller's stream still reads -------------------------------------------- */

static void sleep_briefly(void *nothing) {
    const struct timespec long_s = {0, 200000000};
    (void)nothing;
    nanosleep(&long_s, NULL);
}

/* Other sizes are warmed up in the memory that holds the last result. */
static void read_late(test_rank *self) {
    tamis_result result = TAMIS_RESULT_INIT;
    float *got = NULL;
    pair p;
    if (!pair_open(self, self->shared, &p))
        return;
    tamis_step step = step_of(&p);
    pair_step(&p, 0, PAIR_START, TAMIS_OK);
    if (self->failure[0])
        return;
    RANK_OK(self, tamis_reducer_result(p.cuda, &result));
    size_t bytes = result.count * sizeof *got;
    float *held = malloc(bytes); /* device memory is the host's here */
    memcpy(held, result.values, bytes);
    RANK_CUDA(self, cudaMallocHost((void **)&got, bytes));
    pair_fill(&p, 1);
    RANK_CUDA(self, cudaStreamSynchronize(p.stream));
    RANK_BARRIER(self);
    fake_cuda_enqueue(p.stream, "sleep", sleep_briefly, NULL, NULL);
    RANK_CUDA(self, cudaMemcpyAsync(got, result.values, bytes, cudaMemcpyDeviceToHost, p.stream));
    RANK_OK(self, tamis_reducer_set_density(p.cuda, 0.3));
    RANK_OK(self, tamis_reducer_start(p.cuda, &step));
    RANK_OK(self, tamis_reducer_wait(p.cuda));
    RANK_CUDA(self, cudaStreamSynchronize(p.stream));
    RANK_CHECK(self, memcmp(got, held, bytes) == 0, "the next step changed what was being read");
    free(held);
    cudaFreeHost(got);
    pair_close(&p);
}

static void test_a_result_is_read_before_sizes_change(void **state) {
    pair_order order = usual();
    (void)state;
    order.bucket_length = 0;
    order.output = TAMIS_OUTPUT_SPARSE;
    ranks_run(2, 0, read_late, &order);
}

int main(void) {
    char path[SCRATCH_PATH];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_result_is_read_before_sizes_change),
        cmocka_unit_test(test_densities_that_differ_are_noticed),
        cmocka_unit_test(test_densities_that_differ_in_nodes_are_errors_of_all),
        cmocka_unit_test(test_numbers_that_differ_are_noticed),
        cmocka_unit_test(test_a_graph_that_cannot_be_made_loses_the_communicator),
        cmocka_unit_test(test_a_silent_rank_is_missed_by_the_deadline),
        cmocka_unit_test(test_a_graph_of_the_caller_keeps_its_sizes),
    };
    scratch_path("", path); /* makes the folder before there are threads */
    return cmocka_run_group_tests_name("cuda density faults", tests, NULL, NULL);
}
