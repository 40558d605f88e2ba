/* SPDX-License-Identifier: MIT
 *
 * A whole step of a sparse scheme, of one bucket: its state, its phases (its memory:
 * sparse_memory.c).
 */
#include "kernels/cuda/step.h"

#include "lib/base/base.h"
#include "lib/policy/rules.h"

/* -- state ------------------------------------------------------------------------------------ */

tamis_status tam_cuda_sparse_load(tam_cuda_step *s, uint64_t number) {
    const tam_control *c = s->plan.control;
    tam_cuda_control *mine = &s->control;
    const tam_cuda_queue *queue = &s->group->queue;
    tam_cuda_params params = {0};
    TAM_TRY(tam_cuda_queue_write(queue, &c->state, sizeof c->state, mine->state));
    TAM_TRY(tam_cuda_queue_write(queue, c->levels, c->grid->ngroups * sizeof c->levels[0],
                                 mine->levels));
    TAM_TRY(tam_cuda_queue_write(queue, &params, sizeof params, mine->params));
    TAM_CUDA_LAUNCH(tam_launch_prepare(mine, number, queue->stream));
    return TAMIS_OK;
}

/* The number of entries, of the bucket's k, that thresholds are learned for. */
static uint64_t sparse_threshold_k_of(const tam_cuda_control *c, uint64_t k) {
    uint64_t part = tam_rule_rank_budget(k, c->whole, c->node_shard.before, c->node_shard.upto);
    return part > 0 ? part : 1;
}

tamis_status tam_cuda_sparse_save(tam_cuda_step *s, const tam_cuda_past *past) {
    tam_control *c = s->plan.control;
    const tam_cuda_queue *queue = &s->group->queue;
    TAM_TRY(tam_cuda_queue_read(queue, s->control.levels, c->grid->ngroups * sizeof c->levels[0],
                                c->levels));
    TAM_TRY(tam_cuda_queue_read(queue, s->control.state, sizeof c->state, &c->state));
    c->k = sparse_threshold_k_of(&s->control, past->k);
    tam_control_prepare(c);
    return TAMIS_OK;
}

/* -- phases ----------------------------------------------------------------------------------- */

/* Where the selection writes the own list. */
static uint32_t *own_list(const tam_cuda_step *s) {
    const tam_cuda_packets *packets = &s->exchange.packets;
    unsigned char *own = packets->memory + packets->rank * packets->bytes;
    if (tam_cuda_is_packed(&s->plan))
        return packets->packed.lists + (size_t)packets->rank * packets->capacity;
    return (uint32_t *)(void *)(own + tam_header_bytes(TAM_COUNTERS + packets->nstats));
}

/* The indices, and the packet: the last to write to it seals it. */
static tamis_status sparse_seal(tam_cuda_step *s, const tam_cuda_select_job *selection) {
    void *stream = s->group->queue.stream;
    if (!tam_cuda_is_packed(&s->plan) && !s->plan.with_values) {
        TAM_CUDA_LAUNCH(tam_launch_emit_sealed(selection, &s->exchange, stream));
        return TAMIS_OK;
    }
    TAM_CUDA_LAUNCH(tam_launch_emit(selection, stream));
    if (tam_cuda_is_packed(&s->plan))
        TAM_CUDA_LAUNCH(tam_launch_pack(&s->exchange, stream));
    if (s->plan.with_values)
        TAM_CUDA_LAUNCH(tam_launch_seal(&s->exchange, stream));
    return TAMIS_OK;
}

static tamis_status sparse_select_entries(tam_cuda_step *s, const tam_cuda_accumulate *pass) {
    const tam_cuda_device *d = s->device;
    void *stream = s->group->queue.stream;
    tam_cuda_select_job job = {
        .grid = d->grid,
        .acc = s->exchange.acc,
        .kind = s->plan.kind,
        .end_chunk = d->grid.nchunks,
        .params = s->control.params,
        .thresholds = s->control.thresholds,
        .weights = s->plan.weighted ? s->control.weights : NULL,
        .candidates = d->candidates,
        .found = d->found,
        .select = d->select,
        .indices = own_list(s),
        .selected = d->selected,
    };
    TAM_CUDA_LAUNCH(tam_launch_collect_counted(pass, &job, stream));
    TAM_CUDA_LAUNCH(tam_launch_search(&job, stream));
    return sparse_seal(s, &job);
}

static tamis_status sparse_list_rows(tam_cuda_step *s) {
    void *stream = s->group->queue.stream;
    TAM_CUDA_LAUNCH(tam_launch_list(&s->exchange, own_list(s), s->device->selected, stream));
    if (tam_cuda_is_packed(&s->plan))
        TAM_CUDA_LAUNCH(tam_launch_pack(&s->exchange, stream));
    else
        TAM_CUDA_LAUNCH(tam_launch_seal(&s->exchange, stream));
    return TAMIS_OK;
}

tamis_status tam_cuda_sparse_select(tam_cuda_step *s, const tam_cuda_accumulate *pass) {
    TAM_CUDA_LAUNCH(tam_launch_accumulate(pass, s->group->queue.stream));
    return tam_cuda_is_sparse_rows(&s->plan) ? sparse_list_rows(s) : sparse_select_entries(s, pass);
}

static tamis_status sparse_begin(tam_cuda_step *s) {
    return tam_cuda_sparse_select(s, &s->target);
}

