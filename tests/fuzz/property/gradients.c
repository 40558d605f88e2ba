/* SPDX-License-Identifier: MIT
 *
 * Gradients: each element is a function of the case, the step, the rank and its index, so the runs
 * of a case and the model need not store them.
 */
#include "tests/fuzz/property/property.h"

#include "lib/base/half.h"

#include <math.h>

static float whole(uint64_t random) {
    static const int ends[] = {1, 2, 5, 33};
    int most = ends[random & 3];
    return (float)((int)(random >> 8 & 0xffff) % (2 * most + 1) - most);
}

static float real(uint64_t random) {
    float x = (float)(1 + (random >> 40)) / 16777216.0f;
    for (unsigned e = random >> 1 & 15; e > 0; e--)
        x *= 0.37f;
    return random & 1 ? -x : x;
}

static float special(const fuzz_case *c, uint64_t random) {
    const float hard[] = {NAN, INFINITY, -0.0f, 1e-42f, 3e38f, 1.9e19f};
    uint32_t kind = (uint32_t)(random % 6);
    if (!(c->specials >> kind & 1))
        return 0.0f;
    return random >> 20 & 1 ? -hard[kind] : hard[kind];
}

static float draw_value(const fuzz_case *c, uint64_t random) {
    if (c->data == DATA_WHOLE)
        return whole(random);
    if (c->data == DATA_HARD && fuzz_mix(random) % c->bad == 0)
        return special(c, fuzz_mix(random + 1));
    return real(random);
}

static void fill_rows(const fuzz_case *c, uint64_t stream, uint32_t segment, uint64_t at,
                      float *out) {
    uint32_t row = c->rows[segment];
    for (uint32_t i = 0; i < c->lengths[segment] && row > 0; i++) {
        if (fuzz_mix(stream ^ (at + i / row) << 32) % c->touched != 0)
            out[i] = 0.0f;
    }
}

void fuzz_gradient(const fuzz_case *c, uint32_t step, uint32_t rank, uint32_t micro, float *out) {
    uint64_t stream = fuzz_mix(fuzz_mix(c->seed ^ c->number << 20) ^
                               ((uint64_t)step << 40 | (uint64_t)rank << 20 | micro));
    uint64_t n = fuzz_length(c), at = 0;
    bool quiet = c->quiet > 0 && stream % c->quiet == 0;
    for (uint64_t i = 0; i < n; i++)
        out[i] = quiet ? 0.0f : draw_value(c, fuzz_mix(stream + i));
    for (uint32_t s = 0; s < c->nsegments; at += c->lengths[s++])
        fill_rows(c, stream, s, at, out + at);
    tamis_dtype type = c->config.grad_dtype;
    for (uint64_t i = 0; i < n && type != TAMIS_DTYPE_FLOAT32; i++) {
        uint16_t half[2];
        tam_narrow(&out[i], 1, type, half);
        tam_widen(type, half, 1, &out[i]);
    }
}

float fuzz_scale(const fuzz_case *c, uint32_t step, uint32_t rank, uint32_t micro) {
    static const float scales[] = {1.0f, 2.0f, 0.5f, -1.0f, 0.0f, 4.0f, 0.25f, 8.0f};
    uint64_t random = fuzz_mix(c->number ^ ((uint64_t)step << 40 | rank << 8 | micro));
    return c->scaled ? scales[random % 8] : 1.0f;
}
