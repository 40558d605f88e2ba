/* SPDX-License-Identifier: MIT */
#include "collectives/exchange/wire.h"

#define ROW(NAME, name, number) [number] = &tam_wire_##name,
static const tam_wire_type *const rows[TAMIS_WIRE_END] = {TAMIS_WIRE_TYPES(ROW)};

const tam_wire_type *tam_wire_of(tamis_wire_type type) {
    return rows[type];
}

tamis_wire_type tam_wire_resolve(tamis_wire_type type) {
    return type == TAMIS_WIRE_AUTO ? TAMIS_WIRE_FLOAT32 : type;
}

/* A sum travels once where its values travel from all ranks, so it can afford twice the bits. */
tamis_wire_type tam_wire_resolve_sum(tamis_wire_type sum, tamis_wire_type type) {
    tamis_wire_type own = tam_wire_resolve(type);
    if (sum != TAMIS_WIRE_AUTO)
        return sum;
    return own == TAMIS_WIRE_FP4 ? TAMIS_WIRE_INT8 : own == TAMIS_WIRE_FP2 ? TAMIS_WIRE_FP4 : own;
}

/* -- lists ------------------------------------------------------------------------------------ */

static size_t block_at(size_t at, size_t count) {
    return count - at < TAM_WIRE_BLOCK ? count - at : TAM_WIRE_BLOCK;
}

/* Into memory of its own first: `errors` may be `values`. */
static void keep_errors(const tam_wire_type *wire, const unsigned char *sent, const float *values,
                        size_t count, float *errors) {
    float came[TAM_WIRE_BLOCK], left[TAM_WIRE_BLOCK];
    wire->decode(sent, count, came);
    for (size_t i = 0; i < count; i++)
        left[i] = tam_wire_error(values[i], came[i]);
    memcpy(errors, left, count * sizeof left[0]);
}

void tam_wire_encode(const tam_wire_type *wire, const float *values, size_t count, void *out,
                     float *errors) {
    unsigned char *to = out;
    for (size_t at = 0; at < count; at += TAM_WIRE_BLOCK) {
        size_t length = block_at(at, count);
        wire->encode(values + at, length, to);
        if (errors)
            keep_errors(wire, to, values + at, length, errors + at);
        to += tam_wire_bytes(wire, length);
    }
}
