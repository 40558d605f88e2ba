/* SPDX-License-Identifier: MIT
 *
 * Messages of another size, when steps are to send another number of entries. Buffers stay where
 * they are; they have room for the most that there can be.
 */
#include "kernels/cuda/step.h"

#include "lib/base/base.h"

/* -- sizes ------------------------------------------------------------------------------------ */

static tamis_status resize(tam_cuda_step *s, const tam_cuda_room *room) {
    s->plan.slot_capacity = room->slot_capacity;
    s->plan.union_max = room->union_max;
    s->plan.format.index_bytes = room->index_bytes;
    tam_cuda_sparse_resize(s);
    if (s->kind->resize)
        s->kind->resize(s, room);
    return tam_cuda_round_tell(s);
}

tamis_status tam_cuda_step_resize(tam_cuda_step *s, const tam_cuda_room *room) {
    TAM_CUDA_ON(s->device->device, resize(s, room));
}

/* -- do all ranks change them? ---------------------------------------------------------------- */

static unsigned char *slot_of(const tam_cuda_step *s, uint32_t rank) {
    const tam_cuda_slots *slots = &s->exchange.slots;
    return slots->memory + rank * slots->bytes;
}

static uint32_t check_of(const tam_head *head, const tam_head_due *due) {
    return tam_head_check_of(due, tam_sum_head(head, sizeof *head));
}

static tamis_status put_head(const tam_cuda_step *s, cudaStream_t caller, const tam_head *head) {
    const tam_cuda_round *r = s->round;
    TAM_TRY(tam_cuda_follow(r->lane.stream, caller, r->given));
    return tam_cuda_lane_write(&r->lane, head, sizeof *head, slot_of(s, s->exchange.slots.rank));
}

tamis_status tam_cuda_step_tell(tam_cuda_step *s, void *caller, const tam_head_due *due) {
    tam_head head = {0};
    tam_head_due own = *due;
    own.rank = s->exchange.slots.rank;
    tam_head_address(&head, &own);
    head.check = check_of(&head, &own);
    TAM_CUDA_ON(s->device->device, put_head(s, (cudaStream_t)caller, &head));
}

static tamis_status compare(const tam_cuda_step *s, const tam_head_due *due) {
    const tam_cuda_slots *slots = &s->exchange.slots;
    for (uint32_t r = 0; r < slots->nranks; r++) {
        tam_head head;
        tam_head_due theirs = *due;
        theirs.rank = r;
        TAM_TRY(tam_cuda_lane_read(&s->round->lane, slot_of(s, r), sizeof head, &head));
        tam_refusal why = tam_head_check(&head, &theirs);
        if (why == TAM_REFUSED_NOTHING && head.check != check_of(&head, &theirs))
            why = TAM_REFUSED_CHECKSUM;
        if (why != TAM_REFUSED_NOTHING)
            return tam_fail(TAMIS_E_PROTOCOL, "step %llu: the slot of rank %u was refused: %s",
                            (unsigned long long)due->step, slots->first + r * slots->stride,
                            tam_refusal_words(why));
    }
    return TAMIS_OK;
}

tamis_status tam_cuda_step_hear(tam_cuda_step *s, const tam_head_due *due) {
    TAM_CUDA_ON(s->device->device, compare(s, due));
}
