/* SPDX-License-Identifier: MIT */
#include "collectives/coll/coll.h"

const tam_peer *tam_cursor_peer(const tam_coll *coll, const tam_cursor *t) {
    return &coll->peers[(t->first + t->nth) % coll->npeers];
}

size_t tam_cursor_bytes(const tam_coll *coll, const tam_cursor *t) {
    const tam_peer *p = tam_cursor_peer(coll, t);
    const tam_stream *s = t->sends ? p->out : p->in;
    size_t bytes = 0;
    for (uint32_t i = 0; i < (t->sends ? p->nout : p->nin); i++)
        bytes += tam_coll_part(coll, &s[i], t->chunk);
    return bytes;
}

/* Ranks of a group send each other one message, even an empty one. */
static bool exists(const tam_coll *coll, const tam_cursor *t) {
    return (t->chunk == 0 && coll->phase != TAM_PHASE_RUNS) || tam_cursor_bytes(coll, t) > 0;
}

bool tam_cursor_seek(const tam_coll *coll, tam_cursor *t) {
    for (; coll->npeers > 0 && t->chunk < coll->nchunks; t->chunk++, t->nth = 0) {
        for (; t->nth < coll->npeers; t->nth++) {
            if (exists(coll, t))
                return true;
        }
    }
    return false;
}

bool tam_cursor_tagged(const tam_coll *coll, const tam_cursor *t) {
    return coll->tag && coll->step == 0 && t->chunk == 0;
}
