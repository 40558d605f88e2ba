/* SPDX-License-Identifier: MIT
 *
 * The ranks of a bench program: threads of this process (local) or processes (MPI). A group offers
 * what a program needs beside the library: compare figures, wait for each other, fail together.
 * Transport nccl is a communicator made over either kind, one rank per CUDA device.
 */
#ifndef TAMIS_BENCH_GROUP_H
#define TAMIS_BENCH_GROUP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <tamis/tamis.h>

typedef enum bench_transport { BENCH_LOCAL = 0, BENCH_MPI = 1, BENCH_NCCL = 2 } bench_transport;

#define BENCH_TRANSPORTS "local|mpi|nccl" /* in the order of bench_transport */

typedef struct bench_group bench_group;
typedef struct bench_message bench_message;

/** What the two kinds do differently. */
typedef struct bench_group_kind {
    void (*barrier)(bench_group *group);
    void (*allgather)(bench_group *group, const void *send, size_t bytes, void *recv);
    bool (*sum)(bench_group *group, const float *send, float *out, size_t count); /* false: none */
    void (*share_max)(bench_group *group, const uint64_t *mine, size_t count, uint64_t *out,
                      bench_message *message);
    void (*share_all)(bench_group *group, const void *send, size_t bytes, void *recv,
                      bench_message *message);
    void (*end_all)(void);                       /* those of other processes */
    const char *(*survive)(bench_group *group);  /* why it cannot; NULL: it can */
    void (*wake)(bench_group *group);            /* whoever waits there: it is lost */
    bool (*agree)(bench_group *group, bool yes); /* all that live get the same: all, and yes */
    bool (*shrink)(bench_group *group);          /* false: another rank is gone */
    void (*die)(void);                           /* this rank, without a word */
} bench_group_kind;

/** One rank's view. */
struct bench_group {
    uint32_t rank, nranks;
    uint32_t number;           /* among all ranks that the run began with, for sentences */
    bench_transport transport; /* of the group: local or MPI */
    const bench_group_kind *kind;
    tamis_comm *comm;            /* what the program asked for */
    struct bench_shared *shared; /* local only */
    struct bench_mpi *mpi;       /* MPI: the ranks of a part; NULL: all */
    bool survives;               /* the death of a rank is no end; */
    bool lost;                   /* one has died: nothing is exchanged until bench_shrink */
    bool dead;                   /* this rank itself */
    bool agreed;                 /* with the others, on whether this is so */
};

typedef int (*bench_main)(bench_group *group, void *context);

/** This rank's number among those on its machine, from the launcher if that gave one. */
uint32_t bench_machine_rank(const bench_group *group);

/**
 * Divide an MPI group: ranks that give the same `part` form a group of their own, in the order of
 * their ranks, with its own communicator. Collective, as is closing a part.
 */
void bench_split(bench_group *group, uint32_t part, bench_group *out);
void bench_split_close(bench_group *part);

void bench_barrier(bench_group *group);

/** All-gather: `bytes` bytes of every rank, rank after rank. */
void bench_allgather(bench_group *group, const void *send, size_t bytes, void *recv);

double bench_sum(bench_group *group, double value);
double bench_max(bench_group *group, double value);

/** Whether all ranks hold the same 64 bits. */
bool bench_same(bench_group *group, uint64_t value);

/** out = sum over ranks by MPI's own all-reduce; false if the group has none (local). */
bool bench_mpi_sum(bench_group *group, const float *send, float *out, size_t count);

/** A message between two ranks of an MPI group. It owns its data until it has ended. Messages from
 * one rank to another arrive in the order in which they were sent. */
struct bench_message {
    bool pending;                /* false: there is none, or it has ended */
    void *request;               /* MPI's, or */
    struct bench_spread *spread; /* of a group that survives */
    bench_group *group;          /* which a failed one loses */
};

/** Begin a message and return at once. */
void bench_send(bench_group *group, const void *data, size_t bytes, uint32_t to,
                bench_message *out);
void bench_receive(bench_group *group, void *data, size_t bytes, uint32_t from, bench_message *out);

/** Whether it has ended. */
bool bench_message_test(bench_message *message);
void bench_message_wait(bench_message *message);

/** Cancel the receipt of a message that no rank will send. */
void bench_message_cancel(bench_message *message);

/** Wait for at most so long. @return whether it has ended */
bool bench_message_wait_for(bench_message *message, double seconds);

/** Numbers of all ranks that travel while the ranks go on: the largest of each, and as
 * bench_allgather. Collective; all must be begun in the same order on all ranks. Between local
 * ranks they have ended at once. What is given must live until the message has ended. */
void bench_share_max(bench_group *group, const uint64_t *mine, size_t count, uint64_t *out,
                     bench_message *message);
void bench_share_all(bench_group *group, const void *send, size_t bytes, void *recv,
                     bench_message *message);

/** Have `say` called, once, before bench_fail ends all ranks: what a user should know then. */
void bench_at_fail(void (*say)(const bench_group *group));

/** Return if `status` is TAMIS_OK; else print rank, `what` and tamis_last_error(), and end all
 * ranks with status 1; or in a group that survives, if the communicator is lost: print and lose the
 * group, once. */
void bench_try(bench_group *group, tamis_status status, const char *what);

/**
 * From now on the death of a rank loses the group instead of ending the run: calls then return at
 * once, with zeros, until bench_shrink. Collective over all ranks; local, or an MPI that tolerates
 * faults.
 *
 * @return NULL, or why that is impossible
 */
const char *bench_survive(bench_group *group);

/** Lose it, for a reason that was said, or for one that bench_try has not seen. The others hear of
 * it: they may wait for this rank, and not for the one that has died. */
void bench_lose(bench_group *group);

/** Whether all ranks have come here and live: then all may leave, as nobody will wait for them.
 * Else the group is lost on all of them. Collective. */
bool bench_end(bench_group *group);

/** Tell those that are in bench_end that the group is lost. Before tamis_comm_shrink. */
void bench_regroup(bench_group *group);

/** Go on with the ranks of a communicator that tamis_comm_shrink has made of group->comm, which
 * is destroyed, and whose place it takes. Collective among them.
 * @return false: another rank is gone, and the group is lost again */
bool bench_shrink(bench_group *group, tamis_comm *smaller);

/** This rank is gone: it makes no call any more. A process is killed, a thread only returns. */
void bench_die(bench_group *group);

/** After so long a rank that does not answer is given up: TAMIS_TIMEOUT_MS, as in the library. */
double bench_timeout_s(void);

/** Print the rank and a message, and end all ranks with status 1. */
_Noreturn void bench_fail(bench_group *group, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

#endif
