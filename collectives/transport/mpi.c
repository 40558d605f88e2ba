/* SPDX-License-Identifier: MIT
 *
 * The transport over MPI; only this file and mpi_open.c call MPI. It uses nonblocking
 * point-to-point messages, polled until a deadline: a blocking collective could not be abandoned
 * when a rank is gone.
 *
 * All-gather: every rank sends its bytes to all others, starting with its right neighbour, so that
 * no rank is everybody's first target.
 *
 * All-to-all: the same, with a run for each rank. MPI refuses (truncated) messages that are longer
 * than expected; the receiver's checksums find those that are shorter.
 *
 * Sum: rank r owns slice r and adds it up in the order of lib/base/tree.h, whatever order the parts
 * arrive in, so that every rank gets the same bits. Slices are sent in pieces; piece j is gathered
 * while piece j+1 is in flight. Three ranks, one piece, x.y = slice y of rank x:
 *
 *     rank 0   gets 1.0 2.0   sums S0 = 0.0 + 1.0 + 2.0   sends S0 to 1, 2   gets S1 S2
 *     rank 1   gets 0.1 2.1   sums S1 = 0.1 + 1.1 + 2.1   sends S1 to 0, 2   gets S0 S2
 *     rank 2   gets 0.2 1.2   sums S2 = 0.2 + 1.2 + 2.2   sends S2 to 0, 1   gets S0 S1
 *
 * Sent per rank: n - n/P out, n/P to P - 1 others = 2 n (P - 1) / P values. Tags are sent together
 * with the first pieces, which are added up once all tags have arrived and none differs.
 */
#include "collectives/transport/mpi_comm.h"
#include "collectives/transport/sum.h"
#include "lib/base/tag.h"
#include "lib/base/tree.h"
#include "collectives/transport/wait.h"

#include <stdio.h>

enum {
    TAG_GATHER = 1,
    TAG_SCATTER = 2,
    TAG_RUNS = 3,
    TAG_MEETING = 4,
    PIECE = TAM_MPI_PIECE,
    MESSAGE_MAX = TAM_MPI_MESSAGE_MAX
};

tamis_status tam_mpi_check(const tam_mpi *self, int code, const char *what) {
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    if (code == MPI_SUCCESS)
        return TAMIS_OK;
    MPI_Error_string(code, text, &length);
    return tam_fail(TAMIS_E_TRANSPORT, "rank %d: %s: %s", self->rank, what, text);
}

static tamis_status receive(tam_mpi *self, tam_mpi_batch *b, void *memory, size_t bytes, int from,
                            int tag) {
    int i = b->count++;
    b->peers[i] = from;
    return tam_mpi_check(
        self, MPI_Irecv(memory, (int)bytes, MPI_BYTE, from, tag, self->comm, &b->requests[i]),
        "MPI_Irecv");
}

static tamis_status dispatch(tam_mpi *self, tam_mpi_batch *b, const void *memory, size_t bytes,
                             int to, int tag, tam_call *call) {
    int i = b->count++;
    b->peers[i] = to;
    call->wire_bytes += bytes;
    return tam_mpi_check(
        self, MPI_Isend(memory, (int)bytes, MPI_BYTE, to, tag, self->comm, &b->requests[i]),
        "MPI_Isend");
}

/* Name the missing ranks, and cancel what can be cancelled: receives that did not begin. */
static tamis_status give_up(tam_mpi *self, tam_mpi_batch *b, tamis_status status, const char *why) {
    char missing[128];
    size_t used = 0;
    missing[0] = '\0';
    for (int i = 0; i < b->count; i++) {
        int done = 0;
        if (MPI_Test(&b->requests[i], &done, MPI_STATUS_IGNORE) != MPI_SUCCESS || done)
            continue;
        char name[16];
        int length = snprintf(name, sizeof name, " %d", b->peers[i]);
        bool listed = used >= (size_t)length && strcmp(missing + used - (size_t)length, name) == 0;
        if (!listed && used + (size_t)length < sizeof missing) {
            memcpy(missing + used, name, (size_t)length + 1);
            used += (size_t)length;
        }
        MPI_Cancel(&b->requests[i]);
    }
    return tam_fail(status, "rank %d%s for rank(s)%s", self->rank, why, missing);
}

