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
#include "bench/train/room.h"
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
            t->tally.losses[(t->tally.steps - 1) % TRAIN_LOSSES], t->work.kind->metric_text, metric,
            terminal ? "\033[K" : "\n");
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
    trainer_check_replicas(t);
    govern_start(&t->governor, &t->energy, t->step);
}

/* @return false: a signal has ended it before its last step */
static bool run_steps(trainer *t, saver *sets) {
    const train_settings *s = t->settings;
    uint64_t every = s->eval_every ? s->eval_every : t->epoch_steps;
    uint64_t end = s->stop && s->stop < t->steps ? s->stop : t->steps;
    double metric = 0.0, last_line = bench_now_s();
    bool stopped = false;
    while (t->step < end && !stopped) {
        trainer_step(t);
        stopped = saver_step(sets);
        if (!stopped && s->check_every && t->step % s->check_every == 0)
            trainer_check_replicas(t);
        if (!stopped && t->step % every == 0) {
            workload_score mean = trainer_validate(t);
            metric = trainer_metric(t, &mean);
            trainer_report_step(t, &mean);
        }
        show_progress(t, metric, &last_line);
    }
    end_progress(t);
    return !stopped;
}

/* After a signal there may be seconds left, so nothing is validated then. */
static int train(bench_group *group, void *context) {
    run *r = context;
    saver sets;
    trainer t;
    stop_watch(group->rank, group->comm);
    trainer_open(group, &r->settings, &r->data, &t);
    begin(&t, &sets);
    bool whole = run_steps(&t, &sets);
    bool saved = saver_finish(&sets);
    if (r->settings.save)
        trainer_save(&t, r->settings.save);
    bool identical = true;
    if (whole)
        identical = trainer_report_summary(&t, &sets);
    else
        trainer_report_stopped(&t, saver_signal(&sets));
    saver_close(&sets);
    trainer_close(&t);
    stop_watch(group->rank, NULL);
    return !identical || !saved ? 1 : whole ? 0 : STOP_STATUS;
}

int main(int argc, char **argv) {
    static run r;
    char error[1400];
    room_check(1);
    train_settings_read(argc, argv, &r.settings);
    room_check((uint32_t)r.settings.ranks);
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
