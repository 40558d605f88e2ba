/* SPDX-License-Identifier: MIT */
#include <stdlib.h>
#include <tamis/stats.h>
#include <xxhash.h>

#include "bench/common/measure.h"
#include "bench/lab/schemes/schemes.h"

/* Processor time of this thread by phase. The time between the ends of two phases belongs to the
 * later one. */
typedef struct phase_clocks {
    double last, spent[TAMIS_PHASES];
} phase_clocks;

typedef struct runner {
    bench_group *group;
    const scheme_case *c;
    tamis_reducer *reducer;
    float *gradient;
    phase_clocks clocks;
    scheme_check check;
    scheme_run *run;
    scheme_sample *samples; /* of this rank */
} runner;

static double thread_now_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void record_phase(void *context, const tamis_phase_event *event) {
    phase_clocks *clocks = context;
    double now = thread_now_s();
    clocks->spent[event->phase] += now - clocks->last;
    clocks->last = now;
}

static void open_reducer(runner *r) {
    const scheme_source *source = r->c->source;
    tamis_layout *layout;
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    config.scheme = r->c->info->name;
    config.density = r->c->density;
    config.value_codec = TAMIS_VALUE_FLOAT32; /* the rules know no rounding */
    config.on_phase = record_phase;
    config.on_phase_context = &r->clocks;
    bench_try(r->group, tamis_layout_create(source->segments, source->nsegments, &layout),
              "cannot create a layout");
    bench_try(r->group, tamis_reducer_create(r->group->comm, layout, &config, &r->reducer),
              r->c->info->name);
    tamis_layout_destroy(layout);
}

static void open_runner(bench_group *group, const scheme_case *c, scheme_run *run, runner *out) {
    size_t n = c->source->n;
    *out = (runner){.group = group, .c = c, .run = run};
    open_reducer(out);
    out->gradient = bench_alloc(n, sizeof(float));
    out->samples = bench_alloc(run->steps, sizeof *out->samples);
    out->check = (scheme_check){group, c, out->reducer, bench_alloc(n, sizeof(float)),
                                bench_alloc(n, sizeof(float))};
}

static void close_runner(runner *r) {
    free(r->check.scratch);
    free(r->check.acc);
    free(r->samples);
    free(r->gradient);
    tamis_reducer_destroy(r->reducer);
}

static void step(runner *r) {
    tamis_step step = TAMIS_STEP_INIT;
    step.grad = r->gradient;
    r->clocks = (phase_clocks){.last = thread_now_s()};
    bench_try(r->group, tamis_reducer_start(r->reducer, &step), "start of a step");
    bench_try(r->group, tamis_reducer_wait(r->reducer), "end of a step");
}

static void sample(runner *r, const tamis_stats *s, scheme_sample *out) {
    const double *spent = r->clocks.spent;
    *out = (scheme_sample){
        .sent = (double)s->sent,
        .selected = (double)s->selected,
        .target = (double)s->target,
        .deferred = (double)s->deferred,
        .wire_bytes = (double)s->wire_bytes,
        .threshold = s->sent > 0 ? s->threshold : 0.0,
        .sent_any = s->sent > 0,
        .acc_norm = s->acc_norm,
        .residual_norm = s->residual_norm,
        .accumulate_cpu_s = spent[TAMIS_PHASE_ACCUMULATE],
        .select_cpu_s = spent[TAMIS_PHASE_SELECT],
        .exchange_cpu_s = spent[TAMIS_PHASE_EXCHANGE] + spent[TAMIS_PHASE_SKEW],
        .apply_cpu_s = spent[TAMIS_PHASE_APPLY],
    };
}

/* Every (steps / checks)-th step is checked, the last one included. */
static bool is_checked(const runner *r, uint64_t number) {
    uint64_t checks = r->run->nchecked, steps = r->run->steps;
    return (number + 1) * checks / steps != number * checks / steps;
}

static void one_step(runner *r, uint64_t number, uint64_t *checked) {
    bool check = is_checked(r, number);
    tamis_stats stats = TAMIS_STATS_INIT;
    source_fill(r->c->source, r->group->rank, number, r->gradient);
    if (check)
        scheme_check_before(&r->check, r->gradient);
    step(r);
    bench_try(r->group, tamis_reducer_stats(r->reducer, &stats), "statistics of a step");
    sample(r, &stats, &r->samples[number]);
    uint64_t hash = XXH3_64bits(r->gradient, r->c->source->n * sizeof(float));
    r->run->identical = bench_same(r->group, hash ^ stats.selected) && r->run->identical;
    if (bench_scheme_exact(&r->c->policies) && stats.selected != stats.target)
        r->run->wrong += 1;
    if (!check)
        return;
    r->run->wrong += scheme_check_after(&r->check, r->gradient);
    r->run->checked[*checked].step = number;
    scheme_check_truth(&r->check, &stats, &r->run->checked[(*checked)++]);
}

void scheme_run_all(bench_group *group, const scheme_case *c, scheme_run *out) {
    const schemes_settings *s = c->source->settings;
    runner r;
    *out = (scheme_run){.steps = s->steps, .identical = true};
    out->nchecked = s->checks < s->steps ? s->checks : s->steps;
    out->checked = bench_alloc(out->nchecked, sizeof *out->checked);
    out->samples = bench_alloc(group->nranks * out->steps, sizeof *out->samples);
    open_runner(group, c, out, &r);
    uint64_t checked = 0;
    for (uint64_t number = 0; number < out->steps; number++)
        one_step(&r, number, &checked);
    out->wrong = bench_sum(group, out->wrong);
    bench_allgather(group, r.samples, out->steps * sizeof *out->samples, out->samples);
    close_runner(&r);
}

void scheme_run_free(scheme_run *run) {
    free(run->samples);
    free(run->checked);
}
