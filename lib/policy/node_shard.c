/* SPDX-License-Identifier: MIT */
#include "lib/policy/node_shard.h"

/* The fewest chunks with runs of at most the longest size; even runs, so that shards are even. */
static uint32_t choose_run(uint64_t n, uint32_t nlocal) {
    uint64_t longest = (uint64_t)TAM_NODE_SHARD_RUN * nlocal, nchunks = (n + longest - 1) / longest;
    uint64_t runs = nchunks * nlocal;
    return nlocal == 1 ? (uint32_t)n : (uint32_t)((n + runs - 1) / runs);
}

/* Elements of the shard below element `at` of the bucket. */
static uint64_t shard_below(const tam_strided *strided, uint64_t at) {
    if (at <= strided->first)
        return 0;
    uint64_t rest = (at - strided->first) % strided->stride;
    return (at - strided->first) / strided->stride * strided->run +
           (rest < strided->run ? rest : strided->run);
}

static tamis_status open_layout(const tamis_layout *whole, const tam_strided *strided,
                                tamis_layout **out) {
    tamis_segment *segments = tam_alloc_array(whole->nsegments, sizeof segments[0]);
    size_t count = 0;
    if (!segments)
        return tam_fail(TAMIS_E_NOMEM, "no memory for a layout of %u segments", whole->nsegments);
    for (uint32_t s = 0; s < whole->nsegments; s++) {
        uint64_t length =
            shard_below(strided, whole->begins[s + 1]) - shard_below(strided, whole->begins[s]);
        if (length > 0)
            segments[count++] = (tamis_segment){whole->names[s], length};
    }
    tamis_status status = tamis_layout_create(segments, count, out);
    tam_free(segments);
    return status;
}

static tamis_status check_lengths(const tam_node_shard *s) {
    for (uint32_t g = 0; g < s->nlocal; g++) {
        if (s->division.part_sizes[g] == 0)
            return tam_fail(TAMIS_E_UNSUPPORTED,
                            "tamis_reducer_config.ranks_per_node: a bucket of %llu elements cannot "
                            "be divided into shards for %u ranks; use larger buckets",
                            (unsigned long long)s->division.grid.n, s->nlocal);
    }
    return TAMIS_OK;
}

tamis_status tam_node_shard_open(const tamis_layout *whole, uint32_t local, uint32_t nlocal,
                                 tam_node_shard *s) {
    static const tam_scheme cyclic = {.ownership = TAM_OWN_CYCLIC};
    uint32_t run = choose_run(whole->length, nlocal);
    *s = (tam_node_shard){.local = local, .nlocal = nlocal};
    TAM_TRY(tam_division_open(whole, cyclic, nlocal, run, &s->division));
    TAM_TRY(check_lengths(s));
    tam_strided own = tam_strided_of(&s->division, local);
    return open_layout(whole, &own, &s->layout);
}

void tam_node_shard_close(tam_node_shard *s) {
    tamis_layout_destroy(s->layout);
    tam_division_close(&s->division);
    *s = (tam_node_shard){0};
}

uint64_t tam_node_shard_budget(const tam_node_shard *s, uint64_t k) {
    return tam_budget_of(&s->division, 0, s->local, k);
}
