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
#include "bench/train/saver_say.h"
#include "bench/train/stop.h"

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
        saver_say_failure(s);
}

static void complete_set(saver *s) {
    s->saved++;
    s->in_a_row = 0;
    s->newest = s->set.step;
    s->phase = SAVER_IDLE;
    saver_say_newest(s);
}

/* -- news ------------------------------------------------------------------------------------- */

static void wait_for_news(saver *s) {
    if (bench_message_wait_for(&s->message, bench_timeout_s()))
        return;
    if (s->group->survives)
        bench_lose(s->group);
    else
        bench_fail(s->group,
                   "after step %" PRIu64
                   " another rank did not answer within %.0f s: it is gone or "
                   "stuck; look for the first failure of a rank, or raise TAMIS_TIMEOUT_MS",
                   s->trainer->step, bench_timeout_s());
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
    s->said[SAVER_STOP] = number ? (uint64_t)number << 32 | (s->group->number + 1) : 0;
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
    if (s->phase != SAVER_HASHES && !s->posted)
        return;
    wait_for_news(s);
    if (s->group->lost)
        return;
    if (s->phase == SAVER_HASHES) {
        begin_manifest(s);
    } else {
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
    if (s->group->lost || s->heard[SAVER_STOP])
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
    return stop && !s->group->lost;
}

static void sleep_briefly(void) {
    const struct timespec millisecond = {0, 1000000};
    nanosleep(&millisecond, NULL);
}

static void wait_until_idle(saver *s) {
    uint64_t stop = s->heard[SAVER_STOP];
    hear_news(s);
    while (s->phase != SAVER_IDLE && !s->group->lost) {
        if (s->phase != SAVER_HASHES)
            send_news(s);
        hear_news(s);
        if (s->heard[SAVER_BUSY])
            sleep_briefly();
    }
    s->heard[SAVER_STOP] = stop;
}

/* -- fewer ranks ------------------------------------------------------------------------------ */

/* A message of a group that is lost ends by itself, with an error. A manifest can only be there if
 * this rank has sent its hash. */
void saver_interrupt(saver *s) {
    char path[SETS_PATH];
    if (!s->talks)
        return;
    end_job(s);
    if (s->phase == SAVER_HASHES || s->posted)
        bench_message_wait_for(&s->message, 1.0);
    if (s->phase == SAVER_FILES && sets_file(s->folder, s->set.step, s->group->rank, path))
        unlink(path);
    if (s->phase == SAVER_MANIFEST && s->group->rank == 0 && s->job.ok)
        s->newest = s->set.step;
    s->phase = SAVER_IDLE;
    s->posted = false;
}

/* Not all ranks have heard that a set is complete. */
void saver_regroup(saver *s) {
    if (!s->talks)
        return;
    memset(s->heard, 0, sizeof s->heard);
    s->next_news = s->trainer->step;
    s->begun_s = bench_now_s();
    double newest = bench_max(s->group, s->newest == SETS_NONE ? -1.0 : (double)s->newest);
    if (s->group->lost)
        return;
    s->newest = newest < 0.0 ? SETS_NONE : (uint64_t)newest;
    saver_say_newest(s);
}

/* -- the run ---------------------------------------------------------------------------------- */

bool saver_finish(saver *s) {
    if (!s->talks)
        return true;
    wait_until_idle(s);
    if (s->folder && s->newest != s->trainer->step) {
        begin_set(s);
        wait_until_idle(s);
    }
    saver_say_end(s);
    return !s->folder || s->newest == s->trainer->step;
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
    out->begun_s = bench_now_s();
    if (!out->talks)
        return;
    saver_say_newest(out);
    if (!out->folder)
        return;
    out->set.entries = bench_alloc(out->group->nranks, sizeof *out->set.entries);
    out->has_memory = state_open(t, &out->state);
    check_folder(out);
}

void saver_close(saver *s) {
    saver_say_unwatch(s);
    state_close(&s->state);
    free(s->set.entries);
}
