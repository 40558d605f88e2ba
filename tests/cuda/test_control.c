/* SPDX-License-Identifier: MIT
 *
 * Kernels on the CPU: the control against lib/policy over random histories of packets and unions.
 * Every word of state, levels, thresholds, weights, budgets and parameters must agree.
 */
#include "kernels/cuda/exchange.h"
#include "lib/base/tree.h"
#include "lib/policy/grid.h"
#include "tests/support/data.h"

#include <cuda_runtime_api.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

enum { STEPS = 24, SELECTED_MOST = 24 /* of one group */ };

/** A reducer's control on the host and its twin in the memory of the kernel. */
typedef struct twins {
    tam_division division;
    tam_control host;
    tam_cuda_control job;
    tam_cuda_verdict verdict;
    tam_cuda_common common;
    tam_cuda_params params;
    tam_control_state state;
    uint64_t step, k;
    double norm;
    tam_cuda_report ring[TAM_CUDA_STEPS];
    uint64_t reports;

    /* What the host observes, as the reducer does. */
    double *min_keys, *means;
    uint32_t *group_selected;
    tam_observed seen;
    uint64_t random;
} twins;

/* -- random numbers --------------------------------------------------------------------------- */

static uint32_t below(twins *t, uint32_t limit) {
    return (uint32_t)(data_mix(t->random++) % limit);
}

static double uniform(twins *t, double low, double high) {
    return low + (high - low) * (double)(data_mix(t->random++) >> 11) * 0x1p-53;
}

/* -- opening ---------------------------------------------------------------------------------- */

static void *take(size_t count, size_t size) {
    void *memory = tam_alloc_array(count, size);
    assert_non_null(memory);
    return memory;
}

static void open_groups(twins *t, uint32_t ngroups) {
    tam_grid *grid = &t->division.grid;
    tam_group *groups = take(ngroups, sizeof groups[0]);
    uint32_t begin = 0;
    for (uint32_t g = 0; g < ngroups; g++) {
        groups[g].begin = begin;
        groups[g].length = 1 + (uint32_t)tam_exp2(uniform(t, 0.0, 15.0));
        begin += groups[g].length;
    }
    *grid = (tam_grid){.n = begin, .groups = groups, .ngroups = ngroups};
}

static void open_job(twins *t, uint32_t rank, uint32_t nranks) {
    const tam_grid *grid = &t->division.grid;
    bool weighted = tam_scheme_weighted(t->division.scheme);
    tam_cuda_span *spans = take(nranks, sizeof spans[0]);
    uint32_t nstats = weighted ? grid->ngroups : 0;
    for (uint32_t r = 0; r < nranks; r++) {
        spans[r].before = below(t, (uint32_t)grid->n);
        spans[r].upto = spans[r].before + below(t, (uint32_t)grid->n - spans[r].before + 1);
    }
    t->k = t->host.k;
    size_t bytes = tam_header_bytes(TAM_COUNTERS + nstats);
    t->job = (tam_cuda_control){
        .grid = {.n = grid->n, .ngroups = grid->ngroups, .groups = grid->groups},
        .scheme = t->division.scheme,
        .over = t->host.over,
        .quota.spans = spans,
        .packets = {.memory = take(nranks, bytes),
                    .bytes = bytes,
                    .rank = rank,
                    .nranks = nranks,
                    .nstats = nstats,
                    .stride = 1},
        .node_shard.upto = (uint32_t)grid->n,
        .whole = grid->n,
        .indices = take((size_t)grid->ngroups * SELECTED_MOST, sizeof(uint32_t)),
        .verdict = &t->verdict,
        .common = &t->common,
        .k = &t->k,
        .norm = &t->norm,
        .params = &t->params,
        .state = &t->state,
        .levels = take(grid->ngroups, sizeof(double)),
        .thresholds = take(grid->ngroups, sizeof(uint32_t)),
        .weights = take(grid->ngroups, sizeof(float)),
        .budgets = take(grid->ngroups, sizeof(uint32_t)),
        .norms = take(grid->ngroups, sizeof(double)),
        .means = take(grid->ngroups, sizeof(double)),
        .group_selected = take(grid->ngroups, sizeof(uint32_t)),
        .order = take(grid->ngroups, sizeof(uint32_t)),
        .min_keys = take(nranks, sizeof(double)),
    };
}

/* Kernels may run on a stream of their own. */
static void finish(int error) {
    assert_int_equal(error, cudaSuccess);
    assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
}

