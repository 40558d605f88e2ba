/* SPDX-License-Identifier: MIT
 *
 * The CPU device: the tests of the contract, and one on what its search costs.
 *
 * test: slow
 */
#include "kernels/cpu/cpu.h"
#include "tests/support/device_body.h"
#include "tests/support/world.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

static void test_a_search_considers_few_entries(void **state) {
    (void)state;
    world w;
    world_open(&w, (world_plan){.n = 400000, .capacity = 8000});
    world_fill(&w, HEAVY);
    tam_select_job job = {.kind = TAM_SELECT_TOTAL, .acc = w.acc, .mine = TAM_PART_ALL, .k = 4000};
    assert_in_range(world_select(&w, &job).candidates, 4000, 8000);
    world_close(&w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_search_considers_few_entries),
    };
    int failed = device_body(&tam_device_cpu, 400000);
    return failed + cmocka_run_group_tests_name("the CPU's own", tests, NULL, NULL);
}
