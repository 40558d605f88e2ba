/* SPDX-License-Identifier: MIT */
#include "lib/policy/topology.h"

enum {
    BLOCKS = 1024,
    GRAIN = 32,
    MIN_PART_OF_EVEN = 4
}; /* a part keeps a fourth of an even part */

#define OVER 1.05     /* times the average: may hand a block on */
#define UNDER 0.95238 /* times the average: may take one */

static uint64_t topology_choose_block(uint64_t n) {
    uint64_t block = n / BLOCKS;
    return block >= GRAIN ? block / GRAIN * GRAIN : block;
}

static uint32_t count_blocks(uint64_t n, uint32_t nparts, uint64_t given, uint64_t block) {
    uint64_t count = given ? n / given : BLOCKS;
    return block > 0 && count >= nparts ? (uint32_t)count : 0;
}

tamis_status tam_topology_open(uint64_t n, uint32_t nparts, uint64_t block, tam_topology *out) {
    tam_topology t = {.n = n, .nparts = nparts, .block = block ? block : topology_choose_block(n)};
    t.nblocks = count_blocks(n, nparts, block, t.block);
    t.least = (t.nblocks + MIN_PART_OF_EVEN * nparts - 1) / (MIN_PART_OF_EVEN * nparts);
    t.least = t.least > 0 ? t.least : 1;
    t.blocks = tam_alloc_array(nparts, sizeof t.blocks[0]);
    t.loads = tam_alloc_array(nparts, sizeof t.loads[0]);
    if (!t.blocks || !t.loads) {
        tam_topology_close(&t);
        return tam_fail(TAMIS_E_NOMEM, "no memory for %u parts", nparts);
    }
    for (uint32_t p = 0; p < nparts; p++)
        t.blocks[p] = t.nblocks / nparts + (p < t.nblocks % nparts);
    *out = t;
    return TAMIS_OK;
}

void tam_topology_close(tam_topology *t) {
    tam_free(t->blocks);
    tam_free(t->loads);
    *t = (tam_topology){0};
}

/* Hand on one block and its estimated load `held`, which is at most the average and thus less than
 * the load of `from`. */
static bool move_block(tam_topology *t, uint32_t from, uint32_t to, uint64_t held) {
    if (t->blocks[from] <= t->least)
        return false;
    t->blocks[from]--;
    t->blocks[to]++;
    t->loads[from] -= held;
    t->loads[to] += held;
    return true;
}

bool tam_topology_move(tam_topology *t, uint64_t found) {
    uint64_t held = (uint64_t)((double)t->block * ((double)found / (double)t->n));
    double average = found >= t->nparts ? (double)(found / t->nparts) : 1.0;
    bool moved = false;
    for (uint32_t c = 0; c + 1 < t->nparts && t->nblocks > 0; c++) {
        double a = (double)t->loads[c] / average, b = (double)t->loads[c + 1] / average;
        if (a > OVER && b < UNDER)
            moved |= move_block(t, c, c + 1, held);
        else if (a < UNDER && b > OVER)
            moved |= move_block(t, c + 1, c, held);
    }
    return moved;
}

uint64_t tam_topology_end(const tam_topology *t, uint32_t part, uint64_t begin) {
    return part + 1 < t->nparts ? begin + t->blocks[part] * t->block : t->n;
}

uint64_t tam_topology_most(const tam_topology *t) {
    return t->n - (uint64_t)(t->nparts - 1) * t->least * t->block;
}

bool tam_topology_valid(const tam_topology *t, const uint64_t *blocks) {
    uint64_t sum = 0;
    for (uint32_t p = 0; p < t->nparts; p++) {
        if (blocks[p] > t->nblocks || (t->nblocks > 0 && blocks[p] < t->least))
            return false;
        sum += blocks[p];
    }
    return sum == t->nblocks;
}
