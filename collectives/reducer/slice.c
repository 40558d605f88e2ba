/* SPDX-License-Identifier: MIT
 *
 * Slices: who holds what, and memory.
 */
#include "collectives/reducer/slice.h"

#include <xxhash.h>

/* -- geometry --------------------------------------------------------------------------------- */

/* As many chunks as runs of the longest size need, and runs so even that slices are too. */
static uint32_t choose_run(uint64_t n, uint32_t nlocal) {
    uint64_t longest = (uint64_t)TAM_SLICE_RUN * nlocal, nchunks = (n + longest - 1) / longest;
    uint64_t runs = nchunks * nlocal;
    return (uint32_t)((n + runs - 1) / runs);
}

/* Elements of the slice below element `at` of the bucket. */
static uint64_t held_below(const tam_reach *reach, uint64_t at) {
    if (at <= reach->first)
        return 0;
    uint64_t rest = (at - reach->first) % reach->stride;
    return (at - reach->first) / reach->stride * reach->run +
           (rest < reach->run ? rest : reach->run);
}

/* Segments as far as the slice has any of them. */
static tamis_status open_layout(const tamis_layout *whole, const tam_reach *reach,
                                tamis_layout **out) {
    tamis_segment *segments = tam_alloc_array(whole->nsegments, sizeof segments[0]);
    size_t count = 0;
    if (!segments)
        return tam_fail(TAMIS_E_NOMEM, "no memory for a layout of %u segments", whole->nsegments);
    for (uint32_t s = 0; s < whole->nsegments; s++) {
        uint64_t length =
            held_below(reach, whole->begins[s + 1]) - held_below(reach, whole->begins[s]);
        if (length > 0)
            segments[count++] = (tamis_segment){whole->names[s], length};
    }
    tamis_status status = tamis_layout_create(segments, count, out);
    tam_free(segments);
    return status;
}

static tamis_status check_lengths(const tam_bucket *b) {
    const tam_division *d = &b->slice->division;
    for (uint32_t g = 0; g < b->slice->nlocal; g++) {
        if (d->part_sizes[g] == 0)
            return tam_fail(TAMIS_E_UNSUPPORTED,
                            "tamis_reducer_config.ranks_per_node: a bucket of %llu elements cannot "
                            "be cut into slices for %u ranks; join buckets",
                            (unsigned long long)b->layout->length, b->slice->nlocal);
    }
    return TAMIS_OK;
}

tamis_status tam_slice_place(tam_bucket *b, uint64_t k_max) {
    static const tam_scheme cyclic = {.ownership = TAM_OWN_CYCLIC};
    const tamis_reducer *r = b->reducer;
    uint32_t nlocal = r->config.ranks_per_node;
    tam_slice *s = tam_alloc(sizeof *s);
    if (!s)
        return tam_fail(TAMIS_E_NOMEM, "no memory for a slice");
    b->slice = s;
    s->nlocal = nlocal;
    s->local = r->comm->rank % nlocal;
    s->k_max = k_max;
    TAM_TRY(tam_division_open(b->layout, cyclic, nlocal, choose_run(b->layout->length, nlocal),
                              &s->division));
    TAM_TRY(check_lengths(b));
    tam_reach own = tam_reach_of(&s->division, s->local);
    return open_layout(b->layout, &own, &s->layout);
}

uint64_t tam_slice_share(const tam_bucket *b, uint64_t k) {
    return tam_share_of(&b->slice->division, 0, b->slice->local, k);
}

/* -- memory ----------------------------------------------------------------------------------- */

static tamis_status open_sums(tam_slice *s) {
    size_t chunk = (size_t)s->division.block * s->nlocal, most = (size_t)s->division.grid.n;
    chunk = chunk < most ? chunk : most;
    s->sum = tam_alloc_array((size_t)s->layout->length, sizeof s->sum[0]);
    s->parts = tam_alloc_array((size_t)s->division.block * s->nlocal, sizeof s->parts[0]);
    s->packed = tam_alloc_array(chunk, sizeof s->packed[0]);
    s->send_at = tam_alloc_array((size_t)s->nlocal + 1, sizeof s->send_at[0]);
    s->recv_at = tam_alloc_array((size_t)s->nlocal + 1, sizeof s->recv_at[0]);
    s->sent = tam_alloc_array(s->nlocal, sizeof s->sent[0]);
    s->came = tam_alloc_array(s->nlocal, sizeof s->came[0]);
    s->heard = tam_alloc_array(s->nlocal, sizeof s->heard[0]);
    if (s->sum && s->parts && s->packed && s->send_at && s->recv_at && s->sent && s->came &&
        s->heard)
        return TAMIS_OK;
    return tam_fail(TAMIS_E_NOMEM, "no memory for a slice of %llu elements",
                    (unsigned long long)s->layout->length);
}

