/* SPDX-License-Identifier: MIT
 *
 * The list of a workload's layers and segments, which its kind makes.
 */
#include <stdarg.h>
#include <stdio.h>

#include "bench/common/measure.h"
#include "bench/train/workload.h"

void workload_reserve(workload *w, size_t nsegments, size_t nlayers) {
    w->segments = bench_alloc(nsegments, sizeof *w->segments);
    w->columns = bench_alloc(nsegments, sizeof *w->columns);
    w->names = bench_alloc(nsegments, sizeof *w->names);
    w->layer_first = bench_alloc(nlayers + 1, sizeof *w->layer_first);
}

void workload_end_layer(workload *w) {
    w->nlayers++;
    w->layer_first[w->nlayers] = (uint32_t)w->nsegments;
}

size_t workload_add(workload *w, size_t length, size_t columns, const char *name, ...) {
    size_t i = w->nsegments++, offset = w->length;
    va_list args;
    va_start(args, name);
    vsnprintf(w->names[i], sizeof w->names[i], name, args);
    va_end(args);
    w->segments[i] = (tamis_segment){w->names[i], length};
    w->columns[i] = columns;
    w->length += length;
    return offset;
}
