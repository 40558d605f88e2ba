/* SPDX-License-Identifier: MIT
 *
 * A whole meter over a counter whose truth is known: a callback that integrates the watts of the
 * phase under way.
 *
 * test: waits tsan
 */
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <tamis/stats.h>
#include <unistd.h>

#include <cmocka.h>

#include "lib/energy/meter/meter.h"
#include "tests/support/ranks.h"
#include "tests/support/scratch.h"

/* -- a machine -------------------------------------------------------------------------------- */

typedef struct truth {
    double uj;
    double phases_uj[TAMIS_ENERGY_PHASES];
} truth;

typedef struct machine {
    pthread_mutex_t lock;
    truth so_far;
    uint32_t phase;
    uint64_t at_ns;
    atomic_uint hang_ms, inside;
} machine;

static const double watts[TAMIS_ENERGY_PHASES] = {
    [TAMIS_ENERGY_COMPUTE] = 300.0, [TAMIS_PHASE_EXCHANGE] = 150.0, [TAMIS_ENERGY_IDLE] = 80.0};

/* With the lock held. */
static void pass(machine *m) {
    uint64_t now_ns = tam_clock_ns();
    double uj = watts[m->phase] * (double)(now_ns - m->at_ns) * 1e-3;
    m->so_far.uj += uj;
    m->so_far.phases_uj[m->phase] += uj;
    m->at_ns = now_ns;
}

/* @return what it has used until now */
static truth change(machine *m, uint32_t phase) {
    pthread_mutex_lock(&m->lock);
    pass(m);
    m->phase = phase;
    truth so_far = m->so_far;
    pthread_mutex_unlock(&m->lock);
    return so_far;
}

static tamis_status read_machine(void *context, uint64_t *out_uj) {
    machine *m = context;
    atomic_fetch_add(&m->inside, 1);
    usleep(1000 * atomic_load(&m->hang_ms));
    pthread_mutex_lock(&m->lock);
    pass(m);
    *out_uj = (uint64_t)m->so_far.uj;
    pthread_mutex_unlock(&m->lock);
    atomic_fetch_sub(&m->inside, 1);
    return TAMIS_OK;
}

static void switch_on(machine *m) {
    *m = (machine){.phase = TAMIS_ENERGY_IDLE, .at_ns = tam_clock_ns()};
    pthread_mutex_init(&m->lock, NULL);
}

static tamis_energy_config on_machine(machine *m) {
    tamis_energy_config config = TAMIS_ENERGY_CONFIG_INIT;
    config.sources = "callback";
    config.callback = read_machine;
    config.callback_context = m;
    config.callback_name = "node";
    config.settle_s = 0.2;
    return config;
}

static tamis_energy *open_meter(const tamis_energy_config *config) {
    tamis_energy *e = NULL;
    assert_int_equal(tamis_energy_create(config, &e), TAMIS_OK);
    return e;
}

static tamis_energy *open_blind(void) {
    tamis_energy_config config = TAMIS_ENERGY_CONFIG_INIT;
    config.sources = "none";
    return open_meter(&config);
}

/* Phases of random length, as a training program marks them. */
static void work(machine *m, tamis_energy *e, double seconds) {
    uint64_t end_ns = tam_clock_ns() + (uint64_t)(seconds * 1e9);
    for (unsigned seed = 1; tam_clock_ns() < end_ns;) {
        tamis_energy_begin(e, TAMIS_ENERGY_COMPUTE);
        change(m, TAMIS_ENERGY_COMPUTE);
        usleep(6000 + (unsigned)rand_r(&seed) % 12000);
        change(m, TAMIS_ENERGY_IDLE);
        tamis_energy_end(e, TAMIS_ENERGY_COMPUTE);
        uint64_t begin_ns = tam_clock_ns();
        change(m, TAMIS_PHASE_EXCHANGE);
        usleep(2000 + (unsigned)rand_r(&seed) % 8000);
        change(m, TAMIS_ENERGY_IDLE);
        tamis_energy_span(e, TAMIS_PHASE_EXCHANGE, begin_ns, tam_clock_ns());
        usleep(1000 + (unsigned)rand_r(&seed) % 4000);
    }
}

