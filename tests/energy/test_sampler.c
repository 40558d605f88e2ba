/* SPDX-License-Identifier: MIT
 *
 * The thread of a source: what it costs, that no joule is lost between it and who takes the gains,
 * and that nobody waits for a driver that hangs.
 *
 * test: waits tsan
 */
#include "lib/energy/source/sampler.h"
#include "tests/energy/pretended/pretended.h"
#include "tests/support/ranks.h"
#include "tests/support/tree.h"
#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

#define MS UINT64_C(1000000)

static pretended *library;

static int load(void **state) {
    (void)state;
    void *handle = dlopen(PRETENDED_WHOLE, RTLD_NOW | RTLD_LOCAL);
    library = handle ? dlsym(handle, PRETENDED_STATE) : NULL;
    return library ? 0 : -1;
}

static void furnish(uint32_t ngpus, uint32_t tick_ms) {
    memset(library, 0, sizeof *library);
    atomic_store(&library->ngpus, ngpus);
    for (uint32_t i = 0; i < ngpus; i++) {
        pretended_gpu *gpu = &library->gpus[i];
        snprintf(gpu->uuid, sizeof gpu->uuid, "GPU-%u", i);
        atomic_store(&gpu->board, (int)i);
        atomic_store(&gpu->module_code, 3);
        atomic_store(&gpu->watts, 100 * (i + 1));
        atomic_store(&gpu->tick_ms, tick_ms);
    }
}

static tam_sampler *open_sampler(const tam_energy_source *source,
                                 const tamis_energy_config *config) {
    tam_sampler *sampler;
    assert_int_equal(tam_sampler_open(source, config, tam_clock_ns() + 20000 * MS, &sampler),
                     TAMIS_OK);
    return sampler;
}

static tam_sampler *open_gpus(void) {
    return open_sampler(&tam_source_nvml, &(tamis_energy_config){.nvml_path = PRETENDED_WHOLE});
}

static tam_energy_domain look(tam_sampler *s, uint32_t index) {
    tam_energy_domain d;
    tam_sampler_look(s, index, &d);
    return d;
}

/* -- gains ------------------------------------------------------------------------------------ */

static void check_gains_meet_totals(uint32_t run_ms) {
    tam_sampler *s = open_gpus();
    tam_energy_gain gain;
    sleep_ms(run_ms);
    atomic_store(&library->gpus[0].tick_ms, 0); /* the counters stand still, or went back */
    atomic_store(&library->gpus[1].tick_ms, 0);
    assert_true(tam_sampler_hurry(s, tam_clock_ns() + 20000 * MS));
    for (uint32_t i = 0; i < 2; i++) {
        uint64_t sum = 0, end_ns = 0;
        while (tam_sampler_take(s, i, &gain)) {
            assert_true(gain.begin_ns < gain.end_ns);
            assert_true(end_ns == 0 || gain.begin_ns == end_ns);
            end_ns = gain.end_ns;
            sum += gain.uj;
        }
        assert_true(sum > 0);
        assert_int_equal(sum, look(s, i).total_uj);
    }
    tam_sampler_close(s);
}

static void gains_add_up_to_the_totals(void **state) {
    (void)state;
    furnish(2, 100);
    check_gains_meet_totals(500);
}

static void gains_that_nobody_takes_are_merged(void **state) {
    (void)state;
    furnish(2, 1);
    for (int i = 0; i < 2; i++) /* every read gains: 40 a second each */
        atomic_store(&library->gpus[i].watts, 1000);
    check_gains_meet_totals(4500);
}

static void ticks_are_learnt_on_the_way(void **state) {
    (void)state;
    furnish(1, 100);
    uint64_t begin_ns = tam_clock_ns();
    tam_sampler *s = open_gpus();
    tam_energy_domain d;
    double seconds, watts;
    bool right;
    do { /* a busy machine may need longer */
        sleep_ms(2000);
        d = look(s, 0);
        assert_int_equal(d.status, TAMIS_ENERGY_OK);
        seconds = 1e-9 * (double)(tam_clock_ns() - begin_ns);
        watts = (double)d.total_uj * 1e-6 / seconds;
        right = d.tick_s > 0.095 && d.tick_s < 0.105 && watts > 80.0 && watts < 120.0;
    } while (seconds < 10.0 * test_load() && !right);
    assert_true(d.tick_s > 0.095 && d.tick_s < 0.105);
    assert_true(watts > 80.0 && watts < 120.0);
    tam_sampler_close(s);
}

