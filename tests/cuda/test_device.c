/* SPDX-License-Identifier: MIT
 *
 * Kernels on the CPU: the CUDA row of the device contract, in the emulation and on the fake
 * runtime, passes the tests of the contract and gives the bits of the CPU's row.
 *
 * test: release
 */
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/row.h"
#include "tests/cuda/fake.h"
#include "tests/support/device_body.h"
#include "tests/support/ranks.h"
#include "tests/support/world.h"

#include <setjmp.h>
#include <stdarg.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

/* The emulation is some hundred times slower than the CPU, and slower still under a sanitizer. */
enum { LONGEST = 5000, LONGEST_SANITIZED = 1500 };

/* Micro-batches rely on it: between them nothing resets the counter. */
static void test_a_pass_leaves_the_counter_of_its_runs_at_zero(void **state) {
    (void)state;
    tam_cuda_found found;
    world w;
    world_open(&w, (world_plan){.n = 1500, .block = 5, .capacity = 1500});
    const tam_cuda_row *row = w.device;
    assert_true(row->device.grid.nruns > row->device.grid.blocks);
    world_fill(&w, EQUAL);
    world_take_uniform(&w, TAM_PART_ALL, 1);
    assert_int_equal(w.row->read(w.device, row->device.found, sizeof found, &found), TAMIS_OK);
    assert_int_equal(found.taken, 0);
    assert_int_equal(found.total, 1500);
    world_close(&w);
}

/* Fewer blocks, or more, for the same chunks. */
static int try_grids(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_pass_leaves_the_counter_of_its_runs_at_zero),
    };
    int failed = 0;
    for (int count = 1; count <= 3; count += 2) {
        fake_cuda_multiprocessors(count);
        failed += cmocka_run_group_tests_name("runs", tests, NULL, NULL) + device_divisions();
    }
    return failed;
}

int main(void) {
    int failed = device_body(&tam_device_cuda, test_stride(2) > 1 ? LONGEST_SANITIZED : LONGEST);
    return failed + try_grids();
}