static int64_t sum_of(const tamis_energy_totals *t) {
    int64_t sum = t->unattributed_uj;
    for (uint32_t p = 0; p < TAMIS_ENERGY_PHASES; p++)
        sum += t->shares[p].uj;
    return sum;
}

/* -- joules ----------------------------------------------------------------------------------- */

/* @return how far the joules of a phase are from the truth, as a share of it; 1 if they are a
 * guess, for too little was learnt */
static double error_of(const tamis_energy_totals *got, uint32_t phase, double wanted_uj) {
    const tamis_energy_share *s = &got->shares[phase];
    print_message("%s: %.3f J of %.3f J, %s\n", tamis_energy_phase_name(phase),
                  1e-6 * (double)s->uj, 1e-6 * wanted_uj, tamis_energy_method_name(s->method));
    return s->method == TAMIS_ENERGY_REGRESSED ? fabs((double)s->uj / wanted_uj - 1.0) : 1.0;
}

/* @return the greatest error of a phase in a window of `seconds`; 1 if their sum is wrong */
static double measure_window(machine *m, tamis_energy *e, double seconds) {
    static const uint32_t phases[] = {TAMIS_ENERGY_COMPUTE, TAMIS_PHASE_EXCHANGE,
                                      TAMIS_ENERGY_IDLE};
    uint32_t window;
    double worst = 0.0;
    tamis_energy_totals got = TAMIS_ENERGY_TOTALS_INIT;
    truth before = change(m, TAMIS_ENERGY_IDLE);
    assert_int_equal(tamis_energy_window_begin(e, "run", &window), TAMIS_OK);
    work(m, e, seconds);
    truth after = change(m, TAMIS_ENERGY_IDLE);
    assert_int_equal(tamis_energy_window_end(e, window), TAMIS_OK);
    assert_int_equal(tamis_energy_window_result(e, window, 20000, &got), TAMIS_OK);
    assert_true(got.known);
    assert_int_equal(sum_of(&got), got.uj);
    if (fabs((double)got.uj / (after.uj - before.uj) - 1.0) > 0.02)
        worst = 1.0;
    for (int i = 0; i < 3; i++) {
        uint32_t p = phases[i];
        worst = fmax(worst, error_of(&got, p, after.phases_uj[p] - before.phases_uj[p]));
    }
    return worst;
}

/* What a busy machine does between a mark and the change that it marks is an error,
 * now and then. */
static void test_a_window_has_the_joules_of_its_phases(void **state) {
    (void)state;
    machine m;
    double error = 1.0;
    switch_on(&m);
    tamis_energy_config config = on_machine(&m);
    tamis_energy *e = open_meter(&config);
    work(&m, e, 1.5); /* learns */
    for (uint32_t trial = 0; trial < 4 * test_load() && error > 0.15; trial++)
        error = measure_window(&m, e, 3.0);
    tamis_energy_destroy(e);
    assert_true(error <= 0.15);
}

static void test_windows_may_overlap(void **state) {
    (void)state;
    machine m;
    uint32_t whole, part;
    tamis_energy_totals a = TAMIS_ENERGY_TOTALS_INIT, b = a;
    switch_on(&m);
    tamis_energy_config config = on_machine(&m);
    tamis_energy *e = open_meter(&config);
    assert_int_equal(tamis_energy_window_begin(e, NULL, &whole), TAMIS_OK);
    work(&m, e, 0.4);
    assert_int_equal(tamis_energy_window_begin(e, NULL, &part), TAMIS_OK);
    work(&m, e, 0.4);
    assert_int_equal(tamis_energy_window_end(e, part), TAMIS_OK);
    assert_int_equal(tamis_energy_window_end(e, whole), TAMIS_OK);
    assert_int_equal(tamis_energy_window_result(e, whole, 5000, &a), TAMIS_OK);
    assert_int_equal(tamis_energy_window_result(e, part, 5000, &b), TAMIS_OK);
    assert_true(b.uj > 0 && b.uj < a.uj && b.seconds < a.seconds);
    assert_int_equal(sum_of(&a), a.uj);
    assert_int_equal(sum_of(&b), b.uj);
    tamis_energy_destroy(e);
}

