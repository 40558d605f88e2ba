/* SPDX-License-Identifier: MIT
 *
 * The buckets of a reducer: where the layout is cut, what each of them needs, and how many entries
 * of a step each gets.
 */
#include "collectives/reducer/rows.h"
#include "collectives/reducer/slice.h"

#include "lib/policy/rules.h"

#include <xxhash.h>

enum { SPARE_CANDIDATES = 4096, REUSE_ROOM = 4 }; /* of reuse: times k that one rank may pick */

static bool shared_by_norm(const tamis_reducer *r) {
    return tam_ordinary_buckets(r) > 1 && r->config.share == TAMIS_SHARE_NORM && r->ndense == 0;
}

/* -- sizes ------------------------------------------------------------------------------------ */

size_t tam_bucket_slot(const tam_bucket *b, uint64_t k) {
    const tamis_reducer *r = b->reducer;
    size_t own = tam_own_max(&b->division);
    if (tam_scheme_exact_count(b->scheme))
        return tam_share_max(&b->division, k);
    if (b->scheme.threshold == TAM_THRESHOLD_REUSE && r->config.capacity == 0.0)
        return (size_t)tam_rule_capacity(REUSE_ROOM, k, 1.0, own);
    if (tam_scheme_by_threshold(b->scheme) && r->config.capacity > 0.0) {
        double ranks = tam_scheme_undivided(b->scheme) ? 1.0 : b->division.nranks;
        return (size_t)tam_rule_capacity(r->config.capacity, k, ranks, own);
    }
    /* Group by group at least one entry each can exceed k by the number of groups. */
    size_t most = (size_t)k + b->division.grid.ngroups;
    return tam_scheme_by_threshold(b->scheme) ? own : most < own ? most : own;
}

/* The count of such schemes is not known before the step. */
static bool slots_grow(const tam_bucket *b) {
    if (tam_scheme_regional(b->scheme))
        return true;
    return !tam_scheme_exact_count(b->scheme) &&
           !(tam_scheme_by_threshold(b->scheme) && b->reducer->config.capacity > 0.0);
}

static size_t candidate_capacity(const tam_bucket *b) {
    const tamis_reducer *r = b->reducer;
    size_t own = tam_own_max(&b->division), most = own;
    if (!tam_scheme_by_threshold(b->scheme))
        most = (size_t)(8.0 * r->config.over * (double)tam_share_max(&b->division, b->k_max));
    if (b->scheme.ownership == TAM_OWN_BINS)
        most = (size_t)(2.0 * r->config.over * (double)b->k_max);
    most += SPARE_CANDIDATES;
    return most < own ? most : own;
}

/* From numbers that all ranks share. Of growing slots, which may be as long as the part, the count
 * that is aimed at counts. */
static tamis_index_format choose_format(const tam_bucket *b) {
    const tamis_reducer *r = b->reducer;
    uint64_t ranks = b->scheme.ownership == TAM_OWN_ALL ? 1 : r->nranks;
    uint64_t count = tam_bucket_slot(b, b->k), aimed = (b->k + ranks - 1) / ranks;
    if (r->config.index_format != TAMIS_INDEX_AUTO)
        return r->config.index_format;
    if (tam_reducer_chooses(r)) /* by time: choose.c */
        return b->slots.format;
    if (r->driver != &tam_driver_host || tam_scheme_regional(b->scheme))
        return TAMIS_INDEX_U32;
    return tam_codec_choose(b->slots.span, slots_grow(b) && aimed < count ? aimed : count);
}

/* Buckets, and reducers of one communicator, may be alike and must not be mixed up. */
static void name_slots(tam_bucket *b) {
    const tamis_reducer *r = b->reducer;
    uint64_t who[] = {tam_agreement_hash(&r->agreement), r->serial, b->index};
    b->config_hash = b->slots.config = XXH3_64bits(who, sizeof who);
}

/* A leader's list goes to all in pieces, where runs travel by themselves and more than one other rank
 * takes part of the work. */
static bool slots_led(const tam_bucket *b) {
    const tamis_reducer *r = b->reducer;
    return b->scheme.ownership == TAM_OWN_LEADER && r->driver == &tam_driver_host &&
           r->nranks > 2 && !b->slots.growing &&
           !(r->comm->transport->capabilities & TAM_CAP_GATHERS);
}

