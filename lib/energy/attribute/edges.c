/* SPDX-License-Identifier: MIT
 *
 * Errors of the rows that are known beforehand.
 */
#include "lib/energy/attribute/fit.h"

enum { WIDTH_NS = 500000 }; /* before a tick: phases behind it may not have been told yet */

typedef struct looks {
    tam_exposure begin, before_begin, end, before_end, tick_begin;
} looks;

static void look(const tam_sensor *sensor, const tam_spans *spans, const tam_tick *tick,
                 looks *out) {
    uint64_t begin_ns, end_ns, lag_ns = tam_sensor_lag_ns(sensor);
    tam_exposure e[4];
    tam_sensor_looks(sensor, tick, &begin_ns, &end_ns);
    tam_spans_until(spans, (uint64_t[]){end_ns, end_ns - WIDTH_NS}, 2, e);
    out->end = e[0];
    out->before_end = e[1];
    tam_spans_until(spans, (uint64_t[]){begin_ns, begin_ns - WIDTH_NS}, 2, e);
    out->begin = e[0];
    out->before_begin = e[1];
    tam_spans_until(spans, (uint64_t[]){tick->begin_ns - lag_ns}, 1, &out->tick_begin);
}

static double between(const tam_exposure *begin, const tam_exposure *end, uint32_t phase) {
    return (double)(end->ns[phase] - begin->ns[phase]);
}

void tam_edges_take(tam_edges *e, const tam_columns *columns, const tam_sensor *sensor,
                    const tam_spans *spans, const tam_tick *tick) {
    uint32_t count = columns->count;
    double duty = tam_sensor_duty(sensor);
    tam_row own = {.weight = tick->weight}, before = own, unseen = own;
    looks l;
    if (duty < 1.0 && !tick->whole)
        return;
    look(sensor, spans, tick, &l);
    for (uint32_t c = 0; c < count; c++) {
        uint32_t phase = columns->phase[c];
        double at_end = between(&l.before_end, &l.end, phase) / WIDTH_NS;
        double at_begin = between(&l.before_begin, &l.begin, phase) / WIDTH_NS;
        /* The sensor's begin moves with its tick and, by the duty, with the tick before. */
        own.x[c] = (at_end - (1.0 - duty) * at_begin) / duty;
        before.x[c] = at_begin;
        unseen.x[c] = between(&l.begin, &l.end, phase) * (1e-9 / duty) -
                      between(&l.tick_begin, &l.end, phase) * 1e-9;
    }
    tam_normal_add(&e->blur, count, tick->decay, &own);
    tam_normal_add(&e->blur, count, 1.0, &before);
    tam_normal_add(&e->unseen, count, tick->decay, &unseen);
}
