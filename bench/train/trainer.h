/* SPDX-License-Identifier: MIT
 *
 * One rank of a training run: model, reducer, position in the run, and measurements.
 */
#ifndef TAMIS_TRAIN_TRAINER_H
#define TAMIS_TRAIN_TRAINER_H

#include <stdio.h>
#include <tamis/stats.h>

#include "bench/common/energy.h"
#include "bench/common/recording.h"
#include "bench/common/trace.h"
#include "bench/train/govern.h"
#include "bench/train/local_steps.h"
#include "bench/train/low_rank.h"
#include "bench/train/optimizer.h"
#include "bench/train/order.h"
#include "bench/train/pipeline.h"
#include "bench/train/settings.h"
#include "bench/train/workload.h"

enum { TRAIN_LOSSES = 100 }; /* steps over which a reported training loss is averaged */

enum { TRAIN_EVALUATE = TAMIS_ENERGY_USER }; /* phase whose joules are not part of a step */

/** Sums over this rank's steps in this run, without evaluation and files. */
typedef struct train_totals {
    double time_s;    /* the steps, from first to last */
    double compute_s; /* gradient and optimizer */
    double exposed_s; /* inside ready, start and wait: what the exchange adds to a step */
    double message_s; /* waiting for other stages of the pipeline */
    double accumulate_s, select_s, exchange_s, apply_s, wait_s; /* as tamis_stats counts them */
    double density_sum, density_min, density_max;
    double losses[TRAIN_LOSSES]; /* of the last steps, a ring buffer */
    uint64_t steps, exchanges, wire_bytes, rescans;
    bool count_exact; /* selected == k in every step */
} train_totals;

typedef struct trainer {
    const train_settings *settings;
    const workload_data *data;
    bench_group *world; /* all ranks */
    bench_group *group; /* those that hold the same parameters: all, or a stage */
    pipeline pipeline;
    workload work;
    optimizer optimizer;
    tamis_reducer *reducer;
    low_rank low_rank; /* if used, the reducer rests */
    local_steps local;
    float *params, *grad;
    tamis_device device; /* of the reducer */
    void *device_grad;   /* the gradient where the reducer works; CPU: grad itself */
    uint32_t *indices;   /* a sparse result in host memory; CUDA only */
    float *values;
    order order;          /* of the samples */
    uint64_t step, steps; /* done and wanted, counted since the first run */
    bool dense;           /* the scheme: no residual */
    bool sparse;          /* plain SGD: only the chosen parameters are touched */
    double ready_s;       /* inside tamis_reducer_ready and _accumulate, this step */
    double message_s;     /* waiting for other stages, this step */
    bench_trace *trace;   /* NULL: none */
    bench_energy energy;
    govern governor;
    bench_recording recording; /* with settings.record only */
    train_totals totals;
    tamis_stats last; /* of the last step */
} trainer;

void trainer_open(bench_group *world, const train_settings *settings, const workload_data *data,
                  trainer *out);
void trainer_close(trainer *t);

/** One step: gradient, exchange, optimizer. */
void trainer_step(trainer *t);

double trainer_rate(const trainer *t, uint64_t step);

/** Mean over the validation's samples; collective, each rank takes a part of them. */
workload_score trainer_validate(trainer *t);

/** The workload's metric of such a mean. */
double trainer_metric(const trainer *t, const workload_score *mean);

/** Mean loss over ranks and the last TRAIN_LOSSES steps; collective. */
double trainer_loss(trainer *t);

/** The parameters that all ranks have in common: with local steps the base. */
const float *trainer_model(const trainer *t);

/** XXH3 of these, and of what the run is told of the data: samples and their order. With stages the
 * model is that of this stage. */
uint64_t trainer_model_hash(const trainer *t);
uint64_t trainer_data_hash(const trainer *t);

/** Whether the model has the same bits on all ranks; collective. Prints it if not. */
bool trainer_replicas_identical(trainer *t);

/** End all ranks if the parameters differ; collective. */
void trainer_check_replicas(trainer *t);

/* summary.c */
void trainer_report_step(trainer *t, const workload_score *validation);
/** @return whether the replicas are identical */
bool trainer_report_summary(trainer *t);

#endif
