/* SPDX-License-Identifier: MIT
 *
 * Saves sets of states (sets.h) while a run goes on, and ends it when a signal asks for that.
 *
 * Between two steps all ranks know the same of each other, and so decide the same: after a step a
 * few numbers begin to travel, of which the largest counts, and after the next one they are read.
 *
 *     step       k: due            k + 1 ...          all files are there     one or two later
 *     rank       copies its state                     hashes travel
 *     its thread                   writes the file
 *     rank 0                                                                  writes the manifest
 *
 * A set that becomes due while another is under way is left out. The older of two complete sets is
 * removed when a third one is complete. What fails is said and counted, and the run goes on.
 */
#ifndef TAMIS_TRAIN_SAVER_H
#define TAMIS_TRAIN_SAVER_H

#include <pthread.h>
#include <stdatomic.h>

#include "bench/train/sets.h"
#include "bench/train/state.h"
#include "bench/train/trainer.h"

typedef enum saver_phase {
    SAVER_IDLE,
    SAVER_FILES,   /* threads write the states */
    SAVER_HASHES,  /* bytes and hashes travel */
    SAVER_MANIFEST /* rank 0's thread writes it */
} saver_phase;

/* What travels after every step. */
enum { SAVER_STOP, SAVER_DUE, SAVER_BUSY, SAVER_FAILED, SAVER_NEWS };

/** What a thread writes beside the steps. */
typedef struct saver_job {
    pthread_t thread;
    bool running;     /* there is a thread to be joined */
    atomic_bool done; /* what follows may be read */
    bool ok;
    files_why why;
} saver_job;

typedef struct saver {
    trainer *trainer;
    bench_group *group;
    const char *folder; /* of sets; NULL: none are written */
    bool talks;         /* signals are obeyed or sets are written */
    uint64_t distance;  /* steps from one exchange of news to the next */
    uint64_t next_news; /* step */
    saver_phase phase;
    state state; /* the copy */
    bool has_memory;
    saver_job job;
    sets_manifest set; /* under way; entries of all ranks */
    sets_entry mine;
    uint64_t newest; /* step of the newest complete set, or SETS_NONE */
    double begun_s;  /* when the last set was begun */
    uint64_t said[SAVER_NEWS], heard[SAVER_NEWS];
    bench_message message;
    bool posted;                                /* news are under way */
    uint64_t saved, failed, in_a_row, left_out; /* sets */
    double copy_s, step_s;                      /* of copies, and of all that the steps wait for */
} saver;

void saver_open(trainer *t, saver *out);

/** Resume from --load, a prefix of files or a folder of sets; and refuse to add to sets that were
 * not gone on from. Collective. */
void saver_load(saver *s);

/** After a step. @return whether the run shall end now, the same on all ranks */
bool saver_step(saver *s);

/** Write what is under way to its end, and a set of this step if there is none. Collective.
 * @return whether the state is on disk, or no sets are wanted */
bool saver_finish(saver *s);

/** The group is lost: stop what its ranks were doing together. */
void saver_interrupt(saver *s);

/** There are fewer ranks: begin anew with these, without the set that was under way. Collective. */
void saver_regroup(saver *s);

/** The signal that ended the run, 0: none. */
static inline int saver_signal(const saver *s) {
    return (int)(s->heard[SAVER_STOP] >> 32);
}

void saver_close(saver *s);

#endif
