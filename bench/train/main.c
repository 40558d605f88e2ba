/* SPDX-License-Identifier: MIT
 *
 * tamis_train: data-parallel training of a small model on real data, dense or sparse.
 */
#include <cblas.h>
#include <stdio.h>
#include <unistd.h>

#include "bench/common/measure.h"
#include "bench/common/report.h"
#include "bench/common/start.h"
#include "bench/train/checkpoint.h"
#include "bench/train/memory.h"

typedef struct run {
    train_settings settings;
    workload_data data;
} run;

/* Whether this is the first rank that knows the loss. */
static bool reports_progress(const trainer *t) {
    return t->group->rank == 0 && pipeline_is_last(&t->pipeline) && !t->settings->quiet;
}

/* On a terminal rewrite one line, else print a line every ten seconds. */
static void show_progress(const trainer *t, double metric, double *last) {
    bool terminal = isatty(STDERR_FILENO);
    double now = bench_now_s();
    if (!reports_progress(t) || now - *last < (terminal ? 0.2 : 10.0))
        return;
    *last = now;
    fprintf(stderr, "%sstep %llu of %llu, loss %.4f, %s %.4f%s", terminal ? "\r" : "",
            (unsigned long long)t->step, (unsigned long long)t->steps,
            t->totals.losses[(t->totals.steps - 1) % TRAIN_LOSSES], t->work.kind->metric_text,
            metric, terminal ? "\033[K" : "\n");
}

static void run_steps(trainer *t) {
    const train_settings *s = t->settings;
    uint64_t every = s->eval_every ? s->eval_every : order_epoch_steps(&t->order);
    double metric = 0.0, last_line = bench_now_s();
    while (t->step < t->steps) {
        trainer_step(t);
        checkpoint_step(t);
        if (s->check_every && t->step % s->check_every == 0)
            trainer_check_replicas(t);
        if (t->step % every == 0) {
            workload_score mean = trainer_validate(t);
            metric = trainer_metric(t, &mean);
            trainer_report_step(t, &mean);
        }
        show_progress(t, metric, &last_line);
    }
    if (reports_progress(t) && isatty(STDERR_FILENO))
        fputc('\n', stderr);
}

static int train(bench_group *group, void *context) {
    run *r = context;
    trainer t;
    trainer_open(group, &r->settings, &r->data, &t);
    checkpoint_check(&t);
    checkpoint_load(&t);
    trainer_check_replicas(&t);
    govern_start(&t.governor, &t.energy, t.step);
    run_steps(&t);
    checkpoint_end(&t);
    bool identical = trainer_report_summary(&t);
    trainer_close(&t);
    return identical ? 0 : 1;
}

int main(int argc, char **argv) {
    static run r;
    char error[1400];
    memory_check(1);
    train_settings_read(argc, argv, &r.settings);
    memory_check((uint32_t)r.settings.ranks);
    openblas_set_num_threads(1); /* the ranks already run in parallel */
    const workload_kind *kind = workload_find(r.settings.workload);
    if (!workload_load(kind, &r.settings, &r.data, error, sizeof error)) {
        fprintf(stderr, "tamis_train: %s\n", error);
        return 1;
    }
    int status =
        bench_launch((bench_transport)r.settings.transport, (tamis_device)r.settings.device,
                     (uint32_t)r.settings.ranks, train, &r);
    kind->unload(&r.data);
    return bench_report_close(r.settings.report, status);
}
