/* SPDX-License-Identifier: MIT
 *
 * What tamis_scale knows of a step at many ranks: by the formula of lib/policy/plan.h, by the
 * state machines of collectives/coll on a simulated network, and beside a dense all-reduce.
 */
#ifndef TAMIS_BENCH_SCALE_H
#define TAMIS_BENCH_SCALE_H

#include "bench/scale/nets.h"
#include "lib/contracts/value_codec.h"
#include "lib/policy/plan.h"

#include <tamis/tamis.h>

enum { SCALE_RANKS = 32 }; /* most numbers of ranks */

/** A step: packets of all ranks to all, then the sum of k floats; or of k values that are
 * quantized, and of the counters. */
typedef struct scale_case {
    tam_net net;
    uint32_t nranks;
    uint64_t elements, entries; /* n, k */
    uint64_t summed;            /* floats: values if none are listed, and counters of all ranks */
    uint64_t encoded;           /* values that travel encoded */
    const tam_value_codec *up, *down; /* of values, of their sums */
    size_t packet_bytes;              /* of each rank: header and indices */
} scale_case;

/** Set what a step of so many entries exchanges: packets of ceil(k / P) indices, and beside the
 * values as many floats as there are groups. up and down are set before. */
void scale_fill_case(scale_case *c, uint64_t entries, double index_bytes, uint64_t groups);

double scale_formula_s(const scale_case *c, const tam_plan *plan);

/** The candidate that the library chooses for this case. */
tam_plan scale_choose(const scale_case *c);

/** Least time of a dense all-reduce: flat ring, ring of nodes, double tree of nodes (both
 * pipelined), or any candidate plan. By the formula, with the network's latencies and bandwidths.
 */
double scale_dense_s(const tam_net *net, uint32_t nranks, uint64_t elements);

/** Density up to which a step of the chosen plan takes less than a dense one; 0: none does. */
double scale_break_even(const scale_case *c, double index_bytes, uint64_t groups);

/* -- counted ---------------------------------------------------------------------------------- */

/** What a step sends: by asking the state machines, message by message. */
typedef struct scale_counts {
    uint64_t messages, bytes; /* of the rank that sends most */
    uint64_t node_bytes;      /* that leave the node that sends most */
    uint32_t peers;           /* of the rank that has most */
    uint32_t rounds;          /* steps of all collectives */
} scale_counts;

tamis_status scale_count(const scale_case *c, const tam_plan *plan, scale_counts *out);

/** Bytes that one rank sends. */
tamis_status scale_count_rank(const scale_case *c, const tam_plan *plan, uint32_t rank,
                              uint64_t *bytes);

/** Bytes of a rank: what grows with P, and what does not. */
typedef struct scale_memory {
    uint64_t grows, fixed;
} scale_memory;

scale_memory scale_memory_of(const scale_case *c, double index_bytes);

/* -- simulated -------------------------------------------------------------------------------- */

typedef struct scale_weather {
    double jitter, loss, resend_s;
    uint64_t seed;
} scale_weather;

/** Virtual time of one step on the simulated network, from all ranks' begin to the last one's
 * end. */
tamis_status scale_simulate(const scale_case *c, const tam_plan *plan, const scale_weather *w,
                            double *seconds);

#endif
