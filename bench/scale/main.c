/* SPDX-License-Identifier: MIT
 *
 * tamis_scale: what a step costs at P ranks, for many P, without a cluster. With --verify it runs
 * steps over MPI and compares; with --passes it times one rank's own work.
 */
#include "bench/common/report.h"
#include "bench/common/start.h"
#include "bench/scale/passes.h"
#include "bench/scale/table.h"
#include "bench/scale/verify.h"

#include <string.h>

/* Messages of a gather that take seconds to simulate; beyond it the formula must do. */
enum { MESSAGES_MOST = 1 << 18 };

static bool is_small(const tam_plan *plan) {
    return (uint64_t)tam_plan_messages(plan) * plan->nranks <= MESSAGES_MOST;
}

static tamis_status simulate(const scale_settings *s, const scale_case *c, const tam_plan *plan,
                             double *seconds) {
    if (is_small(plan))
        return scale_simulate(c, plan, &s->weather, seconds);
    *seconds = scale_formula_s(c, plan);
    return TAMIS_OK;
}

static tamis_status simulate_candidates(const scale_settings *s, scale_row *r) {
    tam_plan plans[TAM_PLAN_CANDIDATES];
    tam_plan_candidates(r->c.nranks, r->c.net.ranks_per_node, plans);
    r->best = r->plan;
    r->best_s = r->simulated_s;
    for (uint32_t i = 0; i < TAM_PLAN_CANDIDATES; i++) {
        double seconds;
        if (memcmp(&plans[i], &r->plan, sizeof r->plan) == 0)
            continue;
        tamis_status status = simulate(s, &r->c, &plans[i], &seconds);
        if (status != TAMIS_OK)
            return status;
        if (seconds < r->best_s) {
            r->best = plans[i];
            r->best_s = seconds;
        }
    }
    return TAMIS_OK;
}

static tamis_status fill_row(const scale_settings *s, scale_row *r) {
    tam_plan linear = tam_plan_linear(r->c.nranks), usual = tam_plan_usual(r->c.nranks, 1);
    r->plan = scale_choose(&r->c);
    r->formula_s = scale_formula_s(&r->c, &r->plan);
    r->linear_s = scale_formula_s(&r->c, &linear);
    r->usual_s = scale_formula_s(&r->c, &usual);
    r->dense_s = scale_dense_s(&r->c.net, r->c.nranks, r->c.elements);
    r->break_even = scale_break_even(&r->c, s->index_bytes, s->groups);
    r->memory = scale_memory_of(&r->c, s->index_bytes);
    r->simulated_s = r->best_s = -1.0;
    tamis_status status = scale_count(&r->c, &r->plan, &r->counts);
    bool simulated = (s->simulate || s->candidates) && is_small(&r->plan);
    if (status == TAMIS_OK && simulated)
        status = simulate(s, &r->c, &r->plan, &r->simulated_s);
    if (status == TAMIS_OK && simulated && s->candidates)
        status = simulate_candidates(s, r);
    return status;
}

static int print_table(const scale_settings *s) {
    scale_table_header(s);
    for (size_t i = 0; i < s->nranks; i++) {
        scale_row row = {.c = scale_case_of(s, (uint32_t)s->ranks[i])};
        if (fill_row(s, &row) != TAMIS_OK) {
            fprintf(stderr, "tamis_scale: %u ranks: %s\n", row.c.nranks, tamis_last_error());
            return 1;
        }
        scale_table_row(s, &row);
    }
    return 0;
}

int main(int argc, char **argv) {
    static scale_settings settings;
    scale_settings_read(argc, argv, &settings);
    int status;
    if (settings.verify)
        status = bench_launch(BENCH_MPI, TAMIS_DEVICE_CPU, (uint32_t)settings.mpi_ranks,
                              scale_verify, &settings);
    else
        status = settings.passes ? scale_passes(&settings) : print_table(&settings);
    return bench_report_close(settings.report, status);
}
