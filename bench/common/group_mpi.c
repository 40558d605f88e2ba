/* SPDX-License-Identifier: MIT
 *
 * Ranks as MPI processes. MPI's default error handler ends the job, so its calls need no checks.
 */
#include "bench/common/group_mpi.h"

#include <stdio.h>
#include <stdlib.h>

#ifdef TAMIS_BENCH_MPI

#include <limits.h>
#include <tamis/mpi.h>

bool bench_mpi_built(void) {
    return true;
}

/* Started by a launcher of another MPI, every process would be rank 0 of 1 and train alone. */
static bool alone_by_mistake(int nranks) {
    static const char *const names[] = {"WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE",
                                        "SLURM_STEP_NUM_TASKS"};
    for (size_t i = 0; nranks == 1 && i < sizeof names / sizeof names[0]; i++) {
        const char *text = getenv(names[i]);
        if (text && atoi(text) > 1) {
            fprintf(stderr,
                    "%s is %s but MPI sees one rank: start with the mpirun of the MPI that this "
                    "program was built with, or srun --mpi=pmix\n",
                    names[i], text);
            return true;
        }
    }
    return false;
}

int bench_mpi_launch(bench_main body, void *context) {
    int level, rank, nranks, status = 1;
    MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &level);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &nranks);

    bench_group group = {(uint32_t)rank, (uint32_t)nranks, BENCH_MPI, NULL, NULL};
    if (!alone_by_mistake(nranks)) {
        bench_try(&group, tamis_comm_create_mpi(MPI_COMM_WORLD, NULL, &group.comm),
                  "cannot make a communicator");
        status = body(&group, context);
        tamis_comm_destroy(group.comm);
    }
    MPI_Finalize();
    return status;
}

void bench_mpi_barrier(void) {
    MPI_Barrier(MPI_COMM_WORLD);
}

void bench_mpi_allgather(const void *send, size_t bytes, void *recv) {
    MPI_Allgather(send, (int)bytes, MPI_BYTE, recv, (int)bytes, MPI_BYTE, MPI_COMM_WORLD);
}

void bench_mpi_allreduce(const float *send, float *out, size_t count) {
    for (size_t done = 0; done < count;) {
        size_t part = count - done < INT_MAX ? count - done : INT_MAX;
        MPI_Allreduce(send + done, out + done, (int)part, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        done += part;
    }
}

void bench_mpi_abort(void) {
    MPI_Abort(MPI_COMM_WORLD, 1);
    abort(); /* not reached; MPI does not say so */
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

void bench_mpi_barrier(void) {}

void bench_mpi_allgather(const void *send, size_t bytes, void *recv) {
    (void)send;
    (void)bytes;
    (void)recv;
}

void bench_mpi_allreduce(const float *send, float *out, size_t count) {
    (void)send;
    (void)out;
    (void)count;
}

void bench_mpi_abort(void) {
    abort();
}

#endif
