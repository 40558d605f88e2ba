/* SPDX-License-Identifier: MIT
 *
 * The host drives the step: accumulate on the caller's thread, the rest as a job of the
 * communicator (exchange.c). For every device, over every transport, with every scheme.
 */
#include "collectives/reducer/reducer.h"

/* -- memory ----------------------------------------------------------------------------------- */

static tamis_status open_exchange(tamis_reducer *r) {
    const tam_grid *grid = &r->division.grid;
    uint32_t nranks = r->comm->nranks;
    TAM_TRY(tam_slots_open(&r->slots));

    /* Lists of exclusive owners cannot overlap; those of `all` are merged before they shrink. */
    uint64_t sent = (uint64_t)r->slots.capacity * nranks;
    bool shared = r->scheme.ownership == TAM_OWN_ALL;
    r->union_max = (size_t)(shared || sent < grid->n ? sent : grid->n);
    if (r->scheme.ownership == TAM_OWN_BINS)
        r->union_max = (size_t)grid->n;
    r->indices = tam_alloc_array(r->union_max, sizeof r->indices[0]);
    r->values = tam_alloc_array(r->union_max, sizeof r->values[0]);
    r->scratch = tam_alloc_array(shared ? r->union_max : 0, sizeof r->scratch[0]);
    r->owners = tam_alloc_array(nranks, sizeof r->owners[0]);
    r->cursors = tam_alloc_array(nranks, sizeof r->cursors[0]);
    r->cuts = tam_alloc_array(nranks, sizeof r->cuts[0]);
    r->group_means = tam_alloc_array(grid->ngroups, sizeof r->group_means[0]);
    r->group_picked = tam_alloc_array(grid->ngroups, sizeof r->group_picked[0]);
    if (!r->indices || !r->values || !r->scratch || !r->owners || !r->cursors || !r->cuts ||
        !r->group_means || !r->group_picked)
        return tam_fail(TAMIS_E_NOMEM, "no memory for a union of %zu entries", r->union_max);
    return TAMIS_OK;
}

static tamis_status open_packing(tamis_reducer *r) {
    size_t ngroups = r->division.grid.ngroups, nranks = r->comm->nranks;
    tam_packing *p = &r->packing;
    if (!tam_scheme_by_group(r->scheme))
        return TAMIS_OK;
    p->budgets = tam_alloc_array(ngroups, sizeof p->budgets[0]);
    p->parts = tam_alloc_array(ngroups, sizeof p->parts[0]);
    p->all = tam_alloc_array(ngroups * nranks, sizeof p->all[0]);
    p->loads = tam_alloc_array(nranks, sizeof p->loads[0]);
    if (!p->budgets || !p->parts || !p->all || !p->loads)
        return tam_fail(TAMIS_E_NOMEM, "no memory to pack %zu groups", ngroups);
    return TAMIS_OK;
}

/* Gradients that the host cannot reach, or that must be widened, pass through a staging area; else
 * they are summed where they lie. */
static tamis_status open_staging(tamis_reducer *r) {
    if (r->config.device == TAMIS_DEVICE_CPU && r->config.grad_type == TAMIS_TYPE_FLOAT32)
        return TAMIS_OK;
    r->staging = tam_alloc_array(TAM_DENSE_PIECE, 2 * sizeof(float));
    if (!r->staging)
        return tam_fail(TAMIS_E_NOMEM, "no memory for pieces of the gradient");
    return TAMIS_OK;
}

static tamis_status host_open(tamis_reducer *r) {
    if (r->scheme.exchange == TAM_EXCHANGE_DENSE)
        return open_staging(r);
    TAM_TRY(open_exchange(r));
    return open_packing(r);
}

static void host_close(tamis_reducer *r) {
    if (!tam_reducer_lingers(r)) {
        tam_slots_close(&r->slots);
        tam_free(r->values);
        tam_free(r->packing.parts);
        tam_free(r->packing.all);
    }
    tam_free(r->packing.budgets);
    tam_free(r->packing.loads);
    tam_free(r->indices);
    tam_free(r->scratch);
    tam_free(r->owners);
    tam_free(r->cursors);
    tam_free(r->cuts);
    tam_free(r->group_means);
    tam_free(r->group_picked);
}

/* -- a step ----------------------------------------------------------------------------------- */

static tamis_status host_start(tamis_reducer *r, void *stream) {
    uint64_t begin_ns = tam_clock_ns();
    bool dense = r->scheme.exchange == TAM_EXCHANGE_DENSE;
    TAM_TRY(r->device->follow(r->kernels, stream));
    if (!dense) {
        TAM_TRY(r->device->accumulate(r->kernels, &r->target, &r->accumulated));
        r->now.accumulate_s = (double)(tam_clock_ns() - begin_ns) * 1e-9;
    }
    r->job.run = dense ? tam_step_dense : tam_step_sparse;
    tam_comm_submit(r->comm, &r->job);
    return TAMIS_OK;
}

/* Figures that the job cannot know. */
static void complete_stats(tamis_reducer *r, uint64_t begin_ns) {
    tamis_stats *s = &r->now;
    s->steps = r->stats.steps + 1;
    s->length = r->layout->length;
    s->target = r->k;
    s->selected = r->count;
    s->density = (double)r->count / (double)r->layout->length;
    s->wire_bytes = r->job.wire_bytes;
    s->wire_bytes_total = r->stats.wire_bytes_total + s->wire_bytes;
    s->rescans_total = r->stats.rescans_total + s->rescans;
    s->wait_s = (double)(tam_clock_ns() - begin_ns) * 1e-9;
    r->stats = *s;
}

static tamis_status host_wait(tamis_reducer *r) {
    uint64_t begin_ns = tam_clock_ns();
    tamis_status status = tam_comm_finish(r->comm, &r->job);
    r->abandoned = atomic_load(&r->job.state) == TAM_JOB_ABANDONED;
    if (tamis_status_loss(status) == TAMIS_LOST_COMM)
        return status;
    complete_stats(r, begin_ns);
    r->step++;
    return status;
}

/* The result is there when wait returns, so it precedes whatever is enqueued anywhere. */
static tamis_status host_join(tamis_reducer *r, void *stream) {
    (void)stream;
    return host_wait(r);
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
    if (r->acc) {
        out->indices = r->indices;
        out->values = r->values;
    }
}

const tam_driver tam_driver_host = {
    .name = "host",
    .open = host_open,
    .arm = host_keep,
    .close = host_close,
    .start = host_start,
    .wait = host_wait,
    .join = host_join,
    .look = host_look,
    .settle = host_keep,
    .reload = host_keep,
    .result = host_result,
};
