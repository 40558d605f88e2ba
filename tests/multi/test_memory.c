/* SPDX-License-Identifier: MIT
 *
 * Memory: when an allocation fails anywhere in a create, all ranks get TAMIS_E_NOMEM and nothing
 * leaks; a step allocates nothing.
 */
#include "lib/base/base.h"
#include "tests/support/data.h"
#include "tests/support/ranks.h"
#include "tests/support/schemes.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tamis/callback.h>
#include <tamis/overlap.h>
#include <tamis/stats.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

enum { N = 2000, BUDGET_MOST = 2000 };

/* -- counting malloc -------------------------------------------------------------------------- */

/* The program's own malloc replaces the C library's, also for the library under test and for
 * OpenMP. Sanitizers have their own, so under them only tam_alloc_made counts. */

static _Thread_local bool counting;
static atomic_ulong counted;

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) && defined(__GLIBC__) &&       \
    !defined(__clang__)
#define COUNTS_MALLOC 1

void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t count, size_t bytes);
void *__libc_realloc(void *memory, size_t bytes);
void *__libc_memalign(size_t alignment, size_t bytes);

static void count(void) {
    if (counting)
        atomic_fetch_add(&counted, 1);
}

void *malloc(size_t bytes) {
    count();
    return __libc_malloc(bytes);
}

void *calloc(size_t number, size_t bytes) {
    count();
    return __libc_calloc(number, bytes);
}

void *realloc(void *memory, size_t bytes) {
    count();
    return __libc_realloc(memory, bytes);
}

void *aligned_alloc(size_t alignment, size_t bytes) {
    count();
    return __libc_memalign(alignment, bytes);
}

int posix_memalign(void **out, size_t alignment, size_t bytes) {
    count();
    void *memory = __libc_memalign(alignment, bytes);
    if (!memory)
        return 12; /* ENOMEM */
    *out = memory;
    return 0;
}
#endif

static void test_the_counter_counts(void **state) {
    (void)state;
#ifdef COUNTS_MALLOC
    unsigned long before = atomic_load(&counted);
    counting = true;
    void *volatile memory = malloc(10);
    free(memory);
    memory = tam_alloc(10);
    counting = false;
    tam_free(memory);
    assert_true(atomic_load(&counted) >= before + 2);
#else
    print_message("malloc is not counted in this build\n");
#endif
}

/* -- no allocation in a step ------------------------------------------------------------------ */

typedef struct steady_case {
    const char *scheme;
    data_pattern pattern;
    bool by_segment, buckets; /* buckets: several, marked ready one by one */
    bool update;              /* update mode; then without micro-batches */
    uint32_t ranks_per_node;
    uint64_t made[RANKS_MOST]; /* tam_alloc_made during the counted steps */
} steady_case;

static void one_step(test_rank *self, tamis_reducer *reducer, uint32_t number, float *gradient) {
    const steady_case *steady = self->shared;
    tamis_segment segments[DATA_SEGMENTS_MOST];
    void *pieces[DATA_SEGMENTS_MOST];
    tamis_result result = TAMIS_RESULT_INIT;
    tamis_stats stats = TAMIS_STATS_INIT;
    tamis_step step = TAMIS_STEP_INIT;
    size_t count_of = data_segments(N, segments);
    for (size_t s = 0, at = 0; s < count_of; at += segments[s].length, s++)
        pieces[s] = gradient + at;
    data_fill(steady->pattern, self->id, number, N, gradient);
    step.grad = steady->by_segment ? NULL : gradient;
    step.grads = steady->by_segment ? pieces : NULL;
    counting = number >= 2;
    if (steady->buckets && !steady->update && strcmp(steady->scheme, "dense") != 0 &&
        !steady->ranks_per_node)
        RANK_OK(self, tamis_reducer_accumulate(reducer, &step));
    for (uint32_t s = 0; steady->buckets && s < count_of; s++)
        RANK_OK(self, tamis_reducer_ready(reducer, s, &step));
    if (!steady->buckets)
        RANK_OK(self, tamis_reducer_start(reducer, &step));
    RANK_OK(self, tamis_reducer_wait(reducer));
    RANK_OK(self, tamis_reducer_result(reducer, &result));
    RANK_OK(self, tamis_reducer_stats(reducer, &stats));
    counting = false;
}

