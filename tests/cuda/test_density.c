/* SPDX-License-Identifier: MIT
 *
 * Host path on a fake runtime (with the kernels on the CPU below it): densities that change between
 * steps that the device runs by itself. Every bit is that of the CPU with the same calls, messages
 * follow the density, and a graph is kept where no size changes. Ranks that do not agree are
 * test_density_faults.c's.
 *
 * test: release
 */
#include "tests/cuda/fake.h"
#include "tests/cuda/pair.h"
#include "tests/support/scratch.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <tamis/state.h>
#include <tamis/stats.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

#define PAIRS "all+global+exact+pairs"

/* Up and down, by little and by much; the third and fourth change no size of a message. */
static const double densities[] = {0.1, 0.3, 0.05, 0.0505, 0.05, 0.008, 0.29, 0.02};
enum { CHANGES = sizeof densities / sizeof densities[0] };

#if defined(__SANITIZE_THREAD__) /* which sees the threads of a kernel, and takes its time */
enum { STEPS = 4 };
#else
enum { STEPS = CHANGES };
#endif

static pair_order usual(void) {
    pair_order order = pair_usual();
    order.density_max = 0.3;
    return order;
}

static void set_density(pair *p, double density) {
    test_rank *self = p->self;
    RANK_OK(self, tamis_reducer_set_density(p->cuda, density));
    RANK_OK(self, tamis_reducer_set_density(p->cpu, density));
    pair_compare_buckets(p);
}

/* -- bits ------------------------------------------------------------------------------------- */

static void run_steps(test_rank *self) {
    const char *why = NULL;
    pair p;
    if (!pair_open(self, self->shared, &p))
        return;
    const char *driver = tamis_reducer_driver(p.cuda, &why);
    RANK_CHECK(self, strcmp(driver, "device") == 0, "driven by the %s: %s", driver, why);
    for (uint32_t i = 0; i < STEPS && !self->failure[0]; i++) {
        set_density(&p, densities[i]);
        if (!self->failure[0])
            pair_step(&p, i, (pair_ready)((i + self->id) % PAIR_WAYS), TAMIS_OK);
    }
    pair_close(&p);
}

static void test_every_scheme_gives_the_bits_of_the_cpu(void **state) {
    static const struct {
        const char *name;
        double capacity;
    } schemes[] = {
        {"tamis", 0.0}, {"topk", 0.0},      {PAIRS, 0.0}, {"all+norm+predict+union", 0.0},
        {"micro", 1.5}, {"threshold", 1.5}, {"cltk", 0.0}};
    (void)state;
    for (uint32_t i = 0; i < 28; i += test_stride(5)) {
        pair_order order = usual();
        order.scheme = schemes[i % 7].name;
        order.capacity = schemes[i % 7].capacity;
        order.bucket_length = i / 7 % 2 ? 0 : PAIR_N / 5;
        order.bucket_budget = i % 3 ? TAMIS_BUCKET_BUDGET_NORM : TAMIS_BUCKET_BUDGET_LENGTH;
        order.by_segment = i % 2;
        test_context("%s, buckets of %llu", order.scheme, (unsigned long long)order.bucket_length);
        ranks_run(1 + i % 3, 0, run_steps, &order);
    }
}

static void test_whatever_travels_gives_the_bits_of_the_cpu(void **state) {
    (void)state;
    for (uint32_t i = 0; i < 10; i += test_stride(3)) {
        pair_order order = usual();
        order.index_codec = (tamis_index_codec)(TAMIS_INDEX_U32 + i % 5);
        order.value_codec = (tamis_value_codec)(TAMIS_VALUE_FLOAT32 + i / 2 % 5);
        order.scheme = i % 3 ? "tamis" : PAIRS;
        order.output = i % 2 ? TAMIS_OUTPUT_SPARSE : TAMIS_OUTPUT_DENSE;
        order.bucket_length = i % 4 ? PAIR_N / 3 : 0;
        test_context("index codec %u, value codec %u, %s", i % 5, i / 2 % 5, order.scheme);
        ranks_run(2, 0, run_steps, &order);
    }
}

