/* SPDX-License-Identifier: MIT
 *
 * Rounds of local steps. Every pass goes segment by segment, for params are given so.
 */
#include "collectives/local/local.h"

#include "lib/base/fenv.h"

#include <stdio.h>

/* One segment of every vector. */
typedef struct part {
    float *base, *momentum, *d, *snapshot; /* NULL as in the handle */
    float *params;
    uint64_t n;
} part;

static part round_part_of(const tamis_local *l, float *const *params, uint32_t segment) {
    const uint32_t *begins = l->reducer->layout->begins;
    uint64_t at = begins[segment];
    return (part){.base = l->base + at,
                  .momentum = l->momentum ? l->momentum + at : NULL,
                  .d = l->d + at,
                  .snapshot = l->snapshot ? l->snapshot + at : NULL,
                  .params = params[segment],
                  .n = begins[segment + 1] - at};
}

/* -- begin ------------------------------------------------------------------------------------ */

static void round_leave(tamis_local *l, float *const *params) {
    double square = 0.0;
    for (uint32_t s = 0; s < l->reducer->layout->nsegments; s++) {
        part p = round_part_of(l, params, s);
        square += tam_outer_difference(p.base, p.params, p.n, p.d).square;
        if (p.snapshot)
            memcpy(p.snapshot, p.params, p.n * sizeof(float));
    }
    l->stats.drift_norm = sqrt(square);
}

static void round_fail(tamis_local *l, tamis_status status) {
    l->round = TAM_ROUND_FAILED;
    l->kept = !l->reducer->acc && tamis_status_loss(status) == TAMIS_LOST_COMM;
    l->outcome = status;
    snprintf(l->sentence, sizeof l->sentence, "%s", status != TAMIS_OK ? tamis_last_error() : "");
}

/* A failure without a loss leaves the round for the next call. */
static tamis_status round_begin(tamis_local *l, float *const *params) {
    round_leave(l, params);
    tamis_step step = TAMIS_STEP_INIT;
    step.grad = l->d;
    tamis_status status = tamis_reducer_start(l->reducer, &step);
    if (status != TAMIS_OK && tamis_status_loss(status) == TAMIS_LOST_NOTHING)
        return status;
    l->position = 0;
    l->round = TAM_ROUND_UNDER_WAY;
    if (status != TAMIS_OK)
        round_fail(l, status);
    return TAMIS_OK;
}

void tam_local_arrive(tamis_local *l) {
    tamis_status status = tamis_reducer_wait(l->reducer);
    l->expected = l->reducer->step;
    if (status != TAMIS_OK || l->reducer->stats.skipped)
        round_fail(l, status);
    else
        l->round = TAM_ROUND_ARRIVED;
}

/* -- collect ---------------------------------------------------------------------------------- */

/* All ranks leave elements unchanged that would overflow. */
static tamis_status round_apply(tamis_local *l, float *const *params) {
    const tam_outer how = {(float)l->config.lr, (float)l->config.momentum};
    double square = 0.0;
    uint64_t bad = 0;
    for (uint32_t s = 0; s < l->reducer->layout->nsegments; s++) {
        part p = round_part_of(l, params, s);
        tam_outer_seen seen = tam_outer_step(how, p.d, p.n, p.momentum, p.base);
        tam_outer_follow(p.base, p.snapshot, p.n, p.params);
        square += seen.square;
        bad += seen.bad;
    }
    l->round = TAM_ROUND_IDLE;
    l->stats.density = l->reducer->stats.density;
    l->stats.outer_norm = sqrt(square);
    l->stats.rounds++;
    if (bad == 0)
        return TAMIS_OK;
    return tam_fail(TAMIS_E_NONFINITE,
                    "tamis_local_step: the outer step would make %llu elements of the base "
                    "infinite or NaN; they stay as they were, all others were applied",
                    (unsigned long long)bad);
}

static tamis_status round_give_back(tamis_local *l, float *const *params) {
    for (uint32_t s = 0; s < l->reducer->layout->nsegments && !l->kept; s++) {
        part p = round_part_of(l, params, s);
        tam_outer_return(p.base, p.d, p.snapshot, p.n, p.params);
    }
    l->round = TAM_ROUND_IDLE;
    l->stats.lost_rounds++;
    tam_log(TAM_WARN, "rank %u: a round of local steps was lost%s%s", l->reducer->comm->rank,
            l->sentence[0] ? ": " : "", l->sentence);
    return l->outcome == TAMIS_OK ? TAMIS_OK : tam_pass(l->outcome, l->sentence);
}

