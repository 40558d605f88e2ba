/* SPDX-License-Identifier: MIT
 *
 * The host drives the step: accumulate on the caller's thread, the rest as a job of the
 * communicator (exchange.c). For every device, over every transport, with every scheme.
 */
#include "collectives/reducer/rows.h"
#include "collectives/reducer/undo.h"

/* -- memory ----------------------------------------------------------------------------------- */

static tamis_status open_exchange(tam_bucket *b) {
    const tam_grid *grid = &b->division.grid;
    uint32_t nranks = b->reducer->nranks;
    TAM_TRY(tam_slots_open(&b->slots));

    /* Lists of exclusive owners cannot overlap; those of `all` are merged before they shrink. */
    uint64_t sent = (uint64_t)b->slots.capacity * nranks;
    bool shared = b->scheme.ownership == TAM_OWN_ALL;
    b->union_max = (size_t)(shared || sent < grid->n ? sent : grid->n);
    if (b->scheme.ownership == TAM_OWN_BINS)
        b->union_max = (size_t)grid->n;
    b->indices = tam_alloc_array(b->union_max, sizeof b->indices[0]);
    b->values = tam_alloc_array(b->union_max, sizeof b->values[0]);
    b->scratch = tam_alloc_array(shared ? b->union_max : 0, sizeof b->scratch[0]);
    b->owners = tam_alloc_array(nranks, sizeof b->owners[0]);
    b->reaches = tam_alloc_array(nranks, sizeof b->reaches[0]);
    b->cursors = tam_alloc_array(nranks, sizeof b->cursors[0]);
    b->lists = tam_alloc_array(nranks, sizeof b->lists[0]);
    b->cuts = tam_alloc_array(nranks, sizeof b->cuts[0]);
    b->group_means = tam_alloc_array(grid->ngroups, sizeof b->group_means[0]);
    b->group_picked = tam_alloc_array(grid->ngroups, sizeof b->group_picked[0]);
    if (!b->indices || !b->values || !b->scratch || !b->owners || !b->reaches || !b->cursors ||
        !b->lists || !b->cuts || !b->group_means || !b->group_picked)
        return tam_fail(TAMIS_E_NOMEM, "no memory for a union of %zu entries", b->union_max);
    b->slots.reaches = b->reaches;
    return TAMIS_OK;
}

/* For values that are rounded on their way. */
static tamis_status open_rounding(tam_bucket *b) {
    if (b->reducer->config.wire_type == TAMIS_TYPE_FLOAT32)
        return TAMIS_OK;
    b->rest = tam_alloc_array(b->union_max, sizeof b->rest[0]);
    b->halves = tam_alloc_array(b->slots.with_values ? 0 : b->union_max, sizeof b->halves[0]);
    if (!b->rest || !b->halves)
        return tam_fail(TAMIS_E_NOMEM, "no memory to round %zu entries", b->union_max);
    return TAMIS_OK;
}

static tamis_status open_packing(tam_bucket *b) {
    size_t ngroups = b->division.grid.ngroups, nranks = b->reducer->nranks;
    tam_packing *p = &b->packing;
    if (!tam_scheme_by_group(b->scheme))
        return TAMIS_OK;
    p->budgets = tam_alloc_array(ngroups, sizeof p->budgets[0]);
    p->parts = tam_alloc_array(ngroups, sizeof p->parts[0]);
    p->all = tam_alloc_array(ngroups * nranks, sizeof p->all[0]);
    p->loads = tam_alloc_array(nranks, sizeof p->loads[0]);
    if (!p->budgets || !p->parts || !p->all || !p->loads)
        return tam_fail(TAMIS_E_NOMEM, "no memory to pack %zu groups", ngroups);
    return TAMIS_OK;
}

static tamis_status host_open(tam_bucket *b) {
    if (tam_scheme_dense(b->scheme))
        return TAMIS_OK;
    if (b->rows)
        return tam_rows_open(b);
    TAM_TRY(open_exchange(b));
    TAM_TRY(open_rounding(b));
    if (tam_scheme_regional(b->scheme))
        TAM_TRY(tam_regions_open(b->slots.rank, b->slots.nranks, b->division.grid.n,
                                 b->slots.capacity, &b->regions));
    return open_packing(b);
}

static void host_close(tam_bucket *b) {
    if (!tam_reducer_lingers(b->reducer)) {
        tam_slots_close(&b->slots);
        tam_regions_close(&b->regions);
        tam_free(b->values);
        tam_free(b->halves);
        tam_free(b->packing.parts);
        tam_free(b->packing.all);
    }
    tam_free(b->packing.budgets);
    tam_free(b->packing.loads);
    tam_free(b->indices);
    tam_free(b->scratch);
    tam_free(b->rest);
    tam_free(b->owners);
    tam_free(b->reaches);
    tam_free(b->cursors);
    tam_free(b->lists);
    tam_free(b->cuts);
    tam_free(b->group_means);
    tam_free(b->group_picked);
}

/* -- a step ----------------------------------------------------------------------------------- */

