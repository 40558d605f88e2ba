/* SPDX-License-Identifier: MIT */
#define _DEFAULT_SOURCE
#include "bench/train/saver.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "bench/common/measure.h"
#include "bench/train/stop.h"

/* -- what a user is told ---------------------------------------------------------------------- */

/* Of this process, for bench_fail: local ranks share it. */
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

static void note_newest(const saver *s) {
    char newest[1200], note[1400];
    describe_newest(s, newest, sizeof newest);
    snprintf(note, sizeof note,
             "rank %u: a signal arrived: the run saves its state after this step and ends with "
             "status %d, another signal "
             "ends it at once; %s",
             s->group->rank, STOP_STATUS, newest);
    if (s->group->rank == 0 || (s->group->rank == 1 && s->group->transport == BENCH_MPI))
        stop_note(note); /* two, as one may be what died; local ranks share one */
}

static void nap(void) {
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
        nap();
    if (s->phase == SAVER_MANIFEST && s->job.running && atomic_load(&s->job.done) && s->job.ok)
        s->newest = s->set.step;
    describe_newest(s, newest, sizeof newest);
    fprintf(stderr, "rank %u: %s\n", group->kind->whole_rank(group), newest);
}

/* The first failures in a row, then fewer and fewer. */
static void tell_failure(const saver *s) {
    char newest[1200];
    if (s->in_a_row & (s->in_a_row - 1))
        return;
    describe_newest(s, newest, sizeof newest);
    fprintf(stderr,
            "rank %u: the set of states of step %" PRIu64 " is not saved: %s; the run goes on and "
            "tries again with the next set: make room in the folder, or make it writable; %s\n",
            s->group->rank, s->set.step, s->job.why.text, newest);
}

/* -- threads ---------------------------------------------------------------------------------- */

static void *write_state(void *context) {
    saver *s = context;
    char path[SETS_PATH];
    files_piece pieces[STATE_PIECES];
    s->state.header.checksum = state_checksum(&s->state);
    state_pieces(&s->state, pieces);
    s->mine.bytes = 0;
    for (int i = 0; i < STATE_PIECES; i++)
        s->mine.bytes += pieces[i].bytes;
    s->mine.hash = files_hash(pieces, STATE_PIECES);
    s->job.ok = sets_file(s->folder, s->set.step, s->group->rank, path) &&
                files_write(path, pieces, STATE_PIECES, &s->job.why);
    atomic_store(&s->job.done, true);
    return NULL;
}

/* Two complete sets stay: this one and the one before. */
static void *write_manifest(void *context) {
    saver *s = context;
    s->job.ok = sets_write_manifest(s->folder, &s->set, &s->job.why);
    if (s->job.ok && s->newest != SETS_NONE)
        sets_remove_before(s->folder, s->newest);
    atomic_store(&s->job.done, true);
    return NULL;
}

static void begin_job(saver *s, void *(*work)(void *)) {
    s->job.ok = false;
    snprintf(s->job.why.text, sizeof s->job.why.text, "the path of the folder is too long");
    atomic_store(&s->job.done, false);
    int error = pthread_create(&s->job.thread, NULL, work, s);
    s->job.running = error == 0;
    if (error) {
        snprintf(s->job.why.text, sizeof s->job.why.text, "no thread to write it: %s",
                 strerror(error));
        atomic_store(&s->job.done, true);
    }
}

static void end_job(saver *s) {
    if (s->job.running)
        pthread_join(s->job.thread, NULL);
    s->job.running = false;
}

/* -- a set ------------------------------------------------------------------------------------ */

static void copy(saver *s) {
    double begin = bench_now_s();
    state_copy(s->trainer, &s->state);
    bench_energy_totals_now(&s->trainer->energy, &s->state.header.joules);
    s->copy_s += bench_now_s() - begin;
}

static void begin_set(saver *s) {
    s->set.step = s->trainer->step;
    s->set.nranks = s->group->nranks;
    s->set.data_hash = trainer_data_hash(s->trainer);
    s->phase = SAVER_FILES;
    s->begun_s = bench_now_s();
    if (s->has_memory)
        copy(s);
    if (s->has_memory) {
        begin_job(s, write_state);
        return;
    }
    s->job.ok = false;
    atomic_store(&s->job.done, true);
    snprintf(s->job.why.text, sizeof s->job.why.text, "no memory for a copy of the state");
}

/* One rank speaks for all that failed. What was written makes room. */
static void give_up_set(saver *s) {
    char path[SETS_PATH];
    if (sets_file(s->folder, s->set.step, s->group->rank, path))
        unlink(path);
    s->failed++;
    s->in_a_row++;
    s->phase = SAVER_IDLE;
    if (s->heard[SAVER_FAILED] == s->group->rank + 1)
        tell_failure(s);
}

