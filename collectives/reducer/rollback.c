/* SPDX-License-Identifier: MIT */
#include "collectives/reducer/rollback.h"

#include "collectives/reducer/snapshot.h"

#include "lib/base/numbers.h"

#include <math.h>

/* Steps with a learned count may send several times as many entries as they aim at. */
enum { TIMES = 4, SPARE = 4096, ROWS_ONE_IN = 16 };

typedef struct rollback_list {
    uint64_t count, passes;
    double decay, keep; /* of the residual and of masked moments, in the passes since */
} rollback_list;

/* -- where things are ------------------------------------------------------------------------- */

/* Most entries that may leave a bucket's residual in a step that can be rolled back. Depends only
 * on what all states of such a reducer have in common, not on codecs or on what exchange auto
 * chose. Even, to keep the lists 8-byte aligned. */
static size_t rollback_capacity_of(const tam_bucket *b) {
    const tamis_reducer *r = b->reducer;
    tam_scheme s = tam_scheme_sparse(r->scheme);
    bool sparse_rows = b->layout->nrow_segments > 0;
    uint64_t n = b->division.grid.n, targeted = sparse_rows ? n / ROWS_ONE_IN : b->view.k_max;
    if (!r->acc)
        return 0;
    if (!sparse_rows && s.ownership == TAM_OWN_ALL && !tam_scheme_sends_selected(s))
        targeted *= r->nranks;
    if (sparse_rows || !tam_scheme_exact_count(s))
        targeted = TIMES * targeted + SPARE;
    return (size_t)((targeted < n ? targeted : n) + 1) / 2 * 2;
}

static size_t list_bytes(const tam_bucket *b, size_t capacity) {
    return sizeof(rollback_list) + capacity * sizeof(float) * (3 + tam_update_masks(b->reducer));
}

/* Header and snapshot. */
static size_t lists_at(const tamis_reducer *r) {
    return sizeof(tam_rollback) + tam_snapshot_bytes(r, tam_snapshot_ngroups(r), r->comm->nranks);
}

size_t tam_rollback_bytes(const tamis_reducer *r) {
    size_t bytes = lists_at(r);
    for (uint32_t i = 0; i < r->nbuckets; i++)
        bytes += list_bytes(&r->buckets[i], rollback_capacity_of(&r->buckets[i]));
    return bytes;
}

size_t tam_rollback_capacity(const tamis_reducer *r) {
    size_t most = 0;
    for (uint32_t i = 0; i < r->nbuckets; i++) {
        const tam_bucket *b = &r->buckets[i];
        size_t own = b->rollback_is_long ? b->rollback_long_capacity : b->rollback_capacity;
        most = tam_max(most, own);
    }
    return most;
}

void *tam_rollback_snapshot(const tamis_reducer *r) {
    return r->rollback + 1;
}

static rollback_list *list_in(const tam_bucket *b, const void *record) {
    return (rollback_list *)(void *)((char *)(uintptr_t)record + b->rollback_at);
}

static rollback_list *rollback_list_of(const tam_bucket *b) {
    return b->rollback_is_long ? b->rollback_long : list_in(b, b->reducer->rollback);
}

static uint32_t *rollback_indices_of(const rollback_list *list) {
    return (uint32_t *)(void *)(uintptr_t)(list + 1);
}

/* 0: values, 1: kept, 2: masked */
static float *values_of(const tam_bucket *b, const rollback_list *list, int which) {
    size_t capacity = list == b->rollback_long ? b->rollback_long_capacity : b->rollback_capacity;
    return (float *)(void *)rollback_indices_of(list) + (size_t)(which + 1) * capacity;
}

tamis_status tam_rollback_open(tamis_reducer *r) {
    size_t bytes = tam_rollback_bytes(r), at = lists_at(r);
    for (uint32_t i = 0; i < r->nbuckets; i++) {
        r->buckets[i].rollback_at = at;
        r->buckets[i].rollback_capacity = rollback_capacity_of(&r->buckets[i]);
        at += list_bytes(&r->buckets[i], r->buckets[i].rollback_capacity);
    }
    r->rollback = tam_alloc(bytes);
    if (!r->rollback)
        return tam_fail(TAMIS_E_NOMEM, "no memory to roll a step back: %zu bytes", bytes);
    return TAMIS_OK;
}

void tam_rollback_close(tamis_reducer *r) {
    for (uint32_t i = 0; r->buckets && i < r->nbuckets; i++)
        tam_free(r->buckets[i].rollback_long);
    tam_free(r->rollback);
}

/* -- while steps are made --------------------------------------------------------------------- */

