/* SPDX-License-Identifier: MIT
 *
 * Parts that are runs of blocks and hand them on: sizes, moves, what stays.
 */
#include "lib/policy/grid.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static tam_topology make_topology(uint64_t n, uint32_t nparts, uint64_t block) {
    tam_topology t;
    assert_int_equal(tam_topology_open(n, nparts, block, &t), TAMIS_OK);
    return t;
}

/* As published: 1024 blocks of a multiple of 32 elements, of fewer if there are not so many; and
 * what is too short has none. */
static void blocks_have_the_published_sizes(void **state) {
    (void)state;
    static const struct {
        uint64_t n, given;
        uint32_t nparts, nblocks, least;
        uint64_t block, first;
    } cases[] = {
        {1023, 0, 4, 0, 1, 0, 0},         {1024, 0, 4, 1024, 64, 1, 256},
        {32767, 0, 3, 1024, 86, 31, 342}, {70000, 0, 5, 1024, 52, 64, 205},
        {100000, 0, 300, 1024, 1, 96, 4}, {1000, 64, 3, 15, 2, 64, 5},
        {1000, 512, 3, 0, 1, 512, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        tam_topology t = make_topology(cases[i].n, cases[i].nparts, cases[i].given);
        assert_int_equal(t.nblocks, cases[i].nblocks);
        assert_int_equal(t.least, cases[i].least);
        assert_int_equal(t.block, cases[i].block);
        assert_int_equal(t.blocks[0], cases[i].first);
        assert_true(tam_topology_valid(&t, t.blocks));
        tam_topology_close(&t);
    }
}

/* Worked by hand. n = 1600, 16 blocks of 100 in parts of 4; a part keeps 1. 400 found, the average
 * is 100, a block holds 25. */
static void blocks_move_from_the_overloaded_to_an_underloaded_neighbour(void **state) {
    (void)state;
    static const struct {
        uint64_t loads[4], blocks[4];
    } cases[] = {
        {{106, 95, 96, 103}, {3, 5, 4, 4}},  /* 95 < 95.238 */
        {{106, 96, 96, 102}, {4, 4, 4, 4}},  /* 96 is not */
        {{105, 90, 100, 105}, {4, 4, 4, 4}}, /* 105 is not more than 1.05 * 100 */
        {{80, 120, 100, 100}, {5, 3, 4, 4}}, /* the other way */
        {{200, 50, 130, 20}, {3, 6, 3, 4}},  /* 75 after the first move: takes one more */
        {{50, 150, 50, 150}, {5, 2, 6, 3}},  /* 125 after the first move: hands on one more */
        {{200, 200, 0, 0}, {4, 3, 5, 4}},    /* the first has no underloaded neighbour */
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        tam_topology t = make_topology(1600, 4, 100);
        bool expected = memcmp(cases[i].blocks, t.blocks, sizeof cases[i].blocks) != 0;
        memcpy(t.loads, cases[i].loads, sizeof cases[i].loads);
        assert_int_equal(tam_topology_move(&t, 400), expected);
        for (int p = 0; p < 4; p++)
            assert_int_equal(t.blocks[p], cases[i].blocks[p]);
        assert_true(tam_topology_valid(&t, t.blocks));
        tam_topology_close(&t);
    }
}

/* 0.95238 of the average, not 1 / 1.05: of 10^6, 952380 is not under it, 952379 is. */
static void the_lower_limit_is_the_published_number(void **state) {
    (void)state;
    for (uint64_t load = 952379; load <= 952381; load++) {
        tam_topology t = make_topology(1600, 4, 100);
        memcpy(t.loads, (uint64_t[]){1050001, load, 1000000, 1000000}, 4 * sizeof t.loads[0]);
        assert_int_equal(tam_topology_move(&t, 4000000), load < 952380);
        tam_topology_close(&t);
    }
}

/* For ever the same hot part: it hands on until it has the least, then nothing moves. The tiles
 * follow, and together they are the vector. */
static void a_part_keeps_its_least_and_tiles_follow(void **state) {
    (void)state;
    tamis_segment segments[] = {{NULL, 50}, {NULL, 1000}, {NULL, 550}};
    tamis_layout *layout;
    assert_int_equal(tamis_layout_create(segments, 3, &layout), TAMIS_OK);
    tam_scheme scheme;
    tam_division d;
    assert_int_equal(tam_scheme_parse("exdyna", &scheme), TAMIS_OK);
    assert_int_equal(tam_division_open(layout, scheme, 2, 32, &d), TAMIS_OK);
    assert_int_equal(d.topology.nblocks, 50);
    assert_int_equal(d.topology.least, 7); /* 50 / 8, not rounded down */
    for (int step = 0; step < 30; step++) {
        d.topology.loads[0] = 900;
        d.topology.loads[1] = 100;
        tam_division_balance(&d, 1000);
        uint64_t blocks = step < 18 ? 24 - (uint64_t)step : 7;
        assert_int_equal(d.part_sizes[0], 32 * blocks);
        assert_int_equal(d.part_sizes[1], 1600 - 32 * blocks);
        assert_true(d.part_sizes[1] <= tam_own_max(&d));
        for (uint32_t t = 0; t < d.grid.ntiles; t++)
            assert_int_equal(d.grid.tiles[t].part, d.grid.tiles[t].begin >= 32 * blocks);
    }
    assert_int_equal(d.part_sizes[1], tam_own_max(&d));
    tam_division_close(&d);
    tamis_layout_destroy(layout);
}

static void parts_that_do_not_make_up_the_vector_are_not_valid(void **state) {
    (void)state;
    tam_topology t = make_topology(1600, 4, 100);
    assert_true(tam_topology_valid(&t, (uint64_t[]){1, 13, 1, 1}));
    assert_false(tam_topology_valid(&t, (uint64_t[]){0, 14, 1, 1}));
    assert_false(tam_topology_valid(&t, (uint64_t[]){4, 4, 4, 5}));
    assert_false(tam_topology_valid(&t, (uint64_t[]){4, 4, 4, 3}));
    assert_false(tam_topology_valid(&t, (uint64_t[]){UINT64_MAX, 13, 2, 2}));
    tam_topology_close(&t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_have_the_published_sizes),
        cmocka_unit_test(blocks_move_from_the_overloaded_to_an_underloaded_neighbour),
        cmocka_unit_test(the_lower_limit_is_the_published_number),
        cmocka_unit_test(a_part_keeps_its_least_and_tiles_follow),
        cmocka_unit_test(parts_that_do_not_make_up_the_vector_are_not_valid),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
