/* SPDX-License-Identifier: MIT
 *
 * The buckets of a reducer: where the layout is divided, what each of them needs, and how many
 * entries of a step each gets.
 */
#include "collectives/reducer/rollback.h"

#include "collectives/exchange/selection.h"
#include "lib/base/half.h"
#include "lib/base/hash.h"

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

/* Allocated once, by the kernels of the first bucket, and shared by all. */
static tamis_status open_vector(tam_bucket *b, float **vector, const char *what) {
    const tamis_reducer *r = b->reducer;
    if (!*vector)
        *vector = r->device->alloc(b->view.kernels, (size_t)r->residual_length * sizeof **vector);
    return *vector ? TAMIS_OK
                   : tam_fail(TAMIS_E_NOMEM, "no memory for %s of %llu elements", what,
                              (unsigned long long)r->residual_length);
}

static tamis_status open_shared_residual(tam_bucket *b) {
    tamis_reducer *r = b->reducer;
    const tamis_update *u = r->config.update;
    TAM_TRY(open_vector(b, &r->acc, "a residual"));
    if (u && u->beta1 > 0.0)
        TAM_TRY(open_vector(b, &r->first, "first moments"));
    if (u && u->rule == TAMIS_UPDATE_ADAM)
        TAM_TRY(open_vector(b, &r->second, "second moments"));
    b->view.acc = r->acc + b->residual_begin;
    b->view.has_residual = true;
    if (tam_update_masks(r))
        b->view.masked = r->first + b->view.begin;
    return TAMIS_OK;
}

/* Scheme dense keeps no residual, so a bucket whose exchange selects gets its own, to sum a step
 * in. All other schemes share one, even for buckets that do not select: micro-batches need a place,
 * and all states of a reducer must have the same shape. */
static tamis_status open_residual(tam_bucket *b) {
    const tamis_reducer *r = b->reducer;
    size_t length = (size_t)b->node_shard.layout->length;
    if (!tam_scheme_dense(r->scheme))
        return open_shared_residual(b);
    if (!(b->exchange->traits & TAM_TRAIT_SELECTS))
        return TAMIS_OK;
    b->view.acc = r->device->alloc(b->view.kernels, length * sizeof b->view.acc[0]);
    return b->view.acc ? TAMIS_OK
                       : tam_fail(TAMIS_E_NOMEM, "no memory for %zu elements of rows", length);
}

static tamis_status open_control(tam_bucket *b) {
    const tamis_reducer *r = b->reducer;
    uint32_t ngroups = b->division.grid.ngroups;
    b->min_keys = tam_alloc_array(r->nranks, sizeof b->min_keys[0]);
    b->group_selected = tam_alloc_array(ngroups, sizeof b->group_selected[0]);
    b->view.out.selected = tam_alloc_array(r->comm->nranks, sizeof b->view.out.selected[0]);
    b->view.out.means = tam_alloc_array(ngroups, sizeof b->view.out.means[0]);
    if (!b->min_keys || !b->group_selected || !b->view.out.selected || !b->view.out.means)
        return tam_fail(TAMIS_E_NOMEM, "no memory to learn from %u groups of %u ranks", ngroups,
                        r->comm->nranks);
    return tam_control_open(b->scheme, &b->division.grid, tam_bucket_threshold_k(b),
                            r->config.overselect, r->config.threshold, &b->control);
}

/* Buckets, or reducers of one communicator, may have the same configuration; their messages must
 * differ. */
static uint64_t hash_config(const tam_bucket *b) {
    const tamis_reducer *r = b->reducer;
    uint64_t who[] = {tam_config_handshake_hash(&r->handshake), r->serial, b->view.index};
    return tam_hash(who, sizeof who);
}

/* What an exchange may see of its bucket; k and the requested index codec are already set. */
static void fill_view(tam_bucket *b) {
    tamis_reducer *r = b->reducer;
    tam_bucket_view *v = &b->view;
    v->config = &r->config;
    v->layout = b->layout;
    v->node_shard = &b->node_shard;
    v->division = &b->division;
    v->control = &b->control;
    v->device = r->device;
    v->comm_rank = r->comm->rank;
    v->comm_nranks = r->comm->nranks;
    v->rank = r->rank;
    v->nranks = r->nranks;
    v->reducer = r->serial;
    v->config_hash = hash_config(b);
    v->norms = !tam_scheme_is_sparse_rows(b->scheme) &&
               (tam_buckets_by_norm(r) || tam_update_has_norm_matching(r));
    v->gathers = r->comm->transport->capabilities & TAM_CAP_GATHERS;
    v->encoded = r->comm->transport->encoded != NULL;
    v->decides = true;
}

