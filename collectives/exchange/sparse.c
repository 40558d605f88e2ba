/* SPDX-License-Identifier: MIT */
#include "collectives/exchange/sparse.h"

#include "lib/policy/rules.h"

#include <math.h>

/* -- packets ---------------------------------------------------------------------------------- */

/* Chosen from numbers that all ranks share. Growing packets may be as long as the part, so the
 * count that is aimed at decides for them. */
static tamis_index_codec sparse_choose_index_codec(const tam_bucket_view *v,
                                                   const tam_packets *packets) {
    uint64_t ranks = tam_selection_scheme(v).ownership == TAM_OWN_ALL ? 1 : v->nranks;
    uint64_t count = tam_selection_most(v, v->k), targeted = (v->k + ranks - 1) / ranks;
    if (v->index_codec != TAMIS_INDEX_AUTO)
        return v->index_codec;
    return tam_index_codec_choose(packets->span,
                                  packets->growing && targeted < count ? targeted : count,
                                  packets->value_codec->bits <= TAM_VALUE_FEW_BITS);
}

/* A leader's list is sent in pieces if the transport sends runs to single ranks, and there is more
 * than one other rank to share the work. */
static bool is_led(const tam_bucket_view *v) {
    return tam_selection_scheme(v).ownership == TAM_OWN_LEADER && v->nranks > 2 &&
           tam_selection_bounded(v) && !v->gathers;
}

static bool has_times(const tam_bucket_view *v) {
    return v->config->slowdown > 0.0 && v->index == 0;
}

static uint32_t sparse_nwords(const tam_bucket_view *v) {
    if (tam_selection_scheme(v).ownership == TAM_OWN_BALANCED)
        return 1; /* entries that did not fit */
    return has_times(v) ? 2 : 0;
}

tam_packets tam_sparse_packets(const tam_bucket_view *v) {
    tam_packets packets = {
        .rank = v->rank,
        .nranks = v->nranks,
        .first = v->node_shard->local,
        .stride = v->node_shard->nlocal,
        .nwords = sparse_nwords(v),
        .capacity = tam_selection_most(v, v->k_max),
        .growing = !tam_selection_bounded(v),
        .led = is_led(v),
        .value_codec = tam_value_codec_of(tam_value_codec_resolve(v->config->value_codec)),
        .span = tam_own_max(v->division),
        .config = v->config_hash,
    };
    packets.index_codec = sparse_choose_index_codec(v, &packets);
    return packets;
}

/* Lists of exclusive owners cannot overlap, so n bounds their union. Lists of `all` need room for
 * every entry, as the merge removes duplicates only step by step. */
size_t tam_sparse_union(const tam_bucket_view *v, const tam_packets *packets) {
    tam_ownership ownership = tam_selection_scheme(v).ownership;
    uint64_t sent = (uint64_t)packets->capacity * v->nranks, n = v->division->grid.n;
    if (ownership == TAM_OWN_BINS)
        return (size_t)n;
    return (size_t)(ownership == TAM_OWN_ALL || sent < n ? sent : n);
}

/* -- memory ----------------------------------------------------------------------------------- */

/* The union, its values, what it is merged in, and what the exchange adds to that. A union of at
 * most n entries does not grow with the number of ranks, and is not counted. */
static uint64_t bytes_beside(const tam_sparse *s, bool shared) {
    if (s->most <= s->view->division->grid.n)
        return s->packets.beside;
    uint32_t arrays = 2 + (shared ? 1 : 0) + (s->quantizes ? 1 : 0);
    unsigned __int128 bytes = (unsigned __int128)s->most * (arrays * sizeof s->values[0]);
    bytes += s->packets.beside;
    return bytes < UINT64_MAX ? (uint64_t)bytes : UINT64_MAX;
}

/* The sums of an inter-node group have no room for more than its values. */
tam_counter_way tam_sparse_way(const tam_bucket_view *v, bool summed) {
    enum { FEW = 8 }; /* up to so many ranks a sum of their own does not pay */
    if (v->node_shard->nlocal > 1)
        return TAM_COUNTERS_IN_HEADERS;
    if (summed)
        return TAM_COUNTERS_WITH_VALUES;
    return v->nranks > FEW ? TAM_COUNTERS_ALONE : TAM_COUNTERS_IN_HEADERS;
}

tamis_status tam_sparse_open_counters(tam_sparse *s) {
    s->ncounters = TAM_COUNTERS + tam_selection_sums(s->view);
    s->packets.ncounters = s->way == TAM_COUNTERS_IN_HEADERS ? s->ncounters : 0;
    s->counters = tam_alloc_array(s->ncounters, sizeof s->counters[0]);
    return s->counters ? TAMIS_OK
                       : tam_fail(TAMIS_E_NOMEM, "no memory for %u counters", s->ncounters);
}