static void run_steady(test_rank *self) {
    steady_case *steady = self->shared;
    tamis_update update = TAMIS_UPDATE_INIT;
    update.beta1 = 0.9; /* both moments */
    static float gradients[RANKS_MOST][N];
    tamis_reducer *reducer = NULL;
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    tamis_layout *layout = data_layout(N);
    config.scheme = steady->scheme;
    config.density = 0.02;
    config.bucket_length = steady->buckets ? N / 4 : 0;
    config.ranks_per_node = steady->ranks_per_node;
    config.update = steady->update ? &update : NULL;
    RANK_OK(self, tamis_reducer_create(self->comm, layout, &config, &reducer));
    for (uint32_t number = 0; number < 2; number++)
        one_step(self, reducer, number, gradients[self->id]);
    rank_barrier(self);
    uint64_t before = tam_alloc_made();
    rank_barrier(self);
    for (uint32_t number = 2; number < 14; number++)
        one_step(self, reducer, number, gradients[self->id]);
    rank_barrier(self);
    steady->made[self->id] = tam_alloc_made() - before;
    rank_barrier(self);
    tamis_reducer_destroy(reducer);
    tamis_layout_destroy(layout);
}

static void check_steady(steady_case *steady, uint32_t nranks) {
    if (!test_drawn(9))
        return;
    test_context("%s P=%u %s, no allocation after the second step", steady->scheme, nranks,
                 data_name(steady->pattern));
    unsigned long before = atomic_load(&counted);
    ranks_run(nranks, 0, run_steady, steady);
    if (steady->made[0] != 0)
        fail_msg("[%s] tam_alloc was called %llu times", test_context_text(),
                 (unsigned long long)steady->made[0]);
    if (atomic_load(&counted) != before)
        fail_msg("[%s] malloc was called %lu times", test_context_text(),
                 atomic_load(&counted) - before);
}

static void test_a_step_allocates_nothing(void **state) {
    static const data_pattern patterns[] = {DATA_HEAVY, DATA_ZERO, DATA_EQUAL, DATA_DROP,
                                            DATA_BURSTS};
    scheme_case scheme;
    (void)state;
    for (size_t s = 0; scheme_preset(s, &scheme); s++)
        for (uint32_t nranks = 1; nranks <= 3; nranks += 2)
            for (size_t p = 0; p < sizeof patterns / sizeof patterns[0]; p++) {
                steady_case steady = {.scheme = scheme.name, .pattern = patterns[p]};
                steady.by_segment = p % 2;
                steady.buckets = p % 3 == 1;
                check_steady(&steady, nranks);
                steady.update = strcmp(scheme.name, "dense") != 0;
                if (steady.update && p < 2)
                    check_steady(&steady, nranks);
            }
    for (size_t p = 0; p < 4; p++) {
        steady_case nodes = {.scheme = "tamis", .pattern = patterns[p], .ranks_per_node = 2};
        nodes.by_segment = p % 2;
        nodes.buckets = p % 3 == 1;
        check_steady(&nodes, 4);
    }
}

/* -- allocations that fail -------------------------------------------------------------------- */

static void no_leak(const char *what, long budget, uint64_t live) {
    if (tam_alloc_live() != live)
        fail_msg("%s, allocation %ld fails: %llu allocations were not freed", what, budget,
                 (unsigned long long)(tam_alloc_live() - live));
}

