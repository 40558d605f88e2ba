/* SPDX-License-Identifier: MIT
 *
 * Nodes of several ranks: what is refused, what is not finite, states, densities, bytes, and the
 * caller's own all-gather.
 *
 * test: tsan
 */
#include "tests/support/data.h"
#include "tests/support/gather.h"
#include "tests/support/ranks.h"
#include "tests/support/scratch.h"
#include <float.h>
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

#define COUNT(array) (sizeof(array) / sizeof(array)[0])

enum { N = 1500, NRANKS = 4, SIZE = 2 };

static tamis_reducer_config usual_config(void) {
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    config.density = 0.05;
    config.op = TAMIS_OP_SUM;
    config.ranks_per_node = SIZE;
    return config;
}

/* -- refusals --------------------------------------------------------------------------------- */

typedef struct refusal {
    const char *words; /* the message of every rank holds one of them */
    tamis_status status;
    const char *scheme;
    uint32_t sizes[NRANKS];
    tamis_value_codec value_codec;
    size_t n, row;
} refusal;

static void run_refusal(test_rank *self) {
    const refusal *c = self->shared;
    tamis_reducer_config config = usual_config();
    tamis_segment segment = {"all", c->n};
    tamis_layout *layout = NULL;
    tamis_reducer *reducer = NULL;
    config.scheme = c->scheme;
    config.value_codec = c->value_codec;
    config.ranks_per_node = c->sizes[self->id];
    RANK_OK(self, tamis_layout_create(&segment, 1, &layout));
    RANK_OK(self, tamis_layout_set_rows(layout, 0, c->row));
    tamis_status status = tamis_reducer_create(self->comm, layout, &config, &reducer);
    tamis_layout_destroy(layout);
    RANK_CHECK(self, status == c->status, "%s: %s", tamis_status_name(status), tamis_last_error());
    RANK_CHECK(self, has_word(tamis_last_error(), c->words), "\"%s\" does not say %s",
               tamis_last_error(), c->words);
    RANK_CHECK(self, reducer == NULL, "an output was written");
    RANK_STATUS(self, TAMIS_OK, tamis_comm_status(self->comm));
}

static void test_what_nodes_cannot_do_is_refused_by_all_ranks(void **state) {
    static const char *const schemes[] = {"topk", "deft",   "micro", "dense",
                                          "auto", "oktopk", "sage",  "cyclic+norm+predict+pairs"};
    static const refusal cases[] = {
        {"ranks_per_node differs: rank 0 has 2, rank 2 has 4",
         TAMIS_E_MISMATCH,
         "tamis",
         {2, 2, 4, 2},
         TAMIS_VALUE_FLOAT32,
         N,
         0},
        {"ranks_per_node differs: rank 0 has 0, rank 1 has 2",
         TAMIS_E_MISMATCH,
         "tamis",
         {1, 2, 2, 2},
         TAMIS_VALUE_FLOAT32,
         N,
         0},
        {"does not divide the 4 ranks",
         TAMIS_E_ARGUMENT,
         "tamis",
         {3, 3, 3, 3},
         TAMIS_VALUE_FLOAT32,
         N,
         0},
        {"does not divide the 4 ranks",
         TAMIS_E_ARGUMENT,
         "tamis",
         {8, 8, 8, 8},
         TAMIS_VALUE_FLOAT32,
         N,
         0},
        {"rows", TAMIS_E_UNSUPPORTED, "tamis", {2, 2, 2, 2}, TAMIS_VALUE_FLOAT32, N, 10},
        {"shards for 4 ranks",
         TAMIS_E_UNSUPPORTED,
         "tamis",
         {4, 4, 4, 4},
         TAMIS_VALUE_FLOAT32,
         3,
         0},
    };
    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        refusal one = cases[i];
        test_context("refusal %zu", i);
        ranks_run(NRANKS, 0, run_refusal, &one);
    }
    for (size_t i = 0; i < COUNT(schemes); i++) {
        refusal one = {"exclusive owners",
                       TAMIS_E_UNSUPPORTED,
                       schemes[i],
                       {2, 2, 2, 2},
                       TAMIS_VALUE_FLOAT32,
                       N,
                       0};
        test_context("scheme %s", schemes[i]);
        ranks_run(NRANKS, 0, run_refusal, &one);
    }
}

