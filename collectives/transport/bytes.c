/* SPDX-License-Identifier: MIT
 *
 * Bytes of the caller's for all ranks. Few travel in the records in which the ranks show that they
 * make the same call; more follow in pieces, through memory of the library, which an exchange that
 * outlives its call may go on using:
 *
 *     broadcast    root: | shard 0 | shard 1 | shard 2 |    a shard to each rank, which all then
 *                                                           gather
 */
#include "collectives/transport/handshake.h"

#include "lib/base/fenv.h"

enum { RECORDED = 320, PIECE = 4 << 20, SHARD_LEAST = 4096 };

typedef struct record {
    tam_handshake_header header;
    uint64_t bytes, root;
    unsigned char data[RECORDED];
} record;

_Static_assert(sizeof(record) <= TAM_RECORD_BYTES, "one rank's record fits");

static const tam_handshake_field same[] = {
    {"the number of bytes", offsetof(record, bytes), TAM_SHOWS_NUMBER},
    {"the root", offsetof(record, root), TAM_SHOWS_NUMBER},
};

static tamis_status bytes_judge(const unsigned char *records, uint32_t nranks) {
    TAM_TRY(tam_handshake_failure(records, nranks, "give or take its bytes"));
    return tam_handshake_same(records, nranks, same, sizeof same / sizeof same[0]);
}

/* -- pieces ----------------------------------------------------------------------------------- */

/* A piece of a transfer. Its arrays follow it in one allocation. */
typedef struct transfer {
    tam_job job;
    uint32_t root;             /* UINT32_MAX: each rank has its own */
    size_t shard;              /* bytes of each rank in this piece */
    size_t *send_at, *recv_at; /* [nranks + 1] */
    char *whole;               /* [nranks * shard] what the root gives, and what all get */
    char *own;                 /* [shard] */
} transfer;

static size_t most_shard(size_t bytes, uint32_t nranks) {
    size_t most = PIECE / nranks > SHARD_LEAST ? PIECE / nranks : SHARD_LEAST;
    return bytes < most ? bytes : most;
}

/* @param  shard  the most of a piece */
static transfer *transfer_open(uint32_t nranks, uint32_t root, size_t shard) {
    size_t runs = ((size_t)nranks + 1) * sizeof(size_t);
    transfer *t = tam_alloc(sizeof *t + 2 * runs + ((size_t)nranks + 1) * shard);
    if (!t)
        return NULL;
    t->root = root;
    t->send_at = (size_t *)(t + 1);
    t->recv_at = t->send_at + nranks + 1;
    t->whole = (char *)(t->recv_at + nranks + 1);
    t->own = t->whole + (size_t)nranks * shard;
    return t;
}

/* After a failure the transport may still use it, or the job itself. */
static void transfer_close(transfer *t, tamis_comm *comm) {
    if (atomic_load(&t->job.state) == TAM_JOB_IDLE && tam_comm_silence(comm))
        tam_free(t);
}

static tamis_status scatter_from_root(transfer *t, tam_link *link) {
    bool gives = link->rank == t->root;
    for (uint32_t r = 0; r < link->nranks; r++) {
        t->send_at[r + 1] = t->send_at[r] + (gives ? t->shard : 0);
        t->recv_at[r + 1] = t->recv_at[r] + (r == t->root ? t->shard : 0);
    }
    return link->transport->alltoall(link->self, t->whole, t->send_at, t->own, t->recv_at,
                                     &link->call);
}

static tamis_status transfer_run(tam_job *job, tam_link *link) {
    transfer *t = (transfer *)(void *)job;
    if (t->root != UINT32_MAX)
        TAM_TRY(scatter_from_root(t, link));
    return link->transport->allgather(link->self, t->own, t->shard, t->whole, &link->call);
}

static tamis_status transfer_piece(tamis_comm *comm, transfer *t, size_t shard, const char *call) {
    t->shard = shard;
    t->job = (tam_job){.run = transfer_run, .purpose = call};
    return tam_comm_run(comm, &t->job);
}

/* -- all-gather ------------------------------------------------------------------------------- */

static tamis_status gather_pieces(tamis_comm *comm, transfer *t, const char *send, size_t bytes,
                                  char *recv) {
    size_t most = most_shard(bytes, comm->nranks);
    for (size_t at = 0; at < bytes; at += most) {
        size_t shard = bytes - at < most ? bytes - at : most;
        memcpy(t->own, send + at, shard);
        TAM_TRY(transfer_piece(comm, t, shard, "tamis_comm_allgather"));
        for (uint32_t r = 0; r < comm->nranks; r++)
            memcpy(recv + r * bytes + at, t->whole + r * shard, shard);
    }
    return TAMIS_OK;
}

