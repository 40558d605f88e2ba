/* SPDX-License-Identifier: MIT */
#include "bench/train/exchange.h"

#include <stdlib.h>
#include <string.h>

#include "bench/common/measure.h"

/* -- which segments --------------------------------------------------------------------------- */

static bool is_named(const workload *w, size_t segment, const char *name, size_t length) {
    if (length == strlen("vectors") && memcmp(name, "vectors", length) == 0)
        return w->columns[segment] == 0;
    return length > 0 && strncmp(w->names[segment], name, length) == 0;
}

/* Mark the segments of a name. @return how many of them were not marked before */
static size_t mark(bench_group *group, const workload *w, const char *name, size_t length,
                   bool *marks) {
    size_t fitting = 0, count = 0;
    for (size_t i = 0; i < w->nsegments; i++) {
        if (!is_named(w, i, name, length))
            continue;
        fitting++;
        count += !marks[i];
        marks[i] = true;
    }
    if (fitting == 0)
        bench_fail(group,
                   "--dense-segments: no segment's name begins with \"%.*s\"; the first one is "
                   "%s, the last one %s",
                   (int)length, name, w->names[0], w->names[w->nsegments - 1]);
    return count;
}

bool *exchange_choose(bench_group *group, const train_settings *settings, const workload *w) {
    const char *at = settings->dense_segments;
    size_t count = 0;
    if (!at)
        return NULL;
    bool *marks = bench_alloc(w->nsegments, sizeof *marks);
    for (size_t length;; at += length + 1) {
        length = strcspn(at, ",");
        count += mark(group, w, at, length, marks);
        if (at[length] == '\0')
            break;
    }
    if (count == w->nsegments)
        bench_fail(group, "--dense-segments selects all segments; use --scheme dense");
    return marks;
}

/* -- reducers --------------------------------------------------------------------------------- */

/* Make the reducer of the segments that are apart, or of the others. */
static tamis_reducer *make(exchange *x, const workload *w, bool apart,
                           const tamis_reducer_config *config, float *grad) {
    tamis_segment *segments = bench_alloc(w->nsegments, sizeof *segments);
    tamis_layout *layout;
    tamis_reducer *reducer;
    uint32_t count = 0;
    x->grads[apart] = bench_alloc(w->nsegments, sizeof *x->grads[apart]);
    for (size_t i = 0; i < w->nsegments; grad += w->segments[i].length, i++) {
        if ((x->is_apart && x->is_apart[i]) != apart)
            continue;
        x->number[i] = count;
        x->grads[apart][count] = grad;
        segments[count++] = w->segments[i];
    }
    bench_try(x->group, tamis_layout_create(segments, count, &layout), "cannot create a layout");
    bench_try(x->group, tamis_reducer_create(x->group->comm, layout, config, &reducer),
              "cannot create a reducer");
    if (!apart)
        x->length = tamis_layout_length(layout);
    tamis_layout_destroy(layout);
    free(segments);
    return reducer;
}

void exchange_open(bench_group *group, const train_settings *settings, const workload *w,
                   const bool *is_apart, const tamis_reducer_config *config, float *grad,
                   exchange *out) {
    tamis_reducer_config dense = *config;
    *out = (exchange){.group = group, .is_apart = is_apart};
    low_rank_open(group, w, settings->low_rank, settings->seed, &out->low_rank);
    out->number = bench_alloc(w->nsegments, sizeof *out->number);
    out->reducer = make(out, w, false, config, grad);
    if (!is_apart)
        return;
    dense.scheme = "dense";
    dense.density = dense.density_max = dense.residual_decay = 1.0;
    dense.update = NULL;
    dense.value_codec = TAMIS_VALUE_AUTO; /* no residual keeps what rounding takes */
    dense.sum_codec = TAMIS_VALUE_AUTO;
    out->apart = make(out, w, true, &dense, grad);
}

void exchange_close(exchange *x) {
    low_rank_close(&x->low_rank);
    tamis_reducer_destroy(x->apart);
    tamis_reducer_destroy(x->reducer);
    free(x->grads[true]);
    free(x->grads[false]);
    free(x->number);
}

/* -- steps ------------------------------------------------------------------------------------ */

/* If nothing is apart, the gradient is one vector, which a device may hold, too. */
static tamis_step step_of(const exchange *x, bool apart, const tamis_step *step) {
    tamis_step part = *step;
    if (!x->apart)
        return part;
    part.grad = NULL;
    part.grads = x->grads[apart];
    return part;
}

void exchange_ready(exchange *x, uint32_t segment, const tamis_step *step) {
    bool apart = x->apart && x->is_apart[segment];
    tamis_step part = step_of(x, apart, step);
    bench_try(x->group,
              tamis_reducer_ready(apart ? x->apart : x->reducer, x->number[segment], &part),
              "gradient of a layer");
}

void exchange_start(exchange *x, const tamis_step *step) {
    tamis_step part = step_of(x, false, step), rest = step_of(x, true, step);
    if (x->low_rank.rank) {
        low_rank_reduce(&x->low_rank, step->grad);
        return;
    }
    bench_try(x->group, tamis_reducer_start(x->reducer, &part), "start of a step");
    if (x->apart)
        bench_try(x->group, tamis_reducer_start(x->apart, &rest), "start of the dense segments");
}

void exchange_wait(exchange *x) {
    if (x->low_rank.rank)
        return;
    bench_try(x->group, tamis_reducer_wait(x->reducer), "end of a step");
    if (x->apart)
        bench_try(x->group, tamis_reducer_wait(x->apart), "end of the dense segments");
}

/* Norms, threshold and straggler stay those of the reducer with a residual. */
static void add(tamis_stats *s, const tamis_stats *dense) {
    s->length += dense->length;
    s->target += dense->target;
    s->selected += dense->selected;
    s->density = (double)s->selected / (double)s->length;
    s->wire_bytes += dense->wire_bytes;
    s->wire_bytes_total += dense->wire_bytes_total;
    s->accumulate_s += dense->accumulate_s;
    s->select_s += dense->select_s;
    s->exchange_s += dense->exchange_s;
    s->apply_s += dense->apply_s;
    s->wait_s += dense->wait_s;
}

void exchange_stats(exchange *x, tamis_stats *out) {
    tamis_stats dense = TAMIS_STATS_INIT;
    *out = (tamis_stats)TAMIS_STATS_INIT;
    bench_try(x->group, tamis_reducer_stats(x->reducer, out), "statistics of a step");
    if (x->low_rank.rank)
        low_rank_stats(&x->low_rank, out);
    if (!x->apart)
        return;
    bench_try(x->group, tamis_reducer_stats(x->apart, &dense), "statistics of dense segments");
    add(out, &dense);
}

uint32_t exchange_nbuckets(const exchange *x) {
    return tamis_reducer_nbuckets(x->reducer) + tamis_reducer_nbuckets(x->apart);
}
