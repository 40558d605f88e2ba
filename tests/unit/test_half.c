/* SPDX-License-Identifier: MIT
 *
 * 16-bit floats against their definition: every pattern, and every place where rounding turns.
 */
#include "kernels/cpu/tile.h"
#include "lib/base/base.h"
#include "lib/base/half.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

enum { PATTERNS = 1 << 16, SIGN = 0x8000 };

typedef struct format {
    tamis_dtype type;
    int mantissa, bias; /* bits of the mantissa */
    uint16_t infinity;
    float (*widen)(uint16_t half);
    uint16_t (*narrow)(float x);
} format;

static const format formats[] = {
    {TAMIS_DTYPE_FLOAT16, 10, 15, 0x7c00, tam_float16_widen, tam_float16_narrow},
    {TAMIS_DTYPE_BFLOAT16, 7, 127, 0x7f80, tam_bfloat16_widen, tam_bfloat16_narrow},
};

enum { FORMATS = sizeof formats / sizeof formats[0] };

/* The value of a pattern that is neither Inf nor NaN; binary64 holds it exactly. Infinity is read
 * as if the format went on: what rounding would give without a bound. */
static double value_of(const format *f, uint16_t half) {
    int fraction = half & ((1 << f->mantissa) - 1), exponent = (half & ~SIGN) >> f->mantissa;
    double magnitude = exponent == 0
                           ? ldexp(fraction, 1 - f->bias - f->mantissa)
                           : ldexp(fraction + (1 << f->mantissa), exponent - f->bias - f->mantissa);
    return half & SIGN ? -magnitude : magnitude;
}

static uint16_t magnitude_of(uint32_t half) {
    return (uint16_t)(half & ~(unsigned)SIGN);
}

static void test_every_pattern_is_widened_to_its_value(void **state) {
    (void)state;
    for (const format *f = formats; f < formats + FORMATS; f++) {
        for (uint32_t h = 0; h < PATTERNS; h++) {
            float wide = f->widen((uint16_t)h);
            assert_int_equal(signbit(wide) != 0, (h & SIGN) != 0);
            if (magnitude_of(h) > f->infinity)
                assert_true(isnan(wide));
            else if (magnitude_of(h) == f->infinity)
                assert_true(isinf(wide));
            else
                assert_true((double)wide == value_of(f, (uint16_t)h));
        }
    }
}

static void test_what_was_widened_narrows_to_itself(void **state) {
    (void)state;
    for (const format *f = formats; f < formats + FORMATS; f++) {
        for (uint32_t h = 0; h < PATTERNS; h++) {
            uint16_t back = f->narrow(f->widen((uint16_t)h));
            if (magnitude_of(h) > f->infinity)
                assert_true(magnitude_of(back) > f->infinity && (back & SIGN) == (h & SIGN));
            else
                assert_int_equal(back, h);
        }
    }
}

static void expect(const format *f, double x, uint32_t half) {
    assert_true((double)(float)x == x);
    if (f->narrow((float)x) != half || f->narrow((float)-x) != (half | SIGN))
        fail_msg("type %d: %a became %04x, not %04x", f->type, x, f->narrow((float)x), half);
}

/* Between neighbours the middle goes to the even one, what is next to the middle to the nearer. */
static void test_rounding_is_to_nearest_even_between_all_neighbours(void **state) {
    (void)state;
    for (const format *f = formats; f < formats + FORMATS; f++) {
        for (uint32_t h = 0; h < f->infinity; h++) {
            double low = value_of(f, (uint16_t)h), high = value_of(f, (uint16_t)(h + 1));
            float middle = (float)((low + high) / 2);
            expect(f, middle, h % 2 ? h + 1 : h);
            expect(f, nextafterf(middle, 0), h);
            expect(f, nextafterf(middle, INFINITY), h + 1);
            expect(f, nextafterf((float)low, INFINITY), h);
            if (h + 1 < f->infinity)
                expect(f, nextafterf((float)high, 0), h + 1);
        }
    }
}

static void test_what_exceeds_the_format_becomes_infinite(void **state) {
    (void)state;
    for (int e = 16; e < 128; e++) {
        assert_int_equal(tam_float16_narrow(ldexpf(1, e)), 0x7c00);
        assert_int_equal(tam_float16_narrow(ldexpf(-1.75f, e)), 0xfc00);
    }
    for (const format *f = formats; f < formats + FORMATS; f++) {
        assert_int_equal(f->narrow(tam_float(0x7f7fffff)), f->infinity);
        assert_int_equal(f->narrow(-INFINITY), f->infinity | SIGN);
    }
}

