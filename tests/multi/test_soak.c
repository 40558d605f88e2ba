/* SPDX-License-Identifier: MIT
 *
 * Long runs: memory and descriptors stay level over steps whose density changes, over objects that
 * come and go, and over states that are saved and loaded.
 *
 * test: slow release
 */
#include "tests/support/data.h"
#include "tests/support/ranks.h"
#include "tests/support/scratch.h"
#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <tamis/state.h>
#include <unistd.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

enum { N = 20000, RANKS = 2, STEPS = 50000, OBJECTS = 10000, STATES = 1000, LEVEL_KIB = 512 };

typedef struct usage {
    long kib, descriptors;
} usage;

static usage look(void) {
    unsigned long all = 0, resident = 0;
    usage now = {0, 0};
    FILE *file = fopen("/proc/self/statm", "r");
    DIR *folder = opendir("/proc/self/fd");
    assert_true(file && folder && fscanf(file, "%lu %lu", &all, &resident) == 2);
    while (readdir(folder))
        now.descriptors++;
    now.kib = (long)resident * (sysconf(_SC_PAGESIZE) / 1024);
    fclose(file);
    closedir(folder);
    return now;
}

/* What a fifth of a run has left is what it needs; the rest may not add to it. */
static void check_level(const char *what, uint32_t done, uint32_t all, usage *first) {
    if (done == all / 5)
        *first = look();
    if (done != all)
        return;
    usage last = look();
    printf("%u %s: %ld KiB and %ld descriptors more since the %uth\n", all, what,
           last.kib - first->kib, last.descriptors - first->descriptors, all / 5);
    assert_true(last.kib - first->kib < LEVEL_KIB);
    assert_int_equal(last.descriptors, first->descriptors);
}

static void run_steps(test_rank *self) {
    usage *first = self->shared;
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    tamis_reducer *reducer = NULL;
    static float grads[RANKS][N];
    const tamis_step step = data_step(grads[self->id]);
    config.density = 0.001;
    config.density_max = 0.1;
    config.bucket_length = N / 4;
    RANK_OK(self, data_reducer(self->comm, N, &config, &reducer));
    for (uint32_t number = 1; number <= STEPS; number++) {
        data_fill(DATA_BURSTS, self->id, number, N, grads[self->id]);
        RANK_OK(self, tamis_reducer_set_density(reducer, 0.001 + 0.099 * (number % 100) / 100.0));
        RANK_OK(self, tamis_reducer_start(reducer, &step));
        RANK_OK(self, tamis_reducer_wait(reducer));
        if (self->id == 0)
            check_level("steps", number, STEPS, first);
    }
    tamis_reducer_destroy(reducer);
}

static void steps_stay_level(void **state) {
    usage first;
    (void)state;
    test_context("steps");
    ranks_run(RANKS, 0, run_steps, &first);
}

static void objects_stay_level(void **state) {
    usage first;
    (void)state;
    for (uint32_t number = 1; number <= OBJECTS; number++) {
        tamis_comm *comm = NULL;
        tamis_reducer *reducer = NULL;
        tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
        assert_int_equal(tamis_comm_create_local(1, NULL, &comm), TAMIS_OK);
        assert_int_equal(data_reducer(comm, N, &config, &reducer), TAMIS_OK);
        tamis_reducer_destroy(reducer);
        tamis_comm_destroy(comm);
        check_level("reducers and communicators", number, OBJECTS, &first);
    }
}

static void states_stay_level(void **state) {
    usage first;
    char path[SCRATCH_PATH];
    tamis_comm *comm = NULL;
    tamis_reducer *reducer = NULL;
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    (void)state;
    scratch_path("soak", path);
    assert_int_equal(tamis_comm_create_local(1, NULL, &comm), TAMIS_OK);
    assert_int_equal(data_reducer(comm, N, &config, &reducer), TAMIS_OK);
    for (uint32_t number = 1; number <= STATES; number++) {
        assert_int_equal(tamis_reducer_save(reducer, path), TAMIS_OK);
        assert_int_equal(tamis_reducer_load(reducer, path), TAMIS_OK);
        check_level("saves and loads", number, STATES, &first);
    }
    tamis_reducer_destroy(reducer);
    tamis_comm_destroy(comm);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_stay_level),
        cmocka_unit_test(objects_stay_level),
        cmocka_unit_test(states_stay_level),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
