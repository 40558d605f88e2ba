/* SPDX-License-Identifier: MIT
 *
 * Ranks as MPI processes. MPI's default error handler ends the job, so its calls need no checks; in
 * a group that survives the ranks use group_spread.h, with a deadline, and what fails loses the
 * group.
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

#include "bench/common/group_spread.h"
#include "bench/common/measure.h"

#ifdef TAMIS_BENCH_ULFM
#include <mpi-ext.h>
#endif

/* -- groups that survive ---------------------------------------------------------------------- */

static bench_spread *begin(bench_group *group, const void *mine, size_t bytes,
                           bench_spread_out out) {
    enum { TAGS = 16384 }; /* messages of the pipeline, which does not survive, have 0 */
    int tag = 1 + (int)(group->mpi->spreads++ % TAGS);
    bench_spread *s = bench_spread_begin(group->mpi->comm, tag, mine, bytes, out);
    if (!s)
        bench_lose(group);
    return s;
}

static void spread(bench_group *group, const void *mine, size_t bytes, void *all) {
    bench_spread *s = begin(group, mine, bytes, (bench_spread_out){.all = all});
    double since = bench_now_s();
    bool ended = false;
    while (!ended && !group->lost) {
        if (!bench_spread_test(s, &ended) || bench_now_s() - since > bench_timeout_s())
            bench_lose(group);
        else if (!ended)
            sched_yield();
    }
}

static void share(bench_group *group, const void *mine, size_t bytes, bench_spread_out out,
                  bench_message *message) {
    message->group = group;
    message->spread = begin(group, mine, bytes, out);
    message->pending = message->spread != NULL;
}

/* -- all ranks -------------------------------------------------------------------------------- */

static void barrier(bench_group *group) {
    if (group->survives)
        spread(group, NULL, 0, NULL);
    else
        MPI_Barrier(bench_mpi_comm(group));
}

static void allgather(bench_group *group, const void *send, size_t bytes, void *recv) {
    if (group->survives)
        spread(group, send, bytes, recv);
    else
        MPI_Allgather(send, (int)bytes, MPI_BYTE, recv, (int)bytes, MPI_BYTE,
                      bench_mpi_comm(group));
}

static bool sum(bench_group *group, const float *send, float *out, size_t count) {
    for (size_t done = 0; done < count;) {
        size_t part = count - done < INT_MAX ? count - done : INT_MAX;
        MPI_Allreduce(send + done, out + done, (int)part, MPI_FLOAT, MPI_SUM,
                      bench_mpi_comm(group));
        done += part;
    }
    return true;
}

static void share_max(bench_group *group, const uint64_t *mine, size_t count, uint64_t *out,
                      bench_message *message) {
    MPI_Request request;
    if (group->survives) {
        share(group, mine, count * sizeof *mine, (bench_spread_out){.max = out}, message);
        return;
    }
    MPI_Iallreduce(mine, out, (int)count, MPI_UINT64_T, MPI_MAX, bench_mpi_comm(group), &request);
    bench_mpi_keep(group, request, message);
}

static void share_all(bench_group *group, const void *send, size_t bytes, void *recv,
                      bench_message *message) {
    MPI_Request request;
    if (group->survives) {
        share(group, send, bytes, (bench_spread_out){.all = recv}, message);
        return;
    }
    MPI_Iallgather(send, (int)bytes, MPI_BYTE, recv, (int)bytes, MPI_BYTE, bench_mpi_comm(group),
                   &request);
    bench_mpi_keep(group, request, message);
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
    MPI_Comm_dup(bench_mpi_comm(group), &mpi->comm);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(mpi->comm, MPI_ERRORS_RETURN);
    group->mpi = mpi;
    return NULL;
}

static void wake(bench_group *group) {
    MPIX_Comm_revoke(bench_mpi_comm(group));
}

/* Works on a revoked communicator, too. A rank whose deadline passes leaves its flag to MPI. */
static bool agree(bench_group *group, bool yes) {
    MPI_Request request;
    double begin = bench_now_s();
    int *flag = malloc(sizeof *flag), ended = 0;
    if (!flag)
        bench_fail(group, "no memory");
    *flag = yes;
    int code = MPIX_Comm_iagree(bench_mpi_comm(group), flag, &request);
    while (code == MPI_SUCCESS && !ended && bench_now_s() - begin < bench_timeout_s()) {
        code = MPI_Test(&request, &ended, MPI_STATUS_IGNORE);
        if (!ended)
            sched_yield();
    }
    if (code == MPI_SUCCESS && !ended)
        return false;
    bool all = code == MPI_SUCCESS && *flag;
    free(flag);
    return all;
}

/* All that are left are here, for the library has just counted them. The old communicator is not
 * freed, as that would be collective. */
static bool shrink(bench_group *group) {
    int nranks = 0;
    MPI_Comm left;
    if (MPIX_Comm_shrink(group->mpi->comm, &left) != MPI_SUCCESS)
        return false;
    MPI_Comm_set_errhandler(left, MPI_ERRORS_RETURN);
    MPI_Comm_size(left, &nranks);
    group->mpi->comm = left;
    group->mpi->fewer = true;
    group->mpi->spreads = 0;
    return nranks == (int)group->nranks;
}

#else

static const char *survive(bench_group *group) {
    (void)group;
    return "the MPI of this build cannot go on after a rank has died (no ULFM, as in Open MPI 5): "
           "save sets of states (--states) and resume from them";
}

static void wake(bench_group *group) {
    (void)group; /* no group survives */
}

static bool agree(bench_group *group, bool yes) {
    (void)group, (void)yes;
    return false;
}

static bool shrink(bench_group *group) {
    (void)group;
    return false;
}

#endif

static void die(void) {
    raise(SIGKILL);
}

static const bench_group_kind kind = {barrier, allgather, sum,   share_max, share_all, end_all,
                                      survive, wake,      agree, shrink,    die};

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
    MPI_Comm_split(bench_mpi_comm(group), (int)part, (int)group->rank, &mpi->comm);
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

#else

bool bench_mpi_built(void) {
    return false;
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

#endif
