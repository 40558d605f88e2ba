/* SPDX-License-Identifier: MIT
 *
 * Making the handle of local steps: checks, memory. Reading from it.
 */
#include "collectives/local/local.h"

#include "lib/base/fenv.h"

#include <float.h>
#include <stdlib.h>

/* -- creation --------------------------------------------------------------------------------- */

static tamis_status check_steps(const tamis_local_config *c) {
    if (c->steps == 0 || c->steps > TAM_LOCAL_STEPS_MAX)
        return tam_fail(TAMIS_E_ARGUMENT, "tamis_local_config.steps is %u, not 1 to %d", c->steps,
                        TAM_LOCAL_STEPS_MAX);
    if (c->steps_max > 0 && (c->steps_max < c->steps || c->steps_max > TAM_LOCAL_STEPS_MAX))
        return tam_fail(TAMIS_E_ARGUMENT,
                        "tamis_local_config.steps_max is %u, not 0 and not from steps, %u, to %d",
                        c->steps_max, c->steps, TAM_LOCAL_STEPS_MAX);
    if (c->delay > c->steps)
        return tam_fail(TAMIS_E_ARGUMENT,
                        "tamis_local_config.delay is %u, more than steps, %u: exchanges would "
                        "overlap",
                        c->delay, c->steps);
    if (c->offset >= c->steps)
        return tam_fail(TAMIS_E_ARGUMENT,
                        "tamis_local_config.offset is %u, not less than steps, %u", c->offset,
                        c->steps);
    return TAMIS_OK;
}

static tamis_status local_check_config(const tamis_local_config *c) {
    TAM_TRY(check_steps(c));
    if (!tam_within(c->lr, (double)FLT_MIN, 100.0))
        return tam_fail(TAMIS_E_ARGUMENT,
                        "tamis_local_config.lr is %.9g, not a float32 over 0 and up to 100", c->lr);
    if (!tam_within(c->momentum, 0.0, 1.0) || (float)c->momentum >= 1.0f)
        return tam_fail(TAMIS_E_ARGUMENT,
                        "tamis_local_config.momentum is %.9g, not in [0, 1) as a float32",
                        c->momentum);
    if (!tam_within(c->wait_share, 0.0, 1.0) || c->wait_share >= 1.0)
        return tam_fail(TAMIS_E_ARGUMENT, "tamis_local_config.wait_share is %.9g, not in [0, 1)",
                        c->wait_share);
    return TAMIS_OK;
}

typedef struct span {
    const float *begin, *end;
} span;

static int compare_spans(const void *a, const void *b) {
    const span *x = a, *y = b;
    return (x->begin > y->begin) - (x->begin < y->begin);
}

/* If memory is given twice, one part would be the base and the other one not. */
static tamis_status check_overlap(const tamis_layout *layout, float *const *params) {
    span *spans = tam_alloc_array(layout->nsegments, sizeof *spans);
    uint32_t bad = 0;
    if (!spans)
        return tam_fail(TAMIS_E_NOMEM, "no memory to compare %u segments", layout->nsegments);
    for (uint32_t s = 0; s < layout->nsegments; s++)
        spans[s] = (span){params[s], params[s] + (layout->begins[s + 1] - layout->begins[s])};
    qsort(spans, layout->nsegments, sizeof *spans, compare_spans);
    for (uint32_t s = 1; s < layout->nsegments; s++)
        bad += spans[s].begin < spans[s - 1].end;
    tam_free(spans);
    if (bad == 0)
        return TAMIS_OK;
    return tam_fail(TAMIS_E_ARGUMENT,
                    "tamis_local_create: params of %u segments overlap others; give what is shared "
                    "once",
                    bad);
}

static tamis_status take_params(tamis_local *l, float *const *params) {
    const tamis_layout *layout = l->reducer->layout;
    TAM_TRY(tam_local_check_params(l, params, "tamis_local_create"));
    TAM_TRY(check_overlap(layout, params));
    for (uint32_t s = 0; s < layout->nsegments; s++) {
        uint64_t begin = layout->begins[s], length = layout->begins[s + 1] - begin;
        for (uint64_t i = 0; i < length; i++) {
            l->base[begin + i] = params[s][i];
            if (!isfinite(params[s][i]))
                return tam_fail(TAMIS_E_ARGUMENT,
                                "tamis_local_create: element %llu of %s is not finite",
                                (unsigned long long)i, layout->names[s]);
        }
    }
    return TAMIS_OK;
}

static tamis_status local_allocate(tamis_local *l) {
    l->base = tam_alloc_array(l->n, sizeof(float));
    l->d = tam_alloc_array(l->n, sizeof(float));
    l->momentum = l->config.momentum > 0.0 ? tam_alloc_array(l->n, sizeof(float)) : NULL;
    l->snapshot = l->config.delay > 0 ? tam_alloc_array(l->n, sizeof(float)) : NULL;
    if (l->base && l->d && (l->momentum || !(l->config.momentum > 0.0)) &&
        (l->snapshot || l->config.delay == 0))
        return TAMIS_OK;
    return tam_fail(TAMIS_E_NOMEM, "no memory for the vectors of local steps, %llu elements each",
                    (unsigned long long)l->n);
}

