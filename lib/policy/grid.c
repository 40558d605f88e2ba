/* SPDX-License-Identifier: MIT */
#include "lib/policy/grid.h"

#include "lib/base/numbers.h"
#include "lib/policy/rules.h"

enum {
    BLOCK_MIN = 32,
    BLOCK_FAST = 512, /* tiles of this length or more take as long as their elements do */
    BLOCK_MAX = 4096,
    MANY = 64, /* blocks a rank, while they are long, */
    FEW = 8    /* and while they are short */
};

uint64_t tam_blocks_wished(uint64_t n, uint32_t nranks) {
    uint64_t fast = tam_min((uint64_t)MANY * nranks, n / BLOCK_FAST);
    uint64_t slow = tam_min((uint64_t)FEW * nranks, n / BLOCK_MIN);
    uint64_t wished = fast > slow ? fast : slow;
    return wished > 0 ? wished : 1;
}

uint32_t tam_block_of(uint64_t n, uint32_t nranks) {
    uint32_t block = BLOCK_MAX;
    while (block > BLOCK_MIN && n / block < tam_blocks_wished(n, nranks))
        block /= 2;
    return block;
}

static uint32_t grid_choose_block(uint64_t n, uint32_t nranks, tam_ownership ownership) {
    return ownership == TAM_OWN_CYCLIC ? tam_block_of(n, nranks) : BLOCK_MAX;
}

/* DEFT, section 4(a) of its algorithm: a tensor with more than n/P elements is divided into P
 * pieces, the first (length mod P) of them one longer. */
static uint32_t grid_pieces_of(const tamis_layout *layout, uint32_t segment, tam_scheme scheme,
                               uint32_t nranks) {
    uint32_t length = tam_segment_length(layout, segment);
    if (scheme.ownership != TAM_OWN_BINS || length <= layout->length / nranks)
        return 1;
    return length < nranks ? length : nranks;
}

static void fill_groups(const tamis_layout *layout, tam_division *d) {
    tam_group *group = d->grid.groups;
    for (uint32_t s = 0; s < layout->nsegments; s++) {
        uint32_t pieces = grid_pieces_of(layout, s, d->scheme, d->nranks);
        uint32_t length = tam_segment_length(layout, s), begin = layout->begins[s];
        for (uint32_t i = 0; i < pieces; i++, group++) {
            group->segment = s;
            group->begin = begin;
            group->length = length / pieces + (i < length % pieces);
            begin += group->length;
        }
    }
}

/* Contiguous parts: MiCRO's, and ExDyna's if the vector is too short for its blocks. */
static bool in_ranges(const tam_division *d) {
    return d->scheme.ownership == TAM_OWN_ROTATE ||
           (d->scheme.ownership == TAM_OWN_BALANCED && d->topology.nblocks == 0);
}

static bool in_blocks(const tam_division *d) {
    return d->scheme.ownership == TAM_OWN_BALANCED && d->topology.nblocks > 0;
}

/* First element of part p when the vector is divided into P contiguous parts. */
static uint64_t range_begin(uint64_t n, uint32_t nranks, uint32_t p) {
    uint64_t rest = n % nranks;
    return n / nranks * p + (p < rest ? p : rest);
}

/* The part of the element at `at`, and where that part ends. */
static uint32_t part_at(const tam_division *d, uint64_t at, uint64_t *end) {
    uint64_t n = d->grid.n;
    *end = n;
    if (d->scheme.ownership == TAM_OWN_CYCLIC) {
        uint64_t block = at / d->block;
        *end = (block + 1) * d->block;
        return (uint32_t)(block % d->nranks);
    }
    if (in_blocks(d)) { /* parts are set later, and end where blocks do */
        uint64_t block = at / d->topology.block + 1;
        *end = block < d->topology.nblocks ? block * d->topology.block : n;
    }
    if (!in_ranges(d))
        return 0;
    uint64_t each = n / d->nranks, rest = n % d->nranks;
    uint64_t part =
        at < rest * (each + 1) ? at / (each + 1) : rest + (at - rest * (each + 1)) / each;
    *end = range_begin(n, d->nranks, (uint32_t)part + 1);
    return (uint32_t)part;
}

/* Fills the tiles and returns their number; `tiles` NULL: only counts. */
static uint32_t fill_tiles(tam_division *d, tam_tile *tiles) {
    uint32_t count = 0;
    for (uint32_t g = 0; g < d->grid.ngroups; g++) {
        tam_group *group = &d->grid.groups[g];
        uint64_t at = group->begin, group_end = at + group->length;
        group->first_tile = count;
        while (at < group_end) {
            uint64_t end, block_end = (at / d->block + 1) * d->block;
            uint32_t part = part_at(d, at, &end);
            end = end < block_end ? end : block_end;
            end = end < group_end ? end : group_end;
            if (tiles)
                tiles[count] = (tam_tile){(uint32_t)at, (uint32_t)(end - at), g, part};
            count++;
            at = end;
        }
        group->ntiles = count - group->first_tile;
    }
    return count;
}

static void measure_parts(tam_division *d) {
    memset(d->part_sizes, 0, d->nranks * sizeof d->part_sizes[0]);
    if (d->scheme.ownership == TAM_OWN_ALL || d->scheme.ownership == TAM_OWN_BINS)
        return;
    for (uint32_t t = 0; t < d->grid.ntiles; t++)
        d->part_sizes[d->grid.tiles[t].part] += d->grid.tiles[t].length;
}

