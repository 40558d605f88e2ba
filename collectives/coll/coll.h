/* SPDX-License-Identifier: MIT
 *
 * Collectives over point-to-point (p2p) links, as state machines: begin one, then advance it until
 * it is done. Nothing here waits, so that thousands of ranks can run in one thread
 * (transport/simulated.h); a rank of a real network waits in drive.c.
 *
 * A collective is a list of steps. In a step a rank exchanges streams of bytes with the ranks of
 * its group, chunk by chunk:
 *
 *     all-gather   stages of the plan, far to near    what was gathered so far
 *     sum          stages near to far                 parts of the shards that the other will sum
 *                  stages far to near                 what was summed so far
 *       fused      the last stage once                all parts that its virtual ranks have
 *     scatter      as the first half of a sum         first coded values, then sums as floats
 *     spread       as the second half                 coded sums
 *     all-to-all   one step with all ranks            a run
 *
 * Memory: 6.3 MB whatever P is, and with P 112 bytes a peer of the largest group.
 */
#ifndef TAM_COLL_COLL_H
#define TAM_COLL_COLL_H

#include "collectives/coll/envelope.h"
#include "lib/contracts/transport.h"
#include "lib/contracts/p2p.h"
#include "lib/contracts/value_codec.h"
#include "lib/policy/plan.h"

enum {
    TAM_COLL_COMING = 18, /* buffers that receive: more than partial sums of a chunk can hold */
    TAM_COLL_GOING = 6,   /* and that send */
    TAM_COLL_BUFFERS = TAM_COLL_COMING + TAM_COLL_GOING, /* and one that is not sent: own parts */
    TAM_COLL_PARTS =
        3, /* messages of a buffer: a header, and two streams that travel by themselves */
    TAM_COLL_ABORTS = 8, /* in flight at once, whatever else is stuck */
    TAM_COLL_FIRST_ABORT = TAM_COLL_PARTS * TAM_COLL_BUFFERS, /* their tickets */
    TAM_COLL_TICKETS = TAM_COLL_FIRST_ABORT + TAM_COLL_ABORTS,
    TAM_COLL_DRAINED = TAM_COLL_PARTS * TAM_COLL_COMING / 2,
    TAM_COLL_HEADER = 128,           /* room for an envelope and a tag */
    TAM_COLL_CHUNK = TAM_PLAN_PIECE, /* bytes of streams in a message, a multiple of 128 */
    TAM_COLL_LEVELS = TAM_PLAN_STAGES + 1
};

/* Buffers: one for each level, and one to receive the next message. A rank that has two virtual
 * ranks has them twice, but in its first stage both in the same buffers. */
_Static_assert((int)TAM_PLAN_SUMS < (int)TAM_COLL_COMING, "partial sums have buffers");
_Static_assert((int)TAM_COLL_TICKETS <= (int)TAM_P2P_TICKETS, "p2p links have so many tickets");

typedef enum tam_phase {
    TAM_PHASE_GATHER,
    TAM_PHASE_SCATTER,
    TAM_PHASE_SPREAD,
    TAM_PHASE_RUNS
} tam_phase;

/** A set of items: those whose virtual ranks equal `vrank` modulo the number that a step tells
 * apart. */
typedef struct tam_stream {
    uint32_t vrank; /* all-to-all: rank */
    bool direct;    /* longer than a chunk and one run of memory: it travels from and to there */
    uint64_t bytes;
} tam_stream;

/** A rank of the group. Two streams each way where a rank has two virtual ranks. */
typedef struct tam_peer {
    uint32_t rank;
    uint32_t digit; /* of its virtual rank */
    uint32_t nout, nin;
    tam_stream out[2], in[2];
} tam_peer;

/** Which message comes next: chunk by chunk, and of each chunk peer by peer, from `first` on. */
typedef struct tam_cursor {
    bool sends;
    uint32_t chunk, nth, first;
} tam_cursor;

/** Long streams come on a channel of their own, and are received once their header was found
 * good. */
enum { TAM_CHANNEL_HEADERS, TAM_CHANNEL_STREAMS };

/** Partial sums of a chunk, a binary counter whose carries are additions (lib/base/tree.h). */
typedef struct tam_partials {
    uint32_t depth;
    bool own_added;
    struct {
        uint32_t level;
        int32_t buffer; /* that holds the values; -1: the vector itself */
        float *values;
    } stack[TAM_COLL_LEVELS];
} tam_partials;

