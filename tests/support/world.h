/* SPDX-License-Identifier: MIT
 *
 * A vector on a device, for the tests of the device contract: GROUPS groups of odd lengths, each a
 * segment, in short tiles. Nothing here assumes that the host can reach the device's memory.
 */
#ifndef TEST_WORLD_H
#define TEST_WORLD_H

#include "lib/base/base.h"
#include "lib/contracts/device.h"

enum { GROUPS = 5, PARTS = 3 };

/** Parts take tiles, or groups, round robin; the last group may be common. */
enum { BY_TILE, BY_GROUP, LAST_COMMON, PART_RULES };

enum { HEAVY, TIES, ZERO, EQUAL, SPARSE, DENORMAL, LARGE, CLUSTERED, PATTERNS };

typedef struct world {
    const tam_device *row;
    void *device;
    tam_grid grid;
    tam_group groups[GROUPS];
    uint32_t begins[GROUPS];
    float *acc, *zero; /* device memory; zero: a gradient */
    float *mirror;     /* acc as filled or last read */
    uint32_t *indices, *expected;
    tam_accumulated seen;
} world;

/** How a vector is made; 0 gives the usual value. */
typedef struct world_plan {
    const tam_device *row; /* usual: the row under test */
    uint32_t n;
    uint32_t block; /* elements of a tile; usual: 1000 */
    int parts;
    size_t capacity;
    uint32_t threads;
} world_plan;

/** Set the row under test, and the longest vector that it handles in reasonable time. */
void world_use(const tam_device *row, uint32_t longest);
const tam_device *world_row(void);

/** The shorter of n and the longest. */
uint32_t world_length(uint32_t n);

void world_open(world *w, world_plan plan);
void world_close(world *w);

/** An entry of a pattern; finite. */
float world_value(int pattern, uint32_t i, uint32_t n);
void world_fill(world *w, int pattern);

/** Copy acc into the mirror. */
void world_look(world *w);

/** Accumulate a zero gradient: the residual stays, candidates are taken. */
void world_take(world *w, uint32_t mine, const uint32_t thresholds[GROUPS]);
void world_take_uniform(world *w, uint32_t mine, uint32_t threshold);

/** Select into w->indices. */
tam_select_result world_select(world *w, const tam_select_job *job);

#endif