/* For example a message longer than its buffer: its sender is in another call. */
static tamis_status explain(const tam_mpi *self, const tam_mpi_batch *b, const tam_call *call) {
    char text[MPI_MAX_ERROR_STRING] = "", place[TAM_LATE_TEXT];
    int i = 0, length = 0;
    while (i < b->count - 1 &&
           (b->statuses[i].MPI_ERROR == MPI_SUCCESS || b->statuses[i].MPI_ERROR == MPI_ERR_PENDING))
        i++;
    MPI_Error_string(b->statuses[i].MPI_ERROR, text, &length);
    return tam_fail(TAMIS_E_TRANSPORT,
                    "rank %d%s: the message of rank %d cannot be received (%s); all ranks must "
                    "make the same calls with the same options",
                    self->rank, tam_wait_place(call, place), b->peers[i], text);
}

/* Open MPI tests first and makes progress afterwards. A second test sees what that progress
 * brought, which must not wait for the end of a nap. */
static tamis_status test_requests(const tam_mpi *self, tam_mpi_batch *b, const tam_call *call,
                                  int *done) {
    for (int i = 0; i < 2 && !*done; i++) {
        int code = MPI_Testall(b->count, b->requests, done, b->statuses);
        if (code == MPI_ERR_IN_STATUS)
            return explain(self, b, call);
        TAM_TRY(tam_mpi_check(self, code, "MPI_Testall"));
    }
    return TAMIS_OK;
}

static tamis_status wait_all(tam_mpi *self, tam_mpi_batch *b, tam_call *call) {
    tam_wait wait = tam_wait_begin(call);
    char late[TAM_LATE_TEXT];
    for (unsigned tries = 0;; tries++) {
        int done = 0;
        TAM_TRY(test_requests(self, b, call, &done));
        if (done)
            break;
        tamis_status poison = (tamis_status)atomic_load(call->poison);
        if (poison != TAMIS_OK)
            return give_up(self, b, poison, " stopped waiting");
        if (tries % 16 == 15 && tam_clock_ns() > call->deadline_ns)
            return give_up(self, b, TAMIS_E_TIMEOUT, tam_wait_late(call, late));
        tam_wait_pause(&wait);
    }
    b->count = 0;
    tam_wait_end(&wait);
    return TAMIS_OK;
}

static int right(const tam_mpi *self, int distance) {
    return (self->rank + distance) % self->nranks;
}

static int left(const tam_mpi *self, int distance) {
    return (self->rank - distance + self->nranks) % self->nranks;
}

static tamis_status allgather_mpi(void *arg, const void *send, size_t bytes, void *recv,
                                  tam_call *call) {
    tam_mpi *self = arg;
    tam_mpi_batch *b = &self->gather[0];
    char *out = recv;
    for (size_t at = 0; at < bytes; at += MESSAGE_MAX) {
        size_t length = bytes - at < MESSAGE_MAX ? bytes - at : MESSAGE_MAX;
        for (int d = 1; d < self->nranks; d++)
            TAM_TRY(receive(self, b, out + (size_t)left(self, d) * bytes + at, length,
                            left(self, d), TAG_GATHER));
        for (int d = 1; d < self->nranks; d++)
            TAM_TRY(dispatch(self, b, (const char *)send + at, length, right(self, d), TAG_GATHER,
                             call));
        TAM_TRY(wait_all(self, b, call));
    }
    memcpy(out + (size_t)self->rank * bytes, send, bytes);
    return TAMIS_OK;
}

/* The part of a run that is sent in this round. */
static size_t part_of_run(const size_t *at, int r, size_t done, size_t *begin) {
    size_t length = at[r + 1] - at[r];
    *begin = at[r] + done;
    return done >= length ? 0 : length - done < MESSAGE_MAX ? length - done : MESSAGE_MAX;
}

static tamis_status post_runs(tam_mpi *self, const char *send, const size_t *send_at, char *recv,
                              const size_t *recv_at, size_t done, tam_call *call) {
    tam_mpi_batch *b = &self->scatter[0];
    size_t begin;
    for (int d = 1; d < self->nranks; d++) {
        size_t bytes = part_of_run(recv_at, left(self, d), done, &begin);
        if (bytes > 0)
            TAM_TRY(receive(self, b, recv + begin, bytes, left(self, d), TAG_RUNS));
    }
    for (int d = 1; d < self->nranks; d++) {
        size_t bytes = part_of_run(send_at, right(self, d), done, &begin);
        if (bytes > 0)
            TAM_TRY(dispatch(self, b, send + begin, bytes, right(self, d), TAG_RUNS, call));
    }
    return TAMIS_OK;
}

