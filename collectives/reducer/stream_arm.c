/* SPDX-License-Identifier: MIT
 *
 * Steps that the device runs by itself are warmed up and captured. The sizes of their messages
 * follow from k, in grains, so that most changes of the density change no size:
 *
 *     k                 1000 .. 1024 | 1025 .. 1088 | 1089 .. 1152 | ...
 *     room for          1024         | 1088         | 1152         | ...
 *
 * Where a size does change, all ranks must change it before the same step. So they exchange empty
 * packets of the old sizes first, whose headers tell k (tam_cuda_step_announce).
 */
#include "collectives/reducer/reducer.h"

#ifdef TAM_HAVE_CUDA

#include "collectives/reducer/stream.h"

/* -- warm-up ---------------------------------------------------------------------------------- */

/* NCCL connects ranks when a size of message first wants it, which must not happen in a capture,
 * ours or the caller's. */
static tamis_status warm_up_bucket(const tam_bucket *b) {
    tamis_comm *comm = b->reducer->comm;
    tam_cuda_step *step = b->reducer->inflight->steps[b->view.index];
    uint64_t late_ns = tam_comm_deadline(comm);
    tamis_status status = tam_cuda_step_warm_up(step, tam_stream_row_of(b)->warm_up, comm);
    if (status == TAMIS_OK)
        return TAMIS_OK;
    TAM_TRY(comm->transport->stream->poll(comm->self)); /* which knows more, if it has failed */
    if (tam_clock_ns() < late_ns)
        return status;
    return tam_fail(TAMIS_E_TIMEOUT,
                    "rank %u: the first exchange of a reducer, or of another density, did not end; "
                    "a rank is missing, or the device is busy or hangs",
                    comm->rank);
}

static tamis_status warm_up_all(const tamis_reducer *r) {
    for (uint32_t i = 0; i < r->nbuckets; i++)
        TAM_TRY(warm_up_bucket(&r->buckets[i]));
    return TAMIS_OK;
}

/* -- sizes ------------------------------------------------------------------------------------ */

/* Rounded up to a grain of at most a sixteenth: the same on all ranks, whatever k was before. */
static uint64_t stream_arm_capacity_of(const tamis_reducer *r) {
    uint64_t grain = 1;
    while (32 * grain <= r->k)
        grain *= 2;
    uint64_t capacity = (r->k + grain - 1) / grain * grain;
    return capacity < r->k_max ? capacity : r->k_max;
}

static tamis_status stream_arm_resize(tamis_reducer *r, uint64_t capacity) {
    r->inflight->wire_bytes = 0;
    for (uint32_t i = 0; i < r->nbuckets; i++) {
        const tam_bucket *b = &r->buckets[i];
        const tam_stream_row *row = tam_stream_row_of(b);
        TAM_TRY(row->resize ? row->resize(b, capacity) : TAMIS_OK);
        r->inflight->wire_bytes += row->wire_bytes(b);
    }
    return TAMIS_OK;
}

/* Either all ranks capture their collectives, or none does. */
tamis_status tam_stream_arm(tamis_reducer *r) {
    uint64_t capacity = stream_arm_capacity_of(r);
    TAM_TRY(stream_arm_resize(r, capacity));
    TAM_TRY(warm_up_all(r));
    for (uint32_t i = 0; i < r->nbuckets && tam_setting_number(TAM_SETTING_GRAPHS) != 0; i++)
        TAM_TRY(tam_cuda_step_capture(r->inflight->steps[i],
                                      tam_stream_row_of(&r->buckets[i])->enqueue, r->comm));
    r->inflight->capacity = capacity; /* not before: what has failed is done again */
    return TAMIS_OK;
}

/* Whether all ranks are about to change the sizes. The packet of the first bucket tells for all. A
 * warm-up must have the collectives of a step here, for a rank that does not change runs one
 * (that of scheme dense has not; its density does not change). */
static tamis_status stream_arm_agree(tamis_reducer *r, void *caller) {
    const tam_bucket *b = &r->buckets[0];
    const tam_header_due due = {
        .config = tam_stream_config(b) + b->view.target.agreed,
        .step = r->step,
        .last_result = b->view.last_result,
    };
    TAM_TRY(tam_cuda_step_announce(tam_stream_leader(r), caller, &due));
    TAM_TRY(warm_up_all(r));
    return tam_cuda_step_check_announced(tam_stream_leader(r), &due);
}

/* The others have begun the step, or will: it cannot be abandoned. */
static tamis_status change_sizes(tamis_reducer *r, void *caller) {
    TAM_TRY(stream_arm_agree(r, caller));
    tamis_status status = tam_stream_arm(r);
    if (status == TAMIS_OK || tamis_status_loss(status) == TAMIS_LOST_COMM)
        return status;
    return tam_fail(TAMIS_E_DEVICE, "rank %u: sizes of messages could not be changed: %s",
                    r->comm->rank, tamis_status_name(status));
}

tamis_status tam_stream_rearm(tamis_reducer *r, void *caller) {
    bool captured;
    if (stream_arm_capacity_of(r) == r->inflight->capacity)
        return TAMIS_OK;
    TAM_TRY(tam_cuda_step_find_capture(tam_stream_leader(r), caller, &captured));
    if (captured)
        return tam_fail(TAMIS_E_STATE,
                        "rank %u: the density was changed, and with it sizes of messages, which "
                        "ranks must try before a graph can hold them; make a step outside of the "
                        "capture first",
                        r->comm->rank);
    return change_sizes(r, caller);
}

#endif
