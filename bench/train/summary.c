/* SPDX-License-Identifier: MIT
 *
 * Records of a run. What the fields mean:
 *
 *     steps        of this run; epochs: since the first run, if this one was resumed
 *     time_s       the steps without evaluation and files, slowest rank
 *     phase_s      seconds in all steps, mean over ranks; compute is gradient and optimizer, the
 *                  others are as in tamis_stats (wait overlaps with those that run inside it)
 *     exposed_s    inside tamis_reduce_start and _wait, mean over ranks
 *     density_*    entries in the result / n, over the steps; count_exact: selected == k in each
 *     wire_bytes_per_step   sent by the rank that sent most, mean over steps
 *     dense_bytes_per_step  of a ring or halving all-reduce: 2 * 4 n (P - 1) / P
 *     train_loss   mean over ranks and the last 100 steps
 *     residual_ratio  norm of the residual / norm of what was accumulated, last step, mean over
 *                     ranks; null for the scheme dense, which has no residual
 */
#include <math.h>
#include <string.h>

#include "bench/common/device.h"
#include "bench/common/options.h"
#include "bench/common/report.h"
#include "bench/train/trainer.h"

static double mean(trainer *t, double value) {
    return bench_sum(t->group, value) / t->group->nranks;
}

static void add_settings(const trainer *t, json_t *record) {
    const train_settings *s = t->settings;
    json_t *more = json_pack("{ss ss ss ss sI sf ss sf so ss sI sI sI sI}", "workload", "mlp",
                             "device", bench_choice(BENCH_DEVICES, s->device), "scheme", s->scheme,
                             "transport", tamis_comm_transport(t->group->comm), "ranks",
                             (json_int_t)t->group->nranks, "density_target", s->density,
                             "optimizer", s->optimizer == TRAIN_MOMENTUM ? "momentum" : "sgd", "lr",
                             s->lr, "momentum", t->velocity ? json_real(s->momentum) : json_null(),
                             "lr_decay", s->decay == TRAIN_COSINE ? "cosine" : "constant", "batch",
                             (json_int_t)s->batch, "seed", (json_int_t)s->seed, "hidden",
                             (json_int_t)s->hidden, "parameters", (json_int_t)t->model.length);
    json_object_update_missing(record, more);
    json_decref(more);
}

void trainer_report_step(trainer *t, double accuracy) {
    double loss = trainer_loss(t);
    if (!t->settings->report)
        return;
    json_t *record = bench_report_new("step");
    json_t *more = json_pack("{sI sf sf sf sf sf sf}", "step", (json_int_t)t->step, "epoch",
                             (double)t->step / (double)t->epoch_steps, "lr",
                             trainer_rate(t, t->step), "train_loss", loss, "test_accuracy",
                             accuracy, "density", t->last.density, "time_s", t->tally.time_s);
    json_object_update(record, more);
    json_decref(more);
    bench_report_write(t->settings->report, record);
}

static json_t *phases(trainer *t) {
    const train_tally *a = &t->tally;
    return json_pack("{sf sf sf sf sf sf}", "compute", mean(t, a->compute_s), "accumulate",
                     mean(t, a->accumulate_s), "cut", mean(t, a->cut_s), "exchange",
                     mean(t, a->exchange_s), "apply", mean(t, a->apply_s), "wait",
                     mean(t, a->wait_s));
}

static json_t *residual_ratio(trainer *t) {
    double ratio = t->last.acc_norm > 0 ? t->last.residual_norm / t->last.acc_norm : 0.0;
    ratio = mean(t, ratio);
    return strcmp(t->settings->scheme, "dense") == 0 ? json_null() : json_real(ratio);
}

/* Collective: every rank builds the record, the first one writes it. */
static json_t *summary(trainer *t) {
    const train_tally *a = &t->tally;
    double steps = a->steps ? (double)a->steps : 1.0, p = t->group->nranks;
    double exposed = mean(t, a->exposed_s), time = bench_max(t->group, a->time_s);
    double wire = bench_max(t->group, (double)a->wire_bytes / steps);
    double exact = -bench_max(t->group, a->count_exact ? -1.0 : 0.0);
    double loss = trainer_loss(t), accuracy = trainer_accuracy(t);
    bool identical = trainer_replicas_identical(t);

    json_t *record = bench_report_new("summary");
    add_settings(t, record);
    json_t *more = json_pack(
        "{sf sf sf sb sI sf sf so sf sf sf ss sf sf sb so sI sn ss}", "density_mean",
        a->density_sum / steps, "density_max", a->density_max, "density_min",
        a->steps ? a->density_min : 0.0, "count_exact", exact > 0, "steps", (json_int_t)a->steps,
        "epochs", (double)t->step / (double)t->epoch_steps, "time_s", time, "phase_s", phases(t),
        "exposed_s", exposed, "wire_bytes_per_step", wire, "dense_bytes_per_step",
        8.0 * (double)t->model.length * (p - 1) / p, "metric", "test_accuracy", "metric_value",
        accuracy, "train_loss", loss, "replicas_identical", identical, "residual_ratio",
        residual_ratio(t), "rescans", (json_int_t)a->rescans, "energy_j", "energy_reason",
        "not measured by this program yet");
    json_object_update(record, more);
    json_decref(more);
    return record;
}

static double real(const json_t *record, const char *name) {
    return json_number_value(json_object_get(record, name));
}

static void print_text(const json_t *record) {
    printf("test accuracy %.4f, train loss %.4f, %lld steps in %.2f s\n",
           real(record, "metric_value"), real(record, "train_loss"),
           (long long)real(record, "steps"), real(record, "time_s"));
    printf("density %.6g (%.6g to %.6g), count %s\n", real(record, "density_mean"),
           real(record, "density_min"), real(record, "density_max"),
           json_is_true(json_object_get(record, "count_exact")) ? "exact in every step"
                                                                : "not exact");
    printf("sent per step and rank %.0f bytes; a dense all-reduce sends %.0f\n",
           real(record, "wire_bytes_per_step"), real(record, "dense_bytes_per_step"));
    printf("replicas %s\n", json_is_true(json_object_get(record, "replicas_identical"))
                                ? "identical"
                                : "NOT identical");
}

void trainer_report_summary(trainer *t) {
    json_t *record = summary(t);
    if (t->group->rank == 0 && !t->settings->report)
        print_text(record);
    bench_report_write(t->group->rank == 0 ? t->settings->report : NULL, record);
}