typedef struct tam_coll {
    const tam_p2p *p2p;
    void *self;
    uint32_t rank;
    tam_plan plan;
    uint32_t vrank[2], nvranks; /* this rank's */
    size_t chunk;               /* bytes of a stream in a message */
    size_t stream_capacity;     /* room for one in a buffer: at least a block of floats */
    bool empty; /* only sizes matter: streams do not travel, and no memory of theirs is touched */

    /* Part p of buffer b has ticket TAM_COLL_PARTS * b + p. Those below TAM_COLL_COMING receive. */
    unsigned char *memory;
    size_t buffer_bytes;                  /* bytes of a buffer */
    uint32_t in_flight[TAM_COLL_BUFFERS]; /* messages of the buffer */
    uint32_t holders[TAM_COLL_BUFFERS];   /* what still needs its content; 0: the buffer is free */
    size_t received_bytes[TAM_COLL_COMING];          /* of the header; SIZE_MAX: not yet */
    uint32_t queue[TAM_COLL_COMING], first, waiting; /* receives, in the order of posting, */
    uint32_t nchecked;                               /* of which the headers of so many are good */
    uint32_t nsending;                               /* buffers, */
    uint32_t going_to[TAM_COLL_GOING];               /* each to this rank */
    struct {
        const void *memory;
        size_t bytes;
        uint64_t hash;
    } known; /* a part that was sent before, perhaps to another rank */

    /* The collective under way. */
    uint64_t number, call;
    tam_phase kind; /* GATHER, SCATTER: a sum, RUNS */
    const tam_tag *tag;
    uint64_t counter;  /* of the tags of all ranks whose parts were added before this step, */
    uint64_t received; /* and in it */
    const unsigned char *send;
    unsigned char *recv;
    size_t bytes;                /* that each rank gives, all-gather; floats that are summed */
    const tam_value_codec *type; /* of values that are summed encoded; NULL: floats */
    unsigned char *coded;        /* all of them encoded, or their sums */
    const size_t *send_at, *recv_at;
    uint32_t step, nsteps;
    bool fuses; /* the sum's last stage */

    /* The step. */
    tam_phase phase;
    uint32_t stage, stride, radix; /* its virtual ranks are `stride` apart */
    bool fused;                    /* all of a group add up all: own parts are sent from a copy */
    bool packed;                   /* streams are of coded values, */
    size_t part;                   /* of which so many bytes are in a message: else a chunk */
    uint32_t nchunks;
    tam_peer *peers;
    uint32_t npeers, last[2]; /* the last that adds to the sums of each virtual rank */
    tam_cursor posted, checked, taken, sent; /* the next receive, header, message to take, send */
    tam_partials partials[2];

    /* After a failure. */
    tamis_status failed;
    uint32_t blamed;
    tam_envelope abort_message;
    bool leaving[TAM_COLL_ABORTS]; /* in flight */
    uint32_t nnotified;            /* peers of the step that were sent one */
    uint64_t naborts;
    uint32_t drained[TAM_COLL_DRAINED]; /* [ndrained] peers whose messages are taken and ignored */
    uint32_t ndrained;

    uint64_t messages, wire_bytes; /* sent since open; a header and its streams are one message */
} tam_coll;

/** @param  chunk  bytes of streams in a message: at most TAM_COLL_CHUNK, a multiple of 128 */
tamis_status tam_coll_open(tam_coll *coll, const tam_p2p *p2p, void *self, uint32_t rank,
                           const tam_plan *plan, size_t chunk);
/** Another plan over the same p2p links, in the same memory: only one of both has a collective
 * under way at a time. The memory is freed with the one that is closed last: close the other as if
 * its buffers were in flight. */
tamis_status tam_coll_open_beside(tam_coll *coll, const tam_coll *other, const tam_plan *plan);
/** One that is empty, for a p2p link that carries headers alone (tam_sim_config.held): its memory
 * is a few KB, so that thousands of ranks fit into one process. No all-to-all, and no tags. */
tamis_status tam_coll_open_empty(tam_coll *coll, const tam_p2p *p2p, void *self, uint32_t rank,
                                 const tam_plan *plan, size_t chunk);
/** @param  in_flight  the p2p link, or another coll, may still use buffers: they stay */
void tam_coll_close(tam_coll *coll, bool in_flight);

/** As the entries of tam_transport. The memory must stay until the collective is done. */
void tam_coll_begin_gather(tam_coll *coll, const void *send, size_t bytes, void *recv);
void tam_coll_begin_sum(tam_coll *coll, float *values, size_t count, const tam_tag *tag);
/** The halves of a sum of values that travel encoded (value_codec.h): shards
 * end where blocks do. Scatter: `values` are what this rank's coded ones decode to; at the shards
 * that it owns (lib/policy/shards.h) they become sums, elsewhere they are undefined. Spread: of all
 * sums in their form the rank has those, and then all. */
void tam_coll_begin_scatter(tam_coll *coll, const tam_value_codec *type, const void *coded,
                            float *values, size_t count, const tam_tag *tag);
