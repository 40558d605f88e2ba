/* SPDX-License-Identifier: MIT
 *
 * Messages of another size, when steps are to send another number of entries. Buffers stay where
 * they are; they have room for the most that there can be.
 */
#include "kernels/cuda/step.h"

#include "lib/base/base.h"

/* -- sizes ------------------------------------------------------------------------------------ */

static tamis_status resize(tam_cuda_step *s, const tam_cuda_capacity *capacity) {
    s->plan.packet_capacity = capacity->packet_capacity;
    s->plan.union_max = capacity->union_max;
    s->plan.codecs.index_bytes = capacity->index_bytes;
    tam_cuda_sparse_resize(s);
    if (s->kind->resize)
        s->kind->resize(s, capacity);
    return tam_cuda_bucket_group_report(s);
}

tamis_status tam_cuda_step_resize(tam_cuda_step *s, const tam_cuda_capacity *capacity) {
    TAM_CUDA_ON(s->device->device, resize(s, capacity));
}

/* -- do all ranks change them? ---------------------------------------------------------------- */

static unsigned char *packet_of(const tam_cuda_step *s, uint32_t rank) {
    const tam_cuda_packets *packets = &s->exchange.packets;
    return packets->memory + rank * packets->bytes;
}

static uint32_t resize_check_of(const tam_header *header, const tam_header_due *due) {
    return tam_header_check_of(due, tam_sum_header(header, sizeof *header));
}

static tamis_status put_header(const tam_cuda_step *s, cudaStream_t caller,
                               const tam_header *header) {
    const tam_cuda_bucket_group *r = s->group;
    TAM_TRY(tam_cuda_follow(r->queue.stream, caller, r->given));
    return tam_cuda_queue_write(&r->queue, header, sizeof *header,
                                packet_of(s, s->exchange.packets.rank));
}

tamis_status tam_cuda_step_announce(tam_cuda_step *s, void *caller, const tam_header_due *due) {
    tam_header header = {0};
    tam_header_due own = *due;
    own.rank = s->exchange.packets.rank;
    tam_header_address(&header, &own);
    header.check = resize_check_of(&header, &own);
    TAM_CUDA_ON(s->device->device, put_header(s, (cudaStream_t)caller, &header));
}

static tamis_status resize_compare(const tam_cuda_step *s, const tam_header_due *due) {
    const tam_cuda_packets *packets = &s->exchange.packets;
    for (uint32_t r = 0; r < packets->nranks; r++) {
        tam_header header;
        tam_header_due theirs = *due;
        theirs.rank = r;
        TAM_TRY(tam_cuda_queue_read(&s->group->queue, packet_of(s, r), sizeof header, &header));
        tam_refusal why = tam_header_check(&header, &theirs);
        if (why == TAM_REFUSED_NOTHING && header.check != resize_check_of(&header, &theirs))
            why = TAM_REFUSED_CHECKSUM;
        if (why != TAM_REFUSED_NOTHING)
            return tam_fail(TAMIS_E_PROTOCOL, "step %llu: the packet of rank %u was refused: %s",
                            (unsigned long long)due->step, packets->first + r * packets->stride,
                            tam_refusal_words(why));
    }
    return TAMIS_OK;
}

tamis_status tam_cuda_step_check_announced(tam_cuda_step *s, const tam_header_due *due) {
    TAM_CUDA_ON(s->device->device, resize_compare(s, due));
}