static void hurry_reads_what_is_there_now(void **state) {
    (void)state;
    const char *root = tree_make();
    tree_zone(root, "intel-rapl:0", "package-0", 1000, UINT64_C(262143328850));
    tam_sampler *s = open_sampler(&tam_source_rapl, &(tamis_energy_config){.sysfs_root = root});
    assert_true(tam_sampler_hurry(s, tam_clock_ns() + 20000 * MS));
    for (uint64_t uj = 1001; uj <= 1020; uj++) {
        tree_energy(root, "intel-rapl:0", uj);
        assert_true(tam_sampler_hurry(s, tam_clock_ns() + 20000 * MS));
        assert_int_equal(look(s, 0).total_uj, uj - 1000);
    }
    tam_sampler_close(s);
}

static void what_cannot_be_read_needs_no_thread(void **state) {
    (void)state;
    furnish(1, 100);
    atomic_store(&library->init_code, 9);
    tam_sampler *s = open_gpus();
    tam_energy_gain gain;
    assert_int_equal(tam_sampler_count(s), 1);
    assert_true(tam_sampler_hurry(s, 0));
    assert_false(tam_sampler_take(s, 0, &gain));
    tam_energy_domain d = look(s, 0);
    assert_int_equal(d.status, TAMIS_ENERGY_ABSENT);
    assert_non_null(strstr(d.reason, "modprobe nvidia"));
    tam_sampler_close(s);
}

static void a_gpu_lost_on_the_way_keeps_its_joules(void **state) {
    (void)state;
    furnish(2, 20);
    tam_sampler *s = open_gpus();
    sleep_ms(300);
    atomic_store(&library->gpus[0].energy_code, 15);
    assert_true(tam_sampler_hurry(s, tam_clock_ns() + 20000 * MS));
    tam_energy_domain lost = look(s, 0);
    assert_int_equal(lost.status, TAMIS_ENERGY_LOST);
    assert_non_null(strstr(lost.reason, "fallen off the bus"));
    assert_true(lost.total_uj > 0);
    assert_int_equal(look(s, 1).status, TAMIS_ENERGY_OK);
    tam_sampler_close(s);
}

/* -- a driver that hangs ---------------------------------------------------------------------- */

/* The longest that calls take that wait for nobody, on a busy machine; the hangs are longer. */
static uint32_t most_ms(void) {
    return 2000 * test_load();
}

static double worst_ms;

static void record_worst(uint64_t begin_ns) {
    double ms = (double)(tam_clock_ns() - begin_ns) * 1e-6;
    worst_ms = ms > worst_ms ? ms : worst_ms;
}

/* Looks and takes for a while; the longest call. */
static void look_on(tam_sampler *s, uint32_t run_ms) {
    worst_ms = 0.0;
    for (uint64_t end_ms = now_ms() + run_ms; now_ms() < end_ms;) {
        tam_energy_gain gain;
        tam_energy_domain d;
        uint64_t begin_ns = tam_clock_ns();
        tam_sampler_look(s, 0, &d);
        record_worst(begin_ns);
        begin_ns = tam_clock_ns();
        tam_sampler_take(s, 0, &gain);
        record_worst(begin_ns);
        sleep_ms(1);
    }
}

