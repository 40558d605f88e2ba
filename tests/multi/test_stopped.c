/* SPDX-License-Identifier: MIT
 *
 * A process that is stopped for longer than the deadline and goes on (SIGSTOP, a debugger, a job
 * that was suspended): its ranks were all stopped, and none of them is late.
 *
 * test: waits
 */
#include "tests/support/data.h"
#include "tests/support/ranks.h"
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

enum { N = 2000, DEADLINE_MS = 3000, STOPPED_MS = 4500, BEFORE_MS = 200, AFTER_MS = 50 };

/* A process that stops this one. @return a pipe that ends when it has let this one go on */
static int begin_stop(void) {
    int ends[2];
    pid_t tested = getpid();
    if (pipe(ends) != 0)
        return -1;
    if (fork() == 0) {
        close(ends[0]);
        sleep_ms(BEFORE_MS);
        kill(tested, SIGSTOP);
        sleep_ms(STOPPED_MS);
        kill(tested, SIGCONT);
        _exit(0);
    }
    close(ends[1]);
    return ends[0];
}

/* Rank 1 comes only afterwards; the others wait for it meanwhile. */
static void run_stopped(test_rank *self) {
    const int *end = self->shared;
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    tamis_reducer *reducer = NULL;
    float grad[N];
    char byte;
    const tamis_step step = data_step(grad);
    RANK_OK(self, data_reducer(self->comm, N, &config, &reducer));
    if (self->id == 1) {
        RANK_CHECK(self, read(*end, &byte, 1) == 0, "no end");
        sleep_ms(AFTER_MS);
    }
    for (uint32_t number = 0; number < 3; number++) {
        data_fill(DATA_HEAVY, self->id, number, N, grad);
        RANK_OK(self, tamis_reducer_start(reducer, &step));
        RANK_OK(self, tamis_reducer_wait(reducer));
    }
    tamis_reducer_destroy(reducer);
}

static void a_process_that_was_stopped_goes_on(void **state) {
    (void)state;
    int end = begin_stop();
    assert_true(end >= 0);
    test_context("stopped for %d ms", STOPPED_MS);
    ranks_run(3, DEADLINE_MS, run_stopped, &end);
    close(end);
    while (wait(NULL) > 0)
        ;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_process_that_was_stopped_goes_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