/* A scale that is left open follows the density. */
static void test_updates_give_the_bits_of_the_cpu(void **state) {
    (void)state;
    for (uint32_t i = 0; i < 6; i += test_stride(2)) {
        tamis_update update = TAMIS_UPDATE_INIT;
        pair_order order = usual();
        update.beta1 = i % 2 ? 0.9 : 0.0;
        update.norm_matching = i % 3 == 1 ? 2.0 : 0.0;
        update.rule = i % 3 == 2 ? TAMIS_UPDATE_MOMENTUM : TAMIS_UPDATE_ADAM;
        order.update = &update;
        order.scheme = i < 3 ? "tamis" : PAIRS;
        test_context("update %u, %s", i % 3, order.scheme);
        ranks_run(2, 0, run_steps, &order);
    }
}

static void test_nodes_give_the_bits_of_the_cpu(void **state) {
    (void)state;
    for (uint32_t i = 0; i < 2; i++) {
        pair_order order = usual();
        order.ranks_per_node = 2;
        order.bucket_length = i ? PAIR_N / 5 : 0;
        test_context("nodes, buckets of %llu", (unsigned long long)order.bucket_length);
        ranks_run(4, 0, run_steps, &order);
    }
}

/* Segments of 1, 37, 700, 5, 420, 255, 233, 3, 1, 37 and 408: the lists of those with rows keep
 * their sizes. */
static void test_rows_give_the_bits_of_the_cpu(void **state) {
    static const uint64_t rows[] = {0, 1, 70, 0, 0, 0, 0, 0, 0, 0, 8};
    pair_order order = usual();
    (void)state;
    order.rows = rows;
    order.rows_capacity = 40;
    test_context("rows");
    ranks_run(2, 0, run_steps, &order);
}

/* Micro-batches, of which one has an entry that is dropped, before and behind the change. */
static void accumulate_around(test_rank *self) {
    pair p;
    if (!pair_open(self, self->shared, &p))
        return;
    for (uint32_t i = 0; i < STEPS && !self->failure[0]; i++) {
        pair_accumulate(&p, 3 * i);
        set_density(&p, densities[i]);
        pair_accumulate(&p, 3 * i + 1);
        if (!self->failure[0])
            pair_step(&p, 3 * i + 2, PAIR_START, TAMIS_OK);
    }
    pair_close(&p);
}

static void put_infinite(uint32_t rank, uint32_t number, float *grad) {
    if (rank == 0 && number == 3)
        grad[7] = 1.0f / 0.0f;
}

static void test_micro_batches_stay_where_they_are(void **state) {
    pair_order order = usual();
    (void)state;
    order.nonfinite = TAMIS_NONFINITE_DROP;
    order.touch = put_infinite;
    ranks_run(2, 0, accumulate_around, &order);
}

/* Below the density of the configuration nothing need be said beforehand. */
static void test_a_lower_density_needs_no_room(void **state) {
    static const double lower[] = {0.1, 0.05, 0.07, 0.1};
    pair_order order = pair_usual();
    (void)state;
    order.density = 0.3;
    test_context("lower densities");
    assert_true(lower[0] < order.density);
    ranks_run(2, 0, run_steps, &order);
}

/* -- joined ----------------------------------------------------------------------------------- */

static void join_one(pair *p, uint32_t number) {
    test_rank *self = p->self;
    pair_fill(p, number);
    pair_begin(p, PAIR_START);
    if (self->failure[0])
        return;
    RANK_OK(self, tamis_reducer_join(p->cuda, p->stream));
    RANK_OK(self, tamis_reducer_wait(p->cpu));
}

/* A change waits for the steps before it; those are counted. */
static void join_steps(test_rank *self) {
    tamis_stats stats = TAMIS_STATS_INIT;
    pair p;
    if (!pair_open(self, self->shared, &p))
        return;
    for (uint32_t i = 0; i < STEPS && !self->failure[0]; i++) {
        join_one(&p, 2 * i);
        set_density(&p, densities[(i + 1) % CHANGES]);
        RANK_OK(self, tamis_reducer_stats(p.cuda, &stats));
        RANK_CHECK(self, stats.steps == 2 * i + 1, "%llu steps", (unsigned long long)stats.steps);
        join_one(&p, 2 * i + 1);
        if (!self->failure[0])
            pair_compare_vectors(&p);
    }
    pair_close(&p);
}