static void complete_set(saver *s) {
    s->saved++;
    s->in_a_row = 0;
    s->newest = s->set.step;
    s->phase = SAVER_IDLE;
    note_newest(s);
}

/* -- news ------------------------------------------------------------------------------------- */

static void wait_for_news(saver *s) {
    if (!bench_message_wait_for(&s->message, s->timeout_s))
        bench_fail(s->group,
                   "after step %" PRIu64
                   " another rank did not answer within %.0f s: it is gone or "
                   "stuck; look for the first failure of a rank, or raise TAMIS_TIMEOUT_MS",
                   s->trainer->step, s->timeout_s);
}

static bool clock_says_due(const saver *s) {
    double every = s->trainer->settings->save_seconds;
    return s->folder && every > 0 && s->phase == SAVER_IDLE && s->group->rank == 0 &&
           bench_now_s() - s->begun_s >= every;
}

static void send_news(saver *s) {
    int number = stop_signal();
    bool working = s->phase == SAVER_FILES || s->phase == SAVER_MANIFEST;
    bool done = atomic_load(&s->job.done);
    s->said[SAVER_STOP] = number ? (uint64_t)number << 32 | (s->group->rank + 1) : 0;
    s->said[SAVER_DUE] = clock_says_due(s);
    s->said[SAVER_BUSY] = working && !done;
    s->said[SAVER_FAILED] = working && done && !s->job.ok ? s->group->rank + 1 : 0;
    bench_share_max(s->group, s->said, SAVER_NEWS, s->heard, &s->message);
    s->posted = true;
    s->next_news = s->trainer->step + s->distance;
}

static void begin_hashes(saver *s) {
    s->phase = SAVER_HASHES;
    bench_share_all(s->group, &s->mine, sizeof s->mine, s->set.entries, &s->message);
}

/* Only rank 0 has work; for the others it is done. */
static void begin_manifest(saver *s) {
    s->phase = SAVER_MANIFEST;
    s->job.ok = true;
    atomic_store(&s->job.done, true);
    if (s->group->rank == 0)
        begin_job(s, write_manifest);
}

/* What all have heard decides, so all ranks do the same. */
static void advance(saver *s) {
    bool working = s->phase == SAVER_FILES || s->phase == SAVER_MANIFEST;
    if (!working || s->heard[SAVER_BUSY])
        return;
    end_job(s);
    if (s->heard[SAVER_FAILED])
        give_up_set(s);
    else if (s->phase == SAVER_FILES)
        begin_hashes(s);
    else
        complete_set(s);
}

/* Hashes travel in place of news, never beside them. */
static void hear_news(saver *s) {
    if (s->phase == SAVER_HASHES) {
        wait_for_news(s);
        begin_manifest(s);
    } else if (s->posted) {
        wait_for_news(s);
        s->posted = false;
        advance(s);
    }
}

static bool is_due(const saver *s) {
    uint64_t every = s->trainer->settings->save_every, step = s->trainer->step;
    return s->folder && ((every && step % every == 0) || s->heard[SAVER_DUE]);
}

static bool step(saver *s) {
    hear_news(s);
    if (s->heard[SAVER_STOP])
        return true;
    if (is_due(s) && s->phase == SAVER_IDLE)
        begin_set(s);
    else if (is_due(s))
        s->left_out++;
    s->heard[SAVER_DUE] = 0;
    if (s->phase != SAVER_HASHES && s->trainer->step >= s->next_news)
        send_news(s);
    return false;
}

bool saver_step(saver *s) {
    if (!s->talks)
        return false;
    double begin = bench_now_s();
    bool stop = step(s);
    s->step_s += bench_now_s() - begin;
    return stop;
}

int saver_signal(const saver *s) {
    return (int)(s->heard[SAVER_STOP] >> 32);
}

static void settle(saver *s) {
    uint64_t stop = s->heard[SAVER_STOP];
    hear_news(s);
    while (s->phase != SAVER_IDLE) {
        if (s->phase != SAVER_HASHES)
            send_news(s);
        hear_news(s);
        if (s->heard[SAVER_BUSY])
            nap();
    }
    s->heard[SAVER_STOP] = stop;
}

/* -- the run ---------------------------------------------------------------------------------- */

static void report(const saver *s) {
    char newest[1200];
    describe_newest(s, newest, sizeof newest);
    if (s->group->rank > 0)
        return;
    if (s->failed)
        fprintf(stderr,
                "rank 0: %" PRIu64 " of %" PRIu64 " sets of states could not be saved%s; "
                "%s\n",
                s->failed, s->failed + s->saved, s->in_a_row ? ", nor could the last one" : "",
                newest);
    if (saver_signal(s))
        fprintf(stderr,
                "rank 0: signal %d, which rank %u got, ended the run after step %" PRIu64 "; %s\n",
                saver_signal(s), (unsigned)(s->heard[SAVER_STOP] & UINT32_MAX) - 1,
                s->trainer->step, newest);
}

