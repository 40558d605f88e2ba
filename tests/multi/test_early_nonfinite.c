/* SPDX-License-Identifier: MIT
 *
 * NaN that a micro-batch dropped is counted in the step that follows, on all ranks, also if a state
 * was saved and loaded in between; and in no other step.
 */
#include "tests/support/data.h"
#include "tests/support/ranks.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <tamis/overlap.h>
#include <tamis/state.h>
#include <tamis/stats.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

enum { N = 200, RANKS = 2, BAD = 11 };

static void check_step(test_rank *self, tamis_reducer *reducer, uint32_t number, uint64_t bad) {
    float gradient[N];
    tamis_stats stats = TAMIS_STATS_INIT;
    const tamis_step step = data_step(gradient);
    data_fill(DATA_HEAVY, self->id, number, N, gradient);
    RANK_OK(self, tamis_reducer_start(reducer, &step));
    RANK_OK(self, tamis_reducer_wait(reducer));
    RANK_OK(self, tamis_reducer_stats(reducer, &stats));
    RANK_CHECK(self, stats.nonfinite == bad, "step %u counts %llu, not %llu", number,
               (unsigned long long)stats.nonfinite, (unsigned long long)bad);
}

static void move_state(test_rank *self, tamis_reducer *from, tamis_reducer *to) {
    float residual[N];
    size_t bytes = 0;
    RANK_OK(self, tamis_reducer_control_bytes(from, &bytes));
    void *control = malloc(bytes);
    RANK_OK(self, tamis_reducer_save_control(from, control, bytes));
    RANK_OK(self, tamis_reducer_save_residual(from, residual));
    RANK_OK(self, tamis_reducer_load_memory(to, control, bytes, residual));
    free(control);
}

static void count_once(test_rank *self) {
    const char *const *scheme = self->shared;
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    config.scheme = *scheme;
    config.density = 0.1;
    config.nonfinite = TAMIS_NONFINITE_DROP;
    for (int moves = 0; moves < 2; moves++) {
        tamis_reducer *first = NULL, *second = NULL;
        float gradient[N];
        const tamis_step step = data_step(gradient);
        RANK_OK(self, data_reducer(self->comm, N, &config, &first));
        RANK_OK(self, data_reducer(self->comm, N, &config, &second));
        check_step(self, first, 0, 0);
        data_fill(DATA_HEAVY, self->id, 1, N, gradient);
        gradient[BAD] = self->id == 1 ? NAN : gradient[BAD];
        RANK_OK(self, tamis_reducer_accumulate(first, &step));
        if (moves)
            move_state(self, first, second);
        check_step(self, moves ? second : first, 2, 1);
        check_step(self, moves ? second : first, 3, 0);
        tamis_reducer_destroy(second);
        tamis_reducer_destroy(first);
    }
}

static void test_what_a_micro_batch_dropped_counts_in_one_step(void **state) {
    const char *schemes[] = {"tamis", "topk", "oktopk", "exdyna"};
    (void)state;
    for (size_t s = 0; s < sizeof schemes / sizeof schemes[0]; s++) {
        test_context("%s", schemes[s]);
        ranks_run(RANKS, 0, count_once, &schemes[s]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_a_micro_batch_dropped_counts_in_one_step),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