/* Where the bucket lies, what this rank holds of it, and how many entries it may get. */
static tamis_status lay_out_bucket(tam_bucket *b, const tam_bucket_range *range) {
    tamis_reducer *r = b->reducer;
    tam_bucket_view *v = &b->view;
    uint32_t nlocal = r->comm->nranks / r->nranks;
    v->begin = r->layout->begins[range->first_segment];
    TAM_TRY(tam_layout_part(r->layout, range->first_segment, range->nsegments, &b->layout));
    TAM_TRY(tam_node_shard_open(b->layout, r->comm->rank % nlocal, nlocal, &b->node_shard));
    v->whole_k_max = tam_bucket_most(b, r->k_max);
    v->k_max = tam_budget_max(&b->node_shard.division, v->whole_k_max);
    v->k = tam_node_shard_budget(&b->node_shard, v->whole_k);
    b->residual_begin = r->residual_length;
    r->residual_length += b->node_shard.layout->length;
    fill_view(b);
    return TAMIS_OK;
}

static tamis_status open_bucket(tam_bucket *b) {
    tamis_reducer *r = b->reducer;
    const tamis_reducer_config *c = &r->config;
    tam_bucket_view *v = &b->view;
    TAM_TRY(tam_division_open(b->node_shard.layout, b->scheme, r->nranks, c->block, &b->division));
    TAM_TRY(open_control(b));
    size_t candidates = b->exchange->traits & TAM_TRAIT_LEARNS ? tam_selection_candidates(v) : 0;
    TAM_TRY(r->device->open(&b->division.grid, candidates, c->threads, &v->kernels));
    v->gradient_kernels = v->kernels;
    TAM_TRY(open_never(b));
    TAM_TRY(open_residual(b));
    return r->driver->open(b);
}

static void close_bucket(tam_bucket *b) {
    tamis_reducer *r = b->reducer;
    tam_bucket_view *v = &b->view;
    r->driver->close(b);
    for (float **of[] = {&r->acc, &r->first, &r->second}, ***a = of; a < of + 3; a++) {
        if (**a && v->index == 0)
            r->device->release(v->kernels, **a);
    }
    if (!v->has_residual && v->acc)
        r->device->release(v->kernels, v->acc);
    if (v->kernels)
        r->device->close(v->kernels);
    tam_free(v->out.selected);
    tam_free(b->min_keys);
    tam_free(v->out.means);
    tam_free(b->group_selected);
    tam_free(b->never);
    tam_control_close(&b->control);
    tam_division_close(&b->division);
    tam_node_shard_close(&b->node_shard);
    tamis_layout_destroy(b->layout);
}

/* -- all of them ------------------------------------------------------------------------------ */

/* @param like  NULL: as the options say */
static uint32_t buckets_plan(const tamis_reducer *r, const tamis_reducer *like,
                             tam_bucket_range *ranges) {
    const tamis_reducer_config *c = &r->config;
    for (uint32_t i = 0; like && i < like->nbuckets; i++)
        ranges[i] =
            (tam_bucket_range){like->buckets[i].first_segment, like->buckets[i].layout->nsegments};
    if (like)
        return like->nbuckets;
    const tam_model model = tam_reducer_model(r);
    const tam_bucket_rule rule = {.length = c->bucket_length,
                                  .density = c->density,
                                  .dense = tam_scheme_whole(r->scheme),
                                  .beside_s = 1e-6 * tam_comm_usual_link(r->comm).bucket_us,
                                  .net = model.net,
                                  .plan = model.plan};
    return tam_bucket_plan(r->layout, &rule, ranges);
}

/* Arrays that have one entry per bucket or segment. */
static tamis_status open_arrays(tamis_reducer *r) {
    uint32_t nbuckets = r->nbuckets, nsegments = r->layout->nsegments;
    r->buckets = tam_alloc_array(nbuckets, sizeof r->buckets[0]);
    r->lengths = tam_alloc_array(nbuckets, sizeof r->lengths[0]);
    r->budgets = tam_alloc_array(2 * (size_t)nbuckets, sizeof r->budgets[0]);
    r->norms = tam_alloc_array(nbuckets, sizeof r->norms[0]);
    r->selected = tam_alloc_array(r->comm->nranks, sizeof r->selected[0]);
    r->bucket_of = tam_alloc_array(nsegments, sizeof r->bucket_of[0]);
    r->ready = tam_alloc_array(nsegments, sizeof r->ready[0]);
    bool addresses =
        tam_addresses_open(&r->addresses, r->layout, tam_type_bytes(r->config.grad_dtype));
    if (!r->buckets || !r->lengths || !r->budgets || !r->norms || !r->selected || !r->bucket_of ||
        !r->ready || !addresses)
        return tam_fail(TAMIS_E_NOMEM, "no memory for %u buckets of %u segments", nbuckets,
                        nsegments);
    return TAMIS_OK;
}

