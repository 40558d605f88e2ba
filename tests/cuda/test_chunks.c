/* SPDX-License-Identifier: MIT
 *
 * Kernels on the CPU: many short chunks on one multiprocessor, so that a block takes more of them
 * than it has threads, and every loop over chunks, tiles and batches of candidates goes round more
 * than once. The bits of the CPU.
 *
 * test: release
 */
#include "kernels/cuda/view.h"
#include "tests/cuda/fake.h"
#include "tests/cuda/backend.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

enum { LENGTH = 32, CHUNKS = TAM_PASS_RESIDENT * (TAM_BLOCK_THREADS + 44) };

/* @param rescans  ranks that take no list of candidates in the last step: they read chunks again */
static void compare(const char *scheme, const trial_backend *backend, uint64_t rescans) {
    trial_record cpu, cuda;
    trial what = trial_usual(scheme, 2, (size_t)CHUNKS * LENGTH, 0.1);
    what.block = LENGTH;
    what.steps = 3;
    what.real = true;
    assert_true(trial_run(&what, &cpu));
    what.backend = backend;
    assert_true(trial_run(&what, &cuda));
    check_ranks_identical(&cuda);
    check_same(&cpu, &cuda);
    assert_int_equal(record_moment(&cuda, what.steps - 1, 0)->stats.rescans, rescans);
    record_free(&cpu);
    record_free(&cuda);
}

static void test_blocks_with_many_chunks_give_the_bits_of_the_cpu(void **state) {
    (void)state;
    fake_cuda_multiprocessors(1);
    compare("tamis", &backend_host_driven, 0);
    compare("tamis", &backend_stream, 0);
    compare("cyclic+global+exact+union", &backend_stream, 2);
    fake_cuda_reset();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_blocks_with_many_chunks_give_the_bits_of_the_cpu),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
