/* SPDX-License-Identifier: MIT
 *
 * The order of sums over ranks: what adds values as they come gives the bits of the definition, a
 * recursion, for every number of ranks and whoever of them has no value; and nodes compose.
 */
#include "lib/base/tree.h"
#include "tests/support/rank_tree.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

enum { MOST = 1024 };

/* All up to 130, then some. @return 0 behind the last one */
static uint32_t ranks_of(size_t i) {
    static const uint32_t more[] = {255, 256, 257, 1000, 1024, 0};
    return i < 130 ? (uint32_t)i + 1 : more[i - 130];
}

/* Full mantissas of many exponents, so that every order of summation has bits of its own. */
static float number(uint64_t seed, uint64_t i) {
    uint64_t x = tam_random(seed, i);
    float mantissa = (float)(uint32_t)(x >> 40) + 1.0f;
    return (x & 1 ? -mantissa : mantissa) * (float)tam_power_of_two((int)(x >> 1 & 31) - 16);
}

static void fill(uint64_t seed, size_t count, float *out) {
    for (size_t i = 0; i < count; i++)
        out[i] = number(seed, i);
}

/* Whether rank r has a value: all, about half, few, one or none of them. */
static bool has_value(uint32_t kind, uint32_t nranks, uint32_t r) {
    uint64_t x = tam_random(kind * 5000u + nranks, r);
    static const uint64_t in_64[] = {64, 32, 60, 6, 1, 0};
    return x % 64 < in_64[kind % 6];
}

static void check_bits(float got, float expected, uint32_t nranks, uint32_t kind) {
    if (tam_bits(got) != tam_bits(expected))
        fail_msg("%u ranks, case %u: %.9g, not %.9g", nranks, kind, (double)got, (double)expected);
}

/* -- the definition --------------------------------------------------------------------------- */

static float one_by_one(const float *x, uint32_t nranks) {
    float values[MOST];
    tam_tree_sum sum = {0};
    memcpy(values, x, nranks * sizeof values[0]);
    for (uint32_t r = 0; r < nranks; r++)
        tam_tree_add(&sum, tam_tree_vrank(r, tam_tree_own(nranks)), values[r]);
    return tam_tree_end(&sum);
}

static void test_few_ranks_are_added_as_written_down(void **state) {
    float x[8];
    (void)state;
    for (uint64_t seed = 0; seed < 200; seed++) {
        fill(seed, 8, x);
        float pairs = (x[0] + x[1]) + (x[2] + x[3]);
        const float expected[] = {x[0],
                                  x[0] + x[1],
                                  (x[0] + x[1]) + x[2],
                                  pairs,
                                  ((x[0] + x[1]) + x[2]) + (x[3] + x[4]),
                                  pairs + (x[4] + x[5]),
                                  pairs + ((x[4] + x[5]) + x[6]),
                                  pairs + ((x[4] + x[5]) + (x[6] + x[7]))};
        for (uint32_t nranks = 1; nranks <= 8; nranks++) {
            check_bits(rank_tree_sum(x, 1, nranks), expected[nranks - 1], nranks, 0);
            check_bits(one_by_one(x, nranks), expected[nranks - 1], nranks, 1);
        }
    }
}

static void test_no_rank_stands_for_more_than_two_vranks(void **state) {
    uint32_t nranks;
    (void)state;
    for (size_t i = 0; (nranks = ranks_of(i)) > 0; i++) {
        uint32_t own = tam_tree_own(nranks), next = 0;
        for (uint32_t r = 0; r < nranks; r++) {
            assert_int_equal(tam_tree_vrank(r, own), next);
            next += r < own ? 1 : 2;
        }
        assert_true(next >= nranks && next < 2 * nranks); /* the least power of two */
        assert_int_equal(next & (next - 1), 0);
    }
}

/* -- as values come --------------------------------------------------------------------------- */

static void test_values_as_they_come_give_the_bits_of_the_recursion(void **state) {
    static float x[MOST];
    static bool there[MOST];
    static tam_tree_sum sum; /* used again after every end */
    uint32_t nranks;
    (void)state;
    for (size_t i = 0; (nranks = ranks_of(i)) > 0; i++)
        for (uint32_t kind = 0; kind < 24; kind++) {
            fill(1000 * kind + nranks, nranks, x);
            for (uint32_t r = 0; r < nranks; r++) {
                there[r] = has_value(kind, nranks, r);
                if (there[r])
                    tam_tree_add(&sum, tam_tree_vrank(r, tam_tree_own(nranks)), x[r]);
            }
            check_bits(tam_tree_end(&sum), rank_tree_some(x, 1, there, nranks), nranks, kind);
        }
}

