/* SPDX-License-Identifier: MIT
 *
 * Ranks as MPI processes. MPI's default error handler ends the job, so its calls need no checks; in
 * a group that survives each is awaited, with a deadline, and what fails loses the group.
 */
#include "bench/common/group_mpi.h"

#include <stdio.h>
#include <stdlib.h>

#include "bench/common/launcher.h"

#ifdef TAMIS_BENCH_MPI

#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <tamis/mpi.h>
#include <unistd.h>

#include "bench/common/measure.h"

#ifdef TAMIS_BENCH_ULFM
#include <mpi-ext.h>
#endif

struct bench_mpi {
    MPI_Comm comm;
    bool fewer; /* than MPI_COMM_WORLD */
};

static MPI_Comm comm_of(const bench_group *group) {
    return group->mpi ? group->mpi->comm : MPI_COMM_WORLD;
}

#ifdef TAMIS_BENCH_ULFM

/* Whoever waits there wakes up. */
static void wake(bench_group *group) {
    MPIX_Comm_revoke(comm_of(group));
}

#else

static void wake(bench_group *group) {
    (void)group; /* without faults tolerated no group survives */
}

#endif

/* The end of what `code` says has begun. What a lost group leaves behind ends by this. */
static void finish(bench_group *group, int code, MPI_Request *request) {
    double begin = bench_now_s();
    int ended = 0;
    while (code == MPI_SUCCESS && !ended && bench_now_s() - begin < bench_timeout_s()) {
        code = group->survives ? MPI_Test(request, &ended, MPI_STATUS_IGNORE)
                               : MPI_Wait(request, MPI_STATUS_IGNORE);
        ended = ended || !group->survives;
        if (!ended)
            sched_yield();
    }
    if (code == MPI_SUCCESS && ended)
        return;
    bench_lose(group);
    wake(group);
    if (code == MPI_SUCCESS)
        MPI_Wait(request, MPI_STATUS_IGNORE);
}

static void barrier(bench_group *group) {
    MPI_Request request;
    int code = MPI_Ibarrier(comm_of(group), &request);
    finish(group, code, &request);
}

static void allgather(bench_group *group, const void *send, size_t bytes, void *recv) {
    MPI_Request request;
    int code = MPI_Iallgather(send, (int)bytes, MPI_BYTE, recv, (int)bytes, MPI_BYTE,
                              comm_of(group), &request);
    finish(group, code, &request);
}

static bool sum(bench_group *group, const float *send, float *out, size_t count) {
    for (size_t done = 0; done < count;) {
        size_t part = count - done < INT_MAX ? count - done : INT_MAX;
        MPI_Allreduce(send + done, out + done, (int)part, MPI_FLOAT, MPI_SUM, comm_of(group));
        done += part;
    }
    return true;
}

_Static_assert(sizeof(MPI_Request) <= sizeof(void *), "a request must fit bench_message");

static void keep(bench_group *group, int code, MPI_Request request, bench_message *out) {
    out->group = group;
    out->pending = code == MPI_SUCCESS;
    memcpy(&out->request, &request, sizeof request);
    if (code != MPI_SUCCESS)
        bench_lose(group);
}

static void share_max(bench_group *group, const uint64_t *mine, size_t count, uint64_t *out,
                      bench_message *message) {
    MPI_Request request;
    int code =
        MPI_Iallreduce(mine, out, (int)count, MPI_UINT64_T, MPI_MAX, comm_of(group), &request);
    keep(group, code, request, message);
}

static void share_all(bench_group *group, const void *send, size_t bytes, void *recv,
                      bench_message *message) {
    MPI_Request request;
    int code = MPI_Iallgather(send, (int)bytes, MPI_BYTE, recv, (int)bytes, MPI_BYTE,
                              comm_of(group), &request);
    keep(group, code, request, message);
}

static void end_all(void) {
    MPI_Abort(MPI_COMM_WORLD, 1);
}

