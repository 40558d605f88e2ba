/* SPDX-License-Identifier: MIT
 *
 * A whole step on the device, whatever its kind: its memory, its life, its state.
 */
#include "kernels/cuda/step.h"

#include "lib/base/base.h"

#include <stddef.h>

const char *tam_cuda_refusal(uint32_t refused) {
    static const char *const words[TAM_CUDA_REFUSALS] = {
        [TAM_CUDA_REFUSED_NOTHING] = "nothing was wrong",
        [TAM_CUDA_REFUSED_MAGIC] = "it did not arrive (magic number)",
        [TAM_CUDA_REFUSED_RANK] = "it names another rank",
        [TAM_CUDA_REFUSED_CONFIG] = "it comes from another configuration",
        [TAM_CUDA_REFUSED_STEP] = "it is of another step",
        [TAM_CUDA_REFUSED_COUNT] = "its count exceeds the slot",
        [TAM_CUDA_REFUSED_CHECKSUM] = "its checksum is wrong",
        [TAM_CUDA_REFUSED_RESULT] = "its result of the step before differs: values were damaged on "
                                    "their way; go back to an older state",
        [TAM_CUDA_REFUSED_ORDER] = "its indices do not ascend or lie past the end",
        [TAM_CUDA_REFUSED_OWNER] = "it holds an index that is not its to pick",
        [TAM_CUDA_REFUSED_ABSENT] = "sums are missing: a rank refused a slot, or the exchange was "
                                    "given up",
    };
    return refused < TAM_CUDA_REFUSALS ? words[refused] : "unknown reason";
}

/* -- memory ----------------------------------------------------------------------------------- */

static size_t scratch_bytes(const tam_cuda_step *s) {
    return sizeof(tam_cuda_scratch) + s->plan.nranks * sizeof(tam_cuda_tally);
}

static void take(tam_cuda_step *s, tam_cuda_arena *arena) {
    tam_cuda_exchange *x = &s->exchange;
    x->scratch = tam_cuda_take(arena, 1, scratch_bytes(s));
    x->tallies = x->scratch ? (tam_cuda_tally *)(x->scratch + 1) : NULL;
    x->ledger = tam_cuda_take(arena, 1, sizeof(tam_cuda_ledger));
    s->control.turn = tam_cuda_take(arena, 1, sizeof(tam_cuda_turn));
    s->control.state = tam_cuda_take(arena, 1, sizeof(tam_control_state));
    s->sources = tam_cuda_take(arena, TAM_CUDA_LANES, sizeof s->sources[0]);
    for (int i = 0; i < TAM_CUDA_LANES; i++)
        s->grads[i] = tam_cuda_take(arena, s->device->nsegments, sizeof s->grads[i][0]);
    s->kind->take(s, arena);
}

static tamis_status take_device(tam_cuda_step *s) {
    tam_cuda_arena arena = {0};
    void *memory = NULL;
    take(s, &arena);
    TAM_TRY(tam_cuda_alloc(arena.used, "the exchange", &memory));
    arena = (tam_cuda_arena){.base = s->memory = memory};
    take(s, &arena);
    s->exchange.turn = s->control.turn;
    return TAMIS_OK;
}

static tamis_status take_host(tam_cuda_step *s) {
    uint32_t nsegments = s->device->nsegments;
    size_t ring = TAM_CUDA_STEPS * sizeof(tam_cuda_report);
    size_t sent = (size_t)TAM_CUDA_STEPS * nsegments * sizeof(void *);
    void *pinned = NULL;
    TAM_TRY(tam_cuda_alloc_pinned(TAM_CUDA_LANES * ring + sent, "reports", &pinned));
    s->pinned = pinned;
    for (int i = 0; i < TAM_CUDA_LANES; i++)
        s->reports[i] = (tam_cuda_report *)(void *)(s->pinned + (size_t)i * ring);
    s->grads_sent = (void **)(void *)(s->pinned + TAM_CUDA_LANES * ring);
    s->grads_now = tam_alloc_array(nsegments, sizeof s->grads_now[0]);
    s->grads_captured = tam_alloc_array(nsegments, sizeof s->grads_captured[0]);
    if (!s->grads_now || !s->grads_captured)
        return tam_fail(TAMIS_E_NOMEM, "no memory for pointers to %u segments", nsegments);
    return TAMIS_OK;
}

static tamis_status take_events(tam_cuda_step *s) {
    cudaEvent_t *events[] = {&s->given, &s->ready, &s->done, &s->fork, &s->merge};
    for (size_t i = 0; i < sizeof events / sizeof events[0]; i++)
        TAM_TRY(tam_cuda_event_open(events[i]));
    return TAMIS_OK;
}

