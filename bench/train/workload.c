/* SPDX-License-Identifier: MIT */
#include "bench/train/workload.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/common/measure.h"

/* What follows the last slash; a long one loses its beginning. */
static void name_data(const char *path, char out[WORKLOAD_NAME]) {
    size_t length = path ? strlen(path) : 0;
    while (length > 0 && path[length - 1] == '/')
        length--;
    size_t begin = length;
    while (begin > 0 && path[begin - 1] != '/' && length - begin < WORKLOAD_NAME - 1)
        begin--;
    memset(out, 0, WORKLOAD_NAME);
    snprintf(out, WORKLOAD_NAME, "%.*s", (int)(length - begin), path ? path + begin : "");
    if (!path)
        snprintf(out, WORKLOAD_NAME, "the default text");
}

bool workload_load(const workload_kind *kind, const train_settings *settings, workload_data *out,
                   char *error, size_t size) {
    if (!kind->load(settings, out, error, size))
        return false;
    out->hash = kind->hash(out);
    name_data(settings->data, out->name);
    return true;
}

void workload_open(const workload_kind *kind, const train_settings *settings,
                   const workload_data *data, const workload_part *part, workload *out) {
    *out = (workload){.kind = kind, .data = data, .batch = part->batch, .slots = part->slots};
    kind->open(settings, part, out);
}

void workload_close(workload *w) {
    w->kind->close(w);
    free(w->layer_first);
    free(w->names);
    free(w->columns);
    free(w->segments);
}

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
