/* SPDX-License-Identifier: MIT
 *
 * Value codecs: golden bytes and values that NumPy made (value_codecs.py), what rounding takes, and
 * bytes that nobody encoded.
 */
#include "kernels/codecs/value_codecs.h"
#include "lib/base/half.h"
#include "tests/support/data.h"
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

#include "tests/golden/value_codecs.h"

#define COUNT(array) (sizeof(array) / sizeof(array)[0])

enum { MOST = 3 * TAM_VALUE_BLOCK + 7 };

/* -- golden ----------------------------------------------------------------------------------- */

static void check_golden(const golden_codec *g) {
    const tam_value_codec *codec = tam_value_codec_of(g->type);
    unsigned char bytes[4 * GOLDEN_VALUES];
    float decoded[GOLDEN_VALUES], errors[GOLDEN_VALUES];
    assert_int_equal(tam_value_bytes(codec, g->count), g->nbytes);
    tam_value_encode(codec, golden_values + g->first, g->count, bytes, errors);
    assert_memory_equal(bytes, g->bytes, g->nbytes);
    assert_true(tam_value_decode(codec, g->bytes, g->count, decoded));
    assert_memory_equal(decoded, g->decoded, g->count * sizeof decoded[0]);
    for (size_t i = 0; i < g->count; i++)
        assert_true(errors[i] == golden_values[g->first + i] - g->decoded[i]);
}

static void test_bytes_are_those_that_numpy_makes(void **state) {
    (void)state;
    for (size_t i = 0; i < COUNT(golden_codecs); i++)
        check_golden(&golden_codecs[i]);
}

static void test_every_codec_that_quantizes_has_golden_bytes(void **state) {
    bool has[TAMIS_VALUE_END] = {false};
    (void)state;
    for (size_t i = 0; i < COUNT(golden_codecs); i++)
        has[golden_codecs[i].type] = true;
    for (tamis_value_codec type = TAMIS_VALUE_FLOAT32; type < TAMIS_VALUE_END; type++)
        if (tam_value_quantizes(tam_value_codec_of(type)) && !has[type])
            fail_msg("%s: add it to `types` of tests/golden/value_codecs.py",
                     tam_value_codec_of(type)->name);
}

/* -- rounding --------------------------------------------------------------------------------- */

/* What a type may take of a value, as a share of the largest of its block. fp4's lies between
 * neighbours a factor of 2 apart, and half the least one. */
static float most_error(tamis_value_codec type, float value, float largest) {
    switch (type) {
    case TAMIS_VALUE_BFLOAT16:
        return fabsf(value) * 0x1p-8f;
    case TAMIS_VALUE_INT8:
        return largest * (1.0f + 0x1p-7f) / 254.0f;
    case TAMIS_VALUE_FP4:
        return fmaxf(fabsf(value) / 3.0f * 1.001f, largest * 0x1.02p-7f);
    case TAMIS_VALUE_FP2:
        return largest * (1.0f + 0x1p-7f);
    case TAMIS_VALUE_FLOAT32:
        return 0.0f;
    default:
        fail_msg("%s: say here what it may take", tam_value_codec_of(type)->name);
        return 0.0f;
    }
}

static void check_rounding(tamis_value_codec type, const float *values, size_t count) {
    const tam_value_codec *codec = tam_value_codec_of(type);
    size_t size = tam_value_bytes(codec, count);
    unsigned char *bytes = malloc(size + 1), *again = malloc(size + 1); /* unaligned */
    float decoded[MOST], errors[MOST], in_place[MOST];
    memcpy(in_place, values, count * sizeof values[0]);
    tam_value_encode(codec, values, count, bytes + 1, errors);
    tam_value_encode(codec, in_place, count, again + 1, in_place);
    assert_memory_equal(bytes + 1, again + 1, size);
    assert_memory_equal(errors, in_place, count * sizeof errors[0]);
    assert_true(tam_value_decode(codec, bytes + 1, count, decoded));
    for (size_t i = 0; i < count; i++) {
        size_t block = i / TAM_VALUE_BLOCK * TAM_VALUE_BLOCK;
        size_t length = count - block < TAM_VALUE_BLOCK ? count - block : TAM_VALUE_BLOCK;
        float largest = tam_value_largest(values + block, length);
        assert_true(fabsf(errors[i]) <= most_error(type, values[i], largest));
        if (type != TAMIS_VALUE_FP2) /* exact */
            assert_true((double)errors[i] == (double)values[i] - (double)decoded[i]);
    }
    free(bytes);
    free(again);
}

