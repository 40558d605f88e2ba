/* SPDX-License-Identifier: MIT
 *
 * Processors' counters that are odd: dies that show one counter, a platform that stands still. What
 * a whole meter makes of them is compared with what they were given.
 *
 * test: waits
 */
#include "lib/energy/meter/meter.h"
#include "tests/support/sources.h"
#include "tests/support/tree.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <tamis/stats.h>
#include <unistd.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

#define RANGE UINT64_C(65532610987)

static opened open_rapl(const char *root) {
    return source_open(&tam_source_rapl, &(tamis_energy_config){.sysfs_root = root});
}

/* -- dies ------------------------------------------------------------------------------------- */

/* Folders of dies and of their cores. */
static const char *make_dies(uint64_t first, uint64_t second) {
    const char *root = tree_make();
    tree_zone(root, "intel-rapl:0", "package-0-die-0", first, RANGE);
    tree_zone(root, "intel-rapl:0:0", "core", first / 2, RANGE);
    tree_zone(root, "intel-rapl:1", "package-0-die-1", second, RANGE);
    tree_zone(root, "intel-rapl:1:0", "core", second / 2, RANGE);
    tree_zone(root, "intel-rapl:2", "psys", 5, RANGE);
    return root;
}

static void set_dies(const char *root, uint64_t first, uint64_t second) {
    tree_energy(root, "intel-rapl:0", first);
    tree_energy(root, "intel-rapl:1", second);
}

static void dies_that_move_together_are_one_counter(void **state) {
    (void)state;
    const char *root = make_dies(RANGE - 1, RANGE - 1);
    opened o = open_rapl(root);
    for (uint64_t uj = 0; uj < 3; uj++) { /* over a wrap */
        source_expect_read(&o, "rapl:package-0-die-1", TAMIS_ENERGY_STALE, "they are compared");
        assert_string_equal(source_read(&o, "rapl:package-0-die-1").inside, "rapl:package-0-die-0");
        set_dies(root, uj, uj);
    }
    source_expect_value(&o, "rapl:package-0-die-0", 2);
    source_expect_read(&o, "rapl:package-0-die-1", TAMIS_ENERGY_UNSUPPORTED,
                       "shows the counter of rapl:package-0-die-0, which counts");
    assert_string_equal(source_read(&o, "rapl:package-0-die-1/core").inside,
                        "rapl:package-0-die-0/core");
    source_close(&o);
}

/* Nothing that the second one counts until it is known is lost. */
static void dies_that_move_apart_are_two(void **state) {
    (void)state;
    const char *root = make_dies(7, 7000000007);
    opened o = open_rapl(root);
    source_expect_value(&o, "rapl:package-0-die-1", 7000000007);
    source_close(&o);
    root = make_dies(100, 100);
    o = open_rapl(root);
    for (uint64_t uj = 100; uj < 102; uj++) {
        set_dies(root, uj, uj);
        source_expect_read(&o, "rapl:package-0-die-1", TAMIS_ENERGY_STALE, "compared");
    }
    set_dies(root, 150, 190);
    source_expect_read(&o, "rapl:package-0-die-1", TAMIS_ENERGY_STALE, "compared");
    source_expect_read(&o, "rapl:package-0-die-1", TAMIS_ENERGY_STALE, "compared");
    tam_energy_reading last = source_read(&o, "rapl:package-0-die-1");
    assert_int_equal(last.value, 100);
    assert_string_equal(last.inside, "rapl:psys");
    source_expect_value(&o, "rapl:package-0-die-1", 190);
    source_close(&o);
}

/* -- a whole meter ---------------------------------------------------------------------------- */

typedef struct feed {
    const char *root;
    double die_w, psys_w;
    bool twins; /* else die 1 has a counter of its own, which gains nothing */
    atomic_bool ends;
    uint64_t die_uj, psys_uj; /* at the end */
} feed;