/* Whatever the verdict, after the control, whose state it tells. */
static void check_report(twins *t) {
    const tam_cuda_report *report = &t->ring[++t->reports % TAM_CUDA_STEPS];
    assert_int_equal(report->serial, t->reports);
    assert_int_equal(report->status, t->verdict.status);
    assert_memory_equal(&report->margin, &t->state.margin, sizeof report->margin);
}

/* Launch the control of the only bucket there is. The report is on none: its figures are those
 * of exchanges. */
static void launch_control(twins *t) {
    const tam_cuda_budgets budgets = {.nbuckets = 1};
    const tam_cuda_reporting reporting = {
        .common = &t->common, .state = &t->state, .ring = t->ring};
    t->common.verdict = t->verdict;
    finish(tam_launch_control(&t->job, &budgets, &reporting, NULL));
    check_report(t);
}

static void open_twins(twins *t, const char *name, uint32_t ngroups, uint32_t rank,
                       uint32_t nranks) {
    memset(t, 0, sizeof *t);
    t->random = ((uint64_t)ngroups << 32) + nranks * 1000003u;
    tam_scheme scheme;
    assert_int_equal(tam_scheme_parse(name, &scheme), TAMIS_OK);
    t->division = (tam_division){.scheme = scheme, .nranks = nranks};
    open_groups(t, ngroups);
    uint64_t k = 1 + t->division.grid.n / (1 + below(t, 200));
    double over = uniform(t, 1.1, 4.0);
    assert_int_equal(tam_control_open(scheme, &t->division.grid, k, over, 0.0, &t->host), TAMIS_OK);
    open_job(t, rank, nranks);
    t->min_keys = take(nranks, sizeof t->min_keys[0]);
    t->means = take(ngroups, sizeof t->means[0]);
    t->group_selected = take(ngroups, sizeof t->group_selected[0]);

    t->step = below(t, 1000);
    t->state = t->host.state;
    memcpy(t->job.levels, t->host.levels, ngroups * sizeof t->job.levels[0]);
    memset(&t->params, 0xAB, sizeof t->params); /* all of it must be written */
    finish(tam_launch_prepare(&t->job, t->step, NULL));
}

static void close_twins(twins *t) {
    void *owned[] = {t->division.grid.groups,
                     (void *)t->job.quota.spans,
                     t->job.packets.memory,
                     (void *)t->job.indices,
                     t->job.levels,
                     t->job.thresholds,
                     t->job.weights,
                     t->job.budgets,
                     t->job.norms,
                     t->job.means,
                     t->job.group_selected,
                     t->job.order,
                     t->job.min_keys,
                     t->min_keys,
                     t->means,
                     t->group_selected};
    for (size_t i = 0; i < sizeof owned / sizeof owned[0]; i++)
        tam_free(owned[i]);
    tam_control_close(&t->host);
}

/* -- a step that was exchanged ---------------------------------------------------------------- */

static tam_header *header_of(twins *t, uint32_t rank) {
    return (tam_header *)(void *)(t->job.packets.memory + rank * t->job.packets.bytes);
}

static float *counters_of(twins *t, uint32_t rank) {
    return (float *)(void *)(header_of(t, rank) + 1);
}

/* Mostly near the level, as a run has it; at times far away, at times a sudden jump of all. */
static float some_key(twins *t, double jump) {
    bool absolute = t->host.scheme.budget == TAM_BUDGET_GLOBAL;
    double middle = absolute && t->host.state.primed ? t->host.levels[0] : 0.0;
    double distance = below(t, 20) ? uniform(t, -0.3, 0.3) : uniform(t, -60.0, 60.0);
    float key = (float)tam_exp2(middle + jump + distance);
    return isfinite(key) && key > 0.0f ? key : 1.0f;
}

static void fill_headers(twins *t) {
    double jump = below(t, 6) ? 0.0 : uniform(t, -3.0, 3.0);
    bool silent = below(t, 12) == 0; /* no rank selected */
    t->verdict = (tam_cuda_verdict){.known = below(t, 5) > 0};
    for (uint32_t r = 0; r < t->job.packets.nranks; r++) {
        float key = some_key(t, jump);
        uint32_t count = below(t, 1 + (uint32_t)(2 * t->host.k / t->job.packets.nranks));
        tam_header *h = header_of(t, r);
        *h = (tam_header){.count = count, .key = key};
        tam_header_flag(h, !silent && below(t, 8) ? TAM_HEADER_HAS_KEY : 0);
        t->verdict.selected += count + (below(t, 4) ? 0 : below(t, 50));
        t->verdict.candidates += count + below(t, 2 * count + 10);
    }
}

