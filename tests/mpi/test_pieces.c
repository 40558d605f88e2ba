/* SPDX-License-Identifier: MIT
 *
 * Long messages travel in pieces: the MPI transport once more, with pieces so small that short
 * vectors need many.
 */
#define TAM_STAGED_CHUNK 128 /* 64 bytes of each of two places, if ranks have them */
#include "collectives/coll/staged_open.c"
#include "collectives/transport/mpi.c"
#include "collectives/transport/mpi_open.c"

#include "tests/support/mpi_ranks.h"

#include <stdlib.h>

enum { MOST = 5000 };

static float value_of(int rank, size_t i) {
    return (float)((int)((i * 37 + (size_t)rank * 101) % 1009) - 500);
}

/* Bytes of one place in a message. */
static size_t piece_bytes(void) {
    return (mpi_nranks & (mpi_nranks - 1)) == 0 ? TAM_STAGED_CHUNK : TAM_STAGED_CHUNK / 2;
}

static tam_call new_call(tamis_comm *comm) {
    return (tam_call){.deadline_ns = tam_clock_ns() + comm->timeout_ns, .poison = &comm->poison};
}

static void check_sum(tamis_comm *comm, size_t count) {
    float *values = malloc((count + 1) * sizeof *values);
    tam_call call = new_call(comm);
    for (size_t i = 0; i <= count; i++)
        values[i] = value_of(mpi_rank, i);
    MPI_OK(comm->transport->allreduce_sum(comm->self, values, count, &call));
    size_t wrong = 0;
    for (size_t i = 0; i < count; i++) {
        float expected = 0.0f;
        for (int r = 0; r < mpi_nranks; r++)
            expected += value_of(r, i);
        wrong += values[i] != expected;
    }
    MPI_CHECK(wrong == 0, "%zu of %zu sums are wrong", wrong, count);
    MPI_CHECK(values[count] == value_of(mpi_rank, count), "the end of %zu was overrun", count);
    free(values);
}

static void check_gather(tamis_comm *comm, size_t bytes) {
    size_t all = bytes * (size_t)mpi_nranks;
    unsigned char *send = malloc(bytes + 1), *recv = malloc(all + 1);
    tam_call call = new_call(comm);
    for (size_t i = 0; i < bytes; i++)
        send[i] = (unsigned char)(i * 7 + (size_t)mpi_rank);
    recv[all] = 171;
    MPI_OK(comm->transport->allgather(comm->self, send, bytes, recv, &call));
    size_t wrong = 0;
    for (size_t i = 0; i < all; i++)
        wrong += recv[i] != (unsigned char)(i % bytes * 7 + i / bytes);
    MPI_CHECK(wrong == 0, "%zu of %zu bytes are wrong", wrong, all);
    MPI_CHECK(recv[all] == 171, "the end of %zu bytes was overrun", all);
    size_t pieces = (bytes + piece_bytes() - 1) / piece_bytes();
    size_t sent = (bytes + pieces * sizeof(tam_envelope)) * (size_t)(mpi_nranks - 1);
    MPI_CHECK(call.wire_bytes == sent, "%zu bytes: %llu sent, not %zu", bytes,
              (unsigned long long)call.wire_bytes, sent);
    free(send);
    free(recv);
}

/* Rank a sends rank b (a + b + unit) % 5 times `unit` bytes, so some get nothing. */
static void check_alltoall(tamis_comm *comm, size_t unit) {
    size_t all = (size_t)mpi_nranks, rank = (size_t)mpi_rank, send_at[17] = {0}, recv_at[17] = {0};
    tam_call call = new_call(comm);
    for (size_t r = 0; r < all; r++) {
        send_at[r + 1] = recv_at[r + 1] = (rank + r + unit) % 5 * unit;
        send_at[r + 1] += send_at[r];
        recv_at[r + 1] += recv_at[r];
    }
    unsigned char *send = malloc(send_at[all] + 1), *recv = malloc(recv_at[all] + 1);
    for (size_t r = 0; r < all; r++)
        for (size_t i = send_at[r]; i < send_at[r + 1]; i++)
            send[i] = (unsigned char)((i - send_at[r]) * 7 + rank * 16 + r);
    recv[recv_at[all]] = 171;
    MPI_OK(comm->transport->alltoall(comm->self, send, send_at, recv, recv_at, &call));
    size_t wrong = 0;
    for (size_t r = 0; r < all; r++)
        for (size_t i = recv_at[r]; i < recv_at[r + 1]; i++)
            wrong += recv[i] != (unsigned char)((i - recv_at[r]) * 7 + r * 16 + rank);
    MPI_CHECK(wrong == 0, "%zu bytes of runs of %zu are wrong", wrong, unit);
    MPI_CHECK(recv[recv_at[all]] == 171, "the end of runs of %zu was overrun", unit);
    size_t sent = 0;
    for (size_t r = 0; r < all; r++) {
        size_t run = r == rank ? 0 : send_at[r + 1] - send_at[r];
        size_t pieces = (run + piece_bytes() - 1) / piece_bytes();
        sent += run + pieces * sizeof(tam_envelope);
    }
    MPI_CHECK(call.wire_bytes == sent, "runs of %zu: %llu bytes sent, not %zu", unit,
              (unsigned long long)call.wire_bytes, sent);
    free(send);
    free(recv);
}

int main(int argc, char **argv) {
    setenv("TAMIS_PLAN", "usual", 1); /* all with all: bytes are counted below */
    mpi_begin(&argc, &argv, MPI_THREAD_MULTIPLE);
    tamis_comm *comm = mpi_comm(10000);
    static const size_t counts[] = {0, 1, 2, 3, 15, 16, 17, 31, 47, 63, 64, 65, 1000, 4097, MOST};
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++)
        check_sum(comm, counts[i]);
    for (size_t bytes = 1; bytes <= MOST; bytes = bytes * 2 + 1)
        check_gather(comm, bytes), check_alltoall(comm, bytes);
    tamis_comm_destroy(comm);
    int failures = mpi_verdict();
    MPI_Finalize();
    return failures != 0;
}