/* What travels, whoever drives: sizes, and the hash that all ranks' slots must carry. */
static void prepare_slots(tam_bucket *b) {
    const tamis_reducer *r = b->reducer;
    bool sums = tam_scheme_weighted(b->scheme) || shared_by_norm(r);
    b->slots.rank = r->rank;
    b->slots.nranks = r->nranks;
    b->slots.first = b->slice ? b->slice->local : 0;
    b->slots.stride = b->slice ? b->slice->nlocal : 1;
    b->slots.nstats = sums ? b->division.grid.ngroups : 0;
    b->slots.capacity = tam_bucket_slot(b, b->k_max);
    b->slots.growing = slots_grow(b);
    b->slots.led = slots_led(b);
    b->slots.with_values = tam_scheme_gives_picks(b->scheme);
    b->slots.heads_only = tam_scheme_regional(b->scheme);
    b->slots.nwords = b->slots.heads_only ? tam_regions_head_words(r->nranks) : 0;
    b->slots.type = r->config.wire_type;
    b->slots.span = tam_own_max(&b->division);
    b->slots.format = choose_format(b);
    name_slots(b);
}

/* -- one bucket ------------------------------------------------------------------------------- */

static tamis_status open_never(tam_bucket *b) {
    uint32_t ngroups = b->division.grid.ngroups;
    b->never = tam_alloc_array(ngroups, sizeof b->never[0]);
    if (!b->never)
        return tam_fail(TAMIS_E_NOMEM, "no memory for %u groups", ngroups);
    for (uint32_t g = 0; g < ngroups; g++)
        b->never[g] = TAM_INFINITE_BITS;
    return TAMIS_OK;
}

/* By the kernels of the first bucket, for all. */
static tamis_status open_vector(tam_bucket *b, float **vector, const char *what) {
    const tamis_reducer *r = b->reducer;
    if (!*vector)
        *vector = r->device->alloc(b->kernels, (size_t)r->held * sizeof **vector);
    return *vector ? TAMIS_OK
                   : tam_fail(TAMIS_E_NOMEM, "no memory for %s of %llu elements", what,
                              (unsigned long long)r->held);
}

static tamis_status open_acc(tam_bucket *b) {
    tamis_reducer *r = b->reducer;
    const tamis_update *u = r->config.update;
    TAM_TRY(open_vector(b, &r->acc, "a residual"));
    if (u && u->beta1 > 0.0)
        TAM_TRY(open_vector(b, &r->first, "first moments"));
    if (u && u->rule == TAMIS_UPDATE_ADAM)
        TAM_TRY(open_vector(b, &r->second, "second moments"));
    b->acc = r->acc + b->held_at;
    return TAMIS_OK;
}

/* What this rank holds of a bucket. */
static const tamis_layout *held_layout(const tam_bucket *b) {
    return b->slice ? b->slice->layout : b->layout;
}

/* A slice may get nothing of a small k; what is learned is learned for one entry then. */
static uint64_t aim_of(const tam_bucket *b) {
    return b->k > 0 ? b->k : 1;
}

/* What may be sparse: also a bucket that is dense in a reducer whose buckets choose, for what is
 * accumulated before a step must have a place, and its state the same shape. */
static tamis_status open_residual(tam_bucket *b) {
    tamis_reducer *r = b->reducer;
    const tamis_reducer_config *c = &r->config;
    tam_scheme sparse = tam_scheme_sparse(r->scheme);
    TAM_TRY(tam_division_open(held_layout(b), sparse, r->nranks, c->block, &b->division));
    TAM_TRY(
        tam_control_open(sparse, &b->division.grid, aim_of(b), c->over, c->threshold, &b->control));
    TAM_TRY(r->device->open(&b->division.grid, candidate_capacity(b), c->threads, &b->kernels));
    TAM_TRY(open_never(b));
    return open_acc(b);
}

static tamis_status open_sparse(tam_bucket *b) {
    TAM_TRY(open_residual(b));
    prepare_slots(b);
    TAM_TRY(b->reducer->driver->open(b));
    return b->slice ? tam_slice_open(b) : TAMIS_OK;
}

/* Beside scheme dense, which has no residual, a place to add up in is the bucket's own. */
static tamis_status open_rows(tam_bucket *b) {
    tamis_reducer *r = b->reducer;
    TAM_TRY(tam_division_open(b->layout, b->scheme, r->comm->nranks, 0, &b->division));
    TAM_TRY(tam_control_open(b->scheme, &b->division.grid, 1, r->config.over, 0.0, &b->control));
    TAM_TRY(r->device->open(&b->division.grid, 0, r->config.threads, &b->kernels));
    TAM_TRY(open_never(b));
    if (tam_scheme_dense(r->scheme))
        b->acc = r->device->alloc(b->kernels, (size_t)b->layout->length * sizeof b->acc[0]);
    else
        TAM_TRY(open_acc(b));
    if (!b->acc)
        return tam_fail(TAMIS_E_NOMEM, "no memory for %llu elements of rows",
                        (unsigned long long)b->layout->length);
    TAM_TRY(tam_rows_plan(b));
    name_slots(b);
    return r->driver->open(b);
}