static void test_windows_called_out_of_order_are_refused(void **state) {
    (void)state;
    uint32_t window;
    tamis_energy_totals got = TAMIS_ENERGY_TOTALS_INIT;
    tamis_energy *e = open_blind();
    assert_int_equal(tamis_energy_window_begin(e, NULL, &window), TAMIS_OK);
    assert_int_equal(tamis_energy_window_result(e, window, 0, &got), TAMIS_E_STATE);
    assert_int_equal(tamis_energy_window_end(e, window), TAMIS_OK);
    assert_int_equal(tamis_energy_window_end(e, window), TAMIS_E_STATE);
    assert_int_equal(tamis_energy_window_end(e, 15), TAMIS_E_ARGUMENT);
    assert_int_equal(tamis_energy_window_result(e, window, 5000, &got), TAMIS_OK);
    assert_int_equal(tamis_energy_window_result(e, window, 0, &got), TAMIS_E_ARGUMENT);
    for (int i = 0; i < TAM_METER_WINDOWS; i++)
        assert_int_equal(tamis_energy_window_begin(e, NULL, &window), TAMIS_OK);
    assert_int_equal(tamis_energy_window_begin(e, NULL, &window), TAMIS_E_UNSUPPORTED);
    assert_int_equal(tamis_energy_window_result(e, 3, 0, NULL), TAMIS_OK); /* given up */
    assert_int_equal(tamis_energy_window_begin(e, NULL, &window), TAMIS_OK);
    assert_int_equal(window, 3);
    tamis_energy_destroy(e);
}

static void test_a_window_has_its_own_steps(void **state) {
    (void)state;
    uint32_t window;
    tamis_stats stats = TAMIS_STATS_INIT;
    tamis_energy_totals got = TAMIS_ENERGY_TOTALS_INIT;
    tamis_energy *e = open_blind();
    stats.wire_bytes = 100;
    for (int part = 0; part < 3; part++) { /* before, in and after the window */
        if (part == 1)
            assert_int_equal(tamis_energy_window_begin(e, NULL, &window), TAMIS_OK);
        for (int step = 0; step < 10; step++)
            tamis_energy_step(e, &stats);
        if (part == 1)
            assert_int_equal(tamis_energy_window_end(e, window), TAMIS_OK);
    }
    assert_int_equal(tamis_energy_window_result(e, window, 5000, &got), TAMIS_OK);
    assert_int_equal(got.steps, 10);
    assert_int_equal(got.wire_bytes, 1000);
    assert_false(got.known);
    assert_string_equal(got.missing, "no source of energy is open");
    tamis_energy_destroy(e);
}

/* -- unknown ---------------------------------------------------------------------------------- */

