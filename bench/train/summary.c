/* SPDX-License-Identifier: MIT
 *
 * Records of a run. The meaning of the fields:
 *
 *     steps        of this run; epochs: since the first run, if this one was resumed
 *     time_s       the steps without evaluation and files, slowest rank
 *     phase_s      seconds in all steps, mean over ranks; compute is gradient and optimizer, the
 *                  others are as in tamis_stats (wait overlaps with those that run inside it);
 *                  message is waiting for values and gradients of other stages
 *     exposed_s    inside tamis_reducer_ready, _accumulate, tamis_reducer_start and _wait, mean
 *                  over ranks: all time that a thread of the program spends on the exchange,
 *                  working or waiting. In a pipeline the next input may arrive only at its end
 *     buckets      number that the reducer of the first stage made of its layers
 *     lag_s, straggler     of the last step, as in tamis_stats; lag_s is the largest of all
 *                  ranks; null if unknown or if there are stages
 *     stages       of a pipeline, as in tamis_stage when the budget was last divided, null if it
 *                  never was; density_mean is over the steps
 *     local_steps  between two exchanges; 0: every step is one. outer_*: of their optimizer
 *     density_*    entries in the result / n, over the exchanges; count_exact: selected == k in
 *                  each. With several stages: the mean over all parameters, and the extremes of a
 *                  stage
 *     wire_bytes_per_step   sent by the rank that sent most, mean over steps
 *     dense_bytes_per_step  of a ring or halving all-reduce: 2 * 4 n (P - 1) / P; the largest stage
 *     data_hash    of all samples and of what decides their order; model_hash: of the parameters,
 *                  with stages of the first one's
 *     a figure that is NaN or infinite is null
 *     metric       test_accuracy of classes, or validation_loss; metric_value: after the last step
 *     validation_loss, train_loss   in nats per sample or character; train_loss is the mean over
 *                  ranks and the last 100 steps
 *     update_scale   factor on the reduced updates in the last step; 1 for gradients
 *     wire_bytes   of a record "step": sent since the run began, by the rank that sent most
 *     energy_*     as bench/common/energy.h says, of all ranks; a step's joules leave out those of
 *                  the phase evaluate
 *     residual_ratio  norm of the residual / norm of what was accumulated, last step, mean over
 *                     ranks; null for the scheme dense, which has no residual
 */
#include <math.h>
#include <stdlib.h>
#include <tamis/overlap.h>

#include "bench/common/device.h"
#include "bench/common/measure.h"
#include "bench/common/options.h"
#include "bench/common/report.h"
#include "bench/train/trainer.h"

static double mean(trainer *t, double value) {
    return bench_sum(t->world, value) / t->world->nranks;
}

/* Sum over all stages of a mean over the ranks of each. */
static double sum_stages(trainer *t, double value) {
    return bench_sum(t->world, value) / t->group->nranks;
}

/* What the reducer got, also where it was left open. */
static tamis_reducer_config reducer_options(trainer *t, tamis_update *update) {
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    bench_try(t->world, tamis_reducer_options(t->reducer, &config, update),
              "options of the reducer");
    return config;
}

static void add_optimizer(trainer *t, json_t *record) {
    const train_settings *s = t->settings;
    tamis_update update = TAMIS_UPDATE_INIT;
    (void)reducer_options(t, &update);
    bool momentum = s->optimizer == TRAIN_MOMENTUM, adamw = s->optimizer == TRAIN_ADAMW;
    bool updates = s->reduce == TRAIN_UPDATE;
    json_t *more = json_pack("{ss so so so so sf ss sI sf}", "optimizer",
                             bench_choice(TRAIN_OPTIMIZERS, s->optimizer), "momentum",
                             momentum ? json_real(s->momentum) : json_null(), "beta1",
                             adamw ? json_real(updates ? update.beta1 : s->beta1) : json_null(),
                             "beta2", adamw ? json_real(s->beta2) : json_null(), "weight_decay",
                             adamw ? json_real(s->weight_decay) : json_null(), "lr", s->lr,
                             "lr_decay", s->decay == TRAIN_COSINE ? "cosine" : "constant",
                             "warm_up", (json_int_t)s->warm_up, "lr_floor", s->lr_floor);
    json_object_update_missing(record, more);
    json_decref(more);
}

static void add_density(trainer *t, json_t *record) {
    const train_settings *s = t->settings;
    bool ends = s->density_end > 0.0;
    double target = s->density > 0.0 ? s->density : reducer_options(t, NULL).density;
    json_object_set_new(record, "density_target", json_real(target));
    json_object_set_new(record, "density_warm_up", json_integer((json_int_t)s->density_warm_up));
    json_object_set_new(record, "density_end", ends ? json_real(s->density_end) : json_null());
}