tamis_status tam_sparse_open(tam_sparse *s) {
    tam_bucket_view *v = s->view;
    bool shared = tam_selection_scheme(v).ownership == TAM_OWN_ALL && !s->packets.headers_only;
    size_t decoded = s->packets.with_values ? (size_t)v->nranks * TAM_MERGE_BLOCK : 0;
    s->packets.beside = bytes_beside(s, shared);
    TAM_TRY(tam_sparse_open_counters(s));
    TAM_TRY(tam_packets_open(&s->packets));
    s->indices = tam_alloc_array(s->most, sizeof s->indices[0]);
    s->values = tam_alloc_array(s->most + s->ncounters, sizeof s->values[0]);
    s->scratch = tam_alloc_array(shared ? s->most : 0, sizeof s->scratch[0]);
    s->errors = s->quantizes ? tam_alloc_array(s->most, sizeof s->errors[0]) : NULL;
    s->decoded = tam_alloc_array(decoded, sizeof s->decoded[0]);
    s->ranges = tam_alloc_array(v->nranks, sizeof s->ranges[0]);
    s->owners = tam_alloc_array(v->nranks, sizeof s->owners[0]);
    s->cursors = tam_alloc_array(v->nranks, sizeof s->cursors[0]);
    s->lists = tam_alloc_array(v->nranks, sizeof s->lists[0]);
    if (!s->indices || !s->values || !s->scratch || (s->quantizes && !s->errors) || !s->decoded ||
        !s->ranges || !s->owners || !s->cursors || !s->lists)
        return tam_fail(TAMIS_E_NOMEM, "no memory for a union of %zu entries", s->most);
    s->packets.ranges = s->ranges;
    v->index_codec = s->packets.index_codec;
    v->result_max = s->most;
    v->gather_max = s->packets.header_step;
    return tam_packing_open(v, &s->packing);
}

void tam_sparse_close(tam_sparse *s, bool in_flight) {
    if (!in_flight) {
        tam_packets_close(&s->packets);
        tam_free(s->values);
        tam_free(s->counters);
    }
    tam_packing_close(&s->packing, in_flight);
    tam_free(s->indices);
    tam_free(s->scratch);
    tam_free(s->errors);
    tam_free(s->decoded);
    tam_free(s->ranges);
    tam_free(s->owners);
    tam_free(s->cursors);
    tam_free(s->lists);
}

void tam_sparse_limit(void *self) {
    tam_sparse *s = self;
    if (!s->packets.growing)
        tam_packets_limit(&s->packets, tam_selection_most(s->view, s->view->k));
}

/* -- what this rank selects ------------------------------------------------------------------- */

tamis_status tam_sparse_accumulate(void *self) {
    tam_bucket_view *v = ((tam_sparse *)self)->view;
    return v->device->accumulate(v->kernels, &v->target, &v->accumulated);
}

tamis_status tam_sparse_plan(void *self, tam_link *link) {
    tam_sparse *s = self;
    const tam_bucket_view *v = s->view;
    for (uint32_t i = 0; i < v->nranks; i++)
        s->ranges[i] = tam_strided_of(v->division, tam_part_of(v->division, v->step, i));
    s->packets.leader = tam_owner_of(v->division, v->step, 0); /* if they are led */
    s->packets.config = tam_view_config(v, v->k);
    return tam_selection_plan(v, &s->packing, link, &s->packets.config);
}

static uint32_t at_most_32_bits(uint64_t count) {
    return (uint32_t)(count < UINT32_MAX ? count : UINT32_MAX);
}

static void fill_counters(tam_sparse *s, const tam_select_result *result) {
    const tam_bucket_view *v = s->view;
    const tam_candidates *seen = &v->accumulated.candidates;
    bool listed = tam_rule_listed(tam_selection_scheme(v).threshold, &v->control->state);
    bool known = listed && seen->complete;
    float *shares = s->counters + TAM_COUNTERS;
    tam_counter_set(s->counters, TAM_COUNTER_DEFERRED, (uint32_t)result->deferred);
    tam_counter_set(s->counters, TAM_COUNTER_CANDIDATES, known ? (uint32_t)seen->count : 0);
    tam_counter_set(s->counters, TAM_COUNTER_NONFINITE,
                    at_most_32_bits(v->accumulated.nonfinite + v->early_nonfinite));
    s->counters[TAM_COUNTER_UNKNOWN] = known ? 0.0f : 1.0f;
    s->counters[TAM_COUNTER_RESCANS] = result->rescanned ? 1.0f : 0.0f;
    for (uint32_t g = 0; g < s->ncounters - TAM_COUNTERS; g++)
        shares[g] = tam_counter_share(v->accumulated.group_sums[g], v->nranks);
}