static void test_without_counters_nothing_is_known_and_it_says_why(void **state) {
    (void)state;
    char root[SCRATCH_PATH];
    uint32_t window;
    tamis_energy_totals got = TAMIS_ENERGY_TOTALS_INIT;
    tamis_energy_domain domain = TAMIS_ENERGY_DOMAIN_INIT;
    tamis_energy_config config = TAMIS_ENERGY_CONFIG_INIT;
    config.sources = "rapl";
    config.sysfs_root = scratch_path("no-sysfs", root);
    tamis_energy *e = open_meter(&config);
    assert_int_equal(tamis_energy_window_begin(e, "run", &window), TAMIS_OK);
    usleep(20000);
    assert_int_equal(tamis_energy_window_end(e, window), TAMIS_OK);
    assert_int_equal(tamis_energy_window_result(e, window, 1000, &got), TAMIS_OK);
    assert_false(got.known);
    assert_int_equal(got.uj, 0);
    assert_true(strlen(got.missing) > 0);
    assert_true(isnan(got.grams));
    assert_int_equal(tamis_energy_domain_at(e, 0, &domain), TAMIS_OK);
    assert_int_equal(domain.status, TAMIS_ENERGY_ABSENT);
    assert_true(strlen(domain.reason) > 0);
    tamis_energy_destroy(e);
}

static void test_a_counter_that_hangs_holds_up_nobody(void **state) {
    (void)state;
    static machine m; /* of a thread that is left behind */
    uint32_t window;
    tamis_energy_totals got = TAMIS_ENERGY_TOTALS_INIT;
    tamis_energy_domain domain = TAMIS_ENERGY_DOMAIN_INIT;
    switch_on(&m);
    tamis_energy_config config = on_machine(&m);
    tamis_energy *e = open_meter(&config);
    work(&m, e, 0.3);
    const uint64_t hang_ns = UINT64_C(3000000000) * test_load();
    atomic_store(&m.hang_ms, (unsigned)(hang_ns / 1000000));
    usleep(100000);
    uint64_t begin_ns = tam_clock_ns();
    assert_int_equal(tamis_energy_window_begin(e, "run", &window), TAMIS_OK);
    for (int i = 0; i < 100; i++) {
        tamis_energy_begin(e, TAMIS_ENERGY_COMPUTE);
        tamis_energy_end(e, TAMIS_ENERGY_COMPUTE);
    }
    assert_int_equal(tamis_energy_read(e, &got), TAMIS_OK);
    assert_int_equal(tamis_energy_domain_at(e, 0, &domain), TAMIS_OK);
    assert_int_equal(tamis_energy_window_end(e, window), TAMIS_OK);
    assert_int_equal(tamis_energy_window_result(e, window, 0, &got), TAMIS_E_STATE);
    uint64_t took_ns = tam_clock_ns() - begin_ns;
    if (took_ns > 2 * hang_ns / 3)
        fail_msg("%.1f ms beside a counter that hangs", 1e-6 * (double)took_ns);
    begin_ns = tam_clock_ns();
    tamis_energy_destroy(e);
    assert_true(tam_clock_ns() - begin_ns < 5 * hang_ns / 6);
    while (atomic_load(&m.inside) > 0)
        usleep(1000);
}

/* -- arguments -------------------------------------------------------------------------------- */

static void test_wrong_configurations_are_refused(void **state) {
    (void)state;
    enum { WAYS = 11 };
    tamis_energy *e = NULL;
    tamis_energy_config good = TAMIS_ENERGY_CONFIG_INIT, bad[WAYS];
    good.sources = "none";
    for (size_t i = 0; i < WAYS; i++)
        bad[i] = good;
    bad[0].sources = "rapl,steam";
    bad[1].window_s = (double)NAN;
    bad[2].window_s = 0.0;
    bad[3].settle_s = -1.0;
    bad[4].pue = 0.5;
    bad[5].g_per_kwh = -1.0;
    bad[6].nranks = 0;
    bad[7].rank = 3;
    bad[8].size = 8;
    bad[9].sources = "rapl,rapl";
    bad[10].settle_s = 5.1;
    for (size_t i = 0; i < WAYS; i++) {
        assert_int_equal(tamis_energy_create(&bad[i], &e), TAMIS_E_ARGUMENT);
        assert_true(strlen(tamis_last_error()) > 0);
        assert_null(e);
    }
    bad[0] = good;
    bad[0].json = "/nowhere/at/all.jsonl";
    assert_int_equal(tamis_energy_create(&bad[0], &e), TAMIS_E_IO);
    assert_non_null(strstr(tamis_last_error(), "/nowhere/at/all.jsonl"));
    assert_int_equal(tamis_energy_create(&good, NULL), TAMIS_E_ARGUMENT);
}