static void run_micro_batch(test_rank *self) {
    tamis_reducer_config config = usual_config();
    tamis_reducer *reducer = NULL;
    float gradient[N], before[N];
    tamis_step step = data_step(gradient);
    RANK_OK(self, data_reducer(self->comm, N, &config, &reducer));
    data_fill(DATA_HEAVY, self->id, 0, N, gradient);
    memcpy(before, gradient, sizeof before);
    RANK_STATUS(self, TAMIS_E_UNSUPPORTED, tamis_reducer_accumulate(reducer, &step));
    RANK_CHECK(self, memcmp(gradient, before, sizeof before) == 0, "the gradient was changed");
    RANK_CHECK(self, strstr(tamis_last_error(), "before start"), "\"%s\"", tamis_last_error());
    RANK_OK(self, tamis_reducer_start(reducer, &step)); /* the reducer still works */
    RANK_OK(self, tamis_reducer_wait(reducer));
    tamis_reducer_destroy(reducer);
}

static void test_micro_batches_are_refused_without_effect(void **state) {
    (void)state;
    test_context("micro-batches");
    ranks_run(NRANKS, 0, run_micro_batch, NULL);
}

/* -- what is not finite ----------------------------------------------------------------------- */

enum { STEPS = 4, BAD_STEP = 1, BAD_RANK = 3, BAD_ENTRY = 700 };

typedef struct bad_case {
    tamis_nonfinite policy;
    uint64_t bucket_length;
    float applied[NRANKS][STEPS][N], residual[NRANKS][N];
} bad_case;

static void read_residual(test_rank *self, const tamis_reducer *reducer, float *out) {
    const float *residual = NULL;
    memset(out, 0, N * sizeof *out);
    RANK_OK(self, tamis_reducer_residual(reducer, &residual));
    RANK_CHECK(self, data_spread_residual(reducer, residual, out), "%s", tamis_last_error());
}

static void run_bad_step(test_rank *self, tamis_reducer *reducer, uint32_t number) {
    bad_case *c = self->shared;
    float *gradient = c->applied[self->id][number];
    bool bad = number == BAD_STEP, lost = bad && c->policy == TAMIS_NONFINITE_ERROR;
    tamis_step step = data_step(gradient);
    tamis_stats stats = TAMIS_STATS_INIT;
    data_fill(DATA_HEAVY, self->id, number, N, gradient);
    if (bad && self->id == BAD_RANK)
        gradient[BAD_ENTRY] = NAN;
    RANK_OK(self, tamis_reducer_start(reducer, &step));
    RANK_STATUS(self, lost ? TAMIS_E_NONFINITE : TAMIS_OK, tamis_reducer_wait(reducer));
    RANK_CHECK(self, !lost || strstr(tamis_last_error(), "ranks 2 to 3"), "\"%s\" names no node",
               tamis_last_error());
    RANK_OK(self, tamis_reducer_stats(reducer, &stats));
    RANK_CHECK(self, stats.nonfinite == bad, "nonfinite is %llu",
               (unsigned long long)stats.nonfinite);
    RANK_CHECK(self, stats.skipped == (bad && c->policy != TAMIS_NONFINITE_DROP), "skipped is %llu",
               (unsigned long long)stats.skipped);
    RANK_CHECK(self, stats.skipped ? stats.selected == 0 : stats.selected == 75,
               "selected %llu entries", (unsigned long long)stats.selected);
}

static void run_bad(test_rank *self) {
    bad_case *c = self->shared;
    tamis_reducer_config config = usual_config();
    tamis_reducer *reducer = NULL;
    config.nonfinite = c->policy;
    config.bucket_length = c->bucket_length;
    RANK_OK(self, data_reducer(self->comm, N, &config, &reducer));
    for (uint32_t step = 0; step < STEPS && !self->failure[0]; step++)
        run_bad_step(self, reducer, step);
    if (!self->failure[0])
        read_residual(self, reducer, c->residual[self->id]);
    tamis_reducer_destroy(reducer);
}

