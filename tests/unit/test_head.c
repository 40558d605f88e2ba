/* SPDX-License-Identifier: MIT
 *
 * Heads of slots: what their checksum finds, and the order in which a head is refused.
 */
#include "lib/base/head.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

enum { WORDS = 300 };

static void fill(uint32_t *words) {
    for (uint32_t i = 0; i < WORDS; i++)
        words[i] = (uint32_t)tam_random(1, i);
}

static void one_damaged_word_always_shows(void **state) {
    uint32_t words[WORDS];
    (void)state;
    fill(words);
    uint64_t sum = tam_sum_bytes(TAM_SUM_INDICES, words, sizeof words);
    for (uint32_t i = 0; i < WORDS; i++) {
        uint32_t was = words[i];
        for (int bit = 0; bit < 32; bit++) {
            words[i] = was ^ 1u << bit;
            assert_true(tam_sum_bytes(TAM_SUM_INDICES, words, sizeof words) != sum);
        }
        words[i] = was;
    }
    assert_true(tam_sum_bytes(TAM_SUM_INDICES, words, sizeof words) == sum);
}

static void words_that_change_places_show(void **state) {
    uint32_t words[WORDS];
    (void)state;
    fill(words);
    uint64_t sum = tam_sum_bytes(TAM_SUM_VALUES, words, sizeof words);
    for (uint32_t i = 0; i < WORDS; i++) {
        for (uint32_t j = 0; j < i; j++) {
            uint32_t first = words[i];
            words[i] = words[j];
            words[j] = first;
            assert_true(tam_sum_bytes(TAM_SUM_VALUES, words, sizeof words) != sum);
            words[j] = words[i];
            words[i] = first;
        }
    }
    assert_true(tam_sum_bytes(TAM_SUM_INDICES, words, sizeof words) != sum); /* another area */
}

/* As threads of a device add them: word by word, in any order. */
static void a_sum_is_that_of_its_words(void **state) {
    uint32_t words[WORDS];
    const unsigned char tail[] = {1, 2, 3, 4, 5, 6, 7};
    uint64_t sum = 0;
    (void)state;
    fill(words);
    for (uint32_t i = WORDS; i-- > 0;)
        sum += tam_sum_word(TAM_SUM_RESULT, i, words[i]);
    assert_true(tam_sum_bytes(TAM_SUM_RESULT, words, sizeof words) == sum);
    assert_true(tam_sum_bytes(TAM_SUM_RESULT, tail, sizeof tail) ==
                tam_sum_word(TAM_SUM_RESULT, 0, 0x04030201u) +
                    tam_sum_word(TAM_SUM_RESULT, 1, 0x00070605u));
    assert_true(tam_sum_bytes(TAM_SUM_RESULT, NULL, 0) == 0);
}

static void the_checksum_of_a_head_is_without_itself(void **state) {
    struct {
        tam_head head;
        uint32_t words[2];
    } slot = {.head = {.magic = TAM_HEAD_MAGIC, .step = 7, .count = 3}, .words = {8, 9}};
    (void)state;
    assert_int_equal(tam_head_bytes(2), sizeof slot);
    assert_int_equal(tam_head_bytes(1), sizeof slot);
    uint64_t sum = tam_sum_head(&slot.head, sizeof slot);
    assert_true(sum == tam_sum_bytes(TAM_SUM_HEAD, &slot, sizeof slot));
    slot.head.checksum = UINT64_C(0x0123456789abcdef);
    assert_true(tam_sum_head(&slot.head, sizeof slot) == sum);
    slot.words[1]++;
    assert_true(tam_sum_head(&slot.head, sizeof slot) != sum);
}

static void heads_are_refused_in_one_order(void **state) {
    const tam_head_due due = {.config = 5, .step = 6, .rank = 1, .limit = 10};
    tam_head h = {.magic = 0, .rank = 2, .config = 6, .step = 7, .count = 11};
    (void)state;
    assert_int_equal(tam_head_check(&h, &due), TAM_REFUSED_MAGIC);
    h.magic = TAM_HEAD_MAGIC;
    assert_int_equal(tam_head_check(&h, &due), TAM_REFUSED_RANK);
    h.rank = 1;
    assert_int_equal(tam_head_check(&h, &due), TAM_REFUSED_CONFIG);
    h.config = 5;
    assert_int_equal(tam_head_check(&h, &due), TAM_REFUSED_STEP);
    h.step = 6;
    assert_int_equal(tam_head_check(&h, &due), TAM_REFUSED_COUNT);
    h.count = 10;
    assert_int_equal(tam_head_check(&h, &due), TAM_REFUSED_NOTHING);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_damaged_word_always_shows),
        cmocka_unit_test(words_that_change_places_show),
        cmocka_unit_test(a_sum_is_that_of_its_words),
        cmocka_unit_test(the_checksum_of_a_head_is_without_itself),
        cmocka_unit_test(heads_are_refused_in_one_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
