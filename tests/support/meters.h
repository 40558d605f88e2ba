/* SPDX-License-Identifier: MIT
 *
 * Simulated nodes whose counters' truth is known, and what ranks report of them.
 *
 *     node 0           psys { package-0 package-1 dram-0 dram-1 }   gpu-0 ... gpu-3
 *     nodes 1 to 3            package-0 package-1 dram-0 dram-1     gpu-0 ... gpu-3
 *     ranks 16 n ...   see all of node n but the GPUs, and GPU (rank % 16) / 4 of it
 */
#ifndef TEST_METERS_H
#define TEST_METERS_H

#include "lib/energy/cluster/registry.h"

enum {
    METERS_NODES = 4,
    METERS_PER_NODE = 16,
    METERS_RANKS = METERS_NODES * METERS_PER_NODE,
    METERS_COUNTERS = METERS_NODES * 8 + 1,
    METERS_SEEN = 6 /* the most that one rank sees */
};

typedef struct meters_counter {
    char id[64], inside[64];
    uint64_t host, kind;
    uint64_t range_uj, start_uj; /* raw value at the beginning */
    uint64_t most_w;
    uint64_t true_uj; /* since the beginning */
    uint64_t rate_w;  /* of late */
} meters_counter;

/** A rank's meter: opened once, may be denied, hang, or read late. */
typedef struct meters_rank {
    uint64_t since_uj[METERS_COUNTERS];
    bool hangs; /* at hung_uj */
    uint64_t hung_uj[METERS_COUNTERS];
    bool denied_rapl;
    uint64_t lag_ms;
} meters_rank;

typedef struct meters {
    uint64_t seed;
    meters_counter counters[METERS_COUNTERS];
    meters_rank ranks[METERS_RANKS];
} meters;

/** Everything at 0, all ranks open. */
void meters_begin(meters *m, uint64_t seed);

/** Let `ms` pass, with random power. Counters wrap many times if it is long. */
void meters_advance(meters *m, uint64_t ms);

/** Restart a rank now, like a restarted process. */
void meters_reopen(meters *m, uint32_t rank);

/** Make a rank's meter hang from now on, or answer again. */
void meters_hang(meters *m, uint32_t rank, bool hangs);

/** What rank `id` sees. @param out  [METERS_SEEN], or NULL @return number of entries */
uint32_t meters_show(const meters *m, uint32_t id, tam_energy_entry *out);

/** @param id  as "package-0" */
meters_counter *meters_find(meters *m, uint32_t node, const char *id);

/** What the widest counters have counted, for one node and for all. */
uint64_t meters_truth(const meters *m, uint32_t node);
uint64_t meters_truth_of_all(const meters *m);

#endif
