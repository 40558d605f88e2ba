/* SPDX-License-Identifier: MIT
 *
 * The ranks of a bench program: threads of this process (local) or processes (MPI). A group offers
 * what a program needs beside the library: compare figures, wait for each other, fail together.
 * Transports nccl, one rank per CUDA device, and ucx are communicators made over either kind.
 */
#ifndef TAMIS_BENCH_GROUP_H
#define TAMIS_BENCH_GROUP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <tamis/tamis.h>

typedef enum bench_transport {
    BENCH_LOCAL = 0,
    BENCH_MPI = 1,
    BENCH_NCCL = 2,
    BENCH_UCX = 3
} bench_transport;

#define BENCH_TRANSPORTS "local|mpi|nccl|ucx" /* in the order of bench_transport */

typedef struct bench_group bench_group;
typedef struct bench_message bench_message;

/** What the two kinds do differently. */
typedef struct bench_group_kind {
    void (*barrier)(bench_group *group);
    void (*allgather)(bench_group *group, const void *send, size_t bytes, void *recv);
    bool (*sum)(bench_group *group, const float *send, float *out, size_t count); /* false: none */
    void (*end_all)(void); /* those of other processes */
} bench_group_kind;

/** One rank's view. */
struct bench_group {
    uint32_t rank, nranks;
    uint32_t number;           /* among all ranks, for sentences */
    bench_transport transport; /* of the group: local or MPI */
    const bench_group_kind *kind;
    tamis_comm *comm;            /* what the program asked for */
    struct bench_shared *shared; /* local only */
    struct bench_mpi *mpi;       /* MPI: the ranks of a part; NULL: all */
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
    bool pending;  /* false: there is none, or it has ended */
    void *request; /* MPI's */
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

/** Return if `status` is TAMIS_OK; else print rank, `what` and tamis_last_error(), and end all
 * ranks with status 1. */
void bench_try(bench_group *group, tamis_status status, const char *what);

/** Print the rank and a message, and end all ranks with status 1. */
_Noreturn void bench_fail(bench_group *group, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

#endif
