/* SPDX-License-Identifier: MIT
 *
 * The table of options: what every row must be, and that a range is what it says.
 */
#include "lib/base/options.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <string.h>
#include <tamis/lists.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

static tamis_status try(const tam_option *o, double value) {
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    char *field = (char *)&config + o->offset;
    uint32_t whole = (uint32_t)value;
    if (o->kind == TAM_OPTION_REAL)
        memcpy(field, &value, sizeof value);
    else
        memcpy(field, &whole, sizeof whole);
    return tam_options_check("config", o, 1, &config);
}

static void ends_of_a_range_are_in_it_and_no_more(void **state) {
    (void)state;
    for (uint32_t i = 0; i < TAM_CONFIG_COUNT; i++) {
        const tam_option *o = &tam_config_options[i];
        if (o->kind == TAM_OPTION_U64)
            continue;
        bool real = o->kind == TAM_OPTION_REAL;
        assert_int_equal(try(o, o->low), TAMIS_OK);
        assert_int_equal(try(o, o->high), TAMIS_OK);
        if (o->other == o->other)
            assert_int_equal(try(o, o->other), TAMIS_OK);
        if (o->high < UINT32_MAX)
            assert_int_equal(try(o, real ? nextafter(o->high, INFINITY) : o->high + 1),
                             TAMIS_E_ARGUMENT);
        if (real && nextafter(o->low, -1.0) != o->other) {
            assert_int_equal(try(o, nextafter(o->low, -1.0)), TAMIS_E_ARGUMENT);
            assert_int_equal(try(o, (double)NAN), TAMIS_E_ARGUMENT);
            assert_non_null(strstr(tamis_last_error(), o->name));
            assert_non_null(strstr(tamis_last_error(), o->range));
        }
    }
}

static void values_are_printed_as_the_range_says_them(void **state) {
    char text[32];
    (void)state;
    tam_option_print(&tam_config_options[TAM_CONFIG_index_codec], TAMIS_INDEX_GAP8, text, 32);
    assert_string_equal(text, "gap8");
    tam_option_print(&tam_config_options[TAM_CONFIG_index_codec], 99, text, sizeof text);
    assert_string_equal(text, "99"); /* of another build */
    tam_option_print(&tam_config_options[TAM_CONFIG_block], 64, text, sizeof text);
    assert_string_equal(text, "64");
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    config.density = 0.25;
    const tam_option *density = &tam_config_options[TAM_CONFIG_density];
    tam_option_print(density, tam_option_bits(density, &config), text, sizeof text);
    assert_string_equal(text, "0.25");
}

static void zeros_compare_the_same_way(void **state) {
    tamis_reducer_config plus = TAMIS_REDUCER_CONFIG_INIT, minus = plus;
    const tam_option *capacity = &tam_config_options[TAM_CONFIG_capacity];
    (void)state;
    minus.capacity = -0.0;
    assert_true(tam_option_bits(capacity, &plus) == tam_option_bits(capacity, &minus));
}

static void the_list_has_every_row_once(void **state) {
    tamis_option o = TAMIS_OPTION_INIT, other = TAMIS_OPTION_INIT;
    size_t count = 0;
    (void)state;
    for (; tamis_option_list(count, &o); count++) {
        assert_true(strlen(o.help) > 0 && strlen(o.kind) > 0 && strlen(o.same) > 0);
        for (size_t i = 0; i < count; i++) {
            assert_int_equal(tamis_option_list(i, &other), 1);
            assert_true(strcmp(o.of, other.of) != 0 ||
                        (strcmp(o.name, other.name) != 0 && o.offset != other.offset));
        }
    }
    assert_int_equal(count, TAM_CONFIG_COUNT + TAM_UPDATE_COUNT);
    assert_int_equal(tamis_option_list(count, &o), 0);
    assert_int_equal(tamis_option_list(SIZE_MAX, &o), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ends_of_a_range_are_in_it_and_no_more),
        cmocka_unit_test(values_are_printed_as_the_range_says_them),
        cmocka_unit_test(zeros_compare_the_same_way),
        cmocka_unit_test(the_list_has_every_row_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