/* Kernels are opened for memory that the host cannot reach. */
static tamis_status open_dense(tam_bucket *b) {
    tamis_reducer *r = b->reducer;
    if (tam_scheme_auto(r->scheme)) {
        TAM_TRY(open_residual(b));
    } else if (r->config.device != TAMIS_DEVICE_CPU) {
        TAM_TRY(tam_division_open(b->layout, b->scheme, r->comm->nranks, 0, &b->division));
        TAM_TRY(r->device->open(&b->division.grid, 0, r->config.threads, &b->kernels));
    }
    return r->driver->open(b);
}

/* Where it lies, what this rank holds of it, and how many entries it may get. */
static tamis_status place_bucket(tam_bucket *b, const tam_bucket_range *range) {
    tamis_reducer *r = b->reducer;
    b->first_segment = range->first_segment;
    b->begin = r->layout->begins[range->first_segment];
    TAM_TRY(tam_layout_part(r->layout, range->first_segment, range->nsegments, &b->layout));
    if (!tam_scheme_rows(b->scheme))
        b->k_max = tam_bucket_share_max(r->k_max, b->layout->length, r->layout->ordinary,
                                        r->config.share, tam_ordinary_buckets(r));
    if (r->config.ranks_per_node > 1) {
        TAM_TRY(tam_slice_place(b, b->k_max));
        b->k_max = tam_share_max(&b->slice->division, b->k_max);
        b->k = tam_slice_share(b, b->whole_k);
    }
    b->held_at = r->held;
    r->held += held_layout(b)->length;
    return TAMIS_OK;
}

static tamis_status open_bucket(tam_bucket *b) {
    if (tam_scheme_rows(b->scheme))
        return open_rows(b);
    return tam_scheme_dense(b->scheme) ? open_dense(b) : open_sparse(b);
}

static void close_bucket(tam_bucket *b) {
    tamis_reducer *r = b->reducer;
    r->driver->close(b);
    for (float **of[] = {&r->acc, &r->first, &r->second}, ***v = of; v < of + 3; v++) {
        if (**v && b->index == 0)
            r->device->release(b->kernels, **v);
    }
    if (!r->acc && b->acc)
        r->device->release(b->kernels, b->acc);
    tam_rows_close(b);
    tam_slice_close(b);
    if (b->kernels)
        r->device->close(b->kernels);
    tam_free(b->never);
    tam_control_close(&b->control);
    tam_division_close(&b->division);
    tamis_layout_destroy(b->layout);
}

/* -- all of them ------------------------------------------------------------------------------ */

static uint32_t plan(const tamis_reducer *r, tam_bucket_range *ranges) {
    const tamis_reducer_config *c = &r->config;
    tam_link_model link = tam_reducer_link(r);
    return tam_bucket_plan(r->layout, c->bucket_length, c->density, r->comm->nranks,
                           tam_scheme_dense(r->scheme), &link, ranges);
}

/* Arrays that have one entry per bucket or segment. */
static tamis_status open_arrays(tamis_reducer *r) {
    uint32_t nbuckets = r->nbuckets, nsegments = r->layout->nsegments;
    r->buckets = tam_alloc_array(nbuckets, sizeof r->buckets[0]);
    r->lengths = tam_alloc_array(nbuckets, sizeof r->lengths[0]);
    r->shares = tam_alloc_array(2 * (size_t)nbuckets, sizeof r->shares[0]);
    r->norms = tam_alloc_array(nbuckets, sizeof r->norms[0]);
    r->picked = tam_alloc_array(r->comm->nranks, sizeof r->picked[0]);
    r->bucket_of = tam_alloc_array(nsegments, sizeof r->bucket_of[0]);
    r->ready = tam_alloc_array(nsegments, sizeof r->ready[0]);
    r->places = tam_alloc_array(nsegments, sizeof r->places[0]);
    if (!r->buckets || !r->lengths || !r->shares || !r->norms || !r->picked || !r->bucket_of ||
        !r->ready || !r->places)
        return tam_fail(TAMIS_E_NOMEM, "no memory for %u buckets of %u segments", nbuckets,
                        nsegments);
    return TAMIS_OK;
}

static void assign(tamis_reducer *r, const tam_bucket_range *ranges) {
    static const tam_scheme rows = {TAM_OWN_ALL, TAM_BUDGET_GLOBAL, TAM_THRESHOLD_EXACT,
                                    TAM_EXCHANGE_ROWS};
    uint32_t ordinary = 0;
    for (uint32_t i = 0; i < r->nbuckets; i++) {
        const tam_bucket_range *range = &ranges[i];
        uint32_t first = range->first_segment, end = first + range->nsegments;
        bool rowed = tam_segment_rowed(r->layout, first);
        r->buckets[i].reducer = r;
        r->buckets[i].scheme = rowed ? rows : r->scheme; /* or what the bucket chooses */
        r->buckets[i].index = i;
        if (!rowed)
            r->lengths[ordinary++] = r->layout->begins[end] - r->layout->begins[first];
        for (uint32_t s = first; s < end; s++)
            r->bucket_of[s] = i;
    }
}

