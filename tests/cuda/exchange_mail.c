/* SPDX-License-Identifier: MIT
 *
 * The collectives of an exchange between ranks of one process: in stream order, with damage.
 */
#include "tests/cuda/exchange_world.h"
#include "kernels/cuda/step.h"
#include "tests/cuda/fake.h"
#include <string.h>

/* -- meetings --------------------------------------------------------------------------------- */

/* @return whether all streams are here; else somebody never comes, and his memory may go */
static bool meet(exchange_group *g) {
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

/* -- slots ------------------------------------------------------------------------------------ */

tam_head *exchange_header(const exchange_seat *s, uint32_t rank) {
    return (tam_head *)(void *)(s->mail->slots + rank * s->mail->slot_bytes);
}

float *exchange_tallies(const exchange_seat *s, uint32_t rank) {
    return (float *)(void *)(exchange_header(s, rank) + 1);
}

static size_t head_bytes_of(const exchange_seat *s) {
    return tam_head_bytes(TAM_TALLIES + s->step->exchange.slots.nstats);
}

uint32_t *exchange_list(const exchange_seat *s, uint32_t rank) {
    return (uint32_t *)(void *)((char *)exchange_header(s, rank) + head_bytes_of(s));
}

uint32_t exchange_capacity(const exchange_seat *s) {
    return s->step->exchange.slots.capacity;
}

void exchange_reseal(const exchange_seat *s, uint32_t rank) {
    tam_head *h = exchange_header(s, rank);
    uint32_t capacity = exchange_capacity(s);
    uint32_t count = h->count < capacity ? h->count : capacity;
    const uint32_t *list = exchange_list(s, rank);
    const char *values = (const char *)list + tam_head_round(capacity * sizeof list[0]);
    const tam_cuda_exchange *x = &s->step->exchange;
    const tam_head_due due = {x->ledger->config + x->ledger->agreed, x->turn->step,
                              x->ledger->last_result, rank, 0};
    size_t bytes = s->trial->format == TAMIS_INDEX_AUTO ? count * sizeof list[0] : h->index_bytes;
    uint64_t sums = tam_sum_head(h, head_bytes_of(s)) + tam_sum_bytes(TAM_SUM_INDICES, list, bytes);
    if (s->scheme.exchange == TAM_EXCHANGE_PAIRS)
        sums += tam_sum_bytes(TAM_SUM_VALUES, values, count * sizeof(float));
    h->check = tam_head_check_of(&due, sums);
}

/* -- collectives ------------------------------------------------------------------------------ */

static void copy(exchange_seat *me, exchange_leg leg) {
    const tam_cuda_mail *to = me->mail;
    uint32_t rank = me->self->id;
    for (uint32_t q = 0; q < me->trial->nranks; q++) {
        const tam_cuda_mail *from = me->group->seats[q].mail;
        size_t slot = q * to->slot_bytes, share = q * to->share_bytes, sum = q * to->sum_bytes;
        if (leg == LEG_SLOTS && q != rank)
            memcpy(to->slots + slot, from->slots + slot, to->slot_bytes);
        if (leg == LEG_VALUES)
            memcpy(to->shares + share, from->values + rank * to->share_bytes, to->share_bytes);
        if (leg == LEG_SUMS && q != rank)
            memcpy(to->sums + sum, from->sums + sum, to->sum_bytes);
    }
}

static void run_collective(void *context) {
    const struct exchange_ticket *ticket = context;
    exchange_seat *me = ticket->seat;
    const exchange_trial *t = me->trial;
    bool hit =
        t->leg == ticket->leg && me->round++ == t->fault_step && (t->victims >> me->self->id & 1);
    if (!meet(me->group))
        return;
    if (!hit || t->damage)
        copy(me, ticket->leg);
    if (hit && t->damage)
        t->damage(me);
    if (ticket->leg == LEG_SLOTS)
        memcpy(me->earlier, me->mail->slots, t->nranks * me->mail->slot_bytes);
    (void)meet(me->group);
}

static tamis_status collect(exchange_seat *me, exchange_leg leg) {
    int error =
        fake_cuda_enqueue(me->mail->stream, "collective", run_collective, &me->tickets[leg], NULL);
    return error ? TAMIS_E_TRANSPORT : TAMIS_OK;
}

tamis_status exchange_enqueue(void *context, tam_cuda_step *step) {
    exchange_seat *me = context;
    TAM_TRY(collect(me, LEG_SLOTS));
    TAM_TRY(tam_cuda_step_unite(step));
    if (me->mail->share_bytes == 0)
        return TAMIS_OK;
    TAM_TRY(collect(me, LEG_VALUES));
    TAM_TRY(tam_cuda_step_add(step));
    return collect(me, LEG_SUMS);
}

void exchange_swap_first(const exchange_seat *seat, uint32_t rank) {
    uint32_t *list = exchange_list(seat, rank), first = list[0];
    list[0] = list[1];
    list[1] = first;
    exchange_reseal(seat, rank);
}
