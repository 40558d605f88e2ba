/* SPDX-License-Identifier: MIT */
#include "bench/train/local_steps.h"

#include <math.h>
#include <stdlib.h>

#include "bench/common/measure.h"
#include "bench/common/options.h"
#include "bench/train/density.h"

void local_steps_check(const train_settings *s) {
    if (s->local_steps == 0) {
        if (s->local_delay > 0 || !isnan(s->outer_lr) || !isnan(s->outer_momentum))
            bench_usage("--local-delay, --outer-lr and --outer-momentum need --local-steps");
        return;
    }
    if (s->outer_lr == 0.0)
        bench_usage("--outer-lr must be over 0");
    if (s->local_delay > s->local_steps)
        bench_usage("--local-delay is more than --local-steps");
    if (s->outer_momentum >= 1.0)
        bench_usage("--outer-momentum must be less than 1");
    if (s->reduce == TRAIN_UPDATE)
        bench_usage(
            "--local-steps needs --reduce gradient: every rank has an optimizer of its own");
    if (s->stages > 1 || s->micro_batches > 1 || s->overlap || s->device != TAMIS_DEVICE_CPU)
        bench_usage("--local-steps needs --stages 1, --micro-batches 1, --overlap off and --device "
                    "cpu");
    if (density_moves(s) || s->budget_w > 0)
        bench_usage(
            "--local-steps needs one density: no --density-warm-up, --density-end or --budget");
}

void local_steps_open(bench_group *group, const train_settings *s, const workload *w,
                      tamis_reducer *reducer, float *params, local_steps *out) {
    tamis_local_config config = TAMIS_LOCAL_CONFIG_INIT;
    *out = (local_steps){.group = group};
    if (s->local_steps == 0)
        return;
    config.steps = (uint32_t)s->local_steps;
    config.delay = (uint32_t)s->local_delay;
    config.lr = s->outer_lr;
    config.momentum = s->outer_momentum;
    out->params = bench_alloc(w->nsegments, sizeof *out->params);
    for (size_t i = 0; i < w->nsegments; params += w->segments[i].length, i++)
        out->params[i] = params;
    bench_try(group, tamis_local_create(reducer, out->params, &config, &out->handle),
              "cannot begin local steps");
}

void local_steps_close(local_steps *l) {
    tamis_local_destroy(l->handle);
    free(l->params);
}

void local_steps_step(local_steps *l) {
    bench_try(l->group, tamis_local_step(l->handle, l->params), "exchange of local steps");
}

const float *local_steps_base(const local_steps *l) {
    const float *base;
    bench_try(l->group, tamis_local_base(l->handle, &base), "base of local steps");
    return base;
}

local_steps_news local_steps_count(local_steps *l) {
    tamis_local_stats stats = TAMIS_LOCAL_STATS_INIT;
    bench_try(l->group, tamis_local_stats_read(l->handle, &stats), "figures of local steps");
    local_steps_news news = {.wire_bytes = stats.wire_bytes_total - l->wire_bytes,
                             .ended = stats.rounds > l->rounds,
                             .under_way = stats.under_way,
                             .density = stats.density};
    l->rounds = stats.rounds;
    l->wire_bytes = stats.wire_bytes_total;
    return news;
}

void local_steps_resume(local_steps *l) {
    local_steps_count(l);
}
