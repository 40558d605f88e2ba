/* SPDX-License-Identifier: MIT
 *
 * A bucket group: what the steps of all buckets share: streams and events, the verdict, budgets,
 * the joined result, reports.
 */
#include "kernels/cuda/step.h"

#include "lib/base/base.h"

static const tam_cuda_whole alone = {.nbuckets = 1};

static const tam_cuda_whole *bucket_group_whole_of(const tam_cuda_step *first) {
    return first->plan.whole ? first->plan.whole : &alone;
}

/* -- open ------------------------------------------------------------------------------------- */

/* Priorities. While backward computes the gradients of later buckets, we should not delay it:
 * compression takes what is left. Messages must not wait behind the blocks of backward, since every
 * other rank waits for them; they are few blocks and hardly delay anything. */
static tamis_status open_streams(tam_cuda_bucket_group *r, const tam_cuda_kind *kind) {
    cudaEvent_t *events[] = {&r->given, &r->sealed, &r->ready, &r->done, &r->fork, &r->merge};
    TAM_TRY(tam_cuda_queue_open(&r->queue));
    r->comm_stream = r->queue.stream;
    if (r->nbuckets > 1 && !kind->alone)
        TAM_TRY(tam_cuda_stream_open(kind->urgency, &r->comm_stream));
    for (size_t i = 0; i < sizeof events / sizeof events[0]; i++)
        TAM_TRY(tam_cuda_event_open(events[i]));
    return TAMIS_OK;
}

static void bucket_group_take(tam_cuda_bucket_group *r, tam_cuda_arena *arena) {
    tam_cuda_budgets *s = &r->budgets;
    r->common = tam_cuda_take(arena, 1, sizeof *r->common);
    r->exchanges = tam_cuda_take(arena, r->nbuckets, sizeof r->exchanges[0]);
    r->controls = tam_cuda_take(arena, r->nbuckets, sizeof r->controls[0]);
    r->lengths = tam_cuda_take(arena, r->nbuckets, sizeof r->lengths[0]);
    s->lengths = r->lengths;
    s->norms = tam_cuda_take(arena, r->nbuckets, sizeof s->norms[0]);
    s->even = tam_cuda_take(arena, r->nbuckets, sizeof s->even[0]);
    s->next = tam_cuda_take(arena, r->nbuckets, sizeof s->next[0]);
    s->now = tam_cuda_take(arena, r->nbuckets, sizeof s->now[0]);
}

static tamis_status bucket_group_take_memory(tam_cuda_bucket_group *r) {
    size_t ring = TAM_CUDA_STEPS * sizeof(tam_cuda_report);
    tam_cuda_arena arena = {0};
    void *memory = NULL, *pinned = NULL;
    bucket_group_take(r, &arena);
    TAM_TRY(tam_cuda_alloc(arena.used, "what buckets share", &memory));
    arena = (tam_cuda_arena){.base = r->memory = memory};
    bucket_group_take(r, &arena);
    TAM_TRY(tam_cuda_alloc_pinned(TAM_CUDA_LAUNCHERS * ring, "reports", &pinned));
    r->pinned = pinned;
    for (int i = 0; i < TAM_CUDA_LAUNCHERS; i++)
        r->reports[i] = (tam_cuda_report *)(void *)(r->pinned + (size_t)i * ring);
    return TAMIS_OK;
}

tamis_status tam_cuda_bucket_group_open(tam_cuda_step *first) {
    const tam_cuda_whole *whole = bucket_group_whole_of(first);
    tam_cuda_bucket_group *r = first->group = tam_alloc(sizeof *r);
    if (!r)
        return tam_fail(TAMIS_E_NOMEM, "no memory for a step");
    r->nbuckets = whole->nbuckets;
    r->steps = tam_alloc_array(r->nbuckets, sizeof(tam_cuda_step *));
    if (!r->steps)
        return tam_fail(TAMIS_E_NOMEM, "no memory for %u buckets", r->nbuckets);
    r->budgets.nbuckets = r->nbuckets - whole->nrow_segments;
    r->budgets.nrow_segments = whole->nrow_segments;
    r->budgets.by_norm = whole->by_norm;
    TAM_TRY(open_streams(r, first->kind));
    r->queue.timeout_ns = first->plan.timeout_ns;
    TAM_TRY(bucket_group_take_memory(r));
    if (r->nbuckets == 1)
        return TAMIS_OK;
    return tam_cuda_queue_write(&r->queue, whole->lengths, r->nbuckets * sizeof r->lengths[0],
                                r->lengths);
}

