/* SPDX-License-Identifier: MIT
 *
 * Headers of packets: what their checksum finds, and the order in which a header is refused.
 */
#include "lib/base/header.h"

#include "lib/base/base.h"
#include "lib/base/tree.h"

#include <math.h>
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

typedef struct packet {
    tam_header header;
    uint32_t words[2];
} packet;

static const tam_header_due due = {
    .config = 5, .step = 3 * TAM_HEADER_STEPS + 6, .last_result = 77, .rank = 1, .limit = 10};

static packet some_packet(void) {
    packet s = {.header = {.count = 3, .index_bytes = 12, .key = 0.5f}, .words = {8, 9}};
    tam_header_flag(&s.header, TAM_HEADER_HAS_KEY);
    tam_header_address(&s.header, &due);
    s.header.check = tam_header_check_of(&due, tam_sum_header(&s.header, sizeof s));
    return s;
}

static bool holds(const packet *s, const tam_header_due *expected) {
    return s->header.check == tam_header_check_of(expected, tam_sum_header(&s->header, sizeof *s));
}

static void the_check_of_a_header_is_without_itself(void **state) {
    packet s = some_packet();
    (void)state;
    assert_int_equal(tam_header_bytes(2), sizeof s);
    uint64_t sum = tam_sum_header(&s.header, sizeof s);
    s.header.check = 0;
    assert_true(tam_sum_header(&s.header, sizeof s) == sum);
    assert_true(sum == tam_sum_bytes(TAM_SUM_HEADER, &s, sizeof s));
}

static void a_bit_of_a_header_that_was_damaged_shows(void **state) {
    (void)state;
    for (size_t bit = 0; bit < 8 * sizeof(packet); bit++) {
        packet s = some_packet();
        ((unsigned char *)&s)[bit / 8] ^= (unsigned char)(1 << bit % 8);
        assert_false(holds(&s, &due));
    }
    packet s = some_packet();
    assert_true(holds(&s, &due));
}

/* Also where bytes and the step's remainder in the header are equal by chance. */
static void what_ranks_must_agree_on_is_part_of_the_check(void **state) {
    packet s = some_packet();
    (void)state;
    for (uint64_t by = 1; by < 5000; by++) {
        tam_header_due other[4] = {due, due, due, due};
        other[0].config += by;
        other[1].step += by * TAM_HEADER_STEPS;
        other[2].last_result += by << 20;
        other[3].rank += (uint32_t)by;
        for (int i = 0; i < 4; i++)
            assert_false(holds(&s, &other[i]));
    }
}

static void flags_and_step_share_a_word(void **state) {
    packet s = some_packet();
    (void)state;
    assert_int_equal(tam_header_flags(&s.header), TAM_HEADER_HAS_KEY | TAM_HEADER_SEALED);
    assert_int_equal(s.header.step_flags % TAM_HEADER_STEPS, 6);
}

static void headers_are_refused_in_one_order(void **state) {
    const tam_header_due others[] = {
        {.config = 6, .step = 7, .last_result = 78, .rank = 1, .limit = 2},
        {.config = 5, .step = 7, .last_result = 78, .rank = 1, .limit = 2},
        {.config = 5, .step = 6, .last_result = 78, .rank = 1, .limit = 2},
        {.config = 5, .step = 6, .last_result = 77, .rank = 1, .limit = 2},
        {.config = 5, .step = 6, .last_result = 77, .rank = 1, .limit = 3}};
    const tam_refusal expected[] = {TAM_REFUSED_CONFIG, TAM_REFUSED_STEP, TAM_REFUSED_RESULT,
                                    TAM_REFUSED_COUNT, TAM_REFUSED_NOTHING};
    packet s = some_packet();
    (void)state;
    for (int i = 0; i < 5; i++)
        assert_int_equal(tam_header_check(&s.header, &others[i]), expected[i]);
    s.header = (tam_header){0};
    assert_int_equal(tam_header_check(&s.header, &others[4]), TAM_REFUSED_MISSING);
}

/* -- counters --------------------------------------------------------------------------------- */

/* As many ranks as there may be, in the order of the tree: no digit's sum is rounded. */
static void counts_of_all_ranks_add_up_exactly(void **state) {
    enum { RANKS = 65536 };
    const uint32_t counts[] = {0, 1, 255, 256, 0x01020304, 0x00ffff00, UINT32_MAX - 1, UINT32_MAX};
    float *all = tam_alloc_array(RANKS, TAM_COUNTERS * sizeof *all), sums[TAM_COUNTERS];
    uint64_t expected = 0;
    (void)state;
    for (uint32_t which = 0; which < 2; which++) {
        expected = 0;
        for (uint32_t r = 0; r < RANKS; r++) {
            uint32_t count = which ? UINT32_MAX : counts[tam_random(3, r) % 8];
            float *own = all + (size_t)r * TAM_COUNTERS;
            tam_counter_set(own, TAM_COUNTER_CANDIDATES, count);
            assert_true(tam_counter_get(own, TAM_COUNTER_CANDIDATES) == count);
            expected += count;
        }
        tam_tree_add_up(all, TAM_COUNTERS, RANKS, TAM_COUNTERS, sums);
        assert_true(tam_counter_get(sums, TAM_COUNTER_CANDIDATES) == expected);
        assert_true(tam_counter_get(sums, TAM_COUNTER_DEFERRED) == 0);
    }
    tam_free(all);
}

/* Converting such a float is undefined in C. */
static void a_damaged_counter_is_a_number(void **state) {
    const float damaged[] = {NAN, -NAN, INFINITY, -INFINITY, 3e38f, -3e38f, -1.0f, -0.0f, 1e-40f};
    (void)state;
    for (size_t i = 0; i < sizeof damaged / sizeof damaged[0]; i++) {
        uint64_t expected = damaged[i] > 1.0f ? 1 << 24 : 0;
        float counters[TAM_COUNTERS] = {0};
        counters[TAM_COUNTER_NONFINITE + 1] = damaged[i];
        assert_int_equal(tam_counter_whole(damaged[i]), expected);
        assert_int_equal(tam_counter_get(counters, TAM_COUNTER_NONFINITE), expected << 8);
    }
}

static void means_of_all_that_float32_holds_are_finite(void **state) {
    enum { RANKS = 4097 };
    static float all[RANKS];
    float mean;
    (void)state;
    for (uint32_t r = 0; r < RANKS; r++)
        all[r] = tam_counter_share(r % 3 ? 1e308 * 10 : r % 2 ? NAN : 3e38, RANKS);
    tam_tree_add_up(all, 1, RANKS, 1, &mean);
    assert_true(mean > 2.99e38f && mean < 3.01e38f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_damaged_word_always_shows),
        cmocka_unit_test(words_that_change_places_show),
        cmocka_unit_test(a_sum_is_that_of_its_words),
        cmocka_unit_test(the_check_of_a_header_is_without_itself),
        cmocka_unit_test(a_bit_of_a_header_that_was_damaged_shows),
        cmocka_unit_test(what_ranks_must_agree_on_is_part_of_the_check),
        cmocka_unit_test(flags_and_step_share_a_word),
        cmocka_unit_test(headers_are_refused_in_one_order),
        cmocka_unit_test(counts_of_all_ranks_add_up_exactly),
        cmocka_unit_test(a_damaged_counter_is_a_number),
        cmocka_unit_test(means_of_all_that_float32_holds_are_finite),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
