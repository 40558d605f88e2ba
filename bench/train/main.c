/* SPDX-License-Identifier: MIT
 *
 * tamis_train: data-parallel training of a small model on real data, dense or sparse.
 */
#include <cblas.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "bench/common/launcher.h"
#include "bench/common/measure.h"
#include "bench/common/report.h"
#include "bench/common/start.h"
#include "bench/train/elastic.h"
#include "bench/train/memory.h"
#include "bench/train/saver.h"
#include "bench/train/stop.h"
#include "bench/train/trainer.h"

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

static void end_progress(const trainer *t) {
    if (reports_progress(t) && isatty(STDERR_FILENO))
        fputc('\n', stderr);
}

static void begin(trainer *t, saver *sets) {
    const train_settings *s = t->settings;
    if (s->save)
        trainer_save_check(t, s->save);
    saver_open(t, sets);
    saver_load(sets);
    elastic_open(t); /* what only some ranks have loaded could not be gone on from */
    trainer_check_replicas(t);
    govern_start(&t->governor, &t->energy, t->step);
}

typedef enum run_end { RUN_WHOLE, RUN_STOPPED, RUN_DIED } run_end;

static void evaluate(trainer *t, double *metric) {
    workload_score mean = trainer_validate(t);
    *metric = trainer_metric(t, &mean);
    trainer_report_step(t, &mean);
}

static run_end run_steps(trainer *t, saver *sets, uint64_t every) {
    const train_settings *s = t->settings;
    uint64_t end = s->stop && s->stop < t->steps ? s->stop : t->steps;
    double metric = 0.0, last_line = bench_now_s();
    bool stopped = false;
    if (t->missed && t->step % every == 0)
        evaluate(t, &metric);
    t->missed = false;
    while (t->step < end && !stopped && !t->world->lost) {
        if (elastic_dies(t))
            return RUN_DIED;
        trainer_step(t);
        if (t->world->lost)
            break;
        stopped = saver_step(sets);
        if (!stopped && s->check_every && t->step % s->check_every == 0)
            trainer_check_replicas(t);
        if (!stopped && t->step % every == 0)
            evaluate(t, &metric);
        show_progress(t, metric, &last_line);
    }
    end_progress(t);
    return stopped ? RUN_STOPPED : RUN_WHOLE;
}

/* After a signal there may be seconds left, so nothing is validated then. @return the status */
static int finish(trainer *t, saver *sets, run_end end) {
    bool saved = saver_finish(sets), identical = true;
    if (t->settings->save && !t->world->lost)
        trainer_save(t, t->settings->save);
    if (t->world->lost)
        return 1;
    if (end == RUN_WHOLE)
        identical = trainer_report_summary(t, sets);
    else
        trainer_report_stopped(t, saver_signal(sets));
    return !identical || !saved ? 1 : end == RUN_WHOLE ? 0 : STOP_STATUS;
}

/* A rank that dies leaves everything as it is; so does one that cannot go on with the others. */
static int train(bench_group *group, void *context) {
    run *r = context;
    saver sets;
    trainer t;
    int status;
    stop_watch(group->rank, group->comm);
    trainer_open(group, &r->settings, &r->data, &t);
    begin(&t, &sets);
    uint64_t every = r->settings.eval_every ? r->settings.eval_every : order_epoch_steps(&t.order);
    elastic_end elastic = ELASTIC_GOES_ON;
    do {
        if (group->lost)
            elastic = elastic_recover(&t, &sets);
        if (elastic == ELASTIC_ALONE)
            return 1;
        run_end end = elastic == ELASTIC_TOO_FEW ? RUN_STOPPED : run_steps(&t, &sets, every);
        if (end == RUN_DIED) {
            saver_interrupt(&sets);
            bench_die(group);
            return 0;
        }
        status = group->lost ? 1 : finish(&t, &sets, end);
    } while (group->lost);
    saver_close(&sets);
    trainer_close(&t);
    stop_watch(group->rank, NULL);
    return status;
}

int main(int argc, char **argv) {
    static run r;
    char error[1400];
    memory_check(1);
    train_settings_read(argc, argv, &r.settings);
    memory_check((uint32_t)r.settings.ranks);
    if (r.settings.save || r.settings.states)
        stop_install(bench_launched_rank() <= 1);
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