static void add_local(const trainer *t, json_t *record) {
    const train_settings *s = t->settings;
    bool local = s->local_steps > 0;
    json_object_set_new(record, "local_steps", json_integer((json_int_t)s->local_steps));
    json_object_set_new(record, "low_rank", json_integer((json_int_t)s->low_rank));
    json_object_set_new(record, "local_delay", json_integer((json_int_t)s->local_delay));
    json_object_set_new(record, "outer_lr", local ? json_real(s->outer_lr) : json_null());
    json_object_set_new(record, "outer_momentum",
                        local ? json_real(s->outer_momentum) : json_null());
}

static void add_settings(trainer *t, json_t *record) {
    const train_settings *s = t->settings;
    double parameters = sum_stages(t, (double)t->work.length);
    json_t *more = json_pack(
        "{ss ss ss ss? ss sI sI ss sI sI sI ss sI}", "workload", t->work.kind->name, "device",
        bench_choice(BENCH_DEVICES, s->device), "scheme", s->scheme, "set", s->set, "transport",
        tamis_comm_transport(t->world->comm), "ranks", (json_int_t)t->world->nranks,
        "micro_batches", (json_int_t)s->micro_batches, "reduce",
        s->reduce == TRAIN_UPDATE ? "update" : "gradient", "batch", (json_int_t)s->batch, "seed",
        (json_int_t)s->seed, "parameters", (json_int_t)parameters, "overlap",
        s->overlap ? "on" : "off", "buckets", (json_int_t)tamis_reducer_nbuckets(t->reducer));
    json_object_update_missing(record, more);
    json_decref(more);
    add_density(t, record);
    add_local(t, record);
    t->work.kind->describe(&t->work, record);
    add_optimizer(t, record);
}

/* A share of this stage's parameters -> the share of all parameters. */
static double mean_stages(trainer *t, double density) {
    double n = (double)t->work.length;
    return sum_stages(t, density * n) / sum_stages(t, n);
}

static double epochs(const trainer *t) {
    return (double)t->step / (double)order_epoch_steps(&t->order);
}

static json_t *residual_ratio(trainer *t) {
    double ratio = t->last.acc_norm > 0 ? t->last.residual_norm / t->last.acc_norm : 0.0;
    ratio = mean(t, ratio);
    return t->dense ? json_null() : bench_report_number(ratio);
}

void trainer_report_step(trainer *t, const workload_score *validation) {
    double loss = trainer_loss(t), density = mean_stages(t, t->last.density);
    double sent = bench_max(t->world, (double)t->totals.wire_bytes);
    double value = trainer_metric(t, validation);
    const char *metric = t->work.kind->metric;
    FILE *report = t->settings->report;
    json_t *ratio = residual_ratio(t);
    if (!report || t->world->rank > 0) { /* ranks that are threads share the file */
        json_decref(ratio);
        return;
    }
    json_t *record = bench_report_new("step");
    json_t *more = json_pack(
        "{sI sf sf so so sf sf so sI sf ss so so}", "step", (json_int_t)t->step, "epoch", epochs(t),
        "lr", trainer_rate(t, t->step), "train_loss", bench_report_number(loss), "validation_loss",
        bench_report_number(validation->loss), "density", density, "update_scale",
        t->last.update_scale, "residual_ratio", ratio, "wire_bytes", (json_int_t)sent, "time_s",
        t->totals.time_s, "metric", metric, "metric_value", bench_report_number(value), metric,
        bench_report_number(value));
    json_object_update(record, more);
    json_decref(more);
    bench_report_write(report, record);
}

static json_t *phases(trainer *t) {
    const train_totals *a = &t->totals;
    return json_pack("{sf sf sf sf sf sf sf}", "compute", mean(t, a->compute_s), "accumulate",
                     mean(t, a->accumulate_s), "select", mean(t, a->select_s), "exchange",
                     mean(t, a->exchange_s), "apply", mean(t, a->apply_s), "wait",
                     mean(t, a->wait_s), "message", mean(t, a->message_s));
}

static void add_straggler(trainer *t, json_t *record) {
    double lag = bench_max(t->world, t->last.lag_s);
    bool known = t->totals.steps > 0 && t->last.straggler != UINT32_MAX && t->pipeline.nstages == 1;
    json_object_set_new(record, "lag_s", known ? json_real(lag) : json_null());
    json_object_set_new(record, "straggler", known ? json_integer(t->last.straggler) : json_null());
}

static json_t *one_stage(trainer *t, uint32_t index, double density_mean) {
    tamis_stage s = TAMIS_STAGE_INIT;
    bench_try(t->world, tamis_pipeline_stage_at(t->pipeline.budget, index, &s),
              "figures of a stage");
    return json_pack("{sI sI sI sf sf sf sf sf sI sf}", "stage", (json_int_t)index, "ranks",
                     (json_int_t)s.nranks, "parameters", (json_int_t)s.length, "density", s.density,
                     "density_mean", density_mean, "window_s", s.window_s, "busy_s", s.busy_s,
                     "exchange_s", s.exchange_s, "straggler", (json_int_t)s.straggler,
                     "straggler_s", s.straggler_s);
}

