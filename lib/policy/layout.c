/* SPDX-License-Identifier: MIT */
#include "lib/policy/layout.h"
#include "lib/base/hash.h"

#include <stdio.h>

static tamis_status layout_check(const tamis_segment *segments, size_t nsegments) {
    if (!segments || nsegments == 0)
        return tam_fail(TAMIS_E_ARGUMENT, "tamis_layout_create: %s",
                        segments ? "nsegments is 0" : "segments is NULL");
    uint64_t total = 0;
    for (size_t i = 0; i < nsegments; i++) {
        if (segments[i].length == 0)
            return tam_fail(TAMIS_E_ARGUMENT, "segment %zu (%s) has length 0; leave it out", i,
                            segments[i].name ? segments[i].name : "unnamed");
        if (segments[i].length > TAM_LENGTH_MAX - total)
            return tam_fail(
                TAMIS_E_ARGUMENT,
                "segment %zu extends the layout beyond %llu elements; use several reducers", i,
                (unsigned long long)TAM_LENGTH_MAX);
        total += segments[i].length;
    }
    return TAMIS_OK;
}

static char *layout_name_of(const tamis_segment *segment, size_t index) {
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
    TAM_TRY(layout_check(segments, nsegments));

    tamis_layout *layout = tam_alloc(sizeof *layout);
    if (!layout)
        return tam_fail(TAMIS_E_NOMEM, "no memory for a layout of %zu segments", nsegments);
    layout->begins = tam_alloc_array(nsegments + 1, sizeof layout->begins[0]);
    layout->names = tam_alloc_array(nsegments, sizeof layout->names[0]);
    layout->rows = tam_alloc_array(nsegments, sizeof layout->rows[0]);
    if (!layout->begins || !layout->names || !layout->rows)
        goto err_destroy;
    for (size_t i = 0; i < nsegments; i++) {
        layout->names[i] = layout_name_of(&segments[i], i);
        layout->nsegments = (uint32_t)(i + 1);
        if (!layout->names[i])
            goto err_destroy;
        layout->length += segments[i].length;
        layout->begins[i + 1] = (uint32_t)layout->length;
    }
    layout->hash = tam_hash(layout->begins, (nsegments + 1) * sizeof layout->begins[0]);
    layout->ordinary = layout->length;
    *out = layout;
    return TAMIS_OK;

err_destroy:
    tamis_layout_destroy(layout);
    return tam_fail(TAMIS_E_NOMEM, "no memory for a layout of %zu segments", nsegments);
}

/* Update what depends on the rows of the segments. */
static void record_rows(tamis_layout *layout) {
    layout->nrow_segments = 0;
    layout->ordinary = layout->length;
    for (uint32_t s = 0; s < layout->nsegments; s++) {
        bool sparse_rows = tam_segment_has_sparse_rows(layout, s);
        layout->nrow_segments += sparse_rows;
        layout->ordinary -= sparse_rows ? tam_segment_length(layout, s) : 0;
    }
    layout->rows_hash = layout->nrow_segments
                            ? tam_hash(layout->rows, layout->nsegments * sizeof layout->rows[0])
                            : 0;
}

tamis_status tamis_layout_set_rows(tamis_layout *layout, size_t segment, uint64_t row_length) {
    if (!layout)
        return tam_fail(TAMIS_E_ARGUMENT, "tamis_layout_set_rows: layout is NULL");
    if (segment >= layout->nsegments)
        return tam_fail(TAMIS_E_ARGUMENT,
                        "tamis_layout_set_rows: segment %zu is out of range: there are %u", segment,
                        layout->nsegments);
    uint32_t length = tam_segment_length(layout, (uint32_t)segment);
    if (row_length > 0 && (row_length > length || length % row_length != 0))
        return tam_fail(TAMIS_E_ARGUMENT,
                        "tamis_layout_set_rows: %s has %u elements, which is not a whole number of "
                        "rows of %llu",
                        layout->names[segment], length, (unsigned long long)row_length);
    layout->rows[segment] = (uint32_t)row_length;
    record_rows(layout);
    return TAMIS_OK;
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
    if (status != TAMIS_OK)
        return status;
    memcpy((*out)->rows, from->rows + first, nsegments * sizeof from->rows[0]);
    record_rows(*out);
    return TAMIS_OK;
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
    tam_free(layout->rows);
    tam_free(layout);
}