static void nobody_waits_for_a_driver_that_hangs(void **state) {
    (void)state;
    furnish(2, 20);
    uint64_t live = tam_alloc_live();
    tam_sampler *s = open_gpus();
    sleep_ms(300);
    uint64_t before_uj = look(s, 0).total_uj, looked_ms = now_ms();
    atomic_store(&library->hang, 1);
    uint64_t hangs_ms = now_ms();
    look_on(s, 2600);
    double looks_ms = worst_ms;
    tam_energy_domain d = look(s, 1);
    assert_int_equal(d.status, TAMIS_ENERGY_STALE);
    assert_non_null(strstr(d.reason, "its driver hangs"));
    uint64_t begin_ns = tam_clock_ns();
    assert_false(tam_sampler_hurry(s, begin_ns + 30 * MS));
    double hurry_ms = (double)(tam_clock_ns() - begin_ns) * 1e-6;
    while (now_ms() < hangs_ms + 5000)
        sleep_ms(1);
    atomic_store(&library->hang, 0); /* 5 s later it answers: nothing was lost */
    assert_true(tam_sampler_hurry(s, tam_clock_ns() + 20000 * MS));
    assert_int_equal(look(s, 0).status, TAMIS_ENERGY_OK);
    assert_int_equal(look(s, 0).resets, 0);
    double gained_j = (double)(look(s, 0).total_uj - before_uj) * 1e-6;
    assert_true(gained_j > 490.0 &&
                gained_j < 100.0 * (1e-3 * (double)(now_ms() - looked_ms) + 0.1));

    atomic_store(&library->hang, 1); /* and again when it is closed */
    sleep_ms(600);
    begin_ns = tam_clock_ns();
    tam_sampler_close(s);
    double close_ms = (double)(tam_clock_ns() - begin_ns) * 1e-6;
    print_message("beside a hang: look and take %.3f ms, hurry of 30 ms %.1f ms, close %.1f ms\n",
                  looks_ms, hurry_ms, close_ms);
    assert_true(looks_ms < most_ms());
    assert_true(hurry_ms < 30.0 + most_ms());
    assert_true(close_ms < 100.0 + most_ms());
    assert_true(tam_alloc_live() > live); /* the thread has it */
    atomic_store(&library->hang, 0);
    assert_true(test_freed(live));
    assert_int_equal(atomic_load(&library->begun), 0);
}

static void a_driver_that_hangs_when_opened_is_given_up(void **state) {
    (void)state;
    uint64_t live = tam_alloc_live();
    tam_energy_gain gain;
    tam_sampler *s;
    furnish(1, 100);
    atomic_store(&library->hang_init, 1);
    uint64_t begin_ms = now_ms();
    assert_int_equal(tam_sampler_open(&tam_source_nvml,
                                      &(tamis_energy_config){.nvml_path = PRETENDED_WHOLE},
                                      tam_clock_ns() + 50 * MS, &s),
                     TAMIS_OK);
    assert_in_range(now_ms() - begin_ms, 45, 50 + test_grace_ms());
    assert_int_equal(tam_sampler_count(s), 1);
    tam_energy_domain d = look(s, 0);
    assert_string_equal(d.sensor.id, "nvml");
    assert_int_equal(d.status, TAMIS_ENERGY_STALE);
    assert_non_null(strstr(d.reason, "opening it hangs"));
    assert_true(tam_sampler_hurry(s, 0));
    assert_false(tam_sampler_take(s, 0, &gain));
    tam_sampler_close(s);
    assert_true(tam_alloc_live() > live); /* the thread has it */
    atomic_store(&library->hang_init, 0);
    assert_true(test_freed(live)); /* who came back has cleaned up */
    assert_int_equal(atomic_load(&library->begun), 0);
}

/* -- cost ------------------------------------------------------------------------------------- */

static double cpu_s(void) {
    struct timespec used;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
    return (double)used.tv_sec + (double)used.tv_nsec * 1e-9;
}

/* Share of a core that the sampler's thread takes once it has learnt the ticks: the least of some
 * seconds, for what others do on the machine adds to it, or the first that is small enough. */
static double share_of_core(tam_sampler *s, double enough) {
    double least = 1.0;
    sleep_ms(1500);
    for (int second = 0; second < 5 && least > enough; second++) {
        double before_s = cpu_s();
        uint64_t begin_ns = tam_clock_ns();
        sleep_ms(1000);
        double share = (cpu_s() - before_s) / ((double)(tam_clock_ns() - begin_ns) * 1e-9);
        least = share < least ? share : least;
    }
    tam_sampler_close(s);
    return least;
}

