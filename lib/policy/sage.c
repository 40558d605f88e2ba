/* SPDX-License-Identifier: MIT */
#include "lib/policy/sage.h"

#include "lib/policy/rules.h"

static uint32_t sage_sample_size(uint64_t n) {
    double error = 0.05, size = (double)n / (1.0 + (double)n * error * error);
    return size >= 1.0 ? (uint32_t)size : 1;
}

tamis_status tam_sage_open(uint64_t n, tam_sage *out) {
    tam_sage s = {.n = n, .count = sage_sample_size(n)};
    s.positions = tam_alloc_array(s.count, sizeof s.positions[0]);
    s.values = tam_alloc_array(s.count, sizeof s.values[0]);
    if (!s.positions || !s.values) {
        tam_sage_close(&s);
        return tam_fail(TAMIS_E_NOMEM, "no memory for a sample of %u entries", s.count);
    }
    *out = s;
    return TAMIS_OK;
}

void tam_sage_close(tam_sage *s) {
    tam_free(s->positions);
    tam_free(s->values);
    *s = (tam_sage){0};
}

void tam_sage_draw(tam_sage *s, uint32_t rank, uint32_t bucket, uint64_t step) {
    uint64_t key = tam_random(tam_random(rank, bucket), step);
    for (uint32_t i = 0; i < s->count; i++)
        s->positions[i] = (uint32_t)((tam_random(key, i) >> 32) * s->n >> 32);
}

double tam_sage_measure(tam_sage *s, const tam_control_state *before) {
    double sum = 0.0;
    for (uint32_t i = 0; i < s->count; i++)
        sum = tam_rule_single(sum + (double)tam_float(tam_magnitude(s->values[i])));
    s->mean = tam_rule_single(sum / s->count);
    s->threshold = tam_rule_single(before->threshold);
    if (before->primed)
        s->threshold = tam_rule_single(s->threshold * tam_rule_sage_scale(s->mean, before->mean));
    return s->threshold;
}

void tam_sage_correct(tam_sage *s, uint64_t counted, uint64_t k) {
    double n = (double)s->n;
    double corrected = tam_rule_sage_correct(s->threshold, (double)k / n, (double)counted / n);
    s->threshold = tam_rule_single(tam_rule_clip(corrected, 1e-38, 1e38));
}

void tam_sage_keep(const tam_sage *s, tam_control_state *state) {
    state->threshold = s->threshold;
    state->mean = s->mean;
    state->primed = 1;
}
