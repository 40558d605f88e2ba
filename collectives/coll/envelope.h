/* SPDX-License-Identifier: MIT
 *
 * The header of every message of a collective. Each hop is checked: that both ranks are in the same
 * call and agree on all that describes it, and that nothing was damaged. What is equal along all
 * edges of a plan is equal on all ranks.
 *
 *     +-- 56 bytes ---+- 56 bytes, or nothing -+- bytes ------------------+
 *     | tam_envelope  | tam_tag                | one or two streams       |
 *     +---------------+------------------------+--------------------------+
 *
 * A tag follows in the first message of a sum of floats that has one. Streams that are longer than
 * a chunk travel in messages of their own, from and to where they lie; the check is over all.
 */
#ifndef TAM_COLL_ENVELOPE_H
#define TAM_COLL_ENVELOPE_H

#include "lib/base/base.h"

#define TAM_ENVELOPE_MAGIC 0x5d1c7be2u /* changes with the format */

typedef struct tam_envelope {
    uint32_t magic;
    uint32_t number;  /* collectives that the communicator made before; its lower half */
    uint64_t check;   /* hash of the rest of the message */
    uint64_t streams; /* hash of the streams that travel by themselves; 0: none do */
    uint64_t call;    /* hash of what describes the collective: kind, sizes, plan, tag */
    uint64_t extra; /* of a sum: the counters of the tags of all ranks whose parts were added; of an
                      all-to-all: bytes of the run; of a sender that gave up: the rank to blame */
    uint32_t rank;  /* the sender */
    uint32_t chunk;
    uint32_t bytes; /* that follow */
    uint8_t step;   /* of the collective */
    uint8_t status; /* not 0: the sender gave up, and nothing follows */
    uint16_t tagged;
} tam_envelope;

/** What the receiver expects. */
typedef struct tam_envelope_due {
    uint64_t call;
    uint32_t number, rank, chunk, bytes, step;
    bool extra_known; /* it is known */
    uint64_t extra;
} tam_envelope_due;

/** Set magic, check and bytes. @param  bytes  behind the envelope */
void tam_envelope_seal(tam_envelope *e, size_t bytes);

/** That the message is what its sender sent. PROTOCOL and a sentence that names both ranks.
 * @param  received  bytes of the whole message
 * @param  self  the receiver's rank */
tamis_status tam_envelope_open(const tam_envelope *e, size_t received, uint32_t from,
                               uint32_t self);

/** That it is what is due; that its streams are as they were sent; likewise. */
tamis_status tam_envelope_compare(const tam_envelope *e, const tam_envelope_due *due,
                                  uint32_t self);
tamis_status tam_envelope_check(const tam_envelope *e, uint64_t streams, uint32_t self);

#endif