static void test_joined_steps_come_first(void **state) {
    pair_order order = usual();
    (void)state;
    ranks_run(2, 0, join_steps, &order);
}

/* Two reducers of one communicator, whose sizes change while the other has a step under way. */
static void take_turns(test_rank *self) {
    tamis_reducer *other = NULL;
    tamis_step step = TAMIS_STEP_INIT;
    pair p;
    if (!pair_open(self, self->shared, &p))
        return;
    tamis_reducer_config config = pair_config(p.order);
    config.device = TAMIS_DEVICE_CUDA;
    RANK_OK(self, data_reducer(p.comm, PAIR_N, &config, &other));
    RANK_CUDA(self, cudaMalloc(&step.grad, p.bytes));
    RANK_CUDA(self, cudaMemset(step.grad, 0, p.bytes));
    step.stream = p.stream;
    for (uint32_t i = 0; i < STEPS && !self->failure[0]; i++) {
        set_density(&p, densities[i]);
        RANK_OK(self, tamis_reducer_set_density(other, densities[CHANGES - 1 - i]));
        RANK_OK(self, tamis_reducer_start(other, &step));
        RANK_OK(self, tamis_reducer_join(other, p.stream));
        pair_step(&p, i, PAIR_START, TAMIS_OK);
    }
    RANK_CUDA(self, cudaStreamSynchronize(p.stream));
    cudaFree(step.grad);
    tamis_reducer_destroy(other);
    pair_close(&p);
}

static void test_reducers_of_one_communicator_take_turns(void **state) {
    pair_order order = usual();
    (void)state;
    ranks_run(2, 0, take_turns, &order);
}

/* -- sizes ------------------------------------------------------------------------------------ */

static uint64_t wire_bytes(test_rank *self, pair *p) {
    tamis_stats stats = TAMIS_STATS_INIT;
    pair_step(p, 0, PAIR_START, TAMIS_OK);
    if (!self->failure[0])
        rank_status(self, __FILE__, __LINE__, "stats", TAMIS_OK,
                    tamis_reducer_stats(p->cuda, &stats));
    return stats.wire_bytes;
}

/* What a reducer sends that can send no more. */
static uint64_t least_bytes(test_rank *self, double density) {
    pair_order order = *(const pair_order *)self->shared;
    pair p;
    order.density = density;
    order.density_max = 0.0;
    if (!pair_open(self, &order, &p))
        return 0;
    uint64_t bytes = wire_bytes(self, &p);
    pair_close(&p);
    return bytes;
}

static void compare_sizes(test_rank *self) {
    pair p;
    uint64_t least[STEPS];
    for (uint32_t i = 0; i < STEPS && !self->failure[0]; i++)
        least[i] = least_bytes(self, densities[i]);
    if (self->failure[0] || !pair_open(self, self->shared, &p))
        return;
    for (uint32_t i = 0; i < STEPS && !self->failure[0]; i++) {
        set_density(&p, densities[i]);
        double bytes = (double)wire_bytes(self, &p);
        RANK_CHECK(self, bytes >= (double)least[i] && bytes <= 1.1 * (double)least[i],
                   "density %g: %g bytes, %llu at least", densities[i], bytes,
                   (unsigned long long)least[i]);
    }
    pair_close(&p);
}

static void test_messages_follow_the_density(void **state) {
    static const char *const schemes[] = {"tamis", "topk", PAIRS};
    (void)state;
    for (uint32_t i = 0; i < 6; i++) {
        pair_order order = usual();
        order.scheme = schemes[i % 3];
        order.bucket_length = i < 3 ? 0 : PAIR_N / 5;
        order.index_codec = i % 2 ? TAMIS_INDEX_BLOCK16 : TAMIS_INDEX_U32;
        test_context("sizes, %s", order.scheme);
        ranks_run(2, 0, compare_sizes, &order);
    }
}