/* Many groups share one sum, so that ties occur; some are silent, some overflow. */
static void fill_sums(twins *t) {
    static const float special[] = {0.0f, 3e38f, 1e-30f, 1.0f, 1.0f, 1.0f};
    for (uint32_t g = 0; g < t->job.packets.nstats; g++) {
        uint32_t kind = below(t, 12);
        float middle = (float)tam_exp2(uniform(t, -30.0, 10.0));
        for (uint32_t r = 0; r < t->job.packets.nranks; r++) {
            double sum = kind < 6 ? special[kind] : middle * (float)uniform(t, 0.5, 2.0);
            counters_of(t, r)[TAM_COUNTERS + g] = tam_counter_share(sum, t->job.packets.nranks);
        }
    }
}

/* Ascending, spread evenly in every group. */
static void fill_union(twins *t) {
    uint32_t *indices = (uint32_t *)t->job.indices, count = 0;
    for (uint32_t g = 0; g < t->division.grid.ngroups; g++) {
        const tam_group *group = &t->division.grid.groups[g];
        uint32_t most = group->length < SELECTED_MOST ? group->length : SELECTED_MOST;
        uint32_t selected = below(t, 4) ? below(t, most + 1) : 0;
        for (uint32_t i = 0; i < selected; i++)
            indices[count++] = group->begin + (uint32_t)((uint64_t)i * group->length / selected);
    }
    t->verdict.count = count;
}

/* The reducer's way: collectives/exchange/selection.c. */
static void observe(twins *t) {
    const tam_grid *grid = &t->division.grid;
    t->seen = (tam_observed){.min_keys = t->min_keys,
                             .selected = t->verdict.selected,
                             .candidates = t->verdict.known ? t->verdict.candidates : 0,
                             .group_sums = t->means,
                             .group_selected = t->group_selected};
    for (uint32_t r = 0; r < t->job.packets.nranks; r++) {
        const tam_header *h = header_of(t, r);
        if (tam_header_flags(h) & TAM_HEADER_HAS_KEY)
            t->min_keys[t->seen.nmin_keys++] = tam_log2(h->key);
    }
    for (uint32_t g = 0; g < t->job.packets.nstats; g++) {
        float mean;
        tam_tree_add_up(counters_of(t, 0) + TAM_COUNTERS + g, t->job.packets.bytes / sizeof mean,
                        t->job.packets.nranks, 1, &mean);
        t->means[g] = mean;
    }
    for (uint32_t g = 0, i = 0; g < grid->ngroups; g++) {
        uint32_t first = i, end = grid->groups[g].begin + grid->groups[g].length;
        while (i < t->verdict.count && t->job.indices[i] < end)
            i++;
        t->group_selected[g] = i - first;
    }
}

static void exchange(twins *t) {
    fill_headers(t);
    fill_sums(t);
    fill_union(t);
    observe(t);
}

/* -- comparing -------------------------------------------------------------------------------- */

static void check_params(const twins *t) {
    const tam_scheme scheme = t->host.scheme;
    uint32_t floor_bits = t->host.floor_key > 0.0f ? tam_bits(t->host.floor_key) : 0;
    bool listed = scheme.threshold == TAM_THRESHOLD_STEP ||
                  scheme.threshold == TAM_THRESHOLD_FIXED ||
                  (scheme.threshold == TAM_THRESHOLD_PREDICT && t->host.state.primed);
    assert_int_equal(t->params.step, t->step);
    assert_int_equal(t->params.mine, tam_part_of(&t->division, t->step, t->job.packets.rank));
    const tam_cuda_span *span = &t->job.quota.spans[t->step % t->division.nranks];
    uint64_t n = t->division.grid.n;
    assert_int_equal(t->params.k, t->k * span->upto / n - t->k * span->before / n);
    assert_int_equal(t->params.floor, floor_bits + 1);
    assert_int_equal(t->params.listed, listed);
    assert_int_equal(t->params.broken, TAMIS_OK);
    assert_int_equal(t->params.zero, 0);
}

static void check_twins(const twins *t) {
    size_t ngroups = t->division.grid.ngroups;
    assert_memory_equal(&t->state, &t->host.state, sizeof t->state);
    assert_memory_equal(t->job.levels, t->host.levels, ngroups * sizeof(double));
    assert_memory_equal(t->job.thresholds, t->host.thresholds, ngroups * sizeof(uint32_t));
    assert_memory_equal(t->job.weights, t->host.weights, ngroups * sizeof(float));
    assert_memory_equal(t->job.budgets, t->host.budgets, ngroups * sizeof(uint32_t));
    check_params(t);
}

