/* SPDX-License-Identifier: MIT */
#define _DEFAULT_SOURCE
#include "bench/train/saver_say.h"

#include <inttypes.h>
#include <stdio.h>
#include <time.h>

#include "bench/common/measure.h"
#include "bench/train/stop.h"

/* The saver of this process, for bench_fail: local ranks share it. */
static saver *_Atomic watched;

static void describe_newest(const saver *s, char *out, size_t size) {
    if (!s->folder)
        snprintf(out, size, "no sets of states are written (--states)");
    else if (s->newest == SETS_NONE)
        snprintf(out, size, "there is no complete set of states in %.1000s yet", s->folder);
    else
        snprintf(out, size,
                 "the last complete set is that of step %" PRIu64 "; resume with --load %.1000s",
                 s->newest, s->folder);
}

void saver_say_newest(const saver *s) {
    char newest[1200], message[1400];
    describe_newest(s, newest, sizeof newest);
    snprintf(message, sizeof message,
             "rank %u: a signal arrived: the run saves its state after this step and ends with "
             "status %d, another signal "
             "ends it at once; %s",
             s->group->number, STOP_STATUS, newest);
    if (s->group->rank == 0 || (s->group->rank == 1 && s->group->transport == BENCH_MPI))
        stop_set_message(message); /* two, as one may be what died; local ranks share one */
}

static void sleep_briefly(void) {
    const struct timespec millisecond = {0, 1000000};
    nanosleep(&millisecond, NULL);
}

/* All states of a set may be on disk already, so let its manifest be written to the end. */
static void say_last(const bench_group *group) {
    saver *s = atomic_load(&watched);
    char newest[1200];
    double begin = bench_now_s();
    if (!s)
        return;
    while (s->phase == SAVER_MANIFEST && s->job.running && !atomic_load(&s->job.done) &&
           bench_now_s() - begin < 5.0)
        sleep_briefly();
    if (s->phase == SAVER_MANIFEST && s->job.running && atomic_load(&s->job.done) && s->job.ok)
        s->newest = s->set.step;
    describe_newest(s, newest, sizeof newest);
    fprintf(stderr, "rank %u: %s\n", group->number, newest);
}

/* The first failures in a row, then fewer and fewer. */
void saver_say_failure(const saver *s) {
    char newest[1200];
    if (s->in_a_row & (s->in_a_row - 1))
        return;
    describe_newest(s, newest, sizeof newest);
    fprintf(stderr,
            "rank %u: the set of states of step %" PRIu64 " is not saved: %s; the run goes on and "
            "tries again with the next set: make room in the folder, or make it writable; %s\n",
            s->group->number, s->set.step, s->job.why.text, newest);
}

void saver_say_end(const saver *s) {
    char newest[1200];
    describe_newest(s, newest, sizeof newest);
    if (s->group->rank > 0)
        return;
    if (s->failed)
        fprintf(stderr,
                "rank %u: %" PRIu64 " of %" PRIu64 " sets of states could not be saved%s; "
                "%s\n",
                s->group->number, s->failed, s->failed + s->saved,
                s->in_a_row ? ", nor could the last one" : "", newest);
    if (saver_signal(s))
        fprintf(stderr,
                "rank %u: signal %d, which rank %u got, ended the run after step %" PRIu64 "; %s\n",
                s->group->number, saver_signal(s),
                (unsigned)(s->heard[SAVER_STOP] & UINT32_MAX) - 1, s->trainer->step, newest);
}

void saver_say_watch(saver *s) {
    if (!s->folder || (s->group->rank > 0 && s->group->transport != BENCH_MPI))
        return;
    atomic_store(&watched, s);
    bench_at_fail(say_last);
}

void saver_say_unwatch(saver *s) {
    saver *self = s;
    atomic_compare_exchange_strong(&watched, &self, NULL);
}