static void test_nothing_happens_without_a_meter(void **state) {
    (void)state;
    tamis_energy_totals totals = TAMIS_ENERGY_TOTALS_INIT;
    tamis_energy_domain domain = TAMIS_ENERGY_DOMAIN_INIT;
    uint32_t window;
    tamis_energy_begin(NULL, TAMIS_ENERGY_COMPUTE);
    tamis_energy_end(NULL, TAMIS_ENERGY_COMPUTE);
    tamis_energy_span(NULL, 0, 1, 2);
    tamis_energy_on_phase(NULL, NULL);
    tamis_energy_step(NULL, NULL);
    tamis_energy_destroy(NULL);
    assert_int_equal(tamis_energy_ndomains(NULL), 0);
    assert_int_equal(tamis_energy_read(NULL, &totals), TAMIS_E_ARGUMENT);
    assert_int_equal(tamis_energy_domain_at(NULL, 0, &domain), TAMIS_E_ARGUMENT);
    assert_int_equal(tamis_energy_window_begin(NULL, NULL, &window), TAMIS_E_ARGUMENT);
    assert_int_equal(tamis_energy_window_end(NULL, 0), TAMIS_E_ARGUMENT);
    assert_int_equal(tamis_energy_window_result(NULL, 0, 0, &totals), TAMIS_E_ARGUMENT);
    assert_int_equal(tamis_energy_resume(NULL, &totals), TAMIS_E_ARGUMENT);
}

static void test_every_allocation_of_open_may_fail(void **state) {
    (void)state;
    machine m;
    tamis_energy *e = NULL;
    char path[SCRATCH_PATH];
    switch_on(&m);
    tamis_energy_config config = on_machine(&m);
    config.json = scratch_path("memory.jsonl", path);
    uint64_t live = tam_alloc_live();
    for (long budget = 0;; budget++) {
        tam_alloc_budget(budget);
        tamis_status status = tamis_energy_create(&config, &e);
        tam_alloc_budget(-1);
        if (status == TAMIS_OK)
            break;
        assert_int_equal(status, TAMIS_E_NOMEM);
        assert_true(test_freed(live));
        assert_true(budget < 1000);
    }
    tamis_energy_destroy(e);
    assert_true(test_freed(live));
}

/* -- a run that goes on, a child -------------------------------------------------------------- */

static void test_a_run_that_goes_on_has_the_joules_of_all_its_parts(void **state) {
    (void)state;
    machine m;
    tamis_energy_totals first = TAMIS_ENERGY_TOTALS_INIT, all = first, wrong;
    first.uj = 5000000;
    first.unattributed_uj = 1000000;
    first.shares[TAMIS_ENERGY_COMPUTE] = (tamis_energy_share){
        .uj = 4000000, .low_uj = 3000000, .high_uj = 4500000, .method = TAMIS_ENERGY_REGRESSED};
    first.seconds = 2.0;
    first.steps = 7;
    first.known = 1;
    wrong = first;
    wrong.uj++;
    switch_on(&m);
    tamis_energy_config config = on_machine(&m);
    tamis_energy *e = open_meter(&config);
    assert_int_equal(tamis_energy_resume(e, &wrong), TAMIS_E_ARGUMENT);
    wrong = first;
    wrong.unattributed_uj = INT64_MAX;
    assert_int_equal(tamis_energy_resume(e, &wrong), TAMIS_E_ARGUMENT);
    wrong = first;
    wrong.grams = -1.0;
    assert_int_equal(tamis_energy_resume(e, &wrong), TAMIS_E_ARGUMENT);
    wrong = first;
    wrong.shares[0].method = TAMIS_ENERGY_METHODS;
    assert_int_equal(tamis_energy_resume(e, &wrong), TAMIS_E_ARGUMENT);
    assert_int_equal(tamis_energy_resume(e, &first), TAMIS_OK);
    assert_int_equal(tamis_energy_read(e, &all), TAMIS_OK);
    assert_true(all.uj >= first.uj && all.steps == 7);
    assert_int_equal(sum_of(&all), all.uj);
    tamis_energy_destroy(e);
}

