/* SPDX-License-Identifier: MIT
 *
 * One pass over the tiles with the tile kernel: accumulate, or only search. Each thread takes a
 * contiguous run of tiles and fills its own list; lists are joined in order: any number of threads
 * gives the same bits.
 */
#ifndef TAM_CPU_SWEEP_H
#define TAM_CPU_SWEEP_H

#include "kernels/cpu/tile.h"
#include "lib/contracts/device.h"

/** Tiles first to end - 1. */
typedef struct tam_span {
    uint32_t first, end;
} tam_span;

typedef struct tam_lane {
    uint32_t *index, *magnitude; /* the first lane's: room for the joined list */
    size_t count;
    uint64_t nonfinite;
    uint32_t bad_tile; /* the first with an entry that was not finite; UINT32_MAX: none */
} tam_lane;

typedef struct tam_sweep {
    const tam_grid *grid;
    const tam_tile_level *level;
    size_t capacity; /* candidates in one list */
    uint32_t threads;
    double *tile_sums; /* [ntiles] of the last accumulate */
    tam_lane *lanes;   /* [threads] */
} tam_sweep;

/** Errors: NOMEM. */
tamis_status tam_sweep_open(const tam_grid *grid, size_t capacity, uint32_t threads,
                            tam_sweep *out);
void tam_sweep_close(tam_sweep *sweep);

/** Whether a rank that owns part `mine` selects in this tile. */
static inline bool tam_owns(uint32_t mine, const tam_tile *tile) {
    return tile->part == mine || (mine == TAM_PART_ALL && tile->part != TAM_PART_COMMON);
}

/** The gradient of a tile, of the job's type; NULL if the job has none. */
void *tam_tile_grad(const tam_grid *grid, const tam_accumulate *job, const tam_tile *tile);

/**
 * Run the kernel over the tiles of `span`; a job without a gradient only searches the own tiles.
 *
 * @param  found      [out]  complete unless it would exceed the capacity
 * @return            entries that were not finite
 *
 * Lifetime:   the list is valid until the next pass
 */
uint64_t tam_sweep_run(tam_sweep *sweep, const tam_accumulate *job, tam_span span,
                       tam_candidates *found);

/** The first tile of the last pass with an entry that was not finite; UINT32_MAX: none. */
uint32_t tam_sweep_bad_tile(const tam_sweep *sweep);

#endif