static void run_steps(twins *t, int steps) {
    check_twins(t);
    for (int i = 0; i < steps; i++) {
        exchange(t);
        tam_control_update(&t->host, &t->seen);
        t->step++;
        launch_control(t);
        check_twins(t);
    }
}

/* -- tests ------------------------------------------------------------------------------------ */

static const char *const schemes[] = {
    "tamis",
    "all+norm+predict+union",
    "cyclic+global+predict+union",
    "all+global+predict+pairs",
    "rotate+norm+exact+union",
    "micro",
    "topk",
    "threshold",
    "cltk",
};

enum { SCHEMES = sizeof schemes / sizeof schemes[0] };

static void random_histories_give_the_bits_of_the_cpu(void **state) {
    (void)state;
    static const uint32_t ngroups[] = {1, 2, 3, 31, 64, 161, 255, 256, 257, 300};
    for (uint32_t s = 0; s < SCHEMES; s++) {
        for (uint32_t i = 0; i < sizeof ngroups / sizeof ngroups[0]; i++) {
            twins t;
            uint32_t nranks = 1 + (i * 3 + s) % 9;
            open_twins(&t, schemes[s], ngroups[i], i % nranks, nranks);
            run_steps(&t, STEPS);
            assert_true(t.state.primed == (s < 5));
            close_twins(&t);
        }
    }
}

static void more_ranks_or_groups_than_threads_give_the_bits_of_the_cpu(void **state) {
    (void)state;
    twins t;
    open_twins(&t, "tamis", 3, 299, 300);
    run_steps(&t, 4);
    close_twins(&t);
    open_twins(&t, "tamis", 5000, 1, 2);
    run_steps(&t, 3);
    close_twins(&t);
}

static void a_step_that_was_skipped_teaches_nothing_but_the_step_number_goes_on(void **state) {
    (void)state;
    for (uint32_t s = 0; s < SCHEMES; s++) {
        twins t;
        open_twins(&t, schemes[s], 40, 1, 3);
        for (int i = 0; i < 4; i++) {
            run_steps(&t, 2);
            exchange(&t);
            t.verdict.status = TAMIS_E_NONFINITE;
            t.step++;
            launch_control(&t);
            check_twins(&t);
        }
        close_twins(&t);
    }
}

static void after_a_refusal_only_the_params_say_so(void **state) {
    (void)state;
    twins t;
    open_twins(&t, "tamis", 40, 1, 3);
    run_steps(&t, 3);
    exchange(&t);
    t.verdict.status = TAMIS_E_PROTOCOL;
    launch_control(&t);
    assert_int_equal(t.params.broken, TAMIS_E_PROTOCOL);
    t.verdict.status = TAMIS_OK; /* a later step cannot heal it */
    launch_control(&t);
    assert_int_equal(t.params.broken, TAMIS_E_PROTOCOL);
    t.params.broken = TAMIS_OK;
    check_twins(&t);
    close_twins(&t);
}

static void a_loaded_state_is_prepared_as_on_the_cpu(void **state) {
    (void)state;
    for (uint32_t s = 0; s < SCHEMES; s++) {
        twins t;
        open_twins(&t, schemes[s], 90, 2, 4);
        for (int i = 0; i < 5; i++) {
            exchange(&t);
            tam_control_update(&t.host, &t.seen);
        }
        t.state = t.host.state;
        memcpy(t.job.levels, t.host.levels, 90 * sizeof t.job.levels[0]);
        memcpy(t.job.budgets, t.host.budgets, 90 * sizeof t.job.budgets[0]);
        t.step = 123456789012345ull;
        t.params.broken = TAMIS_E_PROTOCOL; /* a new beginning */
        finish(tam_launch_prepare(&t.job, t.step, NULL));
        run_steps(&t, 3);
        close_twins(&t);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_histories_give_the_bits_of_the_cpu),
        cmocka_unit_test(more_ranks_or_groups_than_threads_give_the_bits_of_the_cpu),
        cmocka_unit_test(a_step_that_was_skipped_teaches_nothing_but_the_step_number_goes_on),
        cmocka_unit_test(after_a_refusal_only_the_params_say_so),
        cmocka_unit_test(a_loaded_state_is_prepared_as_on_the_cpu),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
