/* SPDX-License-Identifier: MIT
 *
 * Gradients for tests: exact whole numbers from a counter-based generator.
 */
#include "tests/support/data.h"
#include "tests/support/ranks.h"
#include <string.h>
#include <tamis/overlap.h>

static const char *const names[DATA_PATTERNS] = {"heavy", "ties", "zero",  "equal",
                                                 "spike", "drop", "bursts"};

const char *data_name(data_pattern pattern) {
    return names[pattern];
}

uint64_t data_mix(uint64_t x) {
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static float sign_of(uint64_t random, float magnitude) {
    return random & 1 ? -magnitude : magnitude;
}

/* 2^e <= magnitude < 2^(e+1) with probability 2^-(e+1), e <= 15; one in eight is zero */
static float heavy(uint64_t random) {
    if ((random >> 1 & 7) == 0)
        return 0;
    unsigned e = (unsigned)__builtin_ctzll(random >> 4 | 1u << 15);
    uint64_t magnitude = (uint64_t)1 << e | (random >> 40 & (((uint64_t)1 << e) - 1));
    return sign_of(random, (float)magnitude);
}

static float ties(uint64_t random) {
    static const float magnitudes[4] = {0, 1, 2, 4};
    return sign_of(random, magnitudes[random >> 1 & 3]);
}

static float drop(uint64_t random, uint32_t step) {
    float small = (float)(random >> 1 & 63);
    return sign_of(random, step < 6 ? small * 1024 : small);
}

static float value(data_pattern pattern, uint64_t random, uint32_t step) {
    switch (pattern) {
    case DATA_HEAVY:
        return heavy(random);
    case DATA_TIES:
        return ties(random);
    case DATA_EQUAL:
        return 3;
    case DATA_DROP:
        return drop(random, step);
    case DATA_BURSTS:
        return step % 2 ? heavy(random) : 0;
    default:
        return 0;
    }
}

void data_fill(data_pattern pattern, uint32_t rank, uint32_t step, size_t n, float *out) {
    uint64_t stream = data_mix((uint64_t)pattern << 40 ^ (uint64_t)rank << 20 ^ step);
    for (size_t i = 0; i < n; i++)
        out[i] = value(pattern, data_mix(stream + i), step);
    if (pattern == DATA_SPIKE)
        out[(31 * (size_t)step + 7) % n] = (float)(4096 + rank);
}

void data_fill_real(uint32_t rank, uint32_t step, size_t n, float *out) {
    uint64_t stream = data_mix(77 + ((uint64_t)rank << 20 ^ step));
    for (size_t i = 0; i < n; i++) {
        uint64_t random = data_mix(stream + i);
        float x = (float)(random >> 40) / 16777216.0f + 0.001f;
        for (unsigned e = random >> 1 & 15; e > 0; e--)
            x *= 0.37f;
        out[i] = sign_of(random, x);
    }
}

uint64_t data_hash(uint64_t hash, const void *memory, size_t bytes) {
    const unsigned char *byte = memory;
    uint64_t word;
    hash ^= data_mix(bytes);
    for (; bytes >= sizeof word; bytes -= sizeof word, byte += sizeof word) {
        memcpy(&word, byte, sizeof word);
        hash = (hash ^ word) * 0xff51afd7ed558ccdu;
        hash ^= hash >> 32;
    }
    for (; bytes > 0; bytes--, byte++)
        hash = (hash ^ *byte) * 0x100000001b3u;
    return hash;
}

size_t data_segments(size_t n, tamis_segment out[DATA_SEGMENTS_MOST]) {
    const size_t lengths[] = {1, 37, n / 3, 5, n / 5, 255, n / 9, 3};
    size_t count = 0;
    for (size_t left = n; left > 0; count++) {
        size_t length = lengths[count % (sizeof lengths / sizeof lengths[0])];
        if (length == 0)
            length = 1;
        if (length > left || count == DATA_SEGMENTS_MOST - 1)
            length = left;
        out[count] = (tamis_segment){.name = NULL, .length = length};
        left -= length;
    }
    return count;
}

tamis_layout *data_layout(size_t n) {
    tamis_segment segments[DATA_SEGMENTS_MOST];
    tamis_layout *layout = NULL;
    size_t count = data_segments(n, segments);
    return tamis_layout_create(segments, count, &layout) == TAMIS_OK ? layout : NULL;
}

static tamis_status make_reducer(tamis_comm *comm, const tamis_segment *segments, size_t count,
                                 const tamis_reducer_config *config, tamis_reducer **out) {
    tamis_layout *layout;
    tamis_status status = tamis_layout_create(segments, count, &layout);
    if (status != TAMIS_OK)
        return status;
    status = tamis_reducer_create(comm, layout, config, out);
    tamis_layout_destroy(layout);
    return status;
}

tamis_status data_reducer(tamis_comm *comm, size_t n, const tamis_reducer_config *config,
                          tamis_reducer **out) {
    tamis_segment segments[DATA_SEGMENTS_MOST];
    size_t count = data_segments(n, segments);
    return make_reducer(comm, segments, count, config, out);
}

tamis_status data_even_reducer(tamis_comm *comm, uint32_t nsegments, size_t length,
                               const tamis_reducer_config *config, tamis_reducer **out) {
    static const char *const words[] = {"zero", "one", "two", "three", "four", "five"};
    tamis_segment segments[DATA_SEGMENTS_MOST];
    for (uint32_t s = 0; s < nsegments; s++)
        segments[s] = (tamis_segment){s < 6 ? words[s] : NULL, length};
    return make_reducer(comm, segments, nsegments, config, out);
}

tamis_reducer_config data_even_config(size_t length) {
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    config.density = 0.05;
    config.bucket_length = length;
    return config;
}

tamis_step data_step(float *grad) {
    tamis_step step = TAMIS_STEP_INIT;
    step.grad = grad;
    return step;
}

void *data_mark_all(void *context) {
    data_marks *m = context;
    for (uint32_t s = m->nsegments - 1; s-- > 0;) {
        tamis_status status = tamis_reducer_ready(m->reducer, s, &m->step);
        m->status = m->status == TAMIS_OK ? status : m->status;
        if (m->pause_ms > 0)
            sleep_ms(m->pause_ms);
    }
    return NULL;
}

uint64_t data_held(const tamis_reducer *reducer) {
    uint64_t held = 0;
    for (uint32_t i = 0; i < tamis_reducer_nbuckets(reducer); i++) {
        tamis_bucket b = TAMIS_BUCKET_INIT;
        if (tamis_reducer_bucket_at(reducer, i, &b) == TAMIS_OK)
            held += b.residual_length;
    }
    return held;
}

bool data_spread_residual(const tamis_reducer *reducer, const float *residual, float *out) {
    for (uint32_t i = 0; i < tamis_reducer_nbuckets(reducer); i++) {
        tamis_bucket b = TAMIS_BUCKET_INIT;
        if (tamis_reducer_bucket_at(reducer, i, &b) != TAMIS_OK)
            return false;
        for (uint64_t e = 0; e < b.residual_length; e++)
            out[b.begin + b.shard_first + e / b.shard_run * b.shard_stride + e % b.shard_run] =
                residual[b.residual_begin + e];
    }
    return true;
}