static tamis_status local_check_reducer(const tamis_reducer *r) {
    TAM_TRY(tam_refuse(r, "tamis_local_create"));
    if (r->started)
        return tam_fail(TAMIS_E_STATE,
                        "tamis_local_create: a step is under way; call tamis_reducer_wait first");
    return TAMIS_OK;
}

/* What this rank can do before the ranks agree. */
static tamis_status local_prepare(tamis_reducer *r, float *const *params,
                                  const tamis_local_config *config, tamis_local **out,
                                  tamis_local **made) {
    tamis_local_config own = TAMIS_LOCAL_CONFIG_INIT;
    if (!config || !out)
        return tam_fail(TAMIS_E_ARGUMENT, "tamis_local_create: %s is NULL",
                        config ? "out" : "config");
    TAM_TRY(tam_struct_copy("tamis_local_config", &own, sizeof own, sizeof own, config));
    TAM_TRY(local_check_config(&own));
    TAM_TRY(local_check_reducer(r));
    tamis_local *l = *made = tam_alloc(sizeof *l);
    if (!l)
        return tam_fail(TAMIS_E_NOMEM, "no memory for local steps");
    if (own.steps_max == 0)
        own.steps_max = own.steps < TAM_LOCAL_STEPS_MAX / 16 ? 16 * own.steps : TAM_LOCAL_STEPS_MAX;
    l->reducer = r;
    l->config = own;
    l->n = r->layout->length;
    l->position = own.offset;
    l->expected = r->step;
    l->stats = (tamis_local_stats)TAMIS_LOCAL_STATS_INIT;
    TAM_TRY(local_allocate(l));
    return take_params(l, params);
}

tamis_status tamis_local_create(tamis_reducer *r, float *const *params,
                                const tamis_local_config *config, tamis_local **out) {
    TAM_FENV_HELD();
    tamis_local *l = NULL;
    if (!r)
        return tam_fail(TAMIS_E_ARGUMENT, "tamis_local_create: reducer is NULL");
    TAM_TRY(tam_comm_check(r->comm));
    tamis_status status = local_prepare(r, params, config, out, &l);
    status = tam_local_handshake(r->comm, l, status, "tamis_local_create");
    if (status != TAMIS_OK) {
        tamis_local_destroy(l);
        return status;
    }
    l->times = (tam_local_times){.mark_ns = tam_clock_ns()};
    *out = l;
    return TAMIS_OK;
}

void tamis_local_destroy(tamis_local *l) {
    if (!l)
        return;
    if (l->round == TAM_ROUND_UNDER_WAY)
        tam_local_arrive(l);
    tam_free(l->snapshot);
    tam_free(l->momentum);
    if (!tam_reducer_buffers_in_flight(l->reducer)) /* the transport may still write into it */
        tam_free(l->d);
    tam_free(l->base);
    tam_free(l);
}

/* -- reading and setting ---------------------------------------------------------------------- */

tamis_status tamis_local_set_steps(tamis_local *l, uint32_t steps) {
    if (!l)
        return tam_fail(TAMIS_E_ARGUMENT, "tamis_local_set_steps: local is NULL");
    if (steps == 0 || steps < l->config.delay || steps > TAM_LOCAL_STEPS_MAX)
        return tam_fail(TAMIS_E_ARGUMENT, "tamis_local_set_steps: steps is %u, not %u to %d", steps,
                        l->config.delay > 1 ? l->config.delay : 1, TAM_LOCAL_STEPS_MAX);
    l->config.steps = steps;
    l->pace = (tam_outer_pace){0};
    return TAMIS_OK;
}

tamis_status tamis_local_base(const tamis_local *l, const float **out) {
    if (!l || !out)
        return tam_fail(TAMIS_E_ARGUMENT, "tamis_local_base: %s is NULL", l ? "out" : "local");
    *out = l->base;
    return TAMIS_OK;
}

tamis_status tamis_local_stats_read(const tamis_local *l, tamis_local_stats *out) {
    if (!l || !out)
        return tam_fail(TAMIS_E_ARGUMENT, "tamis_local_stats_read: %s is NULL",
                        l ? "out" : "local");
    tamis_local_stats own = l->stats;
    own.size = sizeof own;
    own.steps = l->config.steps;
    own.position = l->position;
    own.wire_bytes_total = l->reducer->stats.wire_bytes_total + l->compared_bytes;
    own.under_way = l->round != TAM_ROUND_IDLE;
    return tam_struct_return("tamis_local_stats", &own, sizeof own, out);
}
