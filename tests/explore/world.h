/* SPDX-License-Identifier: MIT
 *
 * A world of a few ranks that run the library, each in a thread of its own, of which one runs at a
 * time: who has the turn passes it on where the library waits (tests/explore/world.c). Their
 * network and their clock are the world's, so an execution depends on nothing but its choices.
 *
 * A decision is a point at which something else than usual may happen:
 *
 *     a rank sends a message   it crashes first, sleeps for a while, or has its communicator
 *                              abandoned; the message is late, is lost, never leaves, or is refused
 *     a rank gets the turn     the same of the rank; another one has its turn first; it does not
 *                              see yet what has come from one of the others
 *
 * Decisions are numbered as they come. Choices name some of them; all others go as usual: in turn,
 * with all that has come. The first options of a decision are faults, the others deviations, which
 * change the order of things alone.
 */
#ifndef EXPLORE_WORLD_H
#define EXPLORE_WORLD_H

#include <pthread.h>
#include <semaphore.h>
#include <stdbool.h>
#include <stdint.h>
#include <tamis/tamis.h>

enum {
    RANKS = 3,
    GENERATIONS = 6, /* networks: the first, and one for each recovery */
    DECISIONS_MOST = 4096,
    CHOICES_MOST = 4,
    LENGTH = 100, /* elements of a gradient */
    FIRST = 3,    /* steps at first; more after each recovery */
    MORE = 2,
    STEPS_MOST = FIRST + (GENERATIONS - 1) * MORE + 1,
    TIMEOUT_MS = 200,
    QUANTUM_MS = 40,             /* by which time passes when all ranks wait for it */
    COMPUTES_MS = 2 * QUANTUM_MS /* before each step */
};

/** Options of a decision. The message's are offered where one is sent. */
typedef enum fault {
    AS_USUAL,
    CRASH,
    SLEEP_HALF, /* half of the timeout */
    SLEEP_EDGE, /* the timeout */
    SLEEP_LONG, /* twice that */
    EXPELLED,   /* the same, and the others go on without it */
    ABORTED,    /* it goes on, but its communicator is abandoned */
    FAULTS_OF_RANKS = ABORTED,
    LATE_HALF,
    LATE_EDGE,
    LATE_LONG,
    LOST,    /* complete at its sender */
    STUCK,   /* complete nowhere */
    REFUSED, /* its sender is told */
    FAULTS = REFUSED
} fault;

typedef struct choice {
    uint32_t at, option;
} choice;

typedef struct decision {
    uint8_t faults, deviations; /* options: how many */
} decision;

/** What the ranks run. */
typedef struct setting {
    const char *name, *scheme;
    bool eager;   /* messages leave before the receiver has asked for them, and are complete then */
    bool resyncs; /* after a failure without a death all start again from saved states */
    bool exact;   /* results and residuals follow from the gradients */
    uint64_t bucket_length;
    const tamis_update *update;
    bool brief;     /* no combinations that only take longer */
    uint32_t opens; /* decisions have options from this step on; 0: from the creation on */
} setting;

typedef enum rank_state {
    READY,
    IDLE,          /* waits for a message or for time to pass */
    SLEEPING,      /* runs no code until a time */
    AT_RENDEZVOUS, /* waits for all that live, outside the library */
    DEAD,
    DONE
} rank_state;

/** What a rendezvous found. */
typedef struct rendezvous {
    bool fine, hopeless;
    uint32_t nalive, alive[RANKS];
    uint32_t base;       /* the newest network on which all have a comm */
    uint32_t before;     /* ranks of the largest from which a reducer comes */
    uint32_t generation; /* of the network on which to go on */
    uint64_t least;      /* step */
} rendezvous;

struct world;
struct net;

typedef struct actor {
    struct world *world;
    uint32_t id;
    pthread_t thread;
    sem_t turn;
    rank_state state;
    bool woken, postponed, expelled, aborted;
    bool leaving; /* everything is over: calls fail at once, so that the thread ends */
    uint32_t pauses;
    uint64_t until_ns;                 /* SLEEPING */
    uint64_t call_begin_ns, asleep_ns; /* asleep since the call began */
    const char *call;                  /* of the library; NULL: in none */
    uint64_t failed_ns;                /* first failure of a call */

    /* program.c: what the rank has, and what it must have */
    tamis_comm *comms[GENERATIONS];
    tamis_reducer *reducer;
    void *control; /* saved states, to start again */
    size_t control_bytes;
    uint32_t generation;                            /* of the network in use */
    rendezvous outcome;                             /* the last that it came to */
    bool fine;                                      /* no call has failed since */
    uint64_t step, gradients;                       /* applied; begun */
    float params[LENGTH], past[STEPS_MOST][LENGTH]; /* past[s]: when s steps were applied */
    float acc[LENGTH], before[LENGTH], since[LENGTH], saved[LENGTH];
} actor;

/** Figures of an execution, or of many. */
typedef struct figures {
    uint64_t executions, decisions, recovered, went_back, hopeless;
    uint64_t faults[FAULTS + 1], statuses[128];
} figures;

typedef struct world {
    const setting *set;
    const choice *choices;
    uint32_t nchoices, next;
    decision decisions[DECISIONS_MOST];
    uint32_t ndecisions;
    bool open, traced;
    bool broken; /* something that must hold does not */
    bool cut;    /* a rank's network has failed: it cannot tell the others */
    char failure[1024];
    uint64_t now_ns;
    uint32_t last; /* rank that had the turn */
    sem_t ended;
    actor ranks[RANKS];
    struct net *nets[GENERATIONS];
    uint32_t generations;
    rendezvous outcome; /* the last one */

    float shown[GENERATIONS][RANKS][STEPS_MOST][LENGTH]; /* residual and gradient at a start */
    uint64_t hash[GENERATIONS][STEPS_MOST];              /* of results; 0: none yet */
    figures seen;
} world;

/** Run an execution. @param w  [out]  what happened; `failure` is empty if all was as it must be */
void world_run(world *w, const setting *set, const choice *choices, uint32_t nchoices, bool traced);

/** The bits that results must have without faults: over local communicators, without a world. */
void world_refer(const setting *set, uint64_t hash[STEPS_MOST]);

/** The thread that has the turn has nothing to do until a message comes or time passes. */
void world_idle(actor *self);

/** The thread that has the turn computes something else for a while. */
void world_compute(actor *self);

/** All that live are here, or the world ends. */
void world_rendezvous(actor *self);

/** Something that must hold does not. */
void world_fail(actor *self, const char *format, ...) __attribute__((format(printf, 2, 3)));

void world_trace(const world *w, const char *format, ...) __attribute__((format(printf, 2, 3)));

/** Note a fault that a rank suffers. @return false: it must fail with its call */
bool world_suffer(actor *self, fault what);

/** The next decision. @return its option */
uint32_t world_decide(world *w, uint32_t nfaults, uint32_t ndeviations);

const char *fault_name(fault what);

/** program.c: the life of a rank. */
void program_run(actor *self);

/** check.c: all that live are here: find what to do now. */
void check_rendezvous(world *w);

#endif