tamis_status tam_cuda_step_union(tam_cuda_step *s) {
    if (tam_cuda_is_packed(&s->plan))
        TAM_CUDA_LAUNCH(tam_launch_unpack(&s->exchange, tam_cuda_comm_stream(s)));
    TAM_CUDA_LAUNCH(tam_launch_check(&s->exchange, tam_cuda_comm_stream(s)));
    if (s->exchange.scheme.ownership == TAM_OWN_ALL)
        TAM_CUDA_LAUNCH(tam_launch_count(&s->exchange, tam_cuda_comm_stream(s)));
    TAM_CUDA_LAUNCH(tam_launch_union(&s->exchange, tam_cuda_comm_stream(s)));
    if (tam_cuda_is_sparse_rows(&s->plan))
        TAM_CUDA_LAUNCH(tam_launch_expand(&s->exchange, tam_cuda_comm_stream(s)));
    if (s->exchange.rounded.blocks > 0)
        TAM_CUDA_LAUNCH(tam_launch_encode_values(&s->exchange, tam_cuda_comm_stream(s)));
    return TAMIS_OK;
}

tamis_status tam_cuda_step_add(tam_cuda_step *s) {
    if (!s->plan.with_values)
        TAM_CUDA_LAUNCH(tam_launch_add(&s->exchange, tam_cuda_comm_stream(s)));
    return TAMIS_OK;
}

tamis_status tam_cuda_sparse_validate(tam_cuda_step *s) {
    if (s->exchange.rounded.blocks > 0)
        TAM_CUDA_LAUNCH(tam_launch_decode_sums(&s->exchange, tam_cuda_comm_stream(s)));
    TAM_CUDA_LAUNCH(tam_launch_validate(&s->exchange, tam_cuda_comm_stream(s)));
    return TAMIS_OK;
}

static tamis_status sparse_apply_result(tam_cuda_step *s) {
    tam_cuda_accumulate target = s->target;
    if (!s->plan.dense_output)
        target.source = NULL;
    TAM_CUDA_LAUNCH(tam_launch_apply_result(&s->exchange, &target, tam_cuda_comm_stream(s)));
    return TAMIS_OK;
}

tamis_status tam_cuda_sparse_finish(tam_cuda_step *first, uint32_t by) {
    const tam_cuda_bucket_group *r = first->group;
    tam_cuda_reporting reporting = tam_cuda_bucket_group_reporting(first, by);
    reporting.targets = r->budgets.now;
    TAM_CUDA_LAUNCH(tam_launch_control(r->controls, &r->budgets, &reporting, r->comm_stream));
    return TAMIS_OK;
}

/* -- open ------------------------------------------------------------------------------------- */

static tamis_status sparse_check(const tam_cuda_plan *plan) {
    uint64_t n = plan->grid->n, sent = (uint64_t)plan->packet_capacity * plan->nranks;
    sent *= tam_cuda_is_sparse_rows(plan) ? plan->row_length : 1;
    if (plan->packet_capacity == 0 || plan->rank >= plan->nranks)
        return tam_fail(TAMIS_E_ARGUMENT, "rank %u of %u cannot send packets of %u indices",
                        plan->rank, plan->nranks, plan->packet_capacity);
    if (tam_cuda_index_capacity(plan) > UINT32_MAX ||
        plan->packet_capacity > UINT32_MAX / sizeof(uint32_t))
        return tam_fail(TAMIS_E_UNSUPPORTED,
                        "the lists of a packet with room for %u entries would exceed 4 GiB; lower "
                        "the density or use smaller buckets",
                        plan->packet_capacity);
    if (plan->union_max < (sent < n ? sent : n))
        return tam_fail(TAMIS_E_ARGUMENT, "a union of %u entries cannot hold %u packets of %u",
                        plan->union_max, plan->nranks, plan->packet_capacity);
    return TAMIS_OK;
}

static const tam_cuda_kind sparse = {
    .urgency = TAM_CUDA_URGENT,
    .take = tam_cuda_sparse_take,
    .fill = tam_cuda_sparse_fill,
    .load = tam_cuda_sparse_load,
    .save = tam_cuda_sparse_save,
    .begin = sparse_begin,
    .validate = tam_cuda_sparse_validate,
    .apply = sparse_apply_result,
    .finish = tam_cuda_sparse_finish,
};

tamis_status tam_cuda_sparse_new(void *device, const tam_cuda_plan *plan, float *acc,
                                 tam_cuda_step **out) {
    TAM_TRY(sparse_check(plan));
    tam_cuda_step *s = tam_alloc(sizeof *s);
    if (!s)
        return tam_fail(TAMIS_E_NOMEM, "no memory for a step");
    s->kind = &sparse;
    s->device = device;
    s->plan = *plan;
    tam_cuda_sparse_describe(s, acc);
    *out = s;
    return TAMIS_OK;
}

const tam_cuda_comm_buffers *tam_cuda_step_buffers(const tam_cuda_step *s) {
    return &s->buffers;
}

tam_cuda_result tam_cuda_step_result(const tam_cuda_step *first) {
    const tam_cuda_exchange *x = first->outcome;
    return (tam_cuda_result){
        .count = &x->common->verdict.count,
        .indices = x->all_indices ? x->all_indices : x->indices,
        .values = x->all_indices ? x->all_values : x->applied,
    };
}