/* The node whose sum is bad loses its entry; nothing else is lost. */
static void check_mass(const bad_case *c) {
    float gradient[N];
    for (size_t i = 0; i < N; i++) {
        double owed = 0, held = 0;
        for (uint32_t r = 0; r < NRANKS; r++) {
            held += (double)c->residual[r][i];
            for (uint32_t step = 0; step < STEPS; step++) {
                bool lost = step == BAD_STEP && i == BAD_ENTRY && r / SIZE == BAD_RANK / SIZE;
                data_fill(DATA_HEAVY, r, step, N, gradient);
                owed += lost ? 0 : (double)gradient[i];
            }
        }
        for (uint32_t step = 0; step < STEPS; step++)
            owed -= (double)c->applied[0][step][i];
        if (owed != held)
            fail_msg("[%s] entry %zu: owed %g, held %g", test_context_text(), i, owed, held);
        i += i % 7 == 0 ? 0 : 12; /* only some: each one reads all gradients */
    }
}

static void test_a_bad_entry_of_one_rank_is_found_by_all_the_same_way(void **state) {
    static bad_case c;
    (void)state;
    for (int policy = 0; policy < 3; policy++)
        for (int buckets = 0; buckets < 2; buckets++) {
            c.policy = (tamis_nonfinite)policy;
            c.bucket_length = buckets ? 400 : 0;
            test_context("policy %d, %d", policy, buckets);
            ranks_run(NRANKS, 0, run_bad, &c);
            for (uint32_t r = 1; r < NRANKS; r++)
                assert_memory_equal(c.applied[r], c.applied[0], sizeof c.applied[0]);
            check_mass(&c);
        }
}

/* Finite in each node, not in the sum over nodes. */
static void run_overflow(test_rank *self) {
    tamis_reducer_config config = usual_config();
    tamis_reducer *reducer = NULL;
    float gradient[N] = {0}, residual[N];
    tamis_step step = data_step(gradient);
    config.nonfinite = TAMIS_NONFINITE_DROP;
    RANK_OK(self, data_reducer(self->comm, N, &config, &reducer));
    gradient[3] = gradient[N - 1] = self->id % SIZE == 0 ? FLT_MAX : 0;
    gradient[5] = 1;
    RANK_OK(self, tamis_reducer_start(reducer, &step));
    RANK_OK(self, tamis_reducer_wait(reducer));
    read_residual(self, reducer, residual);
    RANK_CHECK(self, gradient[3] == 0 && gradient[N - 1] == 0 && gradient[5] == NRANKS,
               "applied %g %g %g", (double)gradient[3], (double)gradient[N - 1],
               (double)gradient[5]);
    for (size_t i = 0; i < N; i++)
        RANK_CHECK(self, residual[i] == 0, "residual[%zu] is %g", i, (double)residual[i]);
    tamis_reducer_destroy(reducer);
}

static void test_sums_over_nodes_that_overflow_are_dropped_everywhere(void **state) {
    (void)state;
    test_context("overflow");
    ranks_run(NRANKS, 0, run_overflow, NULL);
}

/* -- states and densities --------------------------------------------------------------------- */

typedef struct state_case {
    uint64_t hash[NRANKS][STEPS];
    uint32_t size; /* of nodes, at load */
    uint64_t bucket_length;
} state_case;

static tamis_status one_step(test_rank *self, tamis_reducer *reducer, uint32_t number,
                             uint64_t *hash) {
    float gradient[N];
    tamis_step step = data_step(gradient);
    data_fill_real(self->id, number, N, gradient);
    tamis_status status = tamis_reducer_start(reducer, &step);
    if (status == TAMIS_OK)
        status = tamis_reducer_wait(reducer);
    *hash = data_hash(0, gradient, sizeof gradient);
    return status;
}

static const char *state_path(const test_rank *self, char path[SCRATCH_PATH]) {
    char name[32];
    snprintf(name, sizeof name, "nodes.%u", self->id);
    return scratch_path(name, path);
}