void tam_rollback_invalidate(tamis_reducer *r, tam_rollback_state why) {
    r->rollback->state = why;
}

void tam_rollback_pass(tam_bucket *b, float decay) {
    rollback_list *list = rollback_list_of(b);
    list->passes++;
    list->decay *= (double)decay;
    list->keep *= b->reducer->update.beta1;
}

/* @return false: no memory */
static bool choose_list(tam_bucket *b, size_t count) {
    b->rollback_is_long = count > b->rollback_capacity;
    if (!b->rollback_is_long || count <= b->rollback_long_capacity)
        return true;
    size_t capacity = count + count / 4;
    tam_free(b->rollback_long);
    b->rollback_long = tam_alloc(list_bytes(b, capacity));
    b->rollback_long_capacity = b->rollback_long ? capacity : 0;
    b->rollback_is_long = b->rollback_long != NULL;
    return b->rollback_is_long;
}

static tamis_status record_list(tam_bucket *b, const tam_entries *sent) {
    const tamis_reducer *r = b->reducer;
    rollback_list *list = rollback_list_of(b);
    size_t bytes = sent->count * sizeof(float);
    list->count = sent->count;
    if (sent->count == 0)
        return TAMIS_OK;
    memcpy(rollback_indices_of(list), sent->indices, bytes);
    TAM_TRY(r->device->gather(b->view.kernels, b->view.acc, sent->indices, sent->count,
                              values_of(b, list, 0)));
    if (sent->values)
        memcpy(values_of(b, list, 1), sent->values, bytes);
    else
        memset(values_of(b, list, 1), 0, bytes);
    if (!tam_update_masks(r))
        return TAMIS_OK;
    return r->device->gather(b->view.kernels, b->view.masked, sent->indices, sent->count,
                             values_of(b, list, 2));
}

tamis_status tam_rollback_record(tamis_reducer *r) {
    r->rollback->state = TAM_ROLLBACK_POSSIBLE;
    tam_snapshot_pack(r, false, tam_rollback_snapshot(r));
    for (uint32_t i = 0; i < r->nbuckets; i++) {
        tam_bucket *b = &r->buckets[i];
        tam_entries sent = r->acc && !r->now.skipped ? b->view.out.sent : (tam_entries){0};
        bool has_list = choose_list(b, sent.count);
        *rollback_list_of(b) = (rollback_list){.decay = 1.0, .keep = 1.0};
        if (has_list)
            TAM_TRY(record_list(b, &sent));
        else
            tam_rollback_invalidate(r, TAM_ROLLBACK_TOO_LONG);
    }
    return TAMIS_OK;
}

void tam_rollback_drop(tam_bucket *b) {
    rollback_list *list = rollback_list_of(b);
    const float *errors = b->view.out.sent.values;
    if (errors && list->count > 0)
        memcpy(values_of(b, list, 1), errors, (size_t)list->count * sizeof errors[0]);
}

/* Keep the entries of a list that are 0 in `vector` now. The array of rounding errors serves as
 * scratch: dropped entries have none. */
static tamis_status keep_zeros(tam_bucket *b, rollback_list *list, const float *vector) {
    float *now = values_of(b, list, 1), *values = values_of(b, list, 0);
    float *masked = tam_update_masks(b->reducer) ? values_of(b, list, 2) : NULL;
    uint32_t *indices = rollback_indices_of(list);
    size_t kept = 0;
    TAM_TRY(b->reducer->device->gather(b->view.kernels, vector, indices, (size_t)list->count, now));
    for (size_t i = 0; i < list->count; i++) {
        if (now[i] != 0.0f)
            continue;
        indices[kept] = indices[i];
        values[kept] = values[i];
        if (masked)
            masked[kept] = masked[i];
        kept++;
    }
    list->count = kept;
    memset(now, 0, kept * sizeof now[0]);
    return TAMIS_OK;
}

tamis_status tam_rollback_skip(tamis_reducer *r) {
    for (uint32_t i = 0; i < r->nbuckets && r->rollback->state == TAM_ROLLBACK_POSSIBLE; i++) {
        tam_bucket *b = &r->buckets[i];
        rollback_list *list = rollback_list_of(b);
        if (list->count > 0)
            TAM_TRY(keep_zeros(b, list, b->view.acc));
        if (list->count > 0 && tam_update_masks(r))
            TAM_TRY(keep_zeros(b, list, b->view.masked));
    }
    return TAMIS_OK;
}

/* -- states ----------------------------------------------------------------------------------- */

/* Without a step to roll back the lists are of no use, and what they hold is not the same in a run
 * that has loaded a state. */
