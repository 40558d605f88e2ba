/* SPDX-License-Identifier: MIT
 *
 * A whole step of a bucket, whatever its kind: its memory, its life, its state.
 */
#include "kernels/cuda/step.h"

#include "kernels/cuda/row.h"

#include "lib/base/base.h"

#include <stddef.h>
#include <stdio.h>

/* -- memory ----------------------------------------------------------------------------------- */

/* Whether shards and sums have checks. */
static bool has_checks(const tam_cuda_exchange *x) {
    return x->checked || x->rounded.blocks > 0;
}

/* What is cleared together: the scratch, the checks of packets and shards, and the entries of
 * ranges. */
size_t tam_cuda_scratch_bytes(const tam_cuda_exchange *x) {
    size_t checks = has_checks(x) ? 3 * sizeof(uint64_t) : 0;
    return tam_cuda_round_up(sizeof(tam_cuda_scratch) +
                                 x->packets.nranks * (sizeof(tam_cuda_packet_check) + checks) +
                                 x->ranges.count * sizeof(uint32_t),
                             sizeof(uint64_t));
}

unsigned char *tam_cuda_lay_out_scratch(tam_cuda_exchange *x, unsigned char *memory) {
    uint32_t nranks = x->packets.nranks;
    x->scratch = (tam_cuda_scratch *)(void *)memory;
    x->packet_checks = (tam_cuda_packet_check *)(x->scratch + 1);
    uint64_t *checks = (uint64_t *)(x->packet_checks + nranks);
    for (uint32_t i = 0; has_checks(x) && i < 3; i++)
        x->checks[i] = checks + i * nranks;
    x->ranges.entries = (uint32_t *)(checks + (has_checks(x) ? 3 * nranks : 0));
    return memory + tam_cuda_scratch_bytes(x);
}

static size_t scratch_bytes(const tam_cuda_step *s) {
    return tam_cuda_scratch_bytes(&s->exchange) + (s->kind->scratch ? s->kind->scratch(s) : 0);
}

static void step_take(tam_cuda_step *s, tam_cuda_arena *arena) {
    tam_cuda_exchange *x = &s->exchange;
    unsigned char *scratch = tam_cuda_take(arena, 1, scratch_bytes(s));
    if (scratch)
        scratch = tam_cuda_lay_out_scratch(x, scratch);
    if (scratch && s->kind->lay_out)
        s->kind->lay_out(s, scratch);
    x->record = tam_cuda_take(arena, 1, sizeof(tam_cuda_record));
    s->control.params = tam_cuda_take(arena, 1, sizeof(tam_cuda_params));
    s->control.state = tam_cuda_take(arena, 1, sizeof(tam_control_state));
    s->sources = tam_cuda_take(arena, TAM_CUDA_LAUNCHERS, sizeof s->sources[0]);
    for (int i = 0; i < TAM_CUDA_LAUNCHERS; i++)
        s->grads[i] = tam_cuda_take(arena, s->whole->nsegments, sizeof s->grads[i][0]);
    s->kind->take(s, arena);
}

static tamis_status step_take_memory(tam_cuda_step *s) {
    tam_cuda_arena arena = {0};
    void *memory = NULL;
    step_take(s, &arena);
    TAM_TRY(tam_cuda_alloc(arena.used, "the exchange", &memory));
    arena = (tam_cuda_arena){.base = s->memory = memory};
    step_take(s, &arena);
    s->grads_now = tam_alloc_array(s->whole->nsegments, sizeof s->grads_now[0]);
    if (!s->grads_now)
        return tam_fail(TAMIS_E_NOMEM, "no memory for pointers to %u segments",
                        s->whole->nsegments);
    return TAMIS_OK;
}

void tam_cuda_step_connect(const tam_cuda_step *s, tam_cuda_exchange *x) {
    const tam_cuda_bucket_group *r = s->group;
    x->params = s->control.params;
    x->record = s->exchange.record;
    x->nbuckets = r->nbuckets;
    x->begin = s->plan.begin;
    x->all = r->exchanges;
    x->common = r->common;
}

/* Its number among the buckets that share k; those with rows follow. */
static uint32_t budget_at(const tam_cuda_step *s) {
    bool sparse_rows = tam_cuda_is_sparse_rows(&s->plan);
    uint32_t same = 0;
    for (uint32_t b = 0; b < s->plan.bucket; b++)
        same += tam_cuda_is_sparse_rows(&s->group->steps[b]->plan) == sparse_rows;
    return same + (sparse_rows ? s->group->budgets.nbuckets : 0);
}