/* A state saved before the first counter was read: its joules are told to be missing, but grams of
 * what follows are known. */
static void test_a_run_goes_on_from_totals_that_know_nothing(void **state) {
    (void)state;
    machine m;
    tamis_energy_totals nothing = TAMIS_ENERGY_TOTALS_INIT, all = nothing;
    switch_on(&m);
    tamis_energy_config config = on_machine(&m);
    config.g_per_kwh = 300.0;
    tamis_energy *e = open_meter(&config);
    nothing.grams = NAN;
    assert_int_equal(tamis_energy_resume(e, &nothing), TAMIS_OK);
    measure_window(&m, e, 0.3);
    assert_int_equal(tamis_energy_read(e, &all), TAMIS_OK);
    assert_true(all.known && all.grams >= 0.0 && all.missing[0]);
    tamis_energy_destroy(e);
}

static void test_grams_that_a_trace_does_not_know_have_a_reason(void **state) {
    (void)state;
    machine m;
    char path[SCRATCH_PATH];
    tamis_energy_totals got = TAMIS_ENERGY_TOTALS_INIT;
    switch_on(&m);
    tamis_energy_config config = on_machine(&m);
    config.intensity = scratch_path("old.csv", path);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs("time,g_per_kwh\n1718000000,400\n1718003600,300\n", file);
    fclose(file);
    tamis_energy *e = open_meter(&config);
    measure_window(&m, e, 0.3);
    assert_int_equal(tamis_energy_read(e, &got), TAMIS_OK);
    assert_true(got.known && isnan(got.grams));
    assert_non_null(strstr(got.missing, "the carbon trace covers 2024-06-10 06:13 to"));
    tamis_energy_destroy(e);
}

static void test_a_child_that_was_forked_leaves_the_meter_alone(void **state) {
    (void)state;
    tamis_energy *e = open_blind();
    pid_t child = fork();
    if (child == 0) {
        alarm(10);
        tamis_energy_begin(e, TAMIS_ENERGY_COMPUTE);
        tamis_energy_end(e, TAMIS_ENERGY_COMPUTE);
        tamis_energy_totals none = TAMIS_ENERGY_TOTALS_INIT;
        if (tamis_energy_read(e, &none) != TAMIS_E_STATE)
            _exit(8);
        tamis_energy_destroy(e);
        _exit(7);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 7);
    tamis_energy_destroy(e);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_window_has_the_joules_of_its_phases),
        cmocka_unit_test(test_windows_may_overlap),
        cmocka_unit_test(test_windows_called_out_of_order_are_refused),
        cmocka_unit_test(test_a_window_has_its_own_steps),
        cmocka_unit_test(test_without_counters_nothing_is_known_and_it_says_why),
        cmocka_unit_test(test_a_counter_that_hangs_holds_up_nobody),
        cmocka_unit_test(test_wrong_configurations_are_refused),
        cmocka_unit_test(test_nothing_happens_without_a_meter),
        cmocka_unit_test(test_every_allocation_of_open_may_fail),
        cmocka_unit_test(test_a_run_that_goes_on_has_the_joules_of_all_its_parts),
        cmocka_unit_test(test_a_run_goes_on_from_totals_that_know_nothing),
        cmocka_unit_test(test_grams_that_a_trace_does_not_know_have_a_reason),
        cmocka_unit_test(test_a_child_that_was_forked_leaves_the_meter_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