void tam_division_follow(tam_division *d) {
    uint32_t part = 0;
    uint64_t end = in_blocks(d) ? tam_topology_end(&d->topology, 0, 0) : 0;
    for (uint32_t t = 0; t < d->grid.ntiles && in_blocks(d); t++) {
        for (; d->grid.tiles[t].begin >= end; part++)
            end = tam_topology_end(&d->topology, part + 1, end);
        d->grid.tiles[t].part = part;
    }
    measure_parts(d);
}

void tam_division_balance(tam_division *d, uint64_t found) {
    if (tam_topology_move(&d->topology, found))
        tam_division_follow(d);
}

tamis_status tam_division_open(const tamis_layout *layout, tam_scheme scheme, uint32_t nranks,
                               uint32_t block, tam_division *out) {
    tam_division d = {.scheme = scheme, .nranks = nranks};
    bool balanced = scheme.ownership == TAM_OWN_BALANCED;
    d.grid.n = layout->length;
    d.block = block && !balanced ? block : grid_choose_block(d.grid.n, nranks, scheme.ownership);
    if (balanced)
        TAM_TRY(tam_topology_open(d.grid.n, nranks, block, &d.topology));
    for (uint32_t s = 0; s < layout->nsegments; s++)
        d.grid.ngroups += grid_pieces_of(layout, s, scheme, nranks);

    d.part_sizes = tam_alloc_array(nranks, sizeof d.part_sizes[0]);
    d.grid.groups = tam_alloc_array(d.grid.ngroups, sizeof d.grid.groups[0]);
    if (!d.part_sizes || !d.grid.groups)
        goto err_close;
    fill_groups(layout, &d);
    d.grid.ntiles = fill_tiles(&d, NULL);
    d.grid.tiles = tam_alloc_array(d.grid.ntiles, sizeof d.grid.tiles[0]);
    if (!d.grid.tiles)
        goto err_close;
    fill_tiles(&d, d.grid.tiles);
    tam_division_follow(&d);
    *out = d;
    return TAMIS_OK;

err_close:
    tam_division_close(&d);
    return tam_fail(TAMIS_E_NOMEM, "no memory for the division of %llu elements",
                    (unsigned long long)layout->length);
}

void tam_division_close(tam_division *d) {
    tam_free(d->grid.tiles);
    tam_free(d->grid.groups);
    tam_free(d->part_sizes);
    tam_topology_close(&d->topology);
    *d = (tam_division){0};
}

uint32_t tam_part_of(const tam_division *d, uint64_t step, uint32_t rank) {
    if (d->scheme.ownership == TAM_OWN_ALL)
        return TAM_PART_ALL;
    return tam_scheme_part(d->scheme, step, rank, d->nranks);
}

/* First element of a part that is a run of blocks. */
static uint64_t blocks_begin(const tam_division *d, uint32_t part) {
    uint64_t begin = 0;
    for (uint32_t p = 0; p < part; p++)
        begin += d->part_sizes[p];
    return begin;
}

tam_strided tam_strided_of(const tam_division *d, uint32_t part) {
    uint64_t n = d->grid.n;
    if (d->scheme.ownership == TAM_OWN_CYCLIC)
        return (tam_strided){(uint64_t)part * d->block, d->block, (uint64_t)d->nranks * d->block,
                             d->part_sizes[part]};
    if (in_ranges(d))
        return (tam_strided){range_begin(n, d->nranks, part), n, n, d->part_sizes[part]};
    if (in_blocks(d))
        return (tam_strided){blocks_begin(d, part), n, n, d->part_sizes[part]};
    return (tam_strided){0, n, n, n};
}

uint32_t tam_owner_of(const tam_division *d, uint64_t step, uint32_t part) {
    uint32_t turned = (uint32_t)(step % d->nranks);
    bool leader = d->scheme.ownership == TAM_OWN_LEADER;
    return (leader ? part + turned : part + d->nranks - turned) % d->nranks;
}

void tam_budget_span(const tam_division *d, uint64_t step, uint32_t rank, uint64_t *before,
                     uint64_t *upto) {
    *before = 0;
    *upto = d->grid.n;
    if (d->scheme.ownership == TAM_OWN_ALL)
        return;
    for (uint32_t r = 0; r < rank; r++)
        *before += d->part_sizes[tam_part_of(d, step, r)];
    *upto = *before + d->part_sizes[tam_part_of(d, step, rank)];
}

size_t tam_budget_of(const tam_division *d, uint64_t step, uint32_t rank, uint64_t k) {
    uint64_t before, upto;
    tam_budget_span(d, step, rank, &before, &upto);
    return (size_t)tam_rule_rank_budget(k, d->grid.n, before, upto);
}

size_t tam_budget_max(const tam_division *d, uint64_t k) {
    if (d->scheme.ownership == TAM_OWN_ALL)
        return (size_t)k;
    uint64_t own = tam_own_max(d);
    return (size_t)((k * own + d->grid.n - 1) / d->grid.n);
}

size_t tam_own_max(const tam_division *d) {
    if (d->scheme.ownership == TAM_OWN_ALL || d->scheme.ownership == TAM_OWN_BINS)
        return (size_t)d->grid.n;
    if (in_blocks(d))
        return (size_t)tam_topology_most(&d->topology);
    uint32_t most = 0;
    for (uint32_t p = 0; p < d->nranks; p++)
        most = d->part_sizes[p] > most ? d->part_sizes[p] : most;
    return most;
}
