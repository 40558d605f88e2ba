/* SPDX-License-Identifier: MIT
 *
 * The collectives of an exchange between ranks of one process: in stream order, with damage.
 */
#include "tests/cuda/exchange_world.h"
#include "kernels/cuda/step.h"
#include "tests/cuda/fake.h"
#include <string.h>

/* -- barrier ---------------------------------------------------------------------------------- */

/* @return whether all streams are here; else somebody never comes, and his memory may go */
static bool barrier(exchange_group *g) {
    pthread_mutex_lock(&g->lock);
    uint64_t generation = g->generation;
    if (++g->waiting == g->trial.nranks) {
        g->waiting = 0;
        g->generation++;
        pthread_cond_broadcast(&g->changed);
    }
    while (g->generation == generation && !g->gone)
        pthread_cond_wait(&g->changed, &g->lock);
    bool complete = !g->gone;
    pthread_mutex_unlock(&g->lock);
    return complete;
}

void exchange_leave(exchange_group *g) {
    pthread_mutex_lock(&g->lock);
    g->gone = true;
    pthread_cond_broadcast(&g->changed);
    pthread_mutex_unlock(&g->lock);
}

/* -- packets ---------------------------------------------------------------------------------- */

tam_header *exchange_header(const exchange_endpoint *s, uint32_t rank) {
    return (tam_header *)(void *)(s->buffers->packets + rank * s->buffers->packet_bytes);
}

float *exchange_counters(const exchange_endpoint *s, uint32_t rank) {
    return (float *)(void *)(exchange_header(s, rank) + 1);
}

static size_t header_bytes_of(const exchange_endpoint *s) {
    return tam_header_bytes(TAM_COUNTERS + s->step->exchange.packets.nstats);
}

uint32_t *exchange_list(const exchange_endpoint *s, uint32_t rank) {
    return (uint32_t *)(void *)((char *)exchange_header(s, rank) + header_bytes_of(s));
}

uint32_t exchange_capacity(const exchange_endpoint *s) {
    return s->step->exchange.packets.capacity;
}

void exchange_reseal(const exchange_endpoint *s, uint32_t rank) {
    tam_header *h = exchange_header(s, rank);
    uint32_t capacity = exchange_capacity(s);
    uint32_t count = h->count < capacity ? h->count : capacity;
    const uint32_t *list = exchange_list(s, rank);
    const char *values = (const char *)list + tam_header_round(capacity * sizeof list[0]);
    const tam_cuda_exchange *x = &s->step->exchange;
    const tam_header_due due = {x->record->config + x->record->agreed, x->params->step,
                                x->record->last_result, rank, 0};
    size_t bytes =
        s->trial->index_codec == TAMIS_INDEX_AUTO ? count * sizeof list[0] : h->index_bytes;
    uint64_t sums =
        tam_sum_header(h, header_bytes_of(s)) + tam_sum_bytes(TAM_SUM_INDICES, list, bytes);
    if (s->scheme.exchange == TAM_EXCHANGE_PAIRS)
        sums += tam_sum_bytes(TAM_SUM_VALUES, values, count * sizeof(float));
    h->check = tam_header_check_of(&due, sums);
}

/* -- collectives ------------------------------------------------------------------------------ */

static void copy(exchange_endpoint *me, exchange_phase phase) {
    const tam_cuda_comm_buffers *to = me->buffers;
    uint32_t rank = me->self->id;
    for (uint32_t q = 0; q < me->trial->nranks; q++) {
        const tam_cuda_comm_buffers *from = me->group->endpoints[q].buffers;
        size_t packet = q * to->packet_bytes, shard = q * to->shard_bytes, sum = q * to->sum_bytes;
        if (phase == PHASE_PACKETS && q != rank)
            memcpy(to->packets + packet, from->packets + packet, to->packet_bytes);
        if (phase == PHASE_VALUES)
            memcpy(to->shards + shard, from->values + rank * to->shard_bytes, to->shard_bytes);
        if (phase == PHASE_SUMS && q != rank)
            memcpy(to->sums + sum, from->sums + sum, to->sum_bytes);
    }
}

static void run_collective(void *context) {
    const struct exchange_ticket *ticket = context;
    exchange_endpoint *me = ticket->endpoint;
    const exchange_trial *t = me->trial;
    bool hit = t->phase == ticket->phase && me->round++ == t->fault_step &&
               (t->victims >> me->self->id & 1);
    if (!barrier(me->group))
        return;
    if (!hit || t->damage)
        copy(me, ticket->phase);
    if (hit && t->damage)
        t->damage(me);
    if (ticket->phase == PHASE_PACKETS)
        memcpy(me->earlier, me->buffers->packets, t->nranks * me->buffers->packet_bytes);
    (void)barrier(me->group);
}

static tamis_status collect(exchange_endpoint *me, exchange_phase phase) {
    int error = fake_cuda_enqueue(me->buffers->stream, "collective", run_collective,
                                  &me->tickets[phase], NULL);
    return error ? TAMIS_E_TRANSPORT : TAMIS_OK;
}

tamis_status exchange_enqueue(void *context, tam_cuda_step *step) {
    exchange_endpoint *me = context;
    TAM_TRY(collect(me, PHASE_PACKETS));
    TAM_TRY(tam_cuda_step_union(step));
    if (me->buffers->shard_bytes == 0)
        return TAMIS_OK;
    TAM_TRY(collect(me, PHASE_VALUES));
    TAM_TRY(tam_cuda_step_add(step));
    return collect(me, PHASE_SUMS);
}

void exchange_swap_first(const exchange_endpoint *endpoint, uint32_t rank) {
    uint32_t *list = exchange_list(endpoint, rank), first = list[0];
    list[0] = list[1];
    list[1] = first;
    exchange_reseal(endpoint, rank);
}
