/* SPDX-License-Identifier: MIT
 *
 * What a caller can read about a bucket.
 */
#include "collectives/reducer/reducer.h"

#include "lib/contracts/index_codec.h"

#include <tamis/overlap.h>

uint32_t tamis_reducer_nbuckets(const tamis_reducer *r) {
    return r ? r->nbuckets : 0;
}

tamis_status tamis_reducer_bucket_at(const tamis_reducer *r, uint32_t index, tamis_bucket *out) {
    if (!r || !out)
        return tam_fail(TAMIS_E_ARGUMENT, "tamis_reducer_bucket_at: %s is NULL",
                        r ? "out" : "reducer");
    if (index >= r->nbuckets)
        return tam_fail(TAMIS_E_ARGUMENT,
                        "tamis_reducer_bucket_at: bucket %u is out of range: there are %u", index,
                        r->nbuckets);
    const tam_bucket *b = &r->buckets[index];
    bool lists = !tam_scheme_whole(b->scheme);
    tam_strided part = tam_strided_of(&b->node_shard.division, b->node_shard.local);
    tamis_bucket own = {.size = sizeof own,
                        .first_segment = b->first_segment,
                        .nsegments = b->layout->nsegments,
                        .begin = b->view.begin,
                        .length = b->layout->length,
                        .target = tam_bucket_target(b),
                        .index_codec =
                            lists ? tam_index_codec_of(b->view.index_codec)->name : "none",
                        .exchange = tam_scheme_exchange(b->scheme),
                        .predicted_us = 1e6 * b->predicted_s,
                        .residual_length = r->acc ? part.length : 0,
                        .residual_begin = b->residual_begin,
                        .shard_first = part.first,
                        .shard_run = part.run,
                        .shard_stride = part.stride};
    return tam_struct_return_part("tamis_bucket", &own, sizeof own,
                                  offsetof(tamis_bucket, index_codec), out);
}
