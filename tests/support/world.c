/* SPDX-License-Identifier: MIT
 *
 * A vector on a device.
 */
#include "tests/support/world.h"
#include "tests/support/data.h"

#include <float.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

enum { BLOCK = 1000 };

static struct {
    const tam_device *row;
    uint32_t longest;
} in_use;

void world_use(const tam_device *row, uint32_t longest) {
    in_use.row = row;
    in_use.longest = longest;
}

const tam_device *world_row(void) {
    return in_use.row;
}

uint32_t world_length(uint32_t n) {
    return n < in_use.longest ? n : in_use.longest;
}

static uint32_t part_of(int parts, uint32_t tile, uint32_t group) {
    if (parts == LAST_COMMON && group == GROUPS - 1)
        return TAM_PART_COMMON;
    return (parts == BY_GROUP ? group : tile) % PARTS;
}

static void add_tiles(world *w, const world_plan *plan, uint32_t g) {
    tam_group *group = &w->groups[g];
    group->first_tile = w->grid.ntiles;
    for (uint32_t at = 0; at < group->length; at += plan->block) {
        uint32_t left = group->length - at, t = w->grid.ntiles++;
        w->grid.tiles[t] = (tam_tile){group->begin + at, left < plan->block ? left : plan->block, g,
                                      part_of(plan->parts, t, g)};
    }
    group->ntiles = w->grid.ntiles - group->first_tile;
}

static void divide(world *w, const world_plan *plan) {
    uint32_t n = plan->n;
    const uint32_t shares[GROUPS] = {n / 7, 1, n / 2, 37, n - n / 7 - n / 2 - 38};
    w->grid.tiles = test_calloc(n / plan->block + GROUPS, sizeof(tam_tile));
    for (uint32_t g = 0, begin = 0; g < GROUPS; begin += shares[g++]) {
        w->groups[g] = (tam_group){.begin = begin, .length = shares[g], .segment = g};
        w->begins[g] = begin;
        add_tiles(w, plan, g);
    }
}

void world_open(world *w, world_plan plan) {
    plan.block = plan.block ? plan.block : BLOCK;
    plan.threads = plan.threads ? plan.threads : 1;
    *w = (world){.row = plan.row ? plan.row : in_use.row,
                 .grid = {.n = plan.n, .groups = w->groups, .ngroups = GROUPS}};
    divide(w, &plan);
    assert_int_equal(w->row->open(&w->grid, plan.capacity, plan.threads, &w->device), TAMIS_OK);
    w->acc = w->row->alloc(w->device, plan.n * sizeof w->acc[0]);
    w->zero = w->row->alloc(w->device, plan.n * sizeof w->zero[0]);
    assert_true(w->acc && w->zero);
    w->mirror = test_calloc(plan.n, sizeof w->mirror[0]);
    w->indices = test_calloc(plan.n + 1, sizeof w->indices[0]);
    w->expected = test_calloc(plan.n + 1, sizeof w->expected[0]);
}

void world_close(world *w) {
    w->row->release(w->device, w->acc);
    w->row->release(w->device, w->zero);
    w->row->close(w->device);
    test_free(w->mirror);
    test_free(w->indices);
    test_free(w->expected);
    test_free(w->grid.tiles);
}

float world_value(int pattern, uint32_t i, uint32_t n) {
    uint64_t random = data_mix(i + 99);
    float u = ((float)(random >> 40) + 1) / 16777217.0f, x = 1 / (u * u * u);
    switch (pattern) {
    case TIES:
        x = (float)(random >> 8 & 3);
        break;
    case ZERO:
        x = 0;
        break;
    case EQUAL:
        x = 3;
        break;
    case SPARSE:
        x = random % 500 == 7 ? x : 0;
        break;
    case DENORMAL:
        x = tam_float((uint32_t)(random >> 45));
        break;
    case LARGE:
        x = u > 0.7f ? FLT_MAX : u * FLT_MAX;
        break;
    case CLUSTERED:
        x = i > n - n / 40 ? x * 1e6f : u;
        break;
    default:
        break;
    }
    return random & 1 ? -x : x;
}

void world_fill(world *w, int pattern) {
    size_t bytes = w->grid.n * sizeof w->mirror[0];
    for (uint32_t i = 0; i < w->grid.n; i++)
        w->mirror[i] = world_value(pattern, i, (uint32_t)w->grid.n);
    assert_int_equal(w->row->write(w->device, w->mirror, bytes, w->acc), TAMIS_OK);
}

void world_look(world *w) {
    size_t bytes = w->grid.n * sizeof w->mirror[0];
    assert_int_equal(w->row->read(w->device, w->acc, bytes, w->mirror), TAMIS_OK);
}

void world_take(world *w, uint32_t mine, const uint32_t thresholds[GROUPS]) {
    tam_accumulate job = {.acc = w->acc,
                          .grad = w->zero,
                          .decay = 1,
                          .scale = 1,
                          .mine = mine,
                          .thresholds = thresholds};
    assert_int_equal(w->row->accumulate(w->device, &job, &w->seen), TAMIS_OK);
}

void world_take_uniform(world *w, uint32_t mine, uint32_t threshold) {
    const uint32_t thresholds[GROUPS] = {threshold, threshold, threshold, threshold, threshold};
    world_take(w, mine, thresholds);
}

tam_select_result world_select(world *w, const tam_select_job *job) {
    tam_select_result result;
    memset(w->indices, 0x77, (w->grid.n + 1) * sizeof w->indices[0]);
    assert_int_equal(w->row->select(w->device, job, w->indices, &result), TAMIS_OK);
    assert_int_equal(w->indices[result.count], 0x77777777); /* no room beyond the result */
    return result;
}
