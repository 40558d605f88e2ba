/* SPDX-License-Identifier: MIT
 *
 * One order of sums for all exchanges: where every rank sends everything, lists of pairs, unions
 * and whole vectors give the same bits, also for numbers of ranks that are no power of two.
 */
#include "tests/support/data.h"
#include "tests/support/ranks.h"
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

enum { N = 300, WAYS = 3 };

static const char *const schemes[WAYS] = {"dense", "all+global+exact+union",
                                          "all+global+exact+pairs"};

static void sum(test_rank *self) {
    float sums[WAYS][N];
    for (int way = 0; way < WAYS; way++) {
        tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
        tamis_reducer *r = NULL;
        const tamis_step step = data_step(sums[way]);
        config.scheme = schemes[way];
        config.density = 1.0;
        config.op = TAMIS_OP_SUM;
        RANK_OK(self, data_reducer(self->comm, N, &config, &r));
        data_fill_real(self->id, 0, N, sums[way]);
        RANK_OK(self, tamis_reducer_start(r, &step));
        RANK_OK(self, tamis_reducer_wait(r));
        tamis_reducer_destroy(r);
        for (size_t i = 0; i < N; i++)
            RANK_CHECK(self, sums[way][i] == sums[0][i], "%s: entry %zu is %a, not %a",
                       schemes[way], i, (double)sums[way][i], (double)sums[0][i]);
    }
}

static void test_all_exchanges_add_in_one_order(void **state) {
    (void)state;
    for (uint32_t nranks = 1; nranks <= 9; nranks++) {
        test_context("P=%u", nranks);
        ranks_run(nranks, 0, sum, NULL);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_exchanges_add_in_one_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