static void test_errors_are_bounded_and_exact(void **state) {
    float values[MOST];
    (void)state;
    for (tamis_value_codec type = TAMIS_VALUE_FLOAT32; type < TAMIS_VALUE_END; type++) {
        for (uint32_t round = 0; round < 60; round++) {
            size_t count = round < 20 ? round : MOST - round;
            data_fill((data_pattern)(round % 3), round, 0, count, values);
            for (size_t i = 0; i < count && round % 5 == 4; i++)
                values[i] *= 0x1p-120f; /* scales that are subnormal */
            check_rounding(type, values, count);
        }
    }
}

/* A block of whole numbers that a scale of 1 holds comes back as it was. */
static void test_what_a_type_holds_it_keeps(void **state) {
    float values[TAM_VALUE_BLOCK], decoded[TAM_VALUE_BLOCK], errors[TAM_VALUE_BLOCK];
    unsigned char bytes[4 * TAM_VALUE_BLOCK];
    (void)state;
    for (int i = 0; i < TAM_VALUE_BLOCK; i++)
        values[i] = (float)(i % 255 - 127);
    tam_value_encode(&tam_value_int8, values, TAM_VALUE_BLOCK, bytes, errors);
    assert_true(tam_value_decode(&tam_value_int8, bytes, TAM_VALUE_BLOCK, decoded));
    assert_memory_equal(values, decoded, sizeof values);
    for (int i = 0; i < TAM_VALUE_BLOCK; i++)
        values[i] = (i & 8 ? -64.0f : 64.0f) * (i % 8 ? ldexpf(1.0f, i % 8 - 7) : 0.0f);
    for (int i = 8; i < TAM_VALUE_BLOCK; i += 16)
        values[i] = 0.0f; /* no -0 */
    tam_value_encode(&tam_value_fp4, values, TAM_VALUE_BLOCK, bytes, errors);
    assert_true(tam_value_decode(&tam_value_fp4, bytes, TAM_VALUE_BLOCK, decoded));
    assert_memory_equal(values, decoded, sizeof values);
}

/* -- what is not finite ----------------------------------------------------------------------- */

static void test_what_is_not_finite_stays_so_and_spares_its_neighbours(void **state) {
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    float values[40], decoded[40], errors[40];
    unsigned char bytes[4 * 40];
    (void)state;
    for (tamis_value_codec type = TAMIS_VALUE_FLOAT32; type < TAMIS_VALUE_END; type++) {
        for (size_t b = 0; b < COUNT(bad); b++) {
            const tam_value_codec *codec = tam_value_codec_of(type);
            for (int i = 0; i < 40; i++)
                values[i] = i == 11 ? bad[b] : (float)i;
            tam_value_encode(codec, values, 40, bytes, errors);
            assert_true(tam_value_decode(codec, bytes, 40, decoded));
            for (int i = 0; i < 40; i++)
                assert_int_equal(!isfinite(decoded[i]), i == 11);
            assert_true(errors[11] == 0.0f);
            assert_true(errors[30] == values[30] - decoded[30]);
        }
    }
}

static void test_the_largest_floats_stay_finite(void **state) {
    float values[3] = {FLT_MAX, -FLT_MAX, 1.0f}, decoded[3], errors[3];
    unsigned char bytes[16];
    (void)state;
    for (tamis_value_codec type = TAMIS_VALUE_FLOAT32; type < TAMIS_VALUE_END; type++) {
        tam_value_encode(tam_value_codec_of(type), values, 3, bytes, errors);
        assert_true(tam_value_decode(tam_value_codec_of(type), bytes, 3, decoded));
        for (int i = 0; i < 3; i++)
            assert_true(isfinite(decoded[i]) && isfinite(errors[i]));
        assert_true(decoded[0] > 0.9f * FLT_MAX && decoded[1] == -decoded[0]);
    }
}