static void test_create_local_survives_any_failing_allocation(void **state) {
    (void)state;
    for (uint32_t nranks = 1; nranks <= 3; nranks += 2) {
        tamis_status status = TAMIS_E_NOMEM;
        uint64_t live = tam_alloc_live();
        for (long budget = 0; status != TAMIS_OK; budget++) {
            tamis_comm *comms[3] = {NULL, NULL, NULL};
            assert_true(budget < BUDGET_MOST);
            tam_alloc_budget(budget);
            status = tamis_comm_create_local(nranks, NULL, comms);
            tam_alloc_budget(-1);
            if (status != TAMIS_OK) {
                assert_int_equal(status, TAMIS_E_NOMEM);
                assert_null(comms[0]);
            }
            for (uint32_t r = 0; r < nranks; r++)
                tamis_comm_destroy(comms[r]);
            no_leak("tamis_comm_create_local", budget, live);
        }
    }
}

static tamis_status never_called(void *context, const void *send, void *recv, size_t bytes) {
    (void)context, (void)send, (void)recv, (void)bytes;
    return TAMIS_E_TRANSPORT;
}

static void test_create_callback_survives_any_failing_allocation(void **state) {
    tamis_status status = TAMIS_E_NOMEM;
    uint64_t live = tam_alloc_live();
    tamis_callbacks callbacks = TAMIS_CALLBACKS_INIT;
    (void)state;
    callbacks.nranks = 2;
    callbacks.allgather = never_called;
    for (long budget = 0; status != TAMIS_OK; budget++) {
        tamis_comm *comm = NULL;
        assert_true(budget < BUDGET_MOST);
        tam_alloc_budget(budget);
        status = tamis_comm_create_callback(&callbacks, NULL, &comm);
        tam_alloc_budget(-1);
        assert_true(status == TAMIS_OK || (status == TAMIS_E_NOMEM && !comm));
        tamis_comm_destroy(comm);
        no_leak("tamis_comm_create_callback", budget, live);
    }
}

static void test_layout_create_survives_any_failing_allocation(void **state) {
    const tamis_segment segments[] = {{"first", 3}, {NULL, 4}, {"third", 5}};
    tamis_status status = TAMIS_E_NOMEM;
    uint64_t live = tam_alloc_live();
    (void)state;
    for (long budget = 0; status != TAMIS_OK; budget++) {
        tamis_layout *layout = NULL;
        assert_true(budget < BUDGET_MOST);
        tam_alloc_budget(budget);
        status = tamis_layout_create(segments, 3, &layout);
        tam_alloc_budget(-1);
        assert_true(status == TAMIS_OK || (status == TAMIS_E_NOMEM && !layout));
        tamis_layout_destroy(layout);
        no_leak("tamis_layout_create", budget, live);
    }
}

typedef struct scarce_case {
    const char *scheme;
    uint32_t ranks_per_node;
    const tamis_update *update; /* NULL: gradients */
    long budget;
    tamis_status status[RANKS_MOST];
    char sentence[RANKS_MOST][256];
} scarce_case;

static void run_scarce(test_rank *self) {
    scarce_case *scarce = self->shared;
    tamis_reducer *reducer = NULL;
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    tamis_layout *layout = data_layout(N);
    config.scheme = scarce->scheme;
    config.update = scarce->update;
    config.bucket_length = self->nranks > 1 ? N / 2 : 0;
    config.ranks_per_node = scarce->ranks_per_node;
    rank_barrier(self);
    if (self->id == 0)
        tam_alloc_budget(scarce->budget);
    rank_barrier(self);
    tamis_status status = tamis_reducer_create(self->comm, layout, &config, &reducer);
    rank_barrier(self);
    if (self->id == 0)
        tam_alloc_budget(-1);
    rank_barrier(self);
    scarce->status[self->id] = status;
    snprintf(scarce->sentence[self->id], sizeof scarce->sentence[0], "%s", tamis_last_error());
    RANK_CHECK(self, status == TAMIS_OK || reducer == NULL, "an output was written");
    RANK_OK(self, tamis_comm_status(self->comm));
    if (status != TAMIS_OK) /* nothing is lost: with memory it works */
        RANK_OK(self, tamis_reducer_create(self->comm, layout, &config, &reducer));
    tamis_reducer_destroy(reducer);
    tamis_layout_destroy(layout);
}