/* -- fewer ranks ------------------------------------------------------------------------------ */

#ifdef TAMIS_BENCH_ULFM

/* On a duplicate, whose errors return. Those of MPI_COMM_WORLD must, too, and those of
 * MPI_COMM_SELF, where Open MPI reports what happens to requests that nobody holds any more. */
static const char *survive(bench_group *group) {
    int *on = NULL, found = 0;
    MPI_Comm_get_attr(MPI_COMM_WORLD, MPIX_FT, (void *)&on, &found);
    if (!found || !*on)
        return "this MPI tolerates no faults as it was started: mpirun --with-ft ulfm";
    struct bench_mpi *mpi = calloc(1, sizeof *mpi);
    if (!mpi)
        bench_fail(group, "no memory");
    MPI_Comm_dup(comm_of(group), &mpi->comm);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(mpi->comm, MPI_ERRORS_RETURN);
    group->mpi = mpi;
    return NULL;
}

/* All that are left are here, for the library has just counted them. The old communicator is not
 * freed, as that would be collective. */
static bool shrink(bench_group *group) {
    int nranks = 0;
    MPI_Comm left;
    wake(group);
    if (MPIX_Comm_shrink(group->mpi->comm, &left) != MPI_SUCCESS)
        return false;
    MPI_Comm_set_errhandler(left, MPI_ERRORS_RETURN);
    MPI_Comm_size(left, &nranks);
    group->mpi->comm = left;
    group->mpi->fewer = true;
    return nranks == (int)group->nranks;
}

#else

static const char *survive(bench_group *group) {
    (void)group;
    return "the MPI of this build cannot go on after a rank has died (no ULFM, as in Open MPI 5): "
           "save sets of states (--states) and resume from them";
}

static bool shrink(bench_group *group) {
    (void)group;
    return false;
}

#endif

static void die(void) {
    raise(SIGKILL);
}

static const bench_group_kind kind = {barrier, allgather, sum,    share_max, share_all,
                                      end_all, survive,   shrink, die};

bool bench_mpi_built(void) {
    return true;
}

/* Under the launcher of another MPI, or of none, every process would be rank 0 of 1 and train
 * alone. */
static bool alone_by_mistake(int nranks) {
    uint32_t wanted = bench_launched_ranks();
    if (nranks > 1 || wanted == 1)
        return false;
    fprintf(stderr,
            "%s is %u, but MPI sees one rank: use the mpirun of the MPI that this program was "
            "built with, or srun --mpi=pmix\n",
            bench_launched_by(), wanted);
    return true;
}

/* MPI_Finalize of Open MPI 5.0 was seen to wait forever after a second death. */
static void end_survivor(bench_group *group, int status) {
    if (!group->lost && !(group->mpi && group->mpi->fewer))
        return;
    fflush(NULL);
    _exit(status);
}

int bench_mpi_launch(bench_main body, void *context) {
    int level, rank, nranks, status = 1;
    MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &level);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &nranks);

    bench_group group = {.rank = (uint32_t)rank,
                         .nranks = (uint32_t)nranks,
                         .number = (uint32_t)rank,
                         .transport = BENCH_MPI,
                         .kind = &kind};
    if (!alone_by_mistake(nranks)) {
        bench_try(&group, tamis_comm_create_mpi(MPI_COMM_WORLD, NULL, &group.comm),
                  "cannot create a communicator");
        status = body(&group, context);
        tamis_comm_destroy(group.comm);
    }
    end_survivor(&group, status);
    MPI_Finalize();
    return status;
}