/* Each rank may need a different number of rounds: two ranks count only the messages between them,
 * and both count the same. */
static tamis_status alltoall_mpi(void *arg, const void *send, const size_t *send_at, void *recv,
                                 const size_t *recv_at, tam_call *call) {
    tam_mpi *self = arg;
    size_t own = (size_t)self->rank;
    memcpy((char *)recv + recv_at[own], (const char *)send + send_at[own],
           recv_at[own + 1] - recv_at[own]);
    for (size_t done = 0;; done += MESSAGE_MAX) {
        TAM_TRY(post_runs(self, send, send_at, recv, recv_at, done, call));
        if (self->scatter[0].count == 0)
            return TAMIS_OK;
        TAM_TRY(wait_all(self, &self->scatter[0], call));
    }
}

/* A vector being summed. */
typedef struct vector {
    float *values;
    size_t count, npieces;
} vector;

/* Where piece j of slice r begins. */
static size_t piece_begin(const tam_mpi *self, const vector *s, int r, size_t j, size_t *length) {
    size_t begin = tam_slice_begin(s->count, (uint32_t)r, (uint32_t)self->nranks);
    size_t end = tam_slice_begin(s->count, (uint32_t)r + 1, (uint32_t)self->nranks);
    size_t at = begin + j * PIECE;
    *length = at >= end ? 0 : end - at < PIECE ? end - at : PIECE;
    return at < end ? at : end;
}

static float *piece(const tam_mpi *self, const vector *s, int r, size_t j, size_t *bytes) {
    size_t length, begin = piece_begin(self, s, r, j, &length);
    *bytes = length * sizeof s->values[0];
    return s->values + begin;
}

/* Rank r's part of piece j of this rank's slice. */
static float *part(const tam_mpi *self, int r, size_t j) {
    return (float *)(void *)self->pieces[j % 2] + (size_t)r * PIECE;
}

/* Send piece j of every other slice to its owner, receive piece j of its own from all. */
static tamis_status post_scatter(tam_mpi *self, const vector *s, size_t j, tam_call *call) {
    tam_mpi_batch *b = &self->scatter[j % 2];
    size_t own, bytes;
    piece(self, s, self->rank, j, &own);
    for (int d = 1; d < self->nranks && own > 0; d++)
        TAM_TRY(receive(self, b, part(self, left(self, d), j), own, left(self, d), TAG_SCATTER));
    for (int d = 1; d < self->nranks; d++) {
        const float *theirs = piece(self, s, right(self, d), j, &bytes);
        if (bytes > 0)
            TAM_TRY(dispatch(self, b, theirs, bytes, right(self, d), TAG_SCATTER, call));
    }
    return TAMIS_OK;
}

/* Send this rank's summed piece j to all others, receive theirs. */
static tamis_status post_gather(tam_mpi *self, const vector *s, size_t j, tam_call *call) {
    tam_mpi_batch *b = &self->gather[j % 2];
    size_t own, bytes;
    const float *mine = piece(self, s, self->rank, j, &own);
    for (int d = 1; d < self->nranks; d++) {
        float *theirs = piece(self, s, left(self, d), j, &bytes);
        if (bytes > 0)
            TAM_TRY(receive(self, b, theirs, bytes, left(self, d), TAG_GATHER));
    }
    for (int d = 1; d < self->nranks && own > 0; d++)
        TAM_TRY(dispatch(self, b, mine, own, right(self, d), TAG_GATHER, call));
    return TAMIS_OK;
}

/* Sum this rank's piece. */
static void add_up(const tam_mpi *self, const vector *s, size_t j) {
    size_t length, begin = piece_begin(self, s, self->rank, j, &length);
    float *mine = s->values + begin;
    memcpy(part(self, self->rank, j), mine, length * sizeof mine[0]);
    tam_tree_add_up(part(self, 0, j), PIECE, (uint32_t)self->nranks, length, mine);
}

/* -- tags ------------------------------------------------------------------------------------- */