static tamis_status fill(tam_cuda_step *s) {
    TAM_TRY(tam_cuda_lane_open(&s->lane));
    s->lane.timeout_ns = s->plan.timeout_ns;
    TAM_TRY(take_events(s));
    TAM_TRY(take_device(s));
    TAM_TRY(take_host(s));
    return s->kind->fill(s);
}

/* What the host alone has. */
static void forget(tam_cuda_step *s) {
    tam_free(s->pieces);
    tam_free(s->grads_now);
    tam_free(s->grads_captured);
    tam_free(s);
}

static void release(tam_cuda_step *s) {
    if (s->graph && cudaGraphExecDestroy(s->graph) != cudaSuccess)
        (void)cudaGetLastError();
    tam_cuda_event_close(s->merge);
    tam_cuda_event_close(s->fork);
    tam_cuda_event_close(s->done);
    tam_cuda_event_close(s->ready);
    tam_cuda_event_close(s->given);
    tam_cuda_lane_close(&s->lane);
    tam_cuda_free_pinned(s->pinned);
    tam_cuda_free(s->memory);
    forget(s);
}

tamis_status tam_cuda_step_make(tam_cuda_step *s, tam_cuda_step **out) {
    tam_cuda_guard guard;
    tamis_status status = tam_cuda_enter(s->device->device, &guard);
    if (status != TAMIS_OK)
        goto err_step;
    status = fill(s);
    if (status != TAMIS_OK)
        release(s);
    tam_cuda_leave(&guard);
    if (status == TAMIS_OK)
        *out = s;
    return status;

err_step:
    forget(s);
    return status;
}

/* Memory that the device may still write to must stay. */
void tam_cuda_step_close(tam_cuda_step *s) {
    tam_cuda_guard guard;
    if (!s)
        return;
    if (tam_cuda_enter(s->device->device, &guard) != TAMIS_OK) {
        s->device->hangs = true;
        forget(s); /* a broken device: nothing runs there, and nothing can be freed there */
        return;
    }
    s->device->hangs = tam_cuda_lane_wait(&s->lane, "the last step") != TAMIS_OK;
    if (s->device->hangs)
        tam_log(TAM_WARN, "rank %u: a step on the CUDA device never ended; its memory stays",
                s->plan.rank);
    else
        release(s);
    tam_cuda_leave(&guard);
}

/* -- state ------------------------------------------------------------------------------------ */

/* After the serials, which count on: forget what broke the exchange. */
static tamis_status load_ledger(tam_cuda_step *s, uint64_t config, uint64_t last_result) {
    tam_cuda_ledger ledger = {.config = config, .last_result = last_result};
    size_t first = offsetof(tam_cuda_ledger, config);
    return tam_cuda_lane_write(&s->lane, (const char *)&ledger + first, sizeof ledger - first,
                               (char *)s->exchange.ledger + first);
}

static tamis_status load(tam_cuda_step *s, uint64_t number, uint64_t config, uint64_t last_result) {
    TAM_TRY(load_ledger(s, config, last_result));
    TAM_TRY(s->kind->load(s, number));
    return tam_cuda_lane_wait(&s->lane, "loading a state");
}

tamis_status tam_cuda_step_load(tam_cuda_step *s, uint64_t number, uint64_t config,
                                uint64_t last_result) {
    tam_cuda_guard guard;
    TAM_TRY(tam_cuda_enter(s->device->device, &guard));
    tamis_status status = load(s, number, config, last_result);
    tam_cuda_leave(&guard);
    return status;
}

static tamis_status save(tam_cuda_step *s, tam_cuda_turn *turn, tam_cuda_ledger *ledger) {
    TAM_TRY(tam_cuda_lane_read(&s->lane, s->control.turn, sizeof *turn, turn));
    TAM_TRY(tam_cuda_lane_read(&s->lane, s->exchange.ledger, sizeof *ledger, ledger));
    return s->kind->save(s);
}

tamis_status tam_cuda_step_save(tam_cuda_step *s, uint64_t *number, uint64_t *last_result) {
    tam_cuda_turn turn;
    tam_cuda_ledger ledger;
    tam_cuda_guard guard;
    TAM_TRY(tam_cuda_enter(s->device->device, &guard));
    tamis_status status = save(s, &turn, &ledger);
    tam_cuda_leave(&guard);
    TAM_TRY(status);
    *number = turn.step;
    *last_result = ledger.last_result;
    return TAMIS_OK;
}

tamis_status tam_cuda_step_clear(tam_cuda_step *s) {
    TAM_CUDA_TRY(cudaMemsetAsync(s->exchange.scratch, 0, scratch_bytes(s), s->lane.stream),
                 "clearing the scratch of a step");
    return TAMIS_OK;
}