bool saver_finish(saver *s) {
    if (!s->talks)
        return true;
    settle(s);
    if (s->folder && s->newest != s->trainer->step) {
        begin_set(s);
        settle(s);
    }
    report(s);
    return !s->folder || s->newest == s->trainer->step;
}

static double timeout_s(void) {
    const char *text = getenv("TAMIS_TIMEOUT_MS");
    unsigned long ms = text ? strtoul(text, NULL, 10) : 0;
    return 1e-3 * (double)(ms ? ms : 300000);
}

/* Before the first step, so that somebody may still be looking. */
static void check_folder(saver *s) {
    struct stat about;
    int error = mkdir(s->folder, 0700) == 0 || errno == EEXIST ? 0 : errno;
    if (!error && stat(s->folder, &about) != 0)
        error = errno;
    else if (!error && !S_ISDIR(about.st_mode))
        error = ENOTDIR;
    double failing = bench_max(s->group, error ? s->group->rank + 1.0 : 0.0);
    if (failing == s->group->rank + 1.0)
        fprintf(stderr,
                "rank %u: no sets of states can be saved in %s: %s; the run goes on and tries with "
                "every set: make the folder, or end the run and give another --states\n",
                s->group->rank, s->folder, strerror(error));
}

void saver_open(trainer *t, saver *out) {
    const train_settings *s = t->settings;
    uint64_t local = s->local_steps < 10 ? s->local_steps : 10;
    *out = (saver){.trainer = t, .group = t->world, .folder = s->states, .newest = SETS_NONE};
    out->talks = s->states || s->save;
    out->distance = local ? local : 1; /* else ranks would wait for each other in every step */
    out->timeout_s = timeout_s();
    out->begun_s = bench_now_s();
    if (!out->talks)
        return;
    note_newest(out);
    if (!out->folder)
        return;
    out->set.entries = bench_alloc(out->group->nranks, sizeof *out->set.entries);
    out->has_memory = state_open(t, &out->state);
    check_folder(out);
}

void saver_close(saver *s) {
    saver *self = s;
    atomic_compare_exchange_strong(&watched, &self, NULL);
    state_close(&s->state);
    free(s->set.entries);
}

/* -- load ------------------------------------------------------------------------------------- */

static bool is_folder(bench_group *group, const char *path) {
    struct stat about;
    bool mine = group->rank == 0 && stat(path, &about) == 0 && S_ISDIR(about.st_mode);
    return bench_max(group, mine) > 0.0;
}

static bool same_folder(const char *a, const char *b) {
    struct stat x, y;
    return a && b && stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev &&
           x.st_ino == y.st_ino;
}

/* The same command begins a run and goes on with it: a folder for both that has no set yet. */
static void load_set(saver *s, const char *folder) {
    char prefix[SETS_PATH];
    bool own = same_folder(folder, s->folder);
    uint64_t step = sets_choose(s->group, folder);
    bool empty = bench_max(s->group, sets_newest(folder) != SETS_NONE) == 0.0;
    if (step == SETS_NONE && !(own && empty))
        bench_fail(s->group, "--load %s: there is no complete set of states in this folder",
                   folder);
    if (step == SETS_NONE) {
        if (s->group->rank == 0)
            fprintf(stderr, "rank 0: %s has no complete set yet: the run begins at step 0\n",
                    folder);
        return;
    }
    if (!sets_prefix(folder, step, prefix))
        bench_fail(s->group, "the path %.300s is too long", folder);
    trainer_load(s->trainer, prefix);
    if (own)
        s->newest = step;
    if (s->group->rank == 0 && !s->trainer->settings->quiet)
        fprintf(stderr, "rank 0: resumes from the set of step %" PRIu64 " in %s\n", step, folder);
}

/* Sets of two runs in one folder could not be told apart. */
static void refuse_foreign(saver *s) {
    const char *load = s->trainer->settings->load;
    if (!s->folder || (load && same_folder(load, s->folder)))
        return;
    uint64_t step = sets_newest(s->folder);
    bool any = bench_max(s->group, step != SETS_NONE) > 0.0; /* before any rank writes one */
    if (any && s->group->rank == 0)
        bench_fail(s->group,
                   "--states %.300s has the set of step %" PRIu64
                   " of an earlier run: go on from it "
                   "with --load %.300s, or give another folder",
                   s->folder, step, s->folder);
    bench_barrier(s->group);
}

void saver_load(saver *s) {
    const char *load = s->trainer->settings->load;
    refuse_foreign(s);
    if (load && is_folder(s->group, load))
        load_set(s, load);
    else if (load)
        trainer_load(s->trainer, load);
    if (s->talks)
        note_newest(s);
    if (!s->folder || (s->group->rank > 0 && s->group->transport != BENCH_MPI))
        return;
    atomic_store(&watched, s);
    bench_at_fail(say_last);
}