static void four_gpus_cost_less_than_half_a_percent_of_a_core(void **state) {
    (void)state;
    furnish(4, 100);
    const double enough = 0.005 * test_slowness();
    tam_sampler *s = open_gpus();
    sleep_ms(1000);
    uint64_t calls = atomic_load(&library->calls), begin_ms = now_ms();
    double share = share_of_core(s, enough);
    double rate =
        (double)(atomic_load(&library->calls) - calls) * 1e3 / (double)(now_ms() - begin_ms);
    print_message("4 GPUs, tick 100 ms: %.3f %% of a core, %.1f reads a second\n", 100.0 * share,
                  rate);
    assert_true(share <= enough);
    assert_true(rate <= 4 * 30.0);
}

static uint64_t zone_reads;

/* The real path through the kernel, and a counter that has moved every time. */
static void read_counting(void *own, tam_energy_reading *out) {
    tam_source_rapl.read(own, out);
    out->value = tam_clock_ns() / MS * 100000 % UINT64_C(262143328850);
    __atomic_fetch_add(&zone_reads, 1, __ATOMIC_RELAXED);
}

static void four_zones_of_a_millisecond_are_read_twenty_times_a_second(void **state) {
    (void)state;
    tam_energy_source counting = tam_source_rapl;
    counting.read = read_counting;
    const char *root = tree_make();
    tree_zone(root, "intel-rapl:0", "package-0", 1, UINT64_C(262143328850));
    tree_zone(root, "intel-rapl:0:0", "dram", 1, UINT64_C(262143328850));
    tree_zone(root, "intel-rapl:1", "package-1", 1, UINT64_C(262143328850));
    tree_zone(root, "intel-rapl:1:0", "dram", 1, UINT64_C(262143328850));
    tam_sampler *s = open_sampler(&counting, &(tamis_energy_config){.sysfs_root = root});
    const double enough = 0.005 * test_slowness();
    uint64_t begin_ms = now_ms();
    double share = share_of_core(s, enough);
    double rate = (double)__atomic_load_n(&zone_reads, __ATOMIC_RELAXED) * 1e3 /
                  (double)(now_ms() - begin_ms) / 4.0;
    print_message("4 zones, tick 1 ms: %.3f %% of a core, %.1f reads a second each\n",
                  100.0 * share, rate);
    assert_true(share <= enough);
    assert_true(rate <= 22.0);
}

/* -- memory ----------------------------------------------------------------------------------- */

static void every_allocation_may_fail(void **state) {
    (void)state;
    furnish(2, 100);
    uint64_t live = tam_alloc_live();
    tam_sampler *s = NULL;
    for (long budget = 0; !s; budget++) {
        tam_alloc_budget(budget);
        tamis_status status =
            tam_sampler_open(&tam_source_nvml, &(tamis_energy_config){.nvml_path = PRETENDED_WHOLE},
                             tam_clock_ns() + 20000 * MS, &s);
        tam_alloc_budget(-1);
        assert_int_equal(status, s ? TAMIS_OK : TAMIS_E_NOMEM);
        assert_true(s || strstr(tamis_last_error(), "nvml"));
        assert_true(s || test_freed(live));
    }
    tam_sampler_close(s);
    tam_sampler_close(NULL);
    assert_true(test_freed(live));
    assert_int_equal(atomic_load(&library->begun), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gains_add_up_to_the_totals),
        cmocka_unit_test(gains_that_nobody_takes_are_merged),
        cmocka_unit_test(ticks_are_learnt_on_the_way),
        cmocka_unit_test(hurry_reads_what_is_there_now),
        cmocka_unit_test(what_cannot_be_read_needs_no_thread),
        cmocka_unit_test(a_gpu_lost_on_the_way_keeps_its_joules),
        cmocka_unit_test(nobody_waits_for_a_driver_that_hangs),
        cmocka_unit_test(a_driver_that_hangs_when_opened_is_given_up),
        cmocka_unit_test(four_gpus_cost_less_than_half_a_percent_of_a_core),
        cmocka_unit_test(four_zones_of_a_millisecond_are_read_twenty_times_a_second),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, load, NULL);
}
