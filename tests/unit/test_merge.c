/* SPDX-License-Identifier: MIT
 *
 * Unions of lists that came from other ranks: what a rank does not own is refused, wherever it lies
 * in its list. Two ranks, four tiles of 10 elements, which belong to rank 0, 1, 0, 1.
 */
#include "collectives/exchange/merge.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

enum { CAPACITY = 8, TILES = 4 };

static tam_packets open_packets(const uint32_t *const lists[2], const uint32_t counts[2]) {
    tam_packets s = {.nranks = 2, .capacity = CAPACITY, .index_codec = TAMIS_INDEX_U32, .span = 20};
    assert_int_equal(tam_packets_open(&s), TAMIS_OK);
    for (uint32_t r = 0; r < 2; r++) {
        ((tam_header *)(uintptr_t)tam_packet_header_of(&s, r))->count = counts[r];
        memcpy((void *)(uintptr_t)tam_packet_indices_of(&s, r), lists[r],
               counts[r] * sizeof lists[r][0]);
    }
    return s;
}

/* @param  refused  the rank; 2: none */
static void check(const uint32_t *a, uint32_t na, const uint32_t *b, uint32_t nb,
                  uint32_t refused) {
    static const uint32_t owners[] = {0, 1};
    tam_tile tiles[TILES];
    tam_list lists[2];
    uint32_t indices[2 * CAPACITY];
    size_t count = 0;
    char words[64];
    for (uint32_t t = 0; t < TILES; t++)
        tiles[t] = (tam_tile){10 * t, 10, 0, t % 2};
    const tam_grid grid = {.n = 40, .tiles = tiles, .ntiles = TILES};
    tam_packets s = open_packets((const uint32_t *const[]){a, b}, (const uint32_t[]){na, nb});
    tamis_status status = tam_merge_exclusive(&s, &grid, owners, lists, indices, &count);
    tam_packets_close(&s);
    snprintf(words, sizeof words, "the packet of rank %u was refused: index", refused);
    assert_int_equal(status, refused < 2 ? TAMIS_E_PROTOCOL : TAMIS_OK);
    if (refused < 2)
        assert_non_null(strstr(tamis_last_error(), words));
    else
        assert_int_equal(count, na + nb);
    for (size_t i = 1; refused == 2 && i < count; i++)
        assert_true(indices[i - 1] < indices[i]);
}

static void test_lists_of_owners_are_merged(void **state) {
    (void)state;
    check((const uint32_t[]){0, 9, 20, 29}, 4, (const uint32_t[]){10, 39}, 2, 2);
    check((const uint32_t[]){5}, 0, (const uint32_t[]){10}, 1, 2);
}

static void test_an_index_of_another_owner_is_refused(void **state) {
    (void)state;
    check((const uint32_t[]){3, 12, 20}, 3, (const uint32_t[]){11}, 1, 0); /* within the list */
    check((const uint32_t[]){3, 20, 31}, 3, (const uint32_t[]){11}, 1, 0); /* at its end */
    check((const uint32_t[]){3}, 1, (const uint32_t[]){2, 11}, 2, 1);      /* at its begin */
    check((const uint32_t[]){3}, 1, (const uint32_t[]){11, 40}, 2, 1);     /* past the vector */
    check((const uint32_t[]){3, 3}, 2, (const uint32_t[]){11}, 1, 0);      /* twice */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lists_of_owners_are_merged),
        cmocka_unit_test(test_an_index_of_another_owner_is_refused),
    };
    return cmocka_run_group_tests_name("merge", tests, NULL, NULL);
}