static json_t *stages(trainer *t) {
    tamis_stage first = TAMIS_STAGE_INIT;
    if (t->pipeline.budget)
        bench_try(t->world, tamis_pipeline_stage_at(t->pipeline.budget, 0, &first), "first stage");
    if (!t->pipeline.budget || first.straggler == UINT32_MAX)
        return json_null();
    double mine = t->totals.density_sum / (double)t->totals.exchanges;
    double *all = bench_alloc(t->world->nranks, sizeof *all);
    bench_allgather(t->world, &mine, sizeof mine, all);
    json_t *list = json_array();
    for (uint32_t s = 0; s < t->pipeline.nstages; s++)
        json_array_append_new(list, one_stage(t, s, all[s * t->group->nranks]));
    free(all);
    return list;
}

static void add_energy(trainer *t, json_t *record) {
    static const char *const names[] = {"evaluate", NULL};
    tamis_energy_totals totals;
    bench_energy_totals(&t->energy, &totals);
    bench_energy_add(&t->energy, &totals, (double)t->totals.steps, TRAIN_EVALUATE, names, record);
}

static void add_hash(json_t *record, const char *name, uint64_t hash) {
    char text[17];
    snprintf(text, sizeof text, "%016llx", (unsigned long long)hash);
    json_object_set_new(record, name, json_string(text));
}

static void add_hashes(const trainer *t, json_t *record) {
    add_hash(record, "data_hash", trainer_data_hash(t));
    add_hash(record, "model_hash", trainer_model_hash(t));
}

/* Collective: every rank builds the record, the first one writes it. */
static json_t *summary(trainer *t) {
    const train_totals *a = &t->totals;
    double exchanges = a->exchanges ? (double)a->exchanges : 1.0;
    double steps = a->steps ? (double)a->steps : 1.0, p = t->group->nranks;
    double exposed = mean(t, a->exposed_s), time = bench_max(t->world, a->time_s);
    double wire = bench_max(t->world, (double)a->wire_bytes / steps);
    double dense_wire = bench_max(t->world, 8.0 * (double)t->work.length * (p - 1) / p);
    double density = mean_stages(t, a->density_sum / exchanges);
    double density_max = bench_max(t->world, a->density_max);
    double density_min = -bench_max(t->world, a->exchanges ? -a->density_min : 0.0);
    double exact = -bench_max(t->world, a->count_exact ? -1.0 : 0.0);
    double loss = trainer_loss(t);
    workload_score validation = trainer_validate(t);
    bool identical = trainer_replicas_identical(t);

    json_t *record = bench_report_new("summary");
    add_settings(t, record);
    json_t *more = json_pack(
        "{sf sf sf sb sI sf sf so so sf sf sf ss so so so sb so sI sf}", "density_mean", density,
        "density_max", density_max, "density_min", density_min, "count_exact", exact > 0, "steps",
        (json_int_t)a->steps, "epochs", epochs(t), "time_s", time, "phase_s", phases(t), "stages",
        stages(t), "exposed_s", exposed, "wire_bytes_per_step", wire, "dense_bytes_per_step",
        dense_wire, "metric", t->work.kind->metric, "metric_value",
        bench_report_number(trainer_metric(t, &validation)), "validation_loss",
        bench_report_number(validation.loss), "train_loss", bench_report_number(loss),
        "replicas_identical", identical, "residual_ratio", residual_ratio(t), "rescans",
        (json_int_t)a->rescans, "update_scale", t->last.update_scale);
    json_object_update(record, more);
    json_decref(more);
    add_straggler(t, record);
    add_hashes(t, record);
    add_energy(t, record);
    return record;
}

static double real(const json_t *record, const char *name) {
    const json_t *value = json_object_get(record, name);
    return json_is_number(value) ? json_number_value(value) : NAN;
}

static void print_text(const char *metric, const json_t *record) {
    printf("%s %.4f, train loss %.4f, %lld steps in %.2f s\n", metric, real(record, "metric_value"),
           real(record, "train_loss"), (long long)real(record, "steps"), real(record, "time_s"));
    printf("density %.6g (%.6g to %.6g), count %s\n", real(record, "density_mean"),
           real(record, "density_min"), real(record, "density_max"),
           json_is_true(json_object_get(record, "count_exact")) ? "exact in every step"
                                                                : "not exact");
    printf("sent per step and rank: %.0f bytes; a dense all-reduce sends %.0f\n",
           real(record, "wire_bytes_per_step"), real(record, "dense_bytes_per_step"));
    printf("replicas %s\n", json_is_true(json_object_get(record, "replicas_identical"))
                                ? "identical"
                                : "NOT identical");
}

bool trainer_report_summary(trainer *t) {
    json_t *record = summary(t);
    FILE *report = t->world->rank == 0 ? t->settings->report : NULL;
    if (t->world->rank == 0 && !report)
        print_text(t->work.kind->metric_text, record);
    bool identical = json_is_true(json_object_get(record, "replicas_identical"));
    bench_report_write(report, record);
    return identical;
}