/* Set the pointers to this bucket's parts of the group. */
static void connect(tam_cuda_step *s) {
    const tam_cuda_bucket_group *r = s->group;
    tam_cuda_step_connect(s, &s->exchange);
    s->exchange.decides = tam_cuda_is_last(s) && !s->inside;
    s->control.common = r->common;
    s->control.k = &r->budgets.now[s->plan.bucket];
    s->control.budget_at = budget_at(s);
    s->control.norm = &r->budgets.norms[s->control.budget_at];
}

static void name_parts(tam_cuda_step *s) {
    const char *first = tam_cuda_is_split(s) ? "accumulate" : "step";
    snprintf(s->names[0], sizeof s->names[0], "tamis bucket %u %s", s->plan.bucket, first);
    snprintf(s->names[1], sizeof s->names[1], "tamis bucket %u exchange", s->plan.bucket);
}

static tam_cuda_row *step_row_of(tam_cuda_device *device) {
    return (tam_cuda_row *)(void *)device;
}

static void share_pinned(const tam_cuda_step *s) {
    tam_cuda_row_borrow(step_row_of(s->device), &s->group->queue);
    if (s->whole != s->device)
        tam_cuda_row_borrow(step_row_of(s->whole), &s->group->queue);
}

static void return_pinned(const tam_cuda_step *s) {
    if (!s->group)
        return;
    tam_cuda_row_return(step_row_of(s->device), &s->group->queue);
    tam_cuda_row_return(step_row_of(s->whole), &s->group->queue);
}

static tamis_status step_fill(tam_cuda_step *s) {
    if (s->plan.first)
        s->group = s->plan.first->group;
    else
        TAM_TRY(tam_cuda_bucket_group_open(s));
    TAM_TRY(step_take_memory(s));
    connect(s);
    name_parts(s);
    TAM_TRY(s->kind->fill(s));
    share_pinned(s);
    return tam_cuda_bucket_group_join(s);
}

void tam_cuda_step_free(tam_cuda_step *s) {
    if (s->kind->close)
        s->kind->close(s);
    tam_free(s->pieces);
    tam_free(s->grads_now);
    tam_free(s);
}

void tam_cuda_step_drop_graphs(tam_cuda_step *s) {
    for (int i = 0; i < 2; i++) {
        if (s->graphs[i] && cudaGraphExecDestroy(s->graphs[i]) != cudaSuccess)
            (void)cudaGetLastError();
        s->graphs[i] = NULL;
    }
}

static void step_release(tam_cuda_step *s) {
    return_pinned(s);
    tam_cuda_step_drop_graphs(s);
    tam_cuda_free(s->memory);
    if (!s->plan.first && s->group)
        tam_cuda_bucket_group_close(s->group);
    tam_cuda_step_free(s);
}

tamis_status tam_cuda_step_make(tam_cuda_step *s, tam_cuda_step **out) {
    tam_cuda_guard guard;
    tamis_status status = tam_cuda_enter(s->device->device, &guard);
    if (status != TAMIS_OK)
        goto err_step;
    if (!s->inside) {
        s->whole = s->device;
        s->outcome = &s->exchange;
    }
    status = step_fill(s);
    if (status != TAMIS_OK)
        step_release(s);
    tam_cuda_leave(&guard);
    if (status == TAMIS_OK)
        *out = s;
    return status;

err_step:
    tam_cuda_step_free(s);
    return status;
}

/* Memory that the device may still write to is not freed. */
void tam_cuda_step_close(tam_cuda_step *s) {
    tam_cuda_guard guard;
    if (!s)
        return;
    if (tam_cuda_enter(s->device->device, &guard) != TAMIS_OK) {
        s->device->hangs = s->whole->hangs = true; /* broken: nothing runs or can be freed there */
        if (!s->plan.first)
            tam_cuda_bucket_group_forget(s->group);
        tam_cuda_step_free(s);
        return;
    }
    s->device->hangs = s->whole->hangs = !tam_cuda_bucket_group_idle(s->group, tam_cuda_rank(s));
    if (!s->device->hangs)
        step_release(s);
    tam_cuda_leave(&guard);
}

/* -- state ------------------------------------------------------------------------------------ */

static double scale_of(const tam_cuda_step *s, const tam_cuda_past *past) {
    const tam_cuda_update *u = &s->plan.update;
    if (u->matches)
        return tam_norm_matching_scale(past->norm_matching, past->ratio, u->scale_most);
    return past->scale > 0.0 ? past->scale : 1.0;
}

/* Clear what broke the exchange; the serials, which keep counting, are left alone. */
static tamis_status load_common(const tam_cuda_step *s, const tam_cuda_past *past) {
    double scale = scale_of(s, past);
    tam_cuda_common common = {
        .has_norms = past->has_norms,
        .divisor = (float)(s->exchange.divisor / scale),
        .scale = scale,
        .ratio = past->ratio,
        .norm_matching = past->norm_matching,
    };
    size_t first = offsetof(tam_cuda_common, refused);
    return tam_cuda_queue_write(&s->group->queue, (const char *)&common + first,
                                sizeof common - first, (char *)s->group->common + first);
}

