/* SPDX-License-Identifier: MIT
 *
 * What rounding takes from a value and from its sum goes to one residual.
 */
#include "lib/contracts/value_codec.h"

#include <float.h>
#include <setjmp.h>
#include <stdarg.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

/* An infinite residual would never be finite again. */
static void test_two_errors_never_make_an_infinite_residual(void **state) {
    static const float errors[][3] = {{1.5f, 2.0f, 3.5f},
                                      {FLT_MAX, -FLT_MAX, 0.0f},
                                      {FLT_MAX, FLT_MAX, FLT_MAX},
                                      {-3e38f, -3e38f, -FLT_MAX},
                                      {FLT_MAX, 1.0f, FLT_MAX}};
    (void)state;
    for (size_t i = 0; i < sizeof errors / sizeof errors[0]; i++)
        assert_true(tam_value_add_errors(errors[i][0], errors[i][1]) == errors[i][2]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_two_errors_never_make_an_infinite_residual),
    };
    return cmocka_run_group_tests_name("value_sum", tests, NULL, NULL);
}
