/* SPDX-License-Identifier: MIT
 *
 * Ranks as MPI processes. MPI's default error handler ends the job, so its calls need no checks.
 */
#include "bench/common/group_mpi.h"

#include <stdio.h>
#include <stdlib.h>

#include "bench/common/launcher.h"

#ifdef TAMIS_BENCH_MPI

#include <limits.h>
#include <tamis/mpi.h>

static void barrier(bench_group *group) {
    MPI_Barrier(bench_mpi_comm(group));
}

static void allgather(bench_group *group, const void *send, size_t bytes, void *recv) {
    MPI_Allgather(send, (int)bytes, MPI_BYTE, recv, (int)bytes, MPI_BYTE, bench_mpi_comm(group));
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

static void end_all(void) {
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static const bench_group_kind kind = {barrier, allgather, sum, end_all};

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