static void test_numbers_that_vanish_keep_their_sign(void **state) {
    (void)state;
    for (const format *f = formats; f < formats + FORMATS; f++) {
        assert_int_equal(f->narrow(1e-45f), 0);
        assert_int_equal(f->narrow(-1e-45f), SIGN);
        assert_int_equal(f->narrow(-0.0f), SIGN);
    }
    for (int e = -149; e < -25; e++)
        assert_int_equal(tam_float16_narrow(ldexpf(-1, e)), SIGN);
}

static void test_nan_stays_nan_whatever_its_payload(void **state) {
    (void)state;
    for (const format *f = formats; f < formats + FORMATS; f++) {
        for (int bit = 0; bit < 23; bit++) {
            uint32_t nan = 0x7f800000u | 1u << bit, all = 0x7fffffffu >> bit | 0x7f800000u;
            assert_true(magnitude_of(f->narrow(tam_float(nan))) > f->infinity);
            assert_true(magnitude_of(f->narrow(tam_float(nan | 0x80000000u))) > f->infinity);
            if (all > 0x7f800000u)
                assert_true(magnitude_of(f->narrow(tam_float(all))) > f->infinity);
        }
    }
}

/* The loops over arrays, at addresses that are aligned to an element only. */
static void check_level(const tam_tile_level *level, const format *f, size_t count) {
    static uint16_t from[PATTERNS + 1], back[PATTERNS + 2];
    static float to[PATTERNS + 2];
    for (size_t i = 0; i <= count; i++)
        from[i] = (uint16_t)(i * 0x9e37u);
    to[0] = to[count + 1] = 12345;
    back[0] = back[count + 1] = 0x5a5a;
    level->widen(f->type, from + 1, count, to + 1);
    tam_narrow(to + 1, count, f->type, back + 1);
    for (size_t i = 1; i <= count; i++) {
        float one = f->widen(from[i]);
        assert_memory_equal(&to[i], &one, sizeof one);
        assert_int_equal(back[i], f->narrow(one));
    }
    assert_true(to[0] == 12345 && to[count + 1] == 12345);
    assert_true(back[0] == 0x5a5a && back[count + 1] == 0x5a5a);
}

static void test_every_level_widens_arrays_the_same_way(void **state) {
    (void)state;
    const size_t counts[] = {0, 1, 3, 7, 8, 15, 16, 17, 31, 33, 63, 65, 127, 1000, PATTERNS};
    for (const tam_tile_level *level = tam_tile_levels; level->name; level++) {
        for (size_t i = 0; level->available() && i < 2 * sizeof counts / sizeof counts[0]; i++)
            check_level(level, &formats[i % 2], counts[i / 2]);
        if (!level->available())
            print_message("level %s skipped: needs %s\n", level->name, level->needs);
    }
}

static void test_floats_are_copied_as_they_are(void **state) {
    (void)state;
    const float from[] = {0.1f, -0.0f, INFINITY, 1e-45f};
    float to[4], back[4];
    tam_widen(TAMIS_DTYPE_FLOAT32, from, 4, to);
    tam_narrow(to, 4, TAMIS_DTYPE_FLOAT32, back);
    assert_memory_equal(from, to, sizeof from);
    assert_memory_equal(from, back, sizeof from);
    assert_int_equal(tam_type_bytes(TAMIS_DTYPE_FLOAT32), sizeof(float));
    assert_int_equal(tam_type_bytes(TAMIS_DTYPE_FLOAT16), 2);
    assert_int_equal(tam_type_bytes(TAMIS_DTYPE_BFLOAT16), 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_pattern_is_widened_to_its_value),
        cmocka_unit_test(test_what_was_widened_narrows_to_itself),
        cmocka_unit_test(test_rounding_is_to_nearest_even_between_all_neighbours),
        cmocka_unit_test(test_what_exceeds_the_format_becomes_infinite),
        cmocka_unit_test(test_numbers_that_vanish_keep_their_sign),
        cmocka_unit_test(test_nan_stays_nan_whatever_its_payload),
        cmocka_unit_test(test_every_level_widens_arrays_the_same_way),
        cmocka_unit_test(test_floats_are_copied_as_they_are),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