/* Memory for joining the buckets' lists into one ascending list; scheme dense has none. */
static tamis_status bucket_group_take_result(tam_cuda_bucket_group *r) {
    size_t entries = 0;
    void *memory = NULL;
    for (uint32_t b = 0; b < r->nbuckets; b++)
        entries += r->steps[b]->result_max;
    if (r->nbuckets == 1 || entries == 0)
        return TAMIS_OK;
    TAM_TRY(tam_cuda_alloc(entries * (sizeof(uint32_t) + sizeof(float)), "the result", &memory));
    r->result = memory;
    for (uint32_t b = 0; b < r->nbuckets; b++) {
        tam_cuda_exchange *x = r->steps[b]->outcome;
        x->all_indices = memory;
        x->all_values = (float *)(x->all_indices + entries);
    }
    return TAMIS_OK;
}

/* Kernels find all buckets through arrays. */
tamis_status tam_cuda_bucket_group_report(const tam_cuda_step *s) {
    const tam_cuda_bucket_group *r = s->group;
    uint32_t b = s->plan.bucket;
    TAM_TRY(tam_cuda_queue_write(&r->queue, s->outcome, sizeof *s->outcome, &r->exchanges[b]));
    return tam_cuda_queue_write(&r->queue, &s->control, sizeof s->control, &r->controls[b]);
}

static tamis_status bucket_group_complete(tam_cuda_bucket_group *r) {
    TAM_TRY(bucket_group_take_result(r));
    for (uint32_t b = 0; b < r->nbuckets; b++)
        TAM_TRY(tam_cuda_bucket_group_report(r->steps[b]));
    return TAMIS_OK;
}

tamis_status tam_cuda_bucket_group_join(tam_cuda_step *s) {
    s->group->steps[s->plan.bucket] = s;
    return tam_cuda_is_last(s) ? bucket_group_complete(s->group) : TAMIS_OK;
}

tam_cuda_reporting tam_cuda_bucket_group_reporting(const tam_cuda_step *first, uint32_t by) {
    const tam_cuda_bucket_group *r = first->group;
    return (tam_cuda_reporting){
        .nbuckets = r->nbuckets,
        .launcher = by,
        .all = r->exchanges,
        .common = r->common,
        .state = first->control.state,
        .ring = r->reports[by],
    };
}

/* -- order ------------------------------------------------------------------------------------ */

tamis_status tam_cuda_follow(cudaStream_t behind, cudaStream_t stream, cudaEvent_t event) {
    TAM_CUDA_TRY(cudaEventRecord(event, stream), "following a stream");
    TAM_CUDA_TRY(cudaStreamWaitEvent(behind, event, 0), "following a stream");
    return TAMIS_OK;
}

tamis_status tam_cuda_bucket_group_gather(tam_cuda_bucket_group *r) {
    if (r->coll)
        TAM_TRY(tam_cuda_follow(r->queue.stream, r->coll, r->handed));
    if (r->comm_stream == r->queue.stream)
        return TAMIS_OK;
    return tam_cuda_follow(r->queue.stream, r->comm_stream, r->sealed);
}

/* -- close ------------------------------------------------------------------------------------ */

bool tam_cuda_bucket_group_idle(tam_cuda_bucket_group *r, uint32_t rank) {
    if (r->hangs)
        return false;
    r->hangs = tam_cuda_bucket_group_gather(r) != TAMIS_OK ||
               tam_cuda_queue_wait(&r->queue, "the last step") != TAMIS_OK;
    if (r->hangs)
        tam_log(TAM_WARN, "rank %u: a step on the CUDA device never ended; its memory is not freed",
                rank);
    return !r->hangs;
}

void tam_cuda_bucket_group_close(tam_cuda_bucket_group *r) {
    for (int i = 0; i < 2; i++)
        tam_cuda_event_close(r->arrived[i]);
    tam_cuda_event_close(r->handed);
    tam_cuda_event_close(r->merge);
    tam_cuda_event_close(r->fork);
    tam_cuda_event_close(r->done);
    tam_cuda_event_close(r->ready);
    tam_cuda_event_close(r->sealed);
    tam_cuda_event_close(r->given);
    tam_cuda_stream_close(r->coll);
    if (r->comm_stream != r->queue.stream)
        tam_cuda_stream_close(r->comm_stream);
    tam_cuda_queue_close(&r->queue);
    tam_cuda_free_pinned(r->pinned);
    tam_cuda_free(r->result);
    tam_cuda_free(r->memory);
    tam_cuda_bucket_group_forget(r);
}

void tam_cuda_bucket_group_forget(tam_cuda_bucket_group *r) {
    tam_free(r->steps);
    tam_free(r);
}