void bench_split(bench_group *group, uint32_t part, bench_group *out) {
    struct bench_mpi *mpi = calloc(1, sizeof *mpi);
    int rank, nranks;
    if (!mpi)
        bench_fail(group, "no memory");
    MPI_Comm_split(comm_of(group), (int)part, (int)group->rank, &mpi->comm);
    MPI_Comm_rank(mpi->comm, &rank);
    MPI_Comm_size(mpi->comm, &nranks);
    *out = (bench_group){.rank = (uint32_t)rank,
                         .number = group->number,
                         .nranks = (uint32_t)nranks,
                         .transport = BENCH_MPI,
                         .kind = &kind,
                         .mpi = mpi};
    bench_try(out, tamis_comm_create_mpi(mpi->comm, NULL, &out->comm),
              "cannot create a communicator of some of the ranks");
}

void bench_split_close(bench_group *part) {
    tamis_comm_destroy(part->comm);
    MPI_Comm_free(&part->mpi->comm);
    free(part->mpi);
}

/* -- messages --------------------------------------------------------------------------------- */

static int count_of(bench_group *group, size_t bytes) {
    if (bytes > INT_MAX)
        bench_fail(group, "a message of %zu bytes exceeds the limit of MPI (%d)", bytes, INT_MAX);
    return (int)bytes;
}

static MPI_Request request_of(const bench_message *message) {
    MPI_Request request;
    memcpy(&request, &message->request, sizeof request);
    return request;
}

void bench_send(bench_group *group, const void *data, size_t bytes, uint32_t to,
                bench_message *out) {
    MPI_Request request;
    int code =
        MPI_Isend(data, count_of(group, bytes), MPI_BYTE, (int)to, 0, comm_of(group), &request);
    keep(group, code, request, out);
}

void bench_receive(bench_group *group, void *data, size_t bytes, uint32_t from,
                   bench_message *out) {
    MPI_Request request;
    int code =
        MPI_Irecv(data, count_of(group, bytes), MPI_BYTE, (int)from, 0, comm_of(group), &request);
    keep(group, code, request, out);
}

bool bench_message_test(bench_message *message) {
    int ended = 1;
    if (message->pending) {
        MPI_Request request = request_of(message);
        if (MPI_Test(&request, &ended, MPI_STATUS_IGNORE) != MPI_SUCCESS) {
            bench_lose(message->group);
            ended = 1;
        }
    }
    message->pending = !ended;
    return ended;
}

void bench_message_wait(bench_message *message) {
    if (message->pending) {
        MPI_Request request = request_of(message);
        MPI_Wait(&request, MPI_STATUS_IGNORE);
    }
    message->pending = false;
}

void bench_message_cancel(bench_message *message) {
    if (message->pending) {
        MPI_Request request = request_of(message);
        MPI_Cancel(&request);
    }
    bench_message_wait(message);
}

#else

bool bench_mpi_built(void) {
    return false;
}

/* MPI_Finalize of Open MPI 5.0 was seen to wait forever after a second death. */
static void end_survivor(bench_group *group, int status) {
    if (!group->lost && !(group->mpi && group->mpi->fewer))
        return;
    fflush(NULL);
    _exit(status);
}

int bench_mpi_launch(bench_main body, void *context) {
    (void)body;
    (void)context;
    fputs("this build has no MPI\n", stderr);
    return 1;
}

void bench_split(bench_group *group, uint32_t part, bench_group *out) {
    (void)part;
    (void)out;
    bench_fail(group, "this build has no MPI");
}

void bench_split_close(bench_group *part) {
    (void)part;
}

void bench_send(bench_group *group, const void *data, size_t bytes, uint32_t to,
                bench_message *out) {
    (void)data;
    (void)bytes;
    (void)to;
    (void)out;
    bench_fail(group, "this build has no MPI");
}

void bench_receive(bench_group *group, void *data, size_t bytes, uint32_t from,
                   bench_message *out) {
    bench_send(group, data, bytes, from, out);
}

bool bench_message_test(bench_message *message) {
    return !message->pending;
}

void bench_message_wait(bench_message *message) {
    (void)message;
}

void bench_message_cancel(bench_message *message) {
    (void)message;
}

#endif