/* Half the density from step 2 on; saved before that. */
static tamis_status later_step(test_rank *self, tamis_reducer *reducer, uint32_t number,
                               uint64_t *hash) {
    tamis_status status = TAMIS_OK;
    if (number == 2)
        status = tamis_reducer_set_density(reducer, 0.0211);
    return status == TAMIS_OK ? one_step(self, reducer, number, hash) : status;
}

static void run_saved(test_rank *self) {
    state_case *c = self->shared;
    char path[SCRATCH_PATH];
    tamis_reducer_config config = usual_config();
    tamis_reducer *reducer = NULL;
    tamis_stats stats = TAMIS_STATS_INIT;
    config.bucket_length = c->bucket_length;
    RANK_OK(self, data_reducer(self->comm, N, &config, &reducer));
    for (uint32_t step = 0; step < STEPS; step++) {
        if (step == 2)
            RANK_OK(self, tamis_reducer_save(reducer, state_path(self, path)));
        RANK_OK(self, later_step(self, reducer, step, &c->hash[self->id][step]));
    }
    RANK_OK(self, tamis_reducer_stats(reducer, &stats));
    RANK_CHECK(self, stats.selected == 31 && stats.target == 31, "selected %llu of %llu",
               (unsigned long long)stats.selected, (unsigned long long)stats.target);
    tamis_reducer_destroy(reducer);
}

static void run_loaded(test_rank *self) {
    const state_case *c = self->shared;
    char path[SCRATCH_PATH];
    tamis_reducer_config config = usual_config();
    tamis_reducer *reducer = NULL;
    config.bucket_length = c->bucket_length;
    config.ranks_per_node = c->size;
    RANK_OK(self, data_reducer(self->comm, N, &config, &reducer));
    if (c->size != SIZE) {
        RANK_STATUS(self, TAMIS_E_FORMAT, tamis_reducer_load(reducer, state_path(self, path)));
        RANK_CHECK(self, strstr(tamis_last_error(), "ranks_per_node is 2 in the file"), "\"%s\"",
                   tamis_last_error());
    } else {
        RANK_OK(self, tamis_reducer_load(reducer, state_path(self, path)));
        for (uint32_t step = 2; step < STEPS; step++) {
            uint64_t hash = 0;
            RANK_OK(self, later_step(self, reducer, step, &hash));
            RANK_CHECK(self, hash == c->hash[self->id][step], "step %u differs", step);
        }
    }
    tamis_reducer_destroy(reducer);
}

static void test_a_state_resumes_bit_for_bit_and_in_such_nodes_alone(void **state) {
    static const uint32_t sizes[] = {SIZE, 0, NRANKS};
    char path[SCRATCH_PATH];
    state_case c;
    (void)state;
    scratch_path("first", path); /* the folder, before there are threads */
    for (int buckets = 0; buckets < 2; buckets++) {
        c.bucket_length = buckets ? 500 : 0;
        test_context("states, saved");
        ranks_run(NRANKS, 0, run_saved, &c);
        for (size_t i = 0; i < COUNT(sizes); i++) {
            c.size = sizes[i];
            test_context("states, loaded into nodes of %u", c.size);
            ranks_run(NRANKS, 0, run_loaded, &c);
        }
    }
}

/* -- bytes ------------------------------------------------------------------------------------ */

typedef struct bytes_case {
    uint32_t nranks, size;
    size_t n;
    double density;
    bool packed;  /* values in 4 bits, sums in 8 */
    double model; /* of a rank */
} bytes_case;

/* docs/exchange.md, with u32; one segment. */
static double model_of(const bytes_case *c) {
    double k = floor(c->density * (double)c->n), nodes = c->nranks / c->size, size = c->size;
    double entries = ceil(k / c->nranks), budget = ceil(k / size), header = 28 + 56; /* counters */
    double inside = 4 * (double)c->n * (size - 1) / size + 32 * (size - 1) +
                    (size - 1) * (header + 4 * (nodes + 2) + 8 * budget);
    double up = 4 * budget, down = 4 * budget;
    if (c->packed) {
        up = budget * (0.5 + 2.0 / 256);
        down = budget * (1 + 2.0 / 256);
    }
    double between = (nodes - 1) * (header + 4 + 4 * entries) + (up + down) * (nodes - 1) / nodes +
                     16 * (nodes - 1);
    return inside + between;
}

