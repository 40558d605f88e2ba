/* SPDX-License-Identifier: MIT
 *
 * Gradients for tests. Every value is a whole number of at most 2^16 in magnitude, so sums over
 * up to 256 gradients (ranks times steps) are exact in binary32 in any order, and tests compare
 * for equality.
 */
#ifndef TEST_DATA_H
#define TEST_DATA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <tamis/tamis.h>

typedef enum data_pattern {
    DATA_HEAVY,  /* heavy tail: half as many magnitudes at each next power of two; zeros */
    DATA_TIES,   /* only 0, 1, 2, 4 with signs */
    DATA_ZERO,   /* all zeros */
    DATA_EQUAL,  /* 3 everywhere */
    DATA_SPIKE,  /* one entry, at another place in each step */
    DATA_DROP,   /* from step 6 on 1024 times smaller */
    DATA_BURSTS, /* heavy in odd steps, zero in even ones */
    DATA_PATTERNS
} data_pattern;

const char *data_name(data_pattern pattern);

/** The gradient of one rank in one step, float[n]. The same arguments give the same values. */
void data_fill(data_pattern pattern, uint32_t rank, uint32_t step, size_t n, float *out);

/** Numbers with many exponents and full mantissas, so that the order of summation matters. */
void data_fill_real(uint32_t rank, uint32_t step, size_t n, float *out);

/** Hash of bytes, started with 0 or with an earlier hash. */
uint64_t data_hash(uint64_t hash, const void *memory, size_t bytes);

/** Mixes 64 bits; a random sequence is data_mix(0), data_mix(1), ... */
uint64_t data_mix(uint64_t x);

enum { DATA_SEGMENTS_MOST = 64 };

/** Cut n elements into at most DATA_SEGMENTS_MOST segments of odd sizes. @return their number. */
size_t data_segments(size_t n, tamis_segment out[DATA_SEGMENTS_MOST]);

/** A layout of data_segments, or NULL. */
tamis_layout *data_layout(size_t n);

/** A reducer of that layout. */
tamis_status data_reducer(tamis_comm *comm, size_t n, const tamis_reducer_config *config,
                          tamis_reducer **out);

/** A reducer of `nsegments` segments, "zero", "one", "two", ..., of one length. */
tamis_status data_even_reducer(tamis_comm *comm, uint32_t nsegments, size_t length,
                               const tamis_reducer_config *config, tamis_reducer **out);

/** Density 5 %, and every segment of data_even_reducer is a bucket. */
tamis_reducer_config data_even_config(size_t length);

/** A step on a flat gradient. */
tamis_step data_step(float *grad);

/** Number of elements of a residual. */
uint64_t data_held(const tamis_reducer *reducer);

/** Spread a residual over a vector of all elements: what `reducer` holds of each bucket goes to its
 * place, the rest of `out` stays unchanged. @return false if a bucket cannot be read */
bool data_spread_residual(const tamis_reducer *reducer, const float *residual, float *out);

/** Input of a thread that marks all segments but the last, from the last to the first. */
typedef struct data_marks {
    tamis_reducer *reducer;
    uint32_t nsegments, pause_ms;
    tamis_step step;
    tamis_status status; /* the first failure */
} data_marks;

void *data_mark_all(void *marks);

#endif