void tam_coll_begin_spread(tam_coll *coll, const tam_value_codec *type, void *coded, size_t count);
void tam_coll_begin_runs(tam_coll *coll, const void *send, const size_t *send_at, void *recv,
                         const size_t *recv_at);

/** Do what can be done now.
 * @param  moved  [out]  whether something was done */
tamis_status tam_coll_advance(tam_coll *coll, bool *moved, bool *done);

/** abort_message.c: give up. Receives are withdrawn; all peers of this rank in the collective are
 * sent the status, and the rank to blame, and pass them on. Advance from here on only sends these
 * messages and drains what comes, and is done when all messages have left. */
void tam_coll_fail(tam_coll *coll, tamis_status status, uint32_t blamed);

/** The first rank from which a message is missing; this one: none. All of them as text, " 3 5". */
uint32_t tam_coll_missing(const tam_coll *coll, char *text, size_t size);

/** The first rank that has not taken a message of this one; this one: none. */
uint32_t tam_coll_untaken(const tam_coll *coll);

/** Withdraw all messages in flight. */
void tam_coll_cancel(tam_coll *coll);

/* -- inside ----------------------------------------------------------------------------------- */

/** peers.c: set the step's phase and stage, its peers, their streams, and the number of chunks. */
void tam_coll_build_peers(tam_coll *coll);

/** streams.c: a stream; where its byte `at` lies; to copy `bytes` of it, from `at` on, into a
 * message or out of one. */
tam_stream tam_coll_stream(const tam_coll *coll, uint32_t vrank, bool sends);
void tam_coll_pack(const tam_coll *coll, const tam_stream *s, uint64_t at, size_t bytes,
                   unsigned char *to);
/** Copy this rank's parts, which a fused step sends while sums are written over them. */
void tam_coll_copy_own(tam_coll *coll);
unsigned char *tam_coll_address(const tam_coll *coll, const tam_stream *s, uint64_t at, bool sends);
void tam_coll_unpack(const tam_coll *coll, const tam_stream *s, uint64_t at, size_t bytes,
                     const unsigned char *from);

/** A stream of shards is one run of the vector; in a fused step the same one for all virtual ranks
 * of the group. @return its first element */
size_t tam_coll_shards(const tam_coll *coll, uint32_t vrank, size_t *length);

/** The elements of part `chunk` of a stream of shards that a virtual rank sums. @return the
 * first one */
size_t tam_coll_elements(const tam_coll *coll, uint32_t vrank, uint32_t chunk, size_t *count);

/** sum.c: add to the sums for this rank's virtual rank number `which` what came from the virtual
 * rank at `digit`, in the order of digits. The buffer is held while its values are in the stack.
 * add_up: no more comes for this chunk. */
void tam_coll_add(tam_coll *coll, uint32_t which, uint32_t digit, uint32_t chunk, int32_t buffer,
                  float *values);
void tam_coll_add_up(tam_coll *coll, uint32_t which, uint32_t chunk);

/** cursors.c: the peer of a cursor, bytes of its streams, and whether its message begins with a
 * tag. seek: go to the first position from this one on that has a message. @return false: there is
 * none */
const tam_peer *tam_cursor_peer(const tam_coll *coll, const tam_cursor *t);
size_t tam_cursor_bytes(const tam_coll *coll, const tam_cursor *t);
bool tam_cursor_tagged(const tam_coll *coll, const tam_cursor *t);
bool tam_cursor_seek(const tam_coll *coll, tam_cursor *t);

/** messages.c: post the next send or receive into a free buffer; check the next header, which came,
 * and post receives for the streams that it announces; take the next message, all of which came. */
tamis_status tam_coll_post_send(tam_coll *coll, uint32_t buffer);
tamis_status tam_coll_post_receive(tam_coll *coll, uint32_t buffer);
tamis_status tam_coll_receive_header(tam_coll *coll, uint32_t buffer);
tamis_status tam_coll_take(tam_coll *coll);

/** abort_message.c: send the abort message to the next peers, as long as there are tickets.
 * @return whether all were sent it */
tamis_status tam_coll_send_aborts(tam_coll *coll, bool *all);
bool tam_coll_leaving(const tam_coll *coll);
/** A message came that nobody needs: take the next of that peer. */
tamis_status tam_coll_drain(tam_coll *coll, uint32_t ticket);

/** Bytes of a stream that chunk number `chunk` of it has. */
static inline size_t tam_coll_part(const tam_coll *coll, const tam_stream *s, uint32_t chunk) {
    uint64_t at = (uint64_t)chunk * coll->part;
    uint64_t left = s->bytes > at ? s->bytes - at : 0;
    return (size_t)(left < coll->part ? left : coll->part);
}

#endif