/* 209 to 216 entries have the same sizes, and no step takes memory. */
static void stay_in_grain(test_rank *self) {
    pair p;
    if (!pair_open(self, self->shared, &p))
        return;
    RANK_BARRIER(self);
    uint64_t graphs = fake_cuda_calls("cudaGraphInstantiate"), taken = fake_cuda_allocations();
    RANK_BARRIER(self);
    for (uint32_t i = 0; i < 4 && !self->failure[0]; i++) {
        set_density(&p, (209.5 + 2 * i) / PAIR_N);
        pair_step(&p, i, PAIR_START, TAMIS_OK);
    }
    RANK_BARRIER(self);
    RANK_CHECK(self, fake_cuda_calls("cudaGraphInstantiate") == graphs, "a graph was made");
    RANK_BARRIER(self);
    set_density(&p, 0.2);
    pair_step(&p, 4, PAIR_START, TAMIS_OK);
    RANK_BARRIER(self);
    RANK_CHECK(self, fake_cuda_allocations() == taken, "memory was taken");
    pair_close(&p);
}

static void test_small_changes_make_no_graphs(void **state) {
    pair_order order = usual();
    (void)state;
    order.bucket_length = 0;
    ranks_run(2, 0, stay_in_grain, &order);
}

/* -- states ----------------------------------------------------------------------------------- */

/* States of each are loaded by the other, which has made steps of other densities since. */
static void exchange_states(test_rank *self) {
    char name[32], path[SCRATCH_PATH];
    pair p;
    snprintf(name, sizeof name, "density.%u", self->id);
    scratch_path(name, path);
    if (!pair_open(self, self->shared, &p))
        return;
    for (uint32_t i = 0; i < STEPS && !self->failure[0]; i++) {
        tamis_reducer *from = i % 2 ? p.cuda : p.cpu;
        set_density(&p, densities[i]);
        pair_step(&p, 2 * i, PAIR_READY, TAMIS_OK);
        if (self->failure[0])
            break;
        RANK_OK(self, tamis_reducer_save(from, path));
        set_density(&p, densities[CHANGES - 1 - i]);
        pair_step(&p, 2 * i + 1, PAIR_START, TAMIS_OK);
        if (self->failure[0])
            break;
        RANK_OK(self, tamis_reducer_load(p.cpu, path));
        RANK_OK(self, tamis_reducer_load(p.cuda, path));
        pair_compare_buckets(&p);
        pair_step(&p, 2 * i + 1, PAIR_SOME_READY, TAMIS_OK);
    }
    pair_close(&p);
}

static void test_states_of_other_densities_are_loaded(void **state) {
    char path[SCRATCH_PATH];
    (void)state;
    scratch_path("density", path); /* makes the folder before threads start */
    for (uint32_t i = 0; i < 2; i++) {
        pair_order order = usual();
        order.scheme = i ? "topk" : "tamis";
        test_context("states, %s", order.scheme);
        ranks_run(2, 0, exchange_states, &order);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_scheme_gives_the_bits_of_the_cpu),
        cmocka_unit_test(test_whatever_travels_gives_the_bits_of_the_cpu),
        cmocka_unit_test(test_updates_give_the_bits_of_the_cpu),
        cmocka_unit_test(test_nodes_give_the_bits_of_the_cpu),
        cmocka_unit_test(test_rows_give_the_bits_of_the_cpu),
        cmocka_unit_test(test_micro_batches_stay_where_they_are),
        cmocka_unit_test(test_a_lower_density_needs_no_room),
        cmocka_unit_test(test_joined_steps_come_first),
        cmocka_unit_test(test_reducers_of_one_communicator_take_turns),
        cmocka_unit_test(test_messages_follow_the_density),
        cmocka_unit_test(test_small_changes_make_no_graphs),
        cmocka_unit_test(test_states_of_other_densities_are_loaded),
    };
    return cmocka_run_group_tests_name("cuda density", tests, NULL, NULL);
}