/* -- foreign bytes ---------------------------------------------------------------------------- */

static void test_any_bytes_are_decoded_or_refused_within_their_bounds(void **state) {
    (void)state;
    for (tamis_value_codec type = TAMIS_VALUE_FLOAT32; type < TAMIS_VALUE_END; type++) {
        for (uint64_t seed = 0; seed < 4000; seed++) {
            size_t count = (size_t)(data_mix(seed) % MOST);
            size_t size = tam_value_bytes(tam_value_codec_of(type), count);
            unsigned char *bytes = malloc(size + 1); /* exactly: sanitizers see a read behind it */
            float *values = malloc((count + 1) * sizeof *values);
            for (size_t i = 0; i < size; i++)
                bytes[i] = (unsigned char)data_mix(seed * 5000011 + i);
            values[count] = 7.0f;
            tam_value_decode(tam_value_codec_of(type), bytes, count, values);
            assert_true(values[count] == 7.0f);
            free(bytes);
            free(values);
        }
    }
}

static void test_scales_that_are_negative_or_infinite_are_refused(void **state) {
    static const uint16_t bad[] = {0x8000, 0xbf80, 0x7f80, 0xff80, 0x7fc0};
    unsigned char bytes[8] = {0};
    float value;
    (void)state;
    for (size_t b = 0; b < COUNT(bad); b++) {
        memcpy(bytes, &bad[b], 2);
        for (tamis_value_codec type = TAMIS_VALUE_FLOAT32; type < TAMIS_VALUE_END; type++)
            assert_true(!tam_value_codec_of(type)->scale_bytes ||
                        !tam_value_decode(tam_value_codec_of(type), bytes, 1, &value));
    }
}

/* -- defaults --------------------------------------------------------------------------------- */

/* Sums of a type never have fewer bits than its values: a rank would lose again what its residual
 * just kept. */
static void test_sums_have_a_default_of_at_least_as_many_bits(void **state) {
    (void)state;
    assert_int_equal(tam_value_codec_resolve(TAMIS_VALUE_AUTO), TAMIS_VALUE_FLOAT32);
    assert_int_equal(tam_sum_codec_resolve(TAMIS_VALUE_AUTO, TAMIS_VALUE_AUTO),
                     TAMIS_VALUE_FLOAT32);
    assert_int_equal(tam_sum_codec_resolve(TAMIS_VALUE_AUTO, TAMIS_VALUE_FP4), TAMIS_VALUE_INT8);
    assert_int_equal(tam_sum_codec_resolve(TAMIS_VALUE_AUTO, TAMIS_VALUE_FP2), TAMIS_VALUE_FP4);
    for (tamis_value_codec type = TAMIS_VALUE_FLOAT32; type < TAMIS_VALUE_END; type++) {
        tamis_value_codec sum = tam_sum_codec_resolve(TAMIS_VALUE_AUTO, type);
        assert_true(sum > TAMIS_VALUE_AUTO && sum < TAMIS_VALUE_END);
        assert_true(tam_value_codec_of(sum)->bits >= tam_value_codec_of(type)->bits);
        assert_int_equal(tam_value_codec_resolve(type), type);
        assert_int_equal(tam_sum_codec_resolve(type, TAMIS_VALUE_FP2), type);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bytes_are_those_that_numpy_makes),
        cmocka_unit_test(test_every_codec_that_quantizes_has_golden_bytes),
        cmocka_unit_test(test_errors_are_bounded_and_exact),
        cmocka_unit_test(test_what_a_type_holds_it_keeps),
        cmocka_unit_test(test_what_is_not_finite_stays_so_and_spares_its_neighbours),
        cmocka_unit_test(test_the_largest_floats_stay_finite),
        cmocka_unit_test(test_any_bytes_are_decoded_or_refused_within_their_bounds),
        cmocka_unit_test(test_scales_that_are_negative_or_infinite_are_refused),
        cmocka_unit_test(test_sums_have_a_default_of_at_least_as_many_bits),
    };
    return cmocka_run_group_tests_name("value_codec", tests, NULL, NULL);
}