/* All ranks get the error, whichever of them lacks memory. @return whether there was enough for
 * all */
static bool try_scarce(scarce_case *scarce, uint32_t nranks) {
    test_context("%s P=%u, allocation %ld of create fails", scarce->scheme, nranks, scarce->budget);
    ranks_run(nranks, 0, run_scarce, scarce);
    bool enough = scarce->status[0] == TAMIS_OK;
    for (uint32_t r = 0; r < nranks; r++) {
        if (scarce->status[r] != (enough ? TAMIS_OK : TAMIS_E_NOMEM))
            fail_msg("[%s] rank %u: %s, %s", test_context_text(), r,
                     tamis_status_name(scarce->status[r]), scarce->sentence[r]);
        if (!enough && !has_word(scarce->sentence[r], "memory|NOMEM"))
            fail_msg("[%s] rank %u: %s", test_context_text(), r, scarce->sentence[r]);
    }
    return enough;
}

/* Under a sanitizer only some budgets, different ones for each scheme. */
static void try_all_budgets(scarce_case scarce, uint32_t nranks) {
    static long first;
    uint64_t live = tam_alloc_live();
    for (scarce.budget = first++ % test_stride(9); !try_scarce(&scarce, nranks);
         scarce.budget += test_stride(9)) {
        no_leak(scarce.scheme, scarce.budget, live);
        assert_true(scarce.budget < BUDGET_MOST);
    }
    no_leak(scarce.scheme, scarce.budget, live);
}

static void test_reducer_create_survives_any_failing_allocation(void **state) {
    tamis_update update = TAMIS_UPDATE_INIT;
    scheme_case scheme;
    (void)state;
    update.beta1 = 0.9; /* both moments */
    for (uint32_t nranks = 1; nranks <= 3; nranks += 2) {
        for (size_t s = 0; scheme_preset(s, &scheme); s++)
            try_all_budgets((scarce_case){.scheme = scheme.name}, nranks);
        try_all_budgets((scarce_case){.scheme = "tamis", .update = &update}, nranks);
    }
    try_all_budgets((scarce_case){.scheme = "tamis", .ranks_per_node = 2}, 4);
}

/* -- life ------------------------------------------------------------------------------------- */

static void run_short_life(test_rank *self) {
    tamis_reducer *reducer = NULL;
    float gradient[64];
    tamis_step step = TAMIS_STEP_INIT;
    tamis_layout *layout = data_layout(64);
    data_fill(DATA_HEAVY, self->id, 0, 64, gradient);
    step.grad = gradient;
    RANK_OK(self, tamis_reducer_create(self->comm, layout, NULL, &reducer));
    tamis_layout_destroy(layout); /* the reducer has copied what it needs */
    RANK_OK(self, tamis_reducer_start(reducer, &step));
    RANK_OK(self, tamis_reducer_wait(reducer));
    tamis_reducer_destroy(reducer);
}

static void test_create_and_destroy_leave_nothing(void **state) {
    uint64_t live = tam_alloc_live();
    (void)state;
    test_context("create and destroy");
    for (int round = 0; round < 100; round++)
        ranks_run(2, 0, run_short_life, NULL);
    no_leak("100 lives", -1, live);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_counter_counts),
        cmocka_unit_test(test_a_step_allocates_nothing),
        cmocka_unit_test(test_create_local_survives_any_failing_allocation),
        cmocka_unit_test(test_create_callback_survives_any_failing_allocation),
        cmocka_unit_test(test_layout_create_survives_any_failing_allocation),
        cmocka_unit_test(test_reducer_create_survives_any_failing_allocation),
        cmocka_unit_test(test_create_and_destroy_leave_nothing),
    };
    return cmocka_run_group_tests_name("memory", tests, NULL, NULL);
}