static void test_a_sum_without_some_ranks_differs_from_other_orders(void **state) {
    float x[16];
    bool there[16];
    uint32_t serial = 0, whole = 0;
    (void)state;
    for (uint32_t kind = 0; kind < 600; kind++) {
        float one_after_another = 0.0f;
        uint32_t count = 0;
        float left[16] = {0};
        fill(kind, 16, x);
        for (uint32_t r = 0; r < 16; r++) {
            there[r] = has_value(1 + 6 * kind, 16, r);
            one_after_another += there[r] ? x[r] : 0.0f;
            if (there[r])
                left[count++] = x[r];
        }
        float sum = rank_tree_some(x, 1, there, 16);
        serial += sum != one_after_another;
        whole += count > 0 && sum != one_by_one(left, count); /* as if there were no others */
    }
    assert_true(serial > 60 && whole > 60);
}

/* -- blocks ----------------------------------------------------------------------------------- */

static void check_block(uint32_t nranks, uint32_t kind, size_t length) {
    static tam_tree_block block; /* used again after every end */
    size_t stride = length + 3;
    float *x = malloc(nranks * stride * sizeof *x), *sums = malloc(length * sizeof *sums);
    bool *there = malloc(nranks * sizeof *there);
    assert_true(x && sums && there);
    fill(nranks + 77 * kind, nranks * stride, x);
    for (uint32_t r = 0; r < nranks; r++) {
        there[r] = has_value(kind, nranks, r);
        if (there[r])
            tam_tree_add_block(&block, tam_tree_vrank(r, tam_tree_own(nranks)), x + r * stride,
                               length);
    }
    tam_tree_end_block(&block, length, sums);
    for (size_t i = 0; i < length; i++)
        check_bits(sums[i], rank_tree_some(x + i, stride, there, nranks), nranks, kind);
    free(there);
    free(sums);
    free(x);
}

static void test_blocks_give_the_bits_of_the_recursion(void **state) {
    static const size_t lengths[] = {1, 7, TAM_TREE_BLOCK};
    uint32_t nranks;
    (void)state;
    for (size_t i = 0; (nranks = ranks_of(i)) > 0; i++)
        for (uint32_t kind = 0; kind < 6; kind++)
            check_block(nranks, kind, lengths[nranks < 20 ? 2 : (i + kind) % 2]);
}

/* The sums may take the place of any rank's values. */
static void test_vectors_of_all_ranks_are_added_in_place(void **state) {
    enum { COUNT = 2 * TAM_TREE_BLOCK + 31, STRIDE = COUNT + 2 };
    static float x[17 * STRIDE], sums[COUNT];
    (void)state;
    for (uint32_t nranks = 1; nranks <= 17; nranks++)
        for (uint32_t r = 0; r <= nranks; r++) {
            float *to = r < nranks ? x + (size_t)r * STRIDE : sums;
            float expected[COUNT];
            fill(nranks + r, nranks * (size_t)STRIDE, x);
            for (size_t i = 0; i < COUNT; i++)
                expected[i] = rank_tree_sum(x + i, STRIDE, nranks);
            tam_tree_add_up(x, STRIDE, nranks, COUNT, to);
            assert_memory_equal(to, expected, sizeof expected);
        }
}

/* -- nodes ------------------------------------------------------------------------------------ */

static void test_nodes_of_a_power_of_two_compose(void **state) {
    static float x[MOST], sums[MOST];
    uint32_t nranks, tried = 0;
    (void)state;
    for (size_t i = 0; (nranks = ranks_of(i)) > 0; i++)
        for (uint32_t size = 2; size <= nranks; size *= 2) {
            if (nranks % size > 0)
                continue;
            fill(nranks, nranks, x);
            for (uint32_t node = 0; node < nranks / size; node++)
                sums[node] = rank_tree_sum(x + node * size, 1, size);
            check_bits(rank_tree_sum(sums, 1, nranks / size), rank_tree_sum(x, 1, nranks), nranks,
                       size);
            tried++;
        }
    assert_true(tried > 100);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_few_ranks_are_added_as_written_down),
        cmocka_unit_test(test_no_rank_stands_for_more_than_two_vranks),
        cmocka_unit_test(test_values_as_they_come_give_the_bits_of_the_recursion),
        cmocka_unit_test(test_a_sum_without_some_ranks_differs_from_other_orders),
        cmocka_unit_test(test_blocks_give_the_bits_of_the_recursion),
        cmocka_unit_test(test_vectors_of_all_ranks_are_added_in_place),
        cmocka_unit_test(test_nodes_of_a_power_of_two_compose),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