void tam_sparse_fill_header(tam_sparse *s, const tam_select_result *result) {
    tam_bucket_view *v = s->view;
    tam_header *h = tam_packet_begin(&s->packets);
    bool has_key = result->count > 0 && result->key > 0.0f && isfinite(result->key);
    bool bad = v->accumulated.nonfinite + v->early_nonfinite > 0;
    s->packets.step = v->step;
    s->packets.last_result = v->last_result;
    h->count = (uint32_t)result->count;
    h->busy_us = v->busy_us;
    h->key = result->key;
    tam_header_flag(h, (has_key ? TAM_HEADER_HAS_KEY : 0) | (bad ? TAM_HEADER_NONFINITE : 0));
    v->out.own_found = (uint64_t)result->count + result->deferred;
    fill_counters(s, result);
    memcpy(tam_packet_own_counters(&s->packets), s->counters,
           s->packets.ncounters * sizeof s->counters[0]);
    if (tam_selection_scheme(v).ownership == TAM_OWN_BALANCED)
        tam_packet_own_words(&s->packets)[0] = (uint32_t)result->deferred;
    else if (has_times(v)) {
        tam_packet_own_words(&s->packets)[0] = v->computing_us;
        tam_packet_own_words(&s->packets)[1] = v->waited_us;
    }
}

tamis_status tam_sparse_select(void *self) {
    tam_sparse *s = self;
    tam_select_result result = {0};
    TAM_TRY(tam_selection_run(s->view, &s->packing, s->packets.limit,
                              tam_packet_own_indices(&s->packets), &result));
    tam_sparse_fill_header(s, &result);
    return TAMIS_OK;
}

/* In lanes: a single sum would wait for each of its additions. */
double tam_sparse_squares(const float *values, size_t count) {
    enum { LANES = 8 };
    double sums[LANES] = {0}, sum = 0.0;
    size_t whole = count - count % LANES;
    for (size_t i = 0; i < whole; i += LANES) {
        for (size_t j = 0; j < LANES; j++)
            sums[j] += (double)values[i + j] * values[i + j];
    }
    for (size_t i = whole; i < count; i++)
        sum += (double)values[i] * values[i];
    for (size_t j = 0; j < LANES; j++)
        sum += sums[j];
    return sum;
}

tamis_status tam_sparse_select_values(tam_sparse *s) {
    tam_bucket_view *v = s->view;
    size_t count = tam_packet_own_header(&s->packets)->count;
    TAM_TRY(v->device->gather(v->kernels, v->acc, tam_packet_own_indices(&s->packets), count,
                              s->values));
    v->out.sent_sum = tam_sparse_squares(s->values, count);
    tam_value_encode(s->packets.value_codec, s->values, count, tam_packet_own_values(&s->packets),
                     s->errors);
    if (s->errors)
        v->out.sent_sum -= tam_sparse_squares(s->errors, count);
    return TAMIS_OK;
}

/* -- what all ranks selected ------------------------------------------------------------------ */

static void add_up_headers(tam_sparse *s) {
    tam_outcome *out = &s->view->out;
    out->bad_first = s->view->nranks;
    out->bad_ranks = 1;
    out->found = 0;
    out->headers = tam_packet_headers(&s->packets);
    for (uint32_t i = s->view->nranks; i-- > 0;) {
        const tam_header *h = tam_packet_header_of(&s->packets, i);
        out->selected[tam_packet_rank(&s->packets, i)] = h->count;
        out->found += h->count;
        out->bad_first = tam_header_flags(h) & TAM_HEADER_NONFINITE ? i : out->bad_first;
    }
}

/* Thresholds of the next step, and budgets of buckets, follow from the means. */
void tam_sparse_report_counters(tam_sparse *s) {
    tam_outcome *out = &s->view->out;
    const float *all = s->counters;
    out->deferred = tam_counter_get(all, TAM_COUNTER_DEFERRED);
    out->nonfinite = tam_counter_get(all, TAM_COUNTER_NONFINITE);
    out->rescans = tam_counter_whole(all[TAM_COUNTER_RESCANS]);
    out->candidates =
        all[TAM_COUNTER_UNKNOWN] > 0.0f ? 0 : tam_counter_get(all, TAM_COUNTER_CANDIDATES);
    out->seen = out->candidates;
    out->found += out->deferred;
    out->nmeans = s->ncounters - TAM_COUNTERS;
    out->norm = 0.0;
    for (uint32_t g = 0; g < out->nmeans; g++) {
        out->means[g] = all[TAM_COUNTERS + g];
        out->norm += sqrt(out->means[g]);
    }
}

void tam_sparse_report(tam_sparse *s, size_t count, tam_entries sent) {
    tam_outcome *out = &s->view->out;
    out->result = out->local = (tam_entries){s->indices, s->values, count};
    out->sent = sent;
}

