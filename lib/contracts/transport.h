/* SPDX-License-Identifier: MIT
 *
 * The transport contract: how ranks exchange bytes. Entries and capability bits; a transport
 * that can work on device memory in stream order has a second table of four, and one that sums in
 * stages has a table of two for encoded values.
 *
 * A transport knows nothing of gradients, packets or kernels. Every row is complete: an entry that
 * has nothing to do does nothing, so callers never test a pointer. All ranks make the calls in the
 * same order, one at a time. A call returns by its deadline; after a failure the caller poisons the
 * communicator, and the transport is only shrunk or closed.
 */
#ifndef TAM_CONTRACTS_TRANSPORT_H
#define TAM_CONTRACTS_TRANSPORT_H

#include "lib/base/members.h"
#include "lib/contracts/value_codec.h"

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <tamis/callback.h>
#include <tamis/tamis.h>

enum {
    TAM_CAP_THREADED = 1,  /* calls may come from a thread of the library */
    TAM_CAP_IN_FLIGHT = 2, /* after a failure memory may still be read or written */
    TAM_CAP_GATHERS = 4,   /* an all-to-all is made of all-gathers, and sends as much */
    TAM_CAP_ALARMS = 8     /* abort tells all other ranks why */
};

/** First element of shard r of a sum: shard r of P belongs to rank r. r = P: the end. */
static inline size_t tam_shard_begin(size_t count, uint32_t r, uint32_t nranks) {
    return (size_t)((unsigned __int128)count * r / nranks);
}

/** Identifies a sum. Ranks compare their tags before anything is summed, since the values would not
 * show that the ranks sum different things. tag.c seals and compares. */
typedef struct tam_tag {
    uint64_t rank;    /* the sender */
    uint64_t reducer; /* its number on the communicator, from 1 */
    uint64_t step;
    uint64_t begin, count; /* elements of its vector */
    uint64_t counter;      /* of the sender: not compared, but added up over all ranks */
    uint64_t check;        /* hash of the rest */
} tam_tag;

/** Limits of a call, and its cost. */
typedef struct tam_call {
    uint64_t deadline_ns;     /* on tam_clock_ns */
    const atomic_int *poison; /* a status: when it becomes non-zero, return it soon */
    uint64_t wire_bytes;      /* [in,out] bytes sent by this rank, added up */
    const char *purpose;      /* the public call it is made for; NULL: not given */
    uint64_t number;          /* of the step, counted from 1; 0: it belongs to none */
    uint64_t begin_ns;        /* on tam_clock_ns */

    uint32_t bucket;           /* counted from 1; 0: none */
    uint32_t collective;       /* number of the one under way, from 1; 0: unknown */
    struct tam_flight *flight; /* what records it; NULL: nothing does */
    bool warned;               /* that a rank is late */

    const tam_tag *tag; /* of a sum of floats; NULL: what is summed was compared before */
    uint64_t counters;  /* [in,out] those of the tags of all ranks, added up */

    /* For transports that poll for other ranks. */
    tamis_waiting waiting;
    const atomic_int *blocked; /* threads of the caller that wait for this to end; NULL: none */
    uint64_t quiet_until_ns;   /* on tam_clock_ns; the last rank is not expected before */
} tam_call;

/** Who is left of a communicator, for the transport to go on with (tamis_comm_shrink). */
typedef struct tam_left {
    tamis_comm *comm;      /* the old one, for tam_comm_revoke: it is lost from then on */
    uint32_t rank, nranks_before; /* who this rank was, among how many */
    const uint32_t *ranks; /* [nranks] its ranks, ascending, this one among them; NULL: unknown */
    uint32_t nranks;
    const tamis_callbacks *callbacks; /* NULL: not given */
    uint64_t deadline_ns;             /* on tam_clock_ns */
    const tamis_comm_config *config;  /* of the new one */
} tam_left;

/** Processes that wait to join a communicator (tamis_comm_grow). */
typedef struct tam_growth {
    tamis_comm *comm;
    const char *address; /* where they come, as all ranks say */
    uint64_t deadline_ns;
    const tamis_comm_config *config; /* of the new one */
} tam_growth;

/**
 * Collectives on device memory. They run in the order of `stream` and return at once; a captured
 * stream captures them. All ranks make the calls in the same order, even across streams: each among
 * its own members, with a number of them and of bytes that is the same everywhere.
 */