static tamis_status step_load(tam_cuda_step *s, uint64_t config, const tam_cuda_past *past) {
    tam_cuda_record record = {
        .config = config,
        .last_result = past->last_result,
        .early.nonfinite = past->early_nonfinite,
    };
    const tam_cuda_queue *queue = &s->group->queue;
    s->group->budgets.k = past->all;
    TAM_TRY(load_common(s, past));
    TAM_TRY(tam_cuda_queue_write(queue, &record, sizeof record, s->exchange.record));
    TAM_TRY(tam_cuda_queue_write(queue, &past->norm, sizeof past->norm, s->control.norm));
    TAM_TRY(tam_cuda_queue_write(queue, &past->k, sizeof past->k, s->control.k));
    TAM_TRY(s->kind->load(s, past->number));
    return tam_cuda_queue_wait(queue, "loading a state");
}

tamis_status tam_cuda_step_load(tam_cuda_step *s, uint64_t config, const tam_cuda_past *past) {
    TAM_CUDA_ON(s->device->device, step_load(s, config, past));
}

static tamis_status step_save(tam_cuda_step *s, tam_cuda_past *past) {
    const tam_cuda_queue *queue = &s->group->queue;
    tam_cuda_common common;
    tam_cuda_record record;
    tam_cuda_params params;
    TAM_TRY(tam_cuda_bucket_group_gather(s->group));
    TAM_TRY(tam_cuda_queue_read(queue, s->control.params, sizeof params, &params));
    TAM_TRY(tam_cuda_queue_read(queue, s->exchange.record, sizeof record, &record));
    TAM_TRY(tam_cuda_queue_read(queue, s->group->common, sizeof common, &common));
    past->number = params.step;
    past->last_result = record.last_result;
    past->early_nonfinite = record.early.nonfinite;
    past->has_norms = common.has_norms != 0;
    past->norm_matching = common.norm_matching;
    past->scale = common.scale;
    past->ratio = common.ratio;
    past->all = s->group->budgets.k;
    TAM_TRY(tam_cuda_queue_read(queue, s->control.norm, sizeof past->norm, &past->norm));
    TAM_TRY(tam_cuda_queue_read(queue, s->control.k, sizeof past->k, &past->k));
    return s->kind->save(s, past);
}

tamis_status tam_cuda_step_save(tam_cuda_step *s, tam_cuda_past *past) {
    tam_cuda_past own;
    tam_cuda_guard guard;
    TAM_TRY(tam_cuda_enter(s->device->device, &guard));
    tamis_status status = step_save(s, &own);
    tam_cuda_leave(&guard);
    if (status == TAMIS_OK)
        *past = own;
    return status;
}

void tam_cuda_step_describe_buffers(const tam_cuda_step *s, const tam_cuda_exchange *x,
                                    tam_cuda_comm_buffers *out) {
    size_t bytes = (size_t)x->shard_length * sizeof(float);
    *out = (tam_cuda_comm_buffers){
        .stream = tam_cuda_comm_stream(s),
        .among = {.first = x->packets.first,
                  .stride = x->packets.stride,
                  .count = x->packets.nranks,
                  .member = x->packets.rank},
        .packets = x->packets.memory,
        .packet_bytes = x->packets.bytes,
        .shard_bytes = bytes,
        .sum_bytes = bytes,
        .values = (unsigned char *)x->values,
        .shards = (unsigned char *)x->shards,
        .sums = (unsigned char *)x->values,
    };
}

tam_cuda_accumulate tam_cuda_pass_of(const tam_cuda_step *s, const tam_cuda_device *d,
                                     const tam_cuda_source *source) {
    return (tam_cuda_accumulate){
        .grid = d->grid,
        .acc = s->exchange.acc,
        .source = source,
        .seg_begin = d->seg_begin,
        .type = TAMIS_DTYPE_FLOAT32,
        .params = s->control.params,
        .thresholds = s->control.thresholds,
        .candidates = d->candidates,
        .found = d->found,
        .chunk_sums = d->chunk_sums,
        .group_sums = d->group_sums,
    };
}

tam_cuda_fresh tam_cuda_step_fresh(const tam_cuda_step *s) {
    return (tam_cuda_fresh){
        .found = s->device->found,
        .select = s->device->select,
        .selected = s->device->selected,
        .scratch = {(uint32_t *)(void *)s->exchange.scratch,
                    (uint32_t)(scratch_bytes(s) / sizeof(uint32_t))},
    };
}