static tamis_status open_result(tam_slice *s) {
    s->owners = tam_alloc_array(s->nlocal, sizeof s->owners[0]);
    s->cursors = tam_alloc_array(s->nlocal, sizeof s->cursors[0]);
    s->reaches = tam_alloc_array(s->nlocal, sizeof s->reaches[0]);
    s->indices = tam_alloc_array((size_t)s->k_max, sizeof s->indices[0]);
    s->values = tam_alloc_array((size_t)s->k_max, sizeof s->values[0]);
    if (!s->owners || !s->cursors || !s->reaches || !s->indices || !s->values)
        return tam_fail(TAMIS_E_NOMEM, "no memory for a result of %llu entries",
                        (unsigned long long)s->k_max);
    for (uint32_t g = 0; g < s->nlocal; g++) {
        s->owners[g] = g;
        s->reaches[g] = tam_reach_of(&s->division, g);
    }
    return TAMIS_OK;
}

static tamis_status open_slots(tam_bucket *b) {
    tam_slice *s = b->slice;
    const tamis_reducer *r = b->reducer;
    tamis_index_format format = r->config.index_format;
    uint64_t span = tam_own_max(&s->division);
    s->slots = (tam_slots){
        .rank = s->local,
        .nranks = s->nlocal,
        .first = r->comm->rank - s->local,
        .stride = 1,
        .nstats = 1,
        .nwords = r->nranks + 2,
        .capacity = tam_share_max(&s->division, s->k_max),
        .with_values = true,
        .format = format != TAMIS_INDEX_AUTO
                      ? format
                      : tam_codec_choose(span, tam_share_max(&s->division, b->whole_k)),
        .span = span,
        .reaches = s->reaches,
    };
    return tam_slots_open(&s->slots);
}

/* Teams hold copies of a message for every member. */
static tamis_status open_teams(tam_bucket *b) {
    tam_slice *s = b->slice;
    const tamis_reducer *r = b->reducer;
    size_t sums = tam_team_sum_room(b->union_max, r->nranks);
    size_t slots = r->nranks * b->slots.head_step;
    s->node = (tam_team){.first = r->comm->rank - s->local,
                         .stride = 1,
                         .count = s->nlocal,
                         .member = s->local,
                         .nranks = r->comm->nranks,
                         .room_bytes = s->nlocal * s->slots.head_step};
    s->column = (tam_team){.first = s->local,
                           .stride = s->nlocal,
                           .count = r->nranks,
                           .member = r->rank,
                           .nranks = r->comm->nranks,
                           .room_bytes = sums > slots ? sums : slots};
    TAM_TRY(tam_team_open(&s->node));
    return tam_team_open(&s->column);
}

tamis_status tam_slice_open(tam_bucket *b) {
    tam_slice *s = b->slice;
    const tamis_reducer *r = b->reducer;
    TAM_TRY(r->device->open(&s->division.grid, 0, r->config.threads, &s->kernels));
    TAM_TRY(open_sums(s));
    TAM_TRY(open_result(s));
    TAM_TRY(open_slots(b));
    return open_teams(b);
}

void tam_slice_close(tam_bucket *b) {
    tam_slice *s = b->slice;
    if (!s)
        return;
    bool lingers = tam_reducer_lingers(b->reducer);
    tam_team_close(&s->node, lingers);
    tam_team_close(&s->column, lingers);
    if (!lingers) {
        tam_slots_close(&s->slots);
        tam_free(s->parts);
        tam_free(s->packed);
        tam_free(s->sent);
        tam_free(s->came);
    }
    if (s->kernels)
        b->reducer->device->close(s->kernels);
    tam_free(s->sum);
    tam_free(s->send_at);
    tam_free(s->recv_at);
    tam_free(s->heard);
    tam_free(s->owners);
    tam_free(s->cursors);
    tam_free(s->reaches);
    tam_free(s->indices);
    tam_free(s->values);
    tamis_layout_destroy(s->layout);
    tam_division_close(&s->division);
    tam_free(s);
    b->slice = NULL;
}