typedef struct tam_stream_transport {
    /** As tam_transport.allgather; the own part is in place, at recv + member * bytes. */
    tamis_status (*allgather)(void *self, const tam_members *among, size_t bytes, void *recv,
                              void *stream);

    /** send[i * bytes] goes to member i, recv[i * bytes] came from it. No overlap. */
    tamis_status (*alltoall)(void *self, const tam_members *among, const void *send, size_t bytes,
                             void *recv, void *stream);

    /** recv[i] = sum over ranks of send[i], in any order; the same bits on all. No overlap. */
    tamis_status (*allreduce)(void *self, const float *send, size_t count, float *recv,
                              void *stream);

    /** The status of enqueued work: an error found since. Any thread. */
    tamis_status (*poll)(void *self);
} tam_stream_transport;

/** The halves of a sum of values that travel encoded by a value codec. Shards, and
 * who owns them, are those of lib/policy/shards.h, divided between blocks. */
typedef struct tam_encoded_transport {
    /** Sums of what the encoded buffers of all ranks hold, at the shards that this rank owns, in
     * the order of lib/base/tree.h.
     * @param encoded [in] all values of this rank
     * @param  values  [in,out]  [count] what they decode to; elsewhere undefined afterwards */
    tamis_status (*scatter)(void *self, const tam_value_codec *type, const void *encoded,
                            float *values, size_t count, tam_call *call);

    /** All sums to all ranks.
     * @param  encoded  [in,out]  where a buffer of `count` has this rank's shards; then all of it
     * */
    tamis_status (*spread)(void *self, const tam_value_codec *type, void *encoded, size_t count,
                           tam_call *call);
} tam_encoded_transport;

/** What is between the ranks of a communicator, where the caller does not say. The same on all of
 * them: bits depend on it. */
typedef struct tam_usual_link {
    double latency_us, gbit; /* of an empty message; 10^9 bits a second of one rank */
    double bucket_us;        /* what a bucket takes beside its messages */
} tam_usual_link;

typedef struct tam_transport {
    const char *name;
    uint32_t capabilities;
    const tam_stream_transport *stream;   /* NULL: host memory only */
    const tam_encoded_transport *encoded; /* NULL: the all-to-all and the all-gather do */
    const char *unthreaded; /* why it is not TAM_CAP_THREADED although it could be, and what to do;
                               NULL: it could not */

    /** STATE where it can no longer be called, as when its library was shut down. NULL: it always
     * can. Any thread. */
    tamis_status (*usable)(const void *self);

    /** What buckets are planned for. NULL: not known */
    const tam_usual_link *(*usual)(const void *self);

    /** Every rank gives `bytes` bytes; recv[r * bytes] is rank r's. send and recv do not overlap.
     */
    tamis_status (*allgather)(void *self, const void *send, size_t bytes, void *recv,
                              tam_call *call);

    /** values[i] = sum over ranks of values[i], in the order of lib/base/tree.h; the same bits on
     * all ranks. With a tag: PROTOCOL if another rank's differs; nothing has been summed then. */
    tamis_status (*allreduce_sum)(void *self, float *values, size_t count, tam_call *call);

    /** Run b of send, from byte send_at[b] to send_at[b + 1], goes to rank b; run a of recv came
     * from rank a. All ranks know the lengths of the runs they get: a run of another length is an
     * error on its receiver. send and recv do not overlap.
     * @param  send_at, recv_at  [in]  [nranks + 1], ascending from 0 */
    tamis_status (*alltoall)(void *self, const void *send, const size_t *send_at, void *recv,
                             const size_t *recv_at, tam_call *call);

    /** Make a communicator of the ranks that are left: tam_comm_revoke the old one once nothing but
     * a failure of the network can be in the way, and record the old ranks
     * (tam_comm_record_before). No other call is under way. Before the revocation ARGUMENT,
     * UNSUPPORTED: no effect. */
    tamis_status (*shrink)(void *self, const tam_left *left, tamis_comm **out);

    /** Make a communicator of all ranks and of processes that wait to join, who become the last
     * ranks: set its `joined`. No other call is under way. Failures of those who wait are no
     * failures.
     * @param  out  [out]  NULL: none was taken in */
    tamis_status (*grow)(void *self, const tam_growth *how, tamis_comm **out);

    /** Wake up calls that block, here and, where possible, on other ranks. Any thread.
     * @param  status, cause  why, with a sentence, for the other ranks */
    void (*abort)(void *self, tamis_status status, const char *cause);

    /** After a failure: end what is under way. Not while a call is.
     * @return whether no message can use its memory any more. NULL: it cannot end it */
    bool (*silence)(void *self);

    /** Free everything. `clean` is 0 after a failure: do not free what may still be in use. */
    void (*close)(void *self, int clean);
} tam_transport;

/** A transport in use: what the exchange works with during one step. */
typedef struct tam_link {
    const tam_transport *transport;
    void *self;
    uint32_t rank, nranks;
    tam_call call;
} tam_link;

#endif