/* Where values follow, they take counters with them, unless they will not come. */
static tamis_status add_up_counters(tam_sparse *s, tam_link *link, bool stops) {
    if (s->way == TAM_COUNTERS_WITH_VALUES && !stops)
        return TAMIS_OK;
    if (s->way == TAM_COUNTERS_IN_HEADERS)
        tam_packets_total(&s->packets, s->counters);
    else
        TAM_TRY(link->transport->allreduce_sum(link->self, s->counters, s->ncounters, &link->call));
    tam_sparse_report_counters(s);
    return TAMIS_OK;
}

tamis_status tam_sparse_gather(tam_sparse *s, tam_link *link, bool *stops) {
    tam_bucket_view *v = s->view;
    tam_packet_own_header(&s->packets)->began_us = v->began_us;
    TAM_TRY(tam_packets_exchange(&s->packets, link));
    add_up_headers(s);
    tam_sparse_report(s, 0, (tam_entries){0});
    bool bad = v->out.bad_first < v->nranks, drops = v->config->nonfinite == TAMIS_NONFINITE_DROP;
    v->skipped = v->skipped || (v->decides && bad && !drops);
    *stops = v->decides && v->skipped;
    return add_up_counters(s, link, *stops);
}

tamis_status tam_sparse_build_union(tam_sparse *s, size_t *count) {
    const tam_bucket_view *v = s->view;
    const tam_grid *grid = &v->division->grid;
    if (tam_selection_scheme(v).ownership == TAM_OWN_ALL)
        return tam_merge_shared(&s->packets, grid->n, s->lists, s->scratch, s->indices, count);
    for (uint32_t p = 0; p < v->nranks; p++)
        s->owners[p] = tam_owner_of(v->division, v->step, p);
    return tam_merge_exclusive(&s->packets, grid, s->owners, s->lists, s->indices, count);
}

/* -- the end ---------------------------------------------------------------------------------- */

/* Drop an entry of what this rank holds, and its rounding error. */
static void drop_entry(tam_bucket_view *v, size_t i) {
    tam_entries *local = &v->out.local, *sent = &v->out.sent;
    uint32_t index = local->indices[i];
    size_t own = tam_first_from(sent->indices, 0, sent->count, index);
    local->values[i] = 0.0f;
    if (sent->values && own < sent->count && sent->indices[own] == index)
        sent->values[own] = 0.0f;
    v->device->put(v->kernels, v->acc, &index, 1, NULL);
    if (v->masked)
        v->device->put(v->kernels, v->masked, &index, 1, NULL);
}

/* Drops sums that would not be finite as applied, that is, after the division. */
uint64_t tam_sparse_drop(void *self) {
    tam_bucket_view *v = ((tam_sparse *)self)->view;
    tam_entries *all = &v->out.result, *local = &v->out.local;
    uint64_t bad = 0;
    for (size_t i = 0; i < all->count; i++)
        bad += !isfinite(all->values[i] / v->divisor);
    for (size_t i = 0; bad > 0 && i < local->count; i++) {
        if (!isfinite(local->values[i] / v->divisor))
            drop_entry(v, i);
    }
    for (size_t i = 0; bad > 0 && i < all->count; i++)
        all->values[i] = isfinite(all->values[i] / v->divisor) ? all->values[i] : 0.0f;
    return bad;
}

/* Entries that this rank sent leave its residual; rounding errors stay. */
static tamis_status sparse_leave(const tam_bucket_view *v) {
    const tam_entries *sent = &v->out.sent;
    TAM_TRY(v->device->put(v->kernels, v->acc, sent->indices, sent->count, sent->values));
    if (!v->masked)
        return TAMIS_OK;
    return v->device->put(v->kernels, v->masked, sent->indices, sent->count, NULL);
}

/* The hash of what was summed, and could differ between ranks without a word: values, and counters
 * that were not in headers. */
static uint64_t hash_result(const tam_sparse *s) {
    const tam_entries *all = &s->view->out.result;
    uint64_t sum = tam_sum_bytes(TAM_SUM_RESULT, all->values, all->count * sizeof all->values[0]);
    if (s->way != TAM_COUNTERS_IN_HEADERS)
        sum += tam_sum_bytes(TAM_SUM_COUNTERS, s->counters, s->ncounters * sizeof s->counters[0]);
    return sum;
}

tamis_status tam_sparse_apply(void *self) {
    tam_bucket_view *v = ((tam_sparse *)self)->view;
    const tam_entries *all = &v->out.result;
    tam_accumulate target = v->target;
    if (v->config->output == TAMIS_OUTPUT_SPARSE) {
        target.grad = NULL;
        target.grads = NULL;
    }
    TAM_TRY(v->device->apply(v->gradient_kernels, &target, all->indices, all->count, v->divisor,
                             all->values));
    v->last_result = hash_result(self);
    return sparse_leave(v);
}