static void *run_feed(void *opaque) {
    feed *f = opaque;
    uint64_t begin_ns = tam_clock_ns();
    while (!atomic_load(&f->ends)) {
        double us = (double)(tam_clock_ns() - begin_ns) * 1e-3;
        f->die_uj = (uint64_t)(f->die_w * us);
        f->psys_uj = (uint64_t)(f->psys_w * us);
        set_dies(f->root, 1000 + f->die_uj, f->twins ? 1000 + f->die_uj : 7000000000);
        tree_energy(f->root, "intel-rapl:2", 5 + f->psys_uj);
        usleep(5000);
    }
    return NULL;
}

/* Counters are first read one after another, so that of a package may have a little more. */
static bool is_near(int64_t uj, int64_t truth_uj) {
    return uj >= truth_uj && uj - truth_uj < 100000;
}

/* A report of one rank: joules, seconds and steps to the moment. */
static void expect_report(tamis_energy *e, const tamis_energy_totals *read) {
    tamis_energy_totals all = TAMIS_ENERGY_TOTALS_INIT;
    tamis_comm *comm;
    assert_int_equal(tamis_comm_create_local(1, NULL, &comm), TAMIS_OK);
    assert_int_equal(tamis_energy_report(e, comm, &all), TAMIS_OK);
    assert_true(is_near(read->uj, all.uj));
    assert_int_equal(all.steps, read->steps);
    assert_true(all.seconds >= read->seconds);
    tamis_comm_destroy(comm);
}

/* Joules of a second, by a meter that has written no line yet. */
static void measure(feed *f, tamis_energy_totals *read, int64_t *truth_uj) {
    tamis_energy_config config = TAMIS_ENERGY_CONFIG_INIT;
    const tamis_stats stats = TAMIS_STATS_INIT;
    tamis_energy *e = NULL;
    pthread_t thread;
    config.sources = "rapl";
    config.sysfs_root = f->root;
    config.window_s = 3600.0;
    assert_int_equal(tamis_energy_create(&config, &e), TAMIS_OK);
    usleep(150000); /* all counters have been read */
    assert_int_equal(pthread_create(&thread, NULL, run_feed, f), 0);
    tamis_energy_step(e, &stats);
    usleep(1000000);
    atomic_store(&f->ends, true);
    pthread_join(thread, NULL);
    *truth_uj = (int64_t)(f->psys_uj > f->die_uj ? f->psys_uj : f->die_uj);
    for (int i = 0; i < 100 && !is_near(read->uj, *truth_uj); i++) { /* a busy machine reads late */
        usleep(100000);
        assert_int_equal(tamis_energy_read(e, read), TAMIS_OK);
    }
    expect_report(e, read);
    tamis_energy_destroy(e);
}

static void a_second_is_read_as_it_was(void **state) {
    (void)state;
    static const feed cases[] = {
        {.die_w = 50.0, .psys_w = 80.0, .twins = true},
        {.die_w = 50.0, .psys_w = 20.0, .twins = true}, /* a platform that lacks the package */
        {.die_w = 50.0, .psys_w = 0.0, .twins = true},  /* one that stands still */
        {.die_w = 50.0, .psys_w = 0.0, .twins = false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        feed f = {.root = make_dies(1000, cases[i].twins ? 1000 : 7000000000),
                  .die_w = cases[i].die_w,
                  .psys_w = cases[i].psys_w,
                  .twins = cases[i].twins};
        tamis_energy_totals got = TAMIS_ENERGY_TOTALS_INIT;
        int64_t truth_uj;
        measure(&f, &got, &truth_uj);
        print_message("case %zu: %.2f J of %.2f J in %.2f s, missing \"%s\"\n", i,
                      1e-6 * (double)got.uj, 1e-6 * (double)truth_uj, got.seconds, got.missing);
        assert_true(got.known);
        assert_true(got.seconds > 1.0 && got.steps == 1);
        assert_true(is_near(got.uj, truth_uj));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dies_that_move_together_are_one_counter),
        cmocka_unit_test(dies_that_move_apart_are_two),
        cmocka_unit_test(a_second_is_read_as_it_was),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