static tamis_status host_launch(tam_bucket *b, void *stream) {
    tamis_reducer *r = b->reducer;
    bool dense = tam_scheme_dense(b->scheme);
    if (b == tam_last_bucket(r))
        r->busy_us = tam_arrive_us(r->ended_ns, tam_clock_ns());
    TAM_TRY(r->device->follow(b->kernels, stream));
    if (!dense && !b->slice && r->config.worker == TAMIS_WORKER_CALLER)
        TAM_TRY(tam_step_accumulate(b));
    b->job.run = dense ? tam_step_dense : tam_step_sparse;
    b->job.purpose = "tamis_reduce_wait";
    b->job.number = r->step + 1;
    tam_comm_submit(r->comm, &b->job);
    return TAMIS_OK;
}

static tamis_status host_accumulate(tam_bucket *b, void *stream) {
    const tamis_reducer *r = b->reducer;
    uint64_t begin_ns = tam_clock_ns();
    tam_accumulated seen;
    TAM_TRY(r->device->follow(b->kernels, stream));
    TAM_TRY(r->device->accumulate(b->kernels, &b->target, &seen));
    tam_undo_pass(b, b->target.decay);
    tam_phase_end(r, TAMIS_PHASE_ACCUMULATE, b->index, begin_ns, &b->early_s);
    b->early_nonfinite += seen.nonfinite;
    b->pending = tam_scheme_dense(b->scheme);
    return TAMIS_OK;
}

static bool host_test(tamis_reducer *r) {
    return tam_comm_test(r->comm, &r->buckets[r->nbuckets - 1].job);
}

/* Entries of the result in segments that have no rows. */
static uint64_t count_ordinary(const tamis_reducer *r) {
    uint64_t count = r->count;
    for (uint32_t i = 0; i < r->nbuckets; i++)
        count -= r->buckets[i].rows ? r->buckets[i].count : 0;
    return count;
}

/* What the job of the last bucket cannot know. */
static void complete_stats(tamis_reducer *r, uint64_t begin_ns) {
    tamis_stats *s = &r->now;
    for (uint32_t i = 0; i < r->nbuckets; i++) {
        tam_bucket *b = &r->buckets[i];
        s->accumulate_s += b->early_s + b->now.accumulate_s;
        s->cut_s += b->now.cut_s;
        s->arrive_s += b->now.arrive_s;
        s->exchange_s += b->now.arrive_s + b->now.exchange_s;
        s->wire_bytes += b->job.wire_bytes;
        s->target += tam_bucket_target(b);
        b->early_nonfinite = 0;
        b->early_s = 0.0;
    }
    s->steps = r->stats.steps + 1;
    s->length = r->layout->length;
    s->selected = count_ordinary(r);
    s->density = (double)s->selected / (double)(r->layout->ordinary ? r->layout->ordinary : 1);
    s->exchange_s_total = r->stats.exchange_s_total + s->exchange_s;
    s->wire_bytes_total = r->stats.wire_bytes_total + s->wire_bytes;
    s->rescans_total = r->stats.rescans_total + s->rescans;
    tam_phase_end(r, TAMIS_PHASE_WAIT, TAMIS_NO_BUCKET, begin_ns, &s->wait_s);
    r->stats = *s;
}

/* Jobs run in order: after the last the others have ended too. */
static tamis_status host_wait(tamis_reducer *r, uint64_t begin_ns, uint64_t until_ns) {
    tamis_status status = TAMIS_OK;
    for (uint32_t i = 0; i < r->launched; i++) {
        tam_bucket *b = &r->buckets[i];
        tamis_status one = tam_comm_finish(r->comm, &b->job, until_ns);
        r->abandoned = r->abandoned || atomic_load(&b->job.state) == TAM_JOB_ABANDONED;
        status = status == TAMIS_OK ? one : status;
    }
    if (tamis_status_loss(status) == TAMIS_LOST_COMM || r->launched < r->nbuckets)
        return status;
    complete_stats(r, begin_ns);
    r->step++;
    return status;
}

/* The result is there when wait returns, so it precedes whatever is enqueued anywhere. */
static tamis_status host_join(tamis_reducer *r, void *stream, uint64_t begin_ns,
                              uint64_t until_ns) {
    (void)stream;
    return host_wait(r, begin_ns, until_ns);
}

/* -- between steps: everything is on the host already ----------------------------------------- */

static void host_look(tamis_reducer *r) {
    (void)r;
}

static tamis_status host_keep(tamis_reducer *r) {
    (void)r;
    return TAMIS_OK;
}

static void host_result(const tamis_reducer *r, tamis_result *out) {
    *out = (tamis_result){.count = r->count};
    if (r->ndense == 0) {
        tam_entries only = tam_bucket_result(&r->buckets[0]);
        out->indices = r->indices ? r->indices : only.indices;
        out->values = r->values ? r->values : only.values;
    }
}

const tam_driver tam_driver_host = {
    .name = "host",
    .open = host_open,
    .arm = host_keep,
    .close = host_close,
    .launch = host_launch,
    .accumulate = host_accumulate,
    .test = host_test,
    .wait = host_wait,
    .join = host_join,
    .look = host_look,
    .settle = host_keep,
    .reload = host_keep,
    .result = host_result,
};