static void assign(tamis_reducer *r, const tam_bucket_range *ranges) {
    static const tam_scheme rows = {TAM_OWN_ALL, TAM_BUDGET_GLOBAL, TAM_THRESHOLD_EXACT,
                                    TAM_EXCHANGE_SPARSE_ROWS};
    uint32_t ordinary = 0;
    for (uint32_t i = 0; i < r->nbuckets; i++) {
        const tam_bucket_range *range = &ranges[i];
        uint32_t first = range->first_segment, end = first + range->nsegments;
        bool sparse_rows = tam_segment_has_sparse_rows(r->layout, first);
        r->buckets[i].reducer = r;
        r->buckets[i].first_segment = first;
        r->buckets[i].bad_segment = TAM_SEGMENT_UNKNOWN;
        r->buckets[i].scheme = sparse_rows ? rows : r->scheme; /* or what the bucket chooses */
        r->buckets[i].view.index = i;
        if (!sparse_rows)
            r->lengths[ordinary++] = r->layout->begins[end] - r->layout->begins[first];
        for (uint32_t s = first; s < end; s++)
            r->bucket_of[s] = i;
    }
}

/* Room for the result of all buckets. */
static tamis_status buckets_open_result(tamis_reducer *r) {
    size_t most = 0;
    for (uint32_t i = 0; i < r->nbuckets; i++)
        most += r->buckets[i].view.result_max;
    if (r->nbuckets == 1 || !(r->traits & TAM_TRAIT_SELECTS) || !r->driver->by_host)
        return TAMIS_OK;
    r->indices = tam_alloc_array(most, sizeof r->indices[0]);
    r->values = tam_alloc_array(most, sizeof r->values[0]);
    if (!r->indices || !r->values)
        return tam_fail(TAMIS_E_NOMEM, "no memory for a result of %zu entries", most);
    return TAMIS_OK;
}

/* One buffer for all buckets, which take turns. */
static tamis_status buckets_open_staging(tamis_reducer *r) {
    size_t most = 0;
    for (uint32_t i = 0; i < r->nbuckets; i++) {
        size_t needed = r->buckets[i].view.staging_floats;
        most = needed > most ? needed : most;
    }
    if (most == 0)
        return TAMIS_OK;
    r->staging = tam_alloc_array(most, sizeof r->staging[0]);
    if (!r->staging)
        return tam_fail(TAMIS_E_NOMEM, "no memory for pieces of the gradient");
    for (uint32_t i = 0; i < r->nbuckets; i++)
        r->buckets[i].view.staging = r->staging;
    return TAMIS_OK;
}

tamis_status tam_buckets_open(tamis_reducer *r, const tamis_reducer *like) {
    tam_bucket_range ranges[TAM_BUCKETS_MAX];
    r->nbuckets = buckets_plan(r, like, ranges);
    if (r->nbuckets == 0)
        return tam_fail(TAMIS_E_UNSUPPORTED,
                        "the layout has %u segments with rows, each of them a bucket, but there "
                        "can be at most %d buckets; join some, or use several reducers",
                        r->layout->nrow_segments, TAM_BUCKETS_MAX);
    TAM_TRY(open_arrays(r));
    assign(r, ranges);
    tam_buckets_budget_first(r);
    tam_buckets_choose(r);
    r->driver = tam_driver_find(r);
    r->handshake.fields[TAM_FACT_DRIVER] = !r->driver->by_host;
    for (uint32_t i = r->nbuckets; i-- > 0;) /* the last one holds the first elements */
        TAM_TRY(lay_out_bucket(&r->buckets[i], &ranges[i]));
    for (uint32_t i = 0; i < r->nbuckets; i++)
        TAM_TRY(open_bucket(&r->buckets[i]));
    TAM_TRY(buckets_open_staging(r));
    TAM_TRY(buckets_open_result(r));
    tam_buckets_budget(r);
    return tam_rollback_open(r);
}

void tam_buckets_close(tamis_reducer *r) {
    for (uint32_t i = r->nbuckets; r->driver && i-- > 0;)
        close_bucket(&r->buckets[i]);
    if (!tam_reducer_buffers_in_flight(r))
        tam_free(r->staging);
    tam_rollback_close(r);
    tam_free(r->values);
    tam_free(r->indices);
    tam_addresses_close(&r->addresses);
    tam_free(r->ready);
    tam_free(r->bucket_of);
    tam_free(r->selected);
    tam_free(r->norms);
    tam_free(r->budgets);
    tam_free(r->lengths);
    tam_free(r->buckets);
}
