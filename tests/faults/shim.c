/* SPDX-License-Identifier: MIT */
#include "tests/faults/shim.h"

#include <mpi.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef enum action {
    NONE,
    DELAY,
    ERROR,
    STATUS,
    KILL,
    STOP,
    FLIP,
    CUT,
    LONGER,
    DROP,
    DOUBLE,
    DOWN,
    MUTE,
    DEAF
} action;

static const char *const actions[] = {"none", "delay",  "error", "status", "kill", "stop", "flip",
                                      "cut",  "longer", "drop",  "double", "down", "mute", "deaf"};
const char *const shim_calls[SHIM_CALLS] = {"Isend",     "Irecv",     "Testsome",
                                            "Get_count", "Comm_idup", "Test"};

static struct {
    action action;
    int call;
    int rank;
    uint64_t nth, argument;
} fault;
static atomic_ullong counts[SHIM_CALLS];
static atomic_bool fired, armed;

static int find(const char *const *list, int count, const char *word) {
    int i = 0;
    while (i < count && strcmp(list[i], word) != 0)
        i++;
    return i;
}

static bool parse(const char *text) {
    enum { ACTIONS = sizeof actions / sizeof actions[0] };
    char call[16], word[16];
    int rank, own;
    unsigned long long nth, argument = 0;
    if (sscanf(text, "%15[^:]:%d:%llu:%15[^:]:%llu", call, &rank, &nth, word, &argument) < 4)
        return false;
    int which = find(shim_calls, SHIM_CALLS, call), what = find(actions, ACTIONS, word);
    PMPI_Comm_rank(MPI_COMM_WORLD, &own);
    fault.call = which;
    fault.rank = rank;
    fault.nth = nth;
    fault.argument = argument;
    fault.action = own == rank && what < ACTIONS ? (action)what : NONE;
    return which < SHIM_CALLS && what < ACTIONS;
}

bool shim_arm(void) {
    const char *text = getenv("FAULT");
    fault.action = NONE;
    for (int c = 0; c < SHIM_CALLS; c++)
        atomic_store(&counts[c], 0);
    atomic_store(&fired, false);
    atomic_store(&armed, true);
    return !text || !text[0] || parse(text);
}

void shim_disarm(void) {
    atomic_store(&armed, false);
}

uint64_t shim_count(int call) {
    return atomic_load(&counts[call]);
}

bool shim_fired(void) {
    return atomic_load(&fired);
}

/* Breaks the cable of the host with the rank's number, at once: a short line in a pipe is
 * written whole. */
static void break_cable(void) {
    const char *path = getenv("CABLES");
    FILE *control = path ? fopen(path, "we") : NULL;
    if (!control)
        abort();
    if (fault.action != DEAF)
        fprintf(control, "%d from 100 0 %llu\n", fault.rank, (unsigned long long)fault.argument);
    if (fault.action != MUTE)
        fprintf(control, "%d to 100 0 %llu\n", fault.rank, (unsigned long long)fault.argument);
    fclose(control);
}

/* Counts a call. @return what the caller has to do about it; the rest was done here */
static action next_action(int call) {
    if (!atomic_load(&armed))
        return NONE;
    uint64_t number = atomic_fetch_add(&counts[call], 1) + 1;
    if (fault.action == NONE || fault.call != call || fault.nth != number)
        return NONE;
    atomic_store(&fired, true);
    if (fault.action == KILL || fault.action == STOP)
        raise(fault.action == KILL ? SIGKILL : SIGSTOP);
    if (fault.action == DELAY)
        nanosleep(&(struct timespec){(time_t)(fault.argument / 1000),
                                     (long)(fault.argument % 1000) * 1000000},
                  NULL);
    if (fault.action >= DOWN)
        break_cable();
    return fault.action;
}

/* -- messages --------------------------------------------------------------------------------- */

/* MPI may read it until the process ends, so it is never freed. */
static unsigned char *copy_of(const void *from, size_t bytes, size_t capacity) {
    unsigned char *copy = calloc(1, capacity + 1);
    if (!copy)
        abort();
    memcpy(copy, from, bytes);
    return copy;
}

static int send_damaged(action what, const void *from, int count, MPI_Datatype type, int peer,
                        int tag, MPI_Comm comm, MPI_Request *request) {
    size_t bytes = (size_t)count, length = bytes, by = (size_t)fault.argument;
    if (what == CUT)
        length -= by < bytes ? by : bytes;
    if (what == LONGER)
        length += by;
    unsigned char *copy = copy_of(from, bytes, length > bytes ? length : bytes);
    if (what == FLIP && bytes > 0)
        copy[by / 8 % bytes] ^= (unsigned char)(1u << by % 8);
    return PMPI_Isend(copy, (int)length, type, peer, tag, comm, request);
}

/* The library sends bytes, as MPI_BYTE. */
int MPI_Isend(const void *from, int count, MPI_Datatype type, int peer, int tag, MPI_Comm comm,
              MPI_Request *request) {
    MPI_Request again;
    action what = next_action(SHIM_ISEND);
    switch (what) {
    case ERROR:
        return MPI_ERR_OTHER;
    case DROP:
        return PMPI_Isend(from, count, type, MPI_PROC_NULL, tag, comm, request);
    case DOUBLE:
        PMPI_Isend(copy_of(from, (size_t)count, (size_t)count), count, type, peer, tag, comm,
                   &again);
        PMPI_Request_free(&again);
        return PMPI_Isend(from, count, type, peer, tag, comm, request);
    case FLIP:
    case CUT:
    case LONGER:
        return send_damaged(what, from, count, type, peer, tag, comm, request);
    default:
        return PMPI_Isend(from, count, type, peer, tag, comm, request);
    }
}

int MPI_Irecv(void *to, int count, MPI_Datatype type, int peer, int tag, MPI_Comm comm,
              MPI_Request *request) {
    if (next_action(SHIM_IRECV) == ERROR)
        return MPI_ERR_OTHER;
    return PMPI_Irecv(to, count, type, peer, tag, comm, request);
}

int MPI_Testsome(int count, MPI_Request requests[], int *done, int indices[],
                 MPI_Status statuses[]) {
    int code = PMPI_Testsome(count, requests, done, indices, statuses);
    if (code != MPI_SUCCESS || *done == MPI_UNDEFINED || *done <= 0)
        return code;
    action what = next_action(SHIM_TESTSOME);
    if (what == ERROR)
        return MPI_ERR_OTHER;
    if (what != STATUS)
        return code;
    for (int i = 0; i < *done; i++)
        statuses[i].MPI_ERROR = i == *done - 1 ? MPI_ERR_TRUNCATE : MPI_SUCCESS;
    return MPI_ERR_IN_STATUS;
}

int MPI_Get_count(const MPI_Status *status, MPI_Datatype type, int *count) {
    return next_action(SHIM_GET_COUNT) == ERROR ? MPI_ERR_OTHER
                                                : PMPI_Get_count(status, type, count);
}

/* -- creation --------------------------------------------------------------------------------- */

int MPI_Comm_idup(MPI_Comm comm, MPI_Comm *made, MPI_Request *request) {
    return next_action(SHIM_COMM_IDUP) == ERROR ? MPI_ERR_OTHER
                                                : PMPI_Comm_idup(comm, made, request);
}

int MPI_Test(MPI_Request *request, int *done, MPI_Status *status) {
    return next_action(SHIM_TEST) == ERROR ? MPI_ERR_OTHER : PMPI_Test(request, done, status);
}
