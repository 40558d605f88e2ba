/* SPDX-License-Identifier: MIT
 *
 * Sums of whole gradients over MPI: each rank may give its gradient in its own form, and processes
 * that sum different things learn it, also where their messages have different lengths.
 */
#include "tests/support/data.h"
#include "tests/support/mpi_ranks.h"
#include <stdlib.h>
#include <string.h>
#include <tamis/elastic.h>

enum { SEGMENTS = 6, LENGTH = 70001, N = SEGMENTS * LENGTH, TIMEOUT_MS = 20000 };

static float gradient[N];

static tamis_reducer *make(tamis_comm *comm, uint32_t nsegments) {
    tamis_reducer *reducer = NULL;
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    config.scheme = "dense";
    config.op = TAMIS_OP_SUM;
    MPI_OK(data_even_reducer(comm, nsegments, LENGTH, &config, &reducer));
    return reducer;
}

/* Odd ranks give segments, the first of which lies last in memory. */
static void check_forms(tamis_comm *comm) {
    tamis_reducer *reducer = make(comm, SEGMENTS);
    tamis_step step = TAMIS_STEP_INIT;
    void *grads[SEGMENTS];
    size_t wrong = 0;
    for (uint32_t s = 0; s < SEGMENTS; s++)
        grads[s] = gradient + (mpi_rank % 2 ? SEGMENTS - 1 - s : s) * LENGTH;
    for (size_t i = 0; i < N; i++)
        ((float *)grads[i / LENGTH])[i % LENGTH] = (float)((i + (size_t)mpi_rank) % 97);
    step.grad = mpi_rank % 2 ? NULL : gradient;
    step.grads = mpi_rank % 2 ? grads : NULL;
    MPI_OK(tamis_reducer_start(reducer, &step));
    MPI_OK(tamis_reducer_wait(reducer));
    for (size_t i = 0; i < N; i++) {
        float sum = 0.0f;
        for (size_t r = 0; r < (size_t)mpi_nranks; r++)
            sum += (float)((i + r) % 97);
        wrong += ((float *)grads[i / LENGTH])[i % LENGTH] != sum;
    }
    MPI_CHECK(wrong == 0, "%zu of %d sums are wrong", wrong, N);
    tamis_reducer_destroy(reducer);
}

/* Although no rank takes the long messages that are in flight. */
static void check_soon(uint64_t start_ms) {
    uint64_t took_ms = now_ms() - start_ms;
    MPI_CHECK(took_ms < TIMEOUT_MS / 2, "it took %llu ms", (unsigned long long)took_ms);
}

/* The last rank does not come. */
static void check_abort(void) {
    tamis_comm *comm = mpi_comm(TIMEOUT_MS);
    tamis_reducer *reducer = make(comm, SEGMENTS);
    tamis_step step = TAMIS_STEP_INIT;
    step.grad = gradient;
    if (mpi_rank < mpi_nranks - 1) {
        uint64_t start_ms = now_ms();
        MPI_OK(tamis_reducer_start(reducer, &step));
        sleep_ms(50);
        MPI_OK(tamis_comm_abort(comm));
        MPI_STATUS(TAMIS_E_ABORTED, tamis_reducer_wait(reducer));
        check_soon(start_ms);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    tamis_reducer_destroy(reducer);
    tamis_comm_destroy(comm);
}

/* Rank 1 begins with the second of two reducers, whose vector has `nsegments`. */
static void check_order(uint32_t nsegments) {
    tamis_comm *comm = mpi_comm(TIMEOUT_MS);
    tamis_reducer *pair[2] = {make(comm, SEGMENTS), make(comm, nsegments)};
    tamis_step step = TAMIS_STEP_INIT;
    size_t summed = 0;
    for (size_t i = 0; i < N; i++)
        gradient[i] = 1.0f;
    step.grad = gradient;
    uint64_t start_ms = now_ms();
    MPI_OK(tamis_reducer_start(pair[mpi_rank == 1], &step));
    MPI_STATUS(TAMIS_E_PROTOCOL, tamis_reducer_wait(pair[mpi_rank == 1]));
    MPI_CHECK(has_word(tamis_last_error(), "for reducer"), "it says: %s", tamis_last_error());
    check_soon(start_ms);
    for (size_t i = 0; i < N; i++)
        summed += gradient[i] != 1.0f;
    MPI_CHECK(summed == 0, "%zu elements were summed", summed);
    tamis_reducer_destroy(pair[0]);
    tamis_reducer_destroy(pair[1]);
    tamis_comm_destroy(comm);
}

int main(int argc, char **argv) {
    /* All with all: in stages pairs would add before they hear who uses another reducer. */
    setenv("TAMIS_PLAN", "usual", 1);
    mpi_begin(&argc, &argv, MPI_THREAD_MULTIPLE);
    tamis_comm *comm = mpi_comm(TIMEOUT_MS);
    check_forms(comm);
    tamis_comm_destroy(comm);
    check_order(SEGMENTS);
    check_order(2);
    check_abort();
    mpi_leave();
    return 0;
}
