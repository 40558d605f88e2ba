/* SPDX-License-Identifier: MIT
 *
 * Where a part lies: its elements, in order, are numbered 0, 1, 2, ... without gaps, for every way
 * of dividing a vector into parts.
 */
#include "lib/policy/grid.h"
#include "tests/support/data.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

/* Elements of a part as the tiles have them. */
static size_t elements_of(const tam_division *d, uint32_t part, uint32_t *out) {
    size_t count = 0;
    for (uint32_t t = 0; t < d->grid.ntiles; t++)
        for (uint32_t i = 0; d->grid.tiles[t].part == part && i < d->grid.tiles[t].length; i++)
            out[count++] = d->grid.tiles[t].begin + i;
    return count;
}

static void check_part(const tam_division *d, uint32_t part, uint32_t *elements,
                       uint32_t *positions) {
    tam_strided strided = tam_strided_of(d, part);
    size_t count = elements_of(d, part, elements);
    assert_int_equal(strided.length, count);
    tam_strided_number(&strided, elements, count, positions);
    for (size_t i = 0; i < count; i++)
        assert_int_equal(positions[i], i);
    for (size_t step = 1; step < 300; step = 3 * step + 1) { /* some of them alone, in place */
        size_t some = 0;
        for (size_t i = step / 2; i < count; i += step)
            positions[some++] = elements[i];
        tam_strided_number(&strided, positions, some, positions);
        for (size_t i = 0; i < some; i++)
            assert_int_equal(positions[i], step / 2 + i * step);
        tam_strided_locate(&strided, positions, some, positions);
        for (size_t i = 0; i < some; i++)
            assert_int_equal(positions[i], elements[step / 2 + i * step]);
    }
}

static void check_division(const char *scheme, size_t n, uint32_t nranks, uint32_t block) {
    tam_division d;
    tam_scheme s;
    tamis_layout *layout = data_layout(n);
    uint32_t *elements = malloc(n * sizeof *elements), *positions = malloc(n * sizeof *positions);
    assert_non_null(elements);
    assert_non_null(positions);
    assert_int_equal(tam_scheme_parse(scheme, &s), TAMIS_OK);
    assert_int_equal(tam_division_open(layout, s, nranks, block, &d), TAMIS_OK);
    for (uint32_t p = 0; p < nranks; p++)
        check_part(&d, p, elements, positions);
    tam_division_close(&d);
    tamis_layout_destroy(layout);
    free(positions);
    free(elements);
}

static void test_elements_of_a_part_are_numbered_without_gaps(void **state) {
    static const size_t sizes[] = {1, 31, 32, 33, 1000, 4096, 20011};
    static const uint32_t blocks[] = {0, 32, 96, 4096};
    (void)state;
    for (size_t n = 0; n < sizeof sizes / sizeof sizes[0]; n++)
        for (uint32_t nranks = 1; nranks < 9; nranks++) {
            check_division("rotate+global+step+union", sizes[n], nranks, 0);
            check_division("exdyna", sizes[n], nranks, 0);
            check_division("exdyna", sizes[n], nranks, 32);
            for (size_t b = 0; b < sizeof blocks / sizeof blocks[0]; b++)
                check_division("tamis", sizes[n], nranks, blocks[b]);
        }
}

static void test_without_fixed_parts_every_element_has_its_own_number(void **state) {
    static const char *const schemes[] = {"topk", "deft"};
    tam_scheme s;
    (void)state;
    for (int i = 0; i < 2; i++) {
        tamis_layout *layout = data_layout(1000);
        tam_division d;
        assert_int_equal(tam_scheme_parse(schemes[i], &s), TAMIS_OK);
        assert_int_equal(tam_division_open(layout, s, 3, 0, &d), TAMIS_OK);
        const tam_strided strided = tam_strided_of(&d, tam_part_of(&d, 1, 1));
        uint32_t elements[] = {0, 1, 500, 999}, positions[4];
        tam_strided_number(&strided, elements, 4, positions);
        assert_memory_equal(elements, positions, sizeof elements);
        tam_strided_locate(&strided, positions, 4, positions);
        assert_memory_equal(elements, positions, sizeof elements);
        assert_int_equal(strided.length, 1000);
        tam_division_close(&d);
        tamis_layout_destroy(layout);
    }
}

/* Numbers alone: no vector is made. */
static void test_elements_near_2_to_the_32nd_are_numbered(void **state) {
    const uint64_t n = UINT64_C(0xffff0000), block = 4096, nranks = 3;
    const uint64_t last = (n - 1) / block, part = last % nranks;
    const tam_strided strided = {part * block, block, nranks * block,
                                 last / nranks * block + block};
    uint32_t elements[] = {(uint32_t)strided.first, (uint32_t)(n - block), (uint32_t)(n - 1)};
    uint32_t positions[3];
    (void)state;
    tam_strided_number(&strided, elements, 3, positions);
    assert_int_equal(positions[0], 0);
    assert_int_equal(positions[1], last / nranks * block);
    assert_int_equal(positions[2], last / nranks * block + block - 1);
    tam_strided_locate(&strided, positions, 3, positions);
    assert_memory_equal(elements, positions, sizeof elements);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_elements_of_a_part_are_numbered_without_gaps),
        cmocka_unit_test(test_without_fixed_parts_every_element_has_its_own_number),
        cmocka_unit_test(test_elements_near_2_to_the_32nd_are_numbered),
    };
    return cmocka_run_group_tests_name("strided", tests, NULL, NULL);
}