static void run_bytes(test_rank *self) {
    const bytes_case *c = self->shared;
    tamis_reducer_config config = usual_config();
    tamis_segment segment = {"all", c->n};
    tamis_layout *layout = NULL;
    tamis_reducer *reducer = NULL;
    tamis_stats stats = TAMIS_STATS_INIT;
    float *gradient = calloc(c->n, sizeof *gradient);
    tamis_step step = data_step(gradient);
    config.density = c->density;
    config.ranks_per_node = c->size;
    config.index_codec = TAMIS_INDEX_U32;
    config.value_codec = c->packed ? TAMIS_VALUE_FP4 : TAMIS_VALUE_FLOAT32;
    RANK_OK(self, tamis_layout_create(&segment, 1, &layout));
    RANK_OK(self, tamis_reducer_create(self->comm, layout, &config, &reducer));
    for (uint32_t number = 0; number < 3; number++) {
        data_fill_real(self->id, number, c->n, gradient);
        RANK_OK(self, tamis_reducer_start(reducer, &step));
        RANK_OK(self, tamis_reducer_wait(reducer));
        RANK_OK(self, tamis_reducer_stats(reducer, &stats));
        double off = fabs((double)stats.wire_bytes / c->model - 1);
        RANK_CHECK(self, off < 0.05, "sent %llu bytes, the model says %.0f",
                   (unsigned long long)stats.wire_bytes, c->model);
    }
    if (self->id == 0)
        printf("P=%u G=%u n=%zu: sent %llu bytes, model %.0f\n", c->nranks, c->size, c->n,
               (unsigned long long)stats.wire_bytes, c->model);
    tamis_reducer_destroy(reducer);
    tamis_layout_destroy(layout);
    free(gradient);
}

static void test_bytes_are_those_of_the_formula(void **state) {
    bytes_case cases[] = {{4, 2, 100000, 0.01, false, 0}, {4, 2, 100000, 0.1, true, 0},
                          {8, 4, 300000, 0.1, false, 0},  {8, 4, 300000, 0.1, true, 0},
                          {6, 2, 50000, 1, false, 0},     {3, 3, 20000, 0.01, false, 0}};
    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        cases[i].model = model_of(&cases[i]);
        test_context("bytes %zu", i);
        ranks_run(cases[i].nranks, 0, run_bytes, &cases[i]);
    }
}

/* -- transports that only gather -------------------------------------------------------------- */

static void run_hashes(test_rank *self) {
    state_case *c = self->shared;
    tamis_reducer_config config = usual_config();
    tamis_reducer *reducer = NULL;
    RANK_OK(self, data_reducer(self->comm, N, &config, &reducer));
    for (uint32_t step = 0; step < STEPS; step++)
        RANK_OK(self, one_step(self, reducer, step, &c->hash[self->id][step]));
    tamis_reducer_destroy(reducer);
}

static void test_the_callers_all_gather_gives_the_same_bits(void **state) {
    state_case local, own;
    tamis_comm *comms[NRANKS];
    (void)state;
    test_context("local");
    ranks_run(NRANKS, 0, run_hashes, &local);
    gather *records = gather_create(NRANKS, test_long_ms(), NULL, NULL);
    gather_comms(records, comms);
    test_context("callback");
    ranks_run_on(comms, NRANKS, run_hashes, &own);
    for (uint32_t r = 0; r < NRANKS; r++)
        tamis_comm_destroy(comms[r]);
    gather_destroy(records);
    assert_memory_equal(local.hash, own.hash, sizeof own.hash);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_nodes_cannot_do_is_refused_by_all_ranks),
        cmocka_unit_test(test_micro_batches_are_refused_without_effect),
        cmocka_unit_test(test_a_bad_entry_of_one_rank_is_found_by_all_the_same_way),
        cmocka_unit_test(test_sums_over_nodes_that_overflow_are_dropped_everywhere),
        cmocka_unit_test(test_a_state_resumes_bit_for_bit_and_in_such_nodes_alone),
        cmocka_unit_test(test_bytes_are_those_of_the_formula),
        cmocka_unit_test(test_the_callers_all_gather_gives_the_same_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