static tamis_status post_tags(tam_mpi *self, tam_call *call) {
    tam_mpi_batch *b = &self->meeting;
    tam_tag *own = &self->tags[self->rank];
    *own = *call->tag; /* the caller's may be gone before its message is */
    for (int d = 1; d < self->nranks; d++)
        TAM_TRY(
            receive(self, b, &self->tags[left(self, d)], sizeof *own, left(self, d), TAG_MEETING));
    for (int d = 1; d < self->nranks; d++)
        TAM_TRY(dispatch(self, b, own, sizeof *own, right(self, d), TAG_MEETING, call));
    return TAMIS_OK;
}

/* Cancel receives: a rank that sums something else must not write into this sum's parts. */
static void withdraw(tam_mpi_batch *b) {
    for (int i = 0; i < b->count; i++) {
        int done = 0;
        if (MPI_Test(&b->requests[i], &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && !done)
            MPI_Cancel(&b->requests[i]);
    }
}

static tamis_status compare_tags(tam_mpi *self, tam_call *call) {
    tamis_status status = wait_all(self, &self->meeting, call);
    for (int r = 0; r < self->nranks && status == TAMIS_OK; r++)
        status = tam_tag_hear(call, (uint32_t)r, &self->tags[r]);
    for (int i = 0; i < 2 && status != TAMIS_OK; i++)
        withdraw(&self->scatter[i]);
    return status;
}

/* -- sum -------------------------------------------------------------------------------------- */

static tamis_status reduce(tam_mpi *self, vector *s, tam_call *call) {
    size_t longest = (s->count + (size_t)self->nranks - 1) / (size_t)self->nranks;
    s->npieces = (longest + PIECE - 1) / PIECE;
    if (s->count == 0)
        return TAMIS_OK;
    if (call->tag)
        TAM_TRY(post_tags(self, call));
    TAM_TRY(post_scatter(self, s, 0, call));
    if (call->tag)
        TAM_TRY(compare_tags(self, call));
    for (size_t j = 0; j < s->npieces; j++) {
        if (j + 1 < s->npieces)
            TAM_TRY(post_scatter(self, s, j + 1, call));
        TAM_TRY(wait_all(self, &self->scatter[j % 2], call));
        add_up(self, s, j);
        if (j > 0)
            TAM_TRY(wait_all(self, &self->gather[(j - 1) % 2], call));
        TAM_TRY(post_gather(self, s, j, call));
    }
    return wait_all(self, &self->gather[(s->npieces - 1) % 2], call);
}

/* With one rank only its tag's note is read. */
static tamis_status allreduce_sum_mpi(void *arg, float *values, size_t count, tam_call *call) {
    tam_mpi *self = arg;
    vector s = {.values = values, .count = count};
    if (self->nranks == 1)
        return call->tag ? tam_tag_hear(call, 0, call->tag) : TAMIS_OK;
    return reduce(self, &s, call);
}

static void abort_mpi(void *arg) {
    (void)arg; /* the poison ends polling on this rank; the others time out */
}

/* After a failure messages may still be in flight, so the communicator and the buffers given to MPI
 * stay until the process ends. */
static void close_mpi(void *arg, int clean) {
    tam_mpi *self = arg;
    int finalized = 1;
    MPI_Finalized(&finalized);
    if (!clean)
        return;
    if (!finalized)
        MPI_Comm_free(&self->comm);
    tam_free(self->memory);
    tam_free(self);
}

const tam_transport tam_mpi_inline = {
    .name = "mpi",
    .unthreaded = "MPI was initialised without MPI_THREAD_MULTIPLE; initialise it with "
                  "MPI_Init_thread(MPI_THREAD_MULTIPLE)",
    .capabilities = TAM_CAP_LINGERS,
    .allgather = allgather_mpi,
    .allreduce_sum = allreduce_sum_mpi,
    .alltoall = alltoall_mpi,
    .abort = abort_mpi,
    .close = close_mpi,
};

const tam_transport tam_mpi_threaded = {
    .name = "mpi",
    .capabilities = TAM_CAP_LINGERS | TAM_CAP_THREADED,
    .allgather = allgather_mpi,
    .allreduce_sum = allreduce_sum_mpi,
    .alltoall = alltoall_mpi,
    .abort = abort_mpi,
    .close = close_mpi,
};