/* Among the buckets whose segments have no rows. */
static void share(tamis_reducer *r, const double *norms) {
    double own[TAM_BUCKETS_MAX];
    uint32_t count = 0, taken = 0;
    for (uint32_t i = 0; i < r->nbuckets; i++) {
        if (!tam_scheme_rows(r->buckets[i].scheme))
            own[count++] = norms ? norms[i] : 0.0;
    }
    tam_bucket_shares(r->k, count, r->lengths, norms ? own : NULL, r->shares + count, r->shares);
    for (uint32_t i = 0; i < r->nbuckets; i++) {
        tam_bucket *b = &r->buckets[i];
        b->whole_k = tam_scheme_rows(b->scheme) ? 0 : r->shares[taken++];
        b->k = b->slice ? tam_slice_share(b, b->whole_k) : b->whole_k;
    }
}

/* Room for the result of all buckets. */
static tamis_status open_result(tamis_reducer *r) {
    size_t most = 0;
    for (uint32_t i = 0; i < r->nbuckets; i++) {
        const tam_bucket *b = &r->buckets[i];
        most += b->slice ? (size_t)b->slice->k_max : b->union_max;
    }
    if (r->nbuckets == 1 || r->ndense > 0 || r->driver != &tam_driver_host)
        return TAMIS_OK;
    r->indices = tam_alloc_array(most, sizeof r->indices[0]);
    r->values = tam_alloc_array(most, sizeof r->values[0]);
    if (!r->indices || !r->values)
        return tam_fail(TAMIS_E_NOMEM, "no memory for a result of %zu entries", most);
    return TAMIS_OK;
}

/* For all buckets that are summed whole: they take turns. */
static tamis_status open_staging(tamis_reducer *r) {
    size_t most = 0;
    for (uint32_t i = 0; i < r->nbuckets && r->driver == &tam_driver_host; i++) {
        const tam_bucket *b = &r->buckets[i];
        size_t needed = tam_scheme_dense(b->scheme) ? tam_dense_staging(b) : 0;
        most = needed > most ? needed : most;
    }
    if (most == 0)
        return TAMIS_OK;
    r->staging = tam_alloc_array(most, sizeof r->staging[0]);
    return r->staging ? TAMIS_OK : tam_fail(TAMIS_E_NOMEM, "no memory for pieces of the gradient");
}

tamis_status tam_buckets_open(tamis_reducer *r) {
    tam_bucket_range ranges[TAM_BUCKETS_MAX];
    r->nbuckets = plan(r, ranges);
    if (r->nbuckets == 0)
        return tam_fail(
            TAMIS_E_UNSUPPORTED,
            "the layout has %u segments with rows, each a bucket, and there are at most "
            "%d buckets; join some, or use several reducers",
            r->layout->nrowed, TAM_BUCKETS_MAX);
    TAM_TRY(open_arrays(r));
    assign(r, ranges);
    share(r, NULL);
    tam_buckets_choose(r);
    r->driver = tam_driver_find(r);
    for (uint32_t i = r->nbuckets; i-- > 0;) /* the last one holds the first elements */
        TAM_TRY(place_bucket(&r->buckets[i], &ranges[i]));
    for (uint32_t i = 0; i < r->nbuckets; i++)
        TAM_TRY(open_bucket(&r->buckets[i]));
    TAM_TRY(open_staging(r));
    TAM_TRY(open_result(r));
    tam_buckets_share(r);
    return TAMIS_OK;
}

void tam_buckets_close(tamis_reducer *r) {
    for (uint32_t i = r->nbuckets; r->driver && i-- > 0;)
        close_bucket(&r->buckets[i]);
    if (!tam_reducer_lingers(r))
        tam_free(r->staging);
    tam_free(r->values);
    tam_free(r->indices);
    tam_free(r->places);
    tam_free(r->ready);
    tam_free(r->bucket_of);
    tam_free(r->picked);
    tam_free(r->norms);
    tam_free(r->shares);
    tam_free(r->lengths);
    tam_free(r->buckets);
}

void tam_buckets_share(tamis_reducer *r) {
    const double *norms = shared_by_norm(r) && r->has_norms ? r->norms : NULL;
    share(r, norms);
    for (uint32_t i = 0; i < r->nbuckets; i++) {
        tam_bucket *b = &r->buckets[i];
        if (b->rows || !r->acc) /* nothing is chosen */
            continue;
        tam_control_aim(&b->control, aim_of(b));
        if (b->slots.memory && !b->slots.growing)
            tam_slots_limit(&b->slots, tam_bucket_slot(b, b->k));
        if (b->slice)
            tam_slots_limit(&b->slice->slots, tam_share_max(&b->slice->division, b->whole_k));
    }
}
