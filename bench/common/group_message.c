/* SPDX-License-Identifier: MIT
 *
 * Messages between the ranks of an MPI group.
 */
#include "bench/common/group_mpi.h"

#ifdef TAMIS_BENCH_MPI

#include <limits.h>
#include <string.h>

_Static_assert(sizeof(MPI_Request) <= sizeof(void *), "a request must fit bench_message");

MPI_Comm bench_mpi_comm(const bench_group *group) {
    return group->mpi ? group->mpi->comm : MPI_COMM_WORLD;
}

static void keep(MPI_Request request, bench_message *out) {
    out->pending = true;
    memcpy(&out->request, &request, sizeof request);
}

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
    MPI_Isend(data, count_of(group, bytes), MPI_BYTE, (int)to, 0, bench_mpi_comm(group), &request);
    keep(request, out);
}

void bench_receive(bench_group *group, void *data, size_t bytes, uint32_t from,
                   bench_message *out) {
    MPI_Request request;
    MPI_Irecv(data, count_of(group, bytes), MPI_BYTE, (int)from, 0, bench_mpi_comm(group),
              &request);
    keep(request, out);
}

bool bench_message_test(bench_message *message) {
    int ended = 1;
    if (message->pending) {
        MPI_Request request = request_of(message);
        MPI_Test(&request, &ended, MPI_STATUS_IGNORE);
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
