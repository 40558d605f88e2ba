/* SPDX-License-Identifier: MIT
 *
 * Deadlines of the steps of a collective: who waits for a dead rank itself gives up first, so that
 * the others hear from it in time which rank that is. The function is not public, so this is
 * drive.c once more.
 */
#include "collectives/coll/drive.c"

#include <setjmp.h>
#include <stdarg.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

static void check(uint64_t timeout_ns, uint32_t nsteps) {
    const tam_call call = {.begin_ns = 1000, .deadline_ns = 1000 + timeout_ns};
    uint64_t before_ns = call.begin_ns + timeout_ns / 2;
    for (uint32_t step = 0; step < nsteps; step++) {
        const tam_coll coll = {.step = step, .nsteps = nsteps};
        uint64_t until_ns = deadline_of(&coll, &call);
        assert_true(until_ns > before_ns); /* also much of the time is left for the first */
        assert_true(until_ns <= call.deadline_ns);
        before_ns = until_ns;
    }
    assert_int_equal(before_ns, call.deadline_ns);
}

static void test_earlier_steps_end_earlier_and_none_after_the_deadline(void **state) {
    (void)state;
    for (uint32_t nsteps = 1; nsteps <= 12; nsteps++) {
        check(UINT64_C(400000000), nsteps);
        check(UINT64_C(60000000000), nsteps);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_earlier_steps_end_earlier_and_none_after_the_deadline),
    };
    return cmocka_run_group_tests_name("staged", tests, NULL, NULL);
}