/* @param  t  [out]  NULL: the bytes go in the records */
static tamis_status bytes_prepare(const tamis_comm *comm, bool given, uint32_t root, size_t bytes,
                                  const char *call, transfer **t) {
    *t = NULL;
    if (!given && bytes > 0)
        return tam_fail(TAMIS_E_ARGUMENT, "%s: rank %u gives NULL and %zu bytes", call, comm->rank,
                        bytes);
    if (root != UINT32_MAX && root >= comm->nranks)
        return tam_fail(TAMIS_E_ARGUMENT, "%s: root is %u, but there are %u ranks", call, root,
                        comm->nranks);
    if (bytes <= RECORDED)
        return TAMIS_OK;
    *t = transfer_open(comm->nranks, root, most_shard(bytes, comm->nranks));
    return *t ? TAMIS_OK : tam_fail(TAMIS_E_NOMEM, "%s: no memory on rank %u", call, comm->rank);
}

/* @param  data  of this rank, if it gives any */
static tamis_status bytes_agree(tamis_comm *comm, tamis_status own, const char *call, uint32_t root,
                                const void *data, size_t bytes) {
    record mine = {.header.status = (uint64_t)own, .bytes = bytes, .root = root};
    memcpy(mine.header.call, call, strlen(call));
    if (own == TAMIS_OK && bytes <= RECORDED && bytes > 0)
        memcpy(mine.data, data, bytes);
    return tam_handshake_run(comm, &mine, sizeof mine, bytes_judge, 0);
}

static const unsigned char *recorded_bytes(const tamis_comm *comm, uint32_t rank) {
    return ((const record *)tam_handshake_record(comm->records, rank))->data;
}

tamis_status tamis_comm_allgather(tamis_comm *comm, const void *send, size_t bytes, void *recv) {
    static const char call[] = "tamis_comm_allgather";
    TAM_FENV_HELD();
    transfer *t;
    if (!comm)
        return tam_fail(TAMIS_E_ARGUMENT, "%s: comm is NULL", call);
    TAM_TRY(tam_comm_check(comm));
    tamis_status status = bytes_prepare(comm, send && recv, UINT32_MAX, bytes, call, &t);
    status = bytes_agree(comm, status, call, UINT32_MAX, send, bytes);
    for (uint32_t r = 0; status == TAMIS_OK && !t && bytes > 0 && r < comm->nranks; r++)
        memcpy((char *)recv + r * bytes, recorded_bytes(comm, r), bytes);
    if (status == TAMIS_OK && t)
        status = gather_pieces(comm, t, send, bytes, recv);
    if (t)
        transfer_close(t, comm);
    return status;
}

/* -- broadcast -------------------------------------------------------------------------------- */

static tamis_status broadcast_pieces(tamis_comm *comm, transfer *t, char *data, size_t bytes) {
    size_t most = most_shard(bytes, comm->nranks) * comm->nranks;
    for (size_t at = 0; at < bytes; at += most) {
        size_t length = bytes - at < most ? bytes - at : most;
        size_t shard = (length + comm->nranks - 1) / comm->nranks;
        if (comm->rank == t->root)
            memcpy(t->whole, data + at, length);
        TAM_TRY(transfer_piece(comm, t, shard, "tamis_comm_broadcast"));
        if (comm->rank != t->root)
            memcpy(data + at, t->whole, length);
    }
    return TAMIS_OK;
}

tamis_status tamis_comm_broadcast(tamis_comm *comm, uint32_t root, void *data, size_t bytes) {
    static const char call[] = "tamis_comm_broadcast";
    TAM_FENV_HELD();
    transfer *t;
    if (!comm)
        return tam_fail(TAMIS_E_ARGUMENT, "%s: comm is NULL", call);
    TAM_TRY(tam_comm_check(comm));
    tamis_status status = bytes_prepare(comm, data, root, bytes, call, &t);
    status = bytes_agree(comm, status, call, root, data, bytes);
    if (status == TAMIS_OK && !t && bytes > 0 && comm->rank != root)
        memcpy(data, recorded_bytes(comm, root), bytes);
    if (status == TAMIS_OK && t)
        status = broadcast_pieces(comm, t, data, bytes);
    if (t)
        transfer_close(t, comm);
    return status;
}
