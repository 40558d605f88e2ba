/* SPDX-License-Identifier: MIT
 *
 * For programs under mpirun: checks that print and count instead of stopping, so that no rank waits
 * for one that has stopped; the verdict is the sum over all ranks.
 */
#ifndef TEST_MPI_RANKS_H
#define TEST_MPI_RANKS_H

#include "tests/support/ranks.h"
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tamis/mpi.h>
#include <tamis/ucx.h>
#include <time.h>
#include <unistd.h>
#ifdef TEST_ULFM
#include <mpi-ext.h>
#endif

static int mpi_rank, mpi_nranks, mpi_failures;

#define MPI_CHECK(condition, ...)                                                                  \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            mpi_failures++;                                                                        \
            fprintf(stderr, "rank %d of %d, %s:%d: ", mpi_rank, mpi_nranks, __FILE__, __LINE__);   \
            fprintf(stderr, __VA_ARGS__);                                                          \
            fprintf(stderr, "\n");                                                                 \
        }                                                                                          \
    } while (0)

#define MPI_STATUS(expected, call)                                                                 \
    do {                                                                                           \
        tamis_status status_ = (call);                                                             \
        MPI_CHECK(status_ == (expected), "%s gave %s, not %s: %s", #call,                          \
                  tamis_status_name(status_), tamis_status_name(expected), tamis_last_error());    \
    } while (0)

#define MPI_OK(call) MPI_STATUS(TAMIS_OK, call)

static inline void mpi_begin(int *argc, char ***argv, int level) {
    int provided;
    MPI_Init_thread(argc, argv, level, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &mpi_rank);
    MPI_Comm_size(MPI_COMM_WORLD, &mpi_nranks);
    uint32_t load = test_load();
    MPI_Allreduce(MPI_IN_PLACE, &load, 1, MPI_UINT32_T, MPI_MAX, MPI_COMM_WORLD);
    test_load_agree(load);
    MPI_CHECK(provided >= level, "MPI gives thread level %d, not %d", provided, level);
}

static inline bool mpi_over_ucx(void) {
    const char *over = getenv("TEST_OVER");
    return over && strcmp(over, "ucx") == 0;
}

static tamis_status mpi_gather(void *context, const void *send, void *recv, size_t bytes) {
    (void)context;
    MPI_Allgather(send, (int)bytes, MPI_BYTE, recv, (int)bytes, MPI_BYTE, MPI_COMM_WORLD);
    return TAMIS_OK;
}

/** Over MPI; with TEST_OVER=ucx over UCX, where MPI is only where the ranks meet. */
static inline tamis_status mpi_create(const tamis_comm_config *config, tamis_comm **out) {
#ifdef TAM_HAVE_UCX
    tamis_callbacks rendezvous = TAMIS_CALLBACKS_INIT;
    rendezvous.rank = (uint32_t)mpi_rank;
    rendezvous.nranks = (uint32_t)mpi_nranks;
    rendezvous.allgather = mpi_gather;
    if (mpi_over_ucx())
        return tamis_comm_create_ucx(&rendezvous, config, out);
#endif
    (void)mpi_gather;
    return tamis_comm_create_mpi(MPI_COMM_WORLD, config, out);
}

static inline tamis_comm *mpi_comm(uint32_t timeout_ms) {
    tamis_comm_config config = TAMIS_COMM_CONFIG_INIT;
    tamis_comm *comm = NULL;
    config.timeout_ms = timeout_ms;
    MPI_OK(mpi_create(&config, &comm));
    if (!comm)
        MPI_Abort(MPI_COMM_WORLD, 1);
    return comm;
}

/** Processor time that this process has taken. */
static inline double mpi_cpu_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/** Whether MPI goes on when processes die, as it was built and started. */
static inline bool mpi_tolerates_faults(void) {
#ifdef TEST_ULFM
    int *on = NULL, found = 0;
    MPI_Comm_get_attr(MPI_COMM_WORLD, MPIX_FT, (void *)&on, &found);
    return found && *on;
#else
    return false;
#endif
}

/** Failures of all ranks, the same on all of them. */
static inline int mpi_verdict(void) {
    int all = 1;
    MPI_Allreduce(&mpi_failures, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    return all;
}

/** The usual end. @return the exit status */
static inline int mpi_end(void) {
    int all = mpi_verdict();
    MPI_Finalize();
    return all != 0;
}

/**
 * The end after a lost communicator, when MPI_Finalize may hang.
 *
 * The launcher treats a rank that exits without MPI_Finalize as crashed, whatever its exit status;
 * but it passes on the status of MPI_Abort, 0 included.
 */
static inline void mpi_leave(void) {
    int all = mpi_verdict();
    fflush(NULL);
    if (mpi_rank == 0)
        MPI_Abort(MPI_COMM_WORLD, all != 0);
    for (;;)
        pause();
}

#endif
