/* SPDX-License-Identifier: MIT
 *
 * Bytes that a rank sends, with P ranks, p indices of its own, u in the union, i bytes for the
 * indices of a packet, v for a value (4, bfloat16: 2):
 *
 *     union   all-gather of the indices to P - 1 others, all-reduce of u values:
 *             i (P - 1) + 2 v u (P - 1) / P; if exclusive, p = k/P and u = k, and u32, this
 *             is k (P - 1) / P * (4 + 8)
 *     leader  its indices in pieces to P - 1 others, the pieces to all: 2 i (P - 1) / P in place of
 *             i (P - 1), where P > 2
 *     pairs   all-gather of p pairs: (i + v p) (P - 1)
 *     balanced-pairs   p pairs to owners of even regions, u selected sums to all, in even shards:
 *             8 (p + u) (P - 1) / P; and headers of 136 + 8 P bytes, and 4128 every 32nd step, to
 *             P - 1 others. Sums that move, where regions are uneven, come on top
 *     dense   all-reduce of n values: 8 n (P - 1) / P
 *     quantized   n values to the owners of their shards, n sums to all: 2 v n (P - 1) / P
 *     union among nodes of G ranks   shards in a node: 4 n (G - 1) / G; union of a shard
 *             among P / G ranks; indices and sums of the shard to the node: (i + 4 u / G) (G - 1)
 */
#include <math.h>
#include <string.h>

#include "bench/common/half.h"
#include "bench/perf/perf.h"

/* Number of elements that a rank's indices range over. */
static double span_of(const perf_case *c) {
    const char *owner = c->scheme.ownership;
    bool fixed = strcmp(owner, "cyclic") == 0 || strcmp(owner, "rotate") == 0;
    return fixed ? (double)c->shape.n / c->group->nranks : (double)c->shape.n;
}

/* Whether packet sizes are not known beforehand. Gaps then take their actual size, for random
 * entries. */
static bool packets_grow(const perf_case *c) {
    return !bench_scheme_exact(&c->scheme) && c->settings->capacity == 0;
}

/* As many low bits of each gap as make the longest list the shortest. */
static double rice_bytes(double count, double span) {
    double least = INFINITY;
    for (int low = 0; low < 32; low++)
        least = fmin(least, count * (low + 1) + floor((span - count) / exp2(low)));
    return least / 8;
}

static double index_bytes(const perf_case *c, double count, double span) {
    double blocks = ceil(span / 65536);
    if (strcmp(c->index_codec, "block16") == 0)
        return 2 * count + blocks + fmin(blocks, count / 128) + fmin(blocks, count / 16384);
    if (strcmp(c->index_codec, "gap8") == 0)
        return packets_grow(c) ? count / (1 - pow(1 - count / span, 255))
                               : count + (span - count) / 255;
    if (strcmp(c->index_codec, "rice") == 0)
        return rice_bytes(count, span);
    if (strcmp(c->index_codec, "bitmap") == 0)
        return span / 8;
    return 4 * count;
}

/* A leader's list travels in pieces: factor on the bytes of a list that goes to every rank. */
static double led(const perf_case *c, double nranks) {
    return strcmp(c->scheme.ownership, "leader") == 0 && nranks > 2 ? 2 / nranks : 1;
}

/* All in float32. @param share  part of the result in a shard */
static double nodes_model(const perf_case *c, double sent, double share) {
    double size = (double)c->settings->nodes_of, nodes = c->group->nranks / size;
    double n = (double)c->shape.n, span = n / size;
    double part = span_of(c) < n ? span_of(c) : span;
    double inter = index_bytes(c, sent, part) * (nodes - 1) * led(c, nodes);
    double sums = 8 * share * (nodes - 1) / nodes;
    return 4 * n * (size - 1) / size + inter + sums +
           (index_bytes(c, share, span) + 4 * share) * (size - 1);
}

double perf_wire_model(const perf_case *c, double sent, double selected) {
    double p = c->group->nranks, others = p - 1;
    double value = bench_value_bytes((tamis_value_codec)c->settings->values);
    double sum = bench_sum_bytes((tamis_value_codec)c->settings->sum_values,
                                 (tamis_value_codec)c->settings->values);
    if (strcmp(c->scheme.exchange, "dense") == 0)
        return 8 * (double)c->shape.n * others / p;
    if (strcmp(c->scheme.exchange, "quantized") == 0)
        return (value + sum) * (double)c->shape.n * others / p;
    if (strcmp(c->scheme.exchange, "balanced-pairs") == 0)
        return others * (136 + 8 * p + 4128.0 / 32) + 8 * (sent + selected) * others / p;
    if (c->settings->nodes_of > 1)
        return nodes_model(c, sent, selected / (double)c->settings->nodes_of);
    double indices = index_bytes(c, sent, span_of(c)) * others * led(c, p);
    if (strcmp(c->scheme.exchange, "pairs") == 0)
        return indices + value * sent * others;
    return indices + (value + sum) * selected * others / p;
}
