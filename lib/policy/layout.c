/* SPDX-License-Identifier: MIT */
#include "lib/policy/layout.h"

#include <stdio.h>
#include <xxhash.h>

static tamis_status check(const tamis_segment *segments, size_t nsegments) {
    if (!segments || nsegments == 0)
        return tam_fail(TAMIS_E_ARGUMENT, "tamis_layout_create: %s",
                        segments ? "nsegments is 0" : "segments is NULL");
    uint64_t total = 0;
    for (size_t i = 0; i < nsegments; i++) {
        if (segments[i].length == 0)
            return tam_fail(TAMIS_E_ARGUMENT, "segment %zu (%s) has length 0; leave it out", i,
                            segments[i].name ? segments[i].name : "unnamed");
        if (segments[i].length > TAM_LENGTH_MAX - total)
            return tam_fail(TAMIS_E_ARGUMENT,
                            "segment %zu takes the layout beyond %llu elements; use several "
                            "reducers",
                            i, (unsigned long long)TAM_LENGTH_MAX);
        total += segments[i].length;
    }
    return TAMIS_OK;
}

static char *name_of(const tamis_segment *segment, size_t index) {
    char text[32];
    if (segment->name)
        return tam_strdup(segment->name);
    snprintf(text, sizeof text, "segment %zu", index);
    return tam_strdup(text);
}

tamis_status tamis_layout_create(const tamis_segment *segments, size_t nsegments,
                                 tamis_layout **out) {
    if (!out)
        return tam_fail(TAMIS_E_ARGUMENT, "tamis_layout_create: out is NULL");
    TAM_TRY(check(segments, nsegments));

    tamis_layout *layout = tam_alloc(sizeof *layout);
    if (!layout)
        return tam_fail(TAMIS_E_NOMEM, "no memory for a layout of %zu segments", nsegments);
    layout->begins = tam_alloc_array(nsegments + 1, sizeof layout->begins[0]);
    layout->names = tam_alloc_array(nsegments, sizeof layout->names[0]);
    if (!layout->begins || !layout->names)
        goto err_destroy;
    for (size_t i = 0; i < nsegments; i++) {
        layout->names[i] = name_of(&segments[i], i);
        layout->nsegments = (uint32_t)(i + 1);
        if (!layout->names[i])
            goto err_destroy;
        layout->length += segments[i].length;
        layout->begins[i + 1] = (uint32_t)layout->length;
    }
    layout->hash = XXH3_64bits(layout->begins, (nsegments + 1) * sizeof layout->begins[0]);
    *out = layout;
    return TAMIS_OK;

err_destroy:
    tamis_layout_destroy(layout);
    return tam_fail(TAMIS_E_NOMEM, "no memory for a layout of %zu segments", nsegments);
}

tamis_status tam_layout_part(const tamis_layout *from, uint32_t first, uint32_t nsegments,
                             tamis_layout **out) {
    tamis_segment *segments = tam_alloc_array(nsegments, sizeof *segments);
    if (!segments)
        return tam_fail(TAMIS_E_NOMEM, "no memory for a layout of %u segments", nsegments);
    for (uint32_t i = 0; i < nsegments; i++)
        segments[i] = (tamis_segment){from->names[first + i], tam_segment_length(from, first + i)};
    tamis_status status = tamis_layout_create(segments, nsegments, out);
    tam_free(segments);
    return status;
}

uint64_t tamis_layout_length(const tamis_layout *layout) {
    return layout ? layout->length : 0;
}

void tamis_layout_destroy(tamis_layout *layout) {
    if (!layout)
        return;
    for (uint32_t i = 0; layout->names && i < layout->nsegments; i++)
        tam_free(layout->names[i]);
    tam_free(layout->names);
    tam_free(layout->begins);
    tam_free(layout);
}