void tam_rollback_pack(const tamis_reducer *r, void *record) {
    tam_rollback *own = record;
    size_t bytes = tam_rollback_bytes(r), at = lists_at(r);
    memcpy(record, r->rollback, bytes);
    for (uint32_t i = 0; i < r->nbuckets; i++) {
        if (r->buckets[i].rollback_is_long && own->state == TAM_ROLLBACK_POSSIBLE)
            own->state = TAM_ROLLBACK_TOO_LONG;
    }
    if (own->state != TAM_ROLLBACK_POSSIBLE)
        memset((char *)record + at, 0, bytes - at);
}

void tam_rollback_take(tamis_reducer *r, const void *record, size_t bytes) {
    memcpy(r->rollback, record, bytes);
    for (uint32_t i = 0; i < r->nbuckets; i++)
        r->buckets[i].rollback_is_long = false;
}

static bool list_valid(const tam_bucket *b, const rollback_list *list) {
    bool valid = list->count <= b->rollback_capacity && list->decay >= 0.0 && list->decay <= 1.0;
    for (uint64_t i = 0; valid && i < list->count; i++)
        valid = rollback_indices_of(list)[i] < b->division.grid.n;
    return valid;
}

bool tam_rollback_valid(const tamis_reducer *r, const void *record) {
    const tam_rollback *rollback = record;
    bool valid = rollback->state < TAM_ROLLBACK_STATES;
    for (uint32_t i = 0; i < r->nbuckets && valid && rollback->state == TAM_ROLLBACK_POSSIBLE; i++)
        valid = list_valid(&r->buckets[i], list_in(&r->buckets[i], record));
    return valid;
}

/* -- back ------------------------------------------------------------------------------------- */

tam_rollback_state tam_rollback_state_of(const tamis_reducer *r) {
    const tam_run_position *before = tam_rollback_snapshot(r);
    if (r->rollback->state == TAM_ROLLBACK_POSSIBLE && before->step + 1 != r->step)
        return TAM_ROLLBACK_NONE;
    return (tam_rollback_state)r->rollback->state;
}

/* Add what was sent back to a vector, which passes since may have added to.
 * @param  lost  [in,out]  counts entries whose sum would not be finite; those stay unchanged */
static tamis_status add_back(tam_bucket *b, float *vector, const float *values, const float *kept,
                             double factor, float *scratch, uint64_t *lost) {
    const tam_device *device = b->reducer->device;
    const rollback_list *list = rollback_list_of(b);
    const uint32_t *indices = rollback_indices_of(list);
    size_t count = (size_t)list->count;
    if (list->passes == 0)
        return device->put(b->view.kernels, vector, indices, count, values);
    TAM_TRY(device->gather(b->view.kernels, vector, indices, count, scratch));
    for (size_t i = 0; i < count; i++) {
        float sent = kept ? values[i] - kept[i] : values[i];
        float sum = scratch[i] + (float)factor * sent;
        *lost += !isfinite(sum);
        scratch[i] = isfinite(sum) ? sum : scratch[i];
    }
    return device->put(b->view.kernels, vector, indices, count, scratch);
}

/* Lost entries count as nonfinite, as if a gradient had made the residual infinite: the next step
 * reports them on all ranks. */
static tamis_status add_back_all(tam_bucket *b, float *scratch) {
    const tamis_reducer *r = b->reducer;
    const rollback_list *list = rollback_list_of(b);
    uint64_t lost = 0;
    if (list->count == 0)
        return TAMIS_OK;
    TAM_TRY(add_back(b, b->view.acc, values_of(b, list, 0), values_of(b, list, 1), list->decay,
                     scratch, &lost));
    if (tam_update_masks(r))
        TAM_TRY(
            add_back(b, b->view.masked, values_of(b, list, 2), NULL, list->keep, scratch, &lost));
    b->view.early_nonfinite += lost;
    b->view.pending = true;
    if (lost > 0)
        tam_log(TAM_WARN,
                "rank %u: %llu entries of the step that was rolled back are lost: added to what "
                "came since, they "
                "would not be finite",
                r->comm->rank, (unsigned long long)lost);
    return TAMIS_OK;
}

tamis_status tam_rollback_run(tamis_reducer *r, float *scratch) {
    for (uint32_t i = 0; i < r->nbuckets; i++)
        TAM_TRY(add_back_all(&r->buckets[i], scratch));
    tam_rollback_invalidate(r, TAM_ROLLBACK_DONE);
    return tam_snapshot_return(r, tam_rollback_snapshot(r));
}