static tamis_status round_agree(tamis_local *l, tamis_status own) {
    return tam_local_handshake(l->reducer->comm, l, own, "tamis_local_step");
}

/* The mean has arrived: other ranks may have agreed and applied it even if the handshake fails
 * here. */
static tamis_status round_collect(tamis_local *l, float *const *params) {
    if (l->round == TAM_ROUND_FAILED)
        return round_give_back(l, params);
    tamis_status status = round_agree(l, TAMIS_OK);
    if (status != TAMIS_OK && tamis_status_loss(status) != TAMIS_LOST_COMM)
        return status;
    tamis_status applied = round_apply(l, params);
    return status != TAMIS_OK ? status : applied;
}

/* -- rounds ----------------------------------------------------------------------------------- */

static tamis_status round_check_reducer(const tamis_local *l) {
    const tamis_reducer *r = l->reducer;
    if (r->step == l->expected && r->started == (l->round == TAM_ROUND_UNDER_WAY))
        return TAMIS_OK;
    return tam_fail(TAMIS_E_STATE,
                    "tamis_local_step: the reducer is at step %llu, but local steps left it at "
                    "%llu: it was stepped or loaded by others; load the state of both",
                    (unsigned long long)r->step, (unsigned long long)l->expected);
}

/* Without a delay ranks agree before they begin. If that loses the communicator, other ranks may
 * have begun; the position is that of those. */
static tamis_status run_whole(tamis_local *l, float *const *params) {
    tamis_status status = round_agree(l, round_check_reducer(l));
    if (tamis_status_loss(status) == TAMIS_LOST_COMM)
        l->position = 0;
    TAM_TRY(status);
    TAM_TRY(round_begin(l, params));
    if (l->round == TAM_ROUND_UNDER_WAY)
        tam_local_arrive(l);
    return l->round == TAM_ROUND_FAILED ? round_give_back(l, params) : round_apply(l, params);
}

/* With H = delay the next round begins in the call that collects one, even if that one was lost: a
 * run that resumes from a state, whose handle reports no failure, begins it in that call too. */
static tamis_status run_delayed(tamis_local *l, float *const *params) {
    tamis_status collected = TAMIS_OK;
    TAM_TRY(round_check_reducer(l));
    if (l->round == TAM_ROUND_UNDER_WAY && l->position >= l->config.delay)
        tam_local_arrive(l);
    if (l->round > TAM_ROUND_UNDER_WAY && l->position >= l->config.delay)
        collected = round_collect(l, params);
    if (l->round != TAM_ROUND_IDLE || l->position < l->config.steps ||
        tamis_status_loss(collected) == TAMIS_LOST_COMM)
        return collected;
    tamis_status begun = round_begin(l, params);
    if (begun != TAMIS_OK) /* nothing is lost: the next call begins it */
        return collected != TAMIS_OK ? collected : begun;
    return l->round == TAM_ROUND_FAILED ? round_give_back(l, params) : collected;
}

static bool exchanges(const tamis_local *l) {
    uint32_t until = l->round == TAM_ROUND_IDLE ? l->config.steps : l->config.delay;
    return l->position >= until;
}

tamis_status tam_local_check_params(const tamis_local *l, float *const *params, const char *call) {
    const tamis_layout *layout = l->reducer->layout;
    if (!params)
        return tam_fail(TAMIS_E_ARGUMENT, "%s: params is NULL", call);
    for (uint32_t s = 0; s < layout->nsegments; s++) {
        if (!params[s] || (uintptr_t)params[s] % sizeof(float) != 0)
            return tam_fail(TAMIS_E_ARGUMENT, "%s: params of %s are %s", call, layout->names[s],
                            params[s] ? "misaligned" : "NULL");
    }
    return TAMIS_OK;
}

/* Time since the last mark goes to the local steps or to waiting. */
static void count_time(tamis_local *l, uint64_t *out) {
    uint64_t now_ns = tam_clock_ns();
    *out += now_ns - l->times.mark_ns;
    l->times.mark_ns = now_ns;
}

tamis_status tamis_local_step(tamis_local *l, float *const *params) {
    TAM_FENV_HELD();
    if (!l)
        return tam_fail(TAMIS_E_ARGUMENT, "tamis_local_step: local is NULL");
    TAM_TRY(tam_local_check_params(l, params, "tamis_local_step"));
    count_time(l, &l->times.local_ns);
    l->times.steps++;
    l->position += l->position < UINT32_MAX;
    if (!exchanges(l))
        return TAMIS_OK;
    tamis_status status = l->config.delay > 0 ? run_delayed(l, params) : run_whole(l, params);
    count_time(l, &l->times.waited_ns);
    return status;
}
