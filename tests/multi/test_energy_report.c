/* SPDX-License-Identifier: MIT
 *
 * Energy reports over communicators: all ranks hold the same, true sums, even if they see different
 * counters, die, come back, miss a report or lack memory.
 *
 * test: waits tsan
 */
#include "collectives/energy/report.h"
#include "collectives/transport/faulty.h"
#include "tests/support/data.h"
#include "tests/support/meters.h"
#include "tests/support/ranks.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <tamis/pipeline.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

static meters world;
static tam_registry *registries[METERS_RANKS];

static void open_registries(uint64_t seed) {
    meters_begin(&world, seed);
    for (uint32_t r = 0; r < METERS_RANKS; r++)
        assert_int_equal(tam_registry_open(meters_show(&world, r, NULL), &registries[r]), TAMIS_OK);
}

static void close_registries(void) {
    for (uint32_t r = 0; r < METERS_RANKS; r++)
        tam_registry_close(registries[r]);
}

static tamis_energy_totals totals_of(const tam_registry *registry) {
    tamis_energy_totals totals;
    tam_registry_totals(registry, &totals);
    return totals;
}

/* What a rank has done, in numbers whose sums are easy to recognise. */
static tam_energy_run run_of(uint32_t id) {
    return (tam_energy_run){
        .time_ns = 1000000000 + id, .steps = 10, .wire_bytes = 1000, .exposure_ns = {7}};
}

static tamis_status report(tamis_comm *comm, uint32_t id) {
    tam_energy_run run = run_of(id);
    meters_show(&world, id, registries[id]->shown);
    return tam_report_gather(comm, &run, registries[id], TAMIS_OK);
}

static bool same_sums(uint32_t a, uint32_t b) {
    return memcmp(&registries[a]->sums, &registries[b]->sums, sizeof(tam_energy_sums)) == 0;
}

/* -- many ranks, each a thread ---------------------------------------------------------------- */

typedef struct reporter {
    uint32_t id;
    tamis_comm *comm;
    tamis_status status;
    char sentence[256];
} reporter;

static void *run_reporter(void *argument) {
    reporter *r = argument;
    r->status = report(r->comm, r->id);
    snprintf(r->sentence, sizeof r->sentence, "%s", tamis_last_error());
    return NULL;
}

/* The original ranks `first` to METERS_RANKS - 1 report over their own communicator. */
static void report_all(tamis_comm *const *comms, uint32_t first) {
    static reporter reporters[METERS_RANKS];
    pthread_t threads[METERS_RANKS];
    for (uint32_t id = first; id < METERS_RANKS; id++) {
        reporters[id] = (reporter){.id = id, .comm = comms[id - first]};
        assert_int_equal(pthread_create(&threads[id], NULL, run_reporter, &reporters[id]), 0);
    }
    for (uint32_t id = first; id < METERS_RANKS; id++)
        pthread_join(threads[id], NULL);
    for (uint32_t id = first; id < METERS_RANKS; id++) {
        if (reporters[id].status != TAMIS_OK)
            fail_msg("rank %u: %s", id, reporters[id].sentence);
        assert_true(same_sums(id, first));
    }
}

static void open_comms(uint32_t nranks, tamis_comm **comms) {
    tamis_comm_config config = TAMIS_COMM_CONFIG_INIT;
    config.timeout_ms = test_long_ms();
    assert_int_equal(tamis_comm_create_local(nranks, &config, comms), TAMIS_OK);
}

static void close_comms(uint32_t nranks, tamis_comm *const *comms) {
    for (uint32_t r = 0; r < nranks; r++)
        tamis_comm_destroy(comms[r]);
}

static void advance(uint64_t seed) {
    meters_advance(&world, seed % 5 ? 1000 + data_mix(seed) % 60000 : 3600000);
}

static void sixty_four_ranks_on_four_nodes_count_exactly(void **state) {
    (void)state;
    const uint64_t reports = 50 / test_stride(5);
    tamis_comm *comms[METERS_RANKS];
    open_registries(1);
    open_comms(METERS_RANKS, comms);
    world.ranks[16].denied_rapl = true;
    for (uint64_t i = 0; i < reports; i++) {
        advance(i);
        report_all(comms, 0);
        tamis_energy_totals totals = totals_of(registries[i]);
        assert_int_equal(totals.uj, meters_truth_of_all(&world));
        assert_string_equal(totals.missing, "");
    }
    tamis_energy_totals totals = totals_of(registries[0]);
    assert_int_equal(totals.steps, 10);
    assert_int_equal(totals.wire_bytes, 64000);
    assert_true(totals.seconds == (double)1000000063 * 1e-9);
    assert_int_equal(registries[0]->sums.reports, reports);
    assert_int_equal(registries[0]->run.exposure_ns[0], 64 * 7);
    close_comms(METERS_RANKS, comms);
    close_registries();
}

static void over_a_smaller_communicator_the_count_goes_on(void **state) {
    (void)state;
    tamis_comm *comms[METERS_RANKS];
    open_registries(2);
    for (uint32_t first = 0; first < 4; first++) { /* rank 0 dies, and again rank 0 */
        open_comms(METERS_RANKS - first, comms);
        for (int i = 0; i < 3; i++) {
            advance(first * 3 + (uint64_t)i);
            report_all(comms, first);
            assert_int_equal(totals_of(registries[63]).uj, meters_truth_of_all(&world));
        }
        close_comms(METERS_RANKS - first, comms);
    }
    uint64_t dead_uj = meters_truth(&world, 0);
    open_comms(48, comms); /* all of node 0 */
    advance(3);
    report_all(comms, 16);
    assert_int_equal(totals_of(registries[63]).uj,
                     meters_truth_of_all(&world) - meters_truth(&world, 0) + dead_uj);
    close_comms(48, comms);
    close_registries();
}

/* -- registries that differ ------------------------------------------------------------------- */

static void ranks_that_missed_a_report_take_over_what_others_know(void **state) {
    (void)state;
    tamis_comm *comms[METERS_RANKS];
    open_registries(3);
    open_comms(METERS_RANKS - 10, comms); /* ten ranks join later */
    for (int i = 0; i < 3; i++) {
        advance(1);
        report_all(comms, 10);
    }
    close_comms(METERS_RANKS - 10, comms);
    for (uint32_t r = 0; r < 10; r++)
        meters_reopen(&world, r);
    open_comms(METERS_RANKS, comms);
    advance(1);
    report_all(comms, 0);
    /* gpu-0 and gpu-1 of node 0 count from the time when the first of their ranks joined. */
    uint64_t unseen_uj =
        meters_find(&world, 0, "gpu-0")->true_uj + meters_find(&world, 0, "gpu-1")->true_uj;
    for (int i = 0; i < 3; i++) {
        tamis_energy_totals totals = totals_of(registries[2]);
        assert_int_equal(totals.uj, meters_truth_of_all(&world) - unseen_uj);
        assert_int_equal(registries[2]->sums.reports, 4 + i);
        assert_non_null(strstr(totals.missing, "gains left out so far: 2"));
        advance(1);
        report_all(comms, 0);
    }
    close_comms(METERS_RANKS, comms);
    close_registries();
}

/* In the gain of gpu-0, as rank 0 shows it. */
enum {
    DAMAGED_BIT = 8 * (sizeof(tam_energy_run) + 4 * sizeof(tam_energy_entry) +
                       offsetof(tam_energy_entry, uj)) +
                  3
};

static void run_damaged(test_rank *self) {
    for (int i = 0; i < 5; i++) {
        if (i == 2 && self->id == 2)
            RANK_OK(self, tam_faulty_install(self->comm, TAM_FAULT_FLIP, 1, DAMAGED_BIT));
        rank_barrier(self);
        if (self->id == 0)
            advance(1);
        rank_barrier(self);
        RANK_OK(self, report(self->comm, self->id));
        rank_barrier(self);
        bool same = same_sums(self->id, 0);
        RANK_CHECK(self, same == (i != 2 || self->id != 2), "report %d: %s sums", i,
                   same ? "the same" : "other");
        rank_barrier(self);
    }
}

static void sums_that_have_come_apart_are_one_again_at_the_next_report(void **state) {
    (void)state;
    open_registries(4);
    test_context("rank 2 receives a wrong bit");
    ranks_run(4, 0, run_damaged, NULL);
    close_registries();
}

/* -- ranks that see nothing, and calls that are wrong ----------------------------------------- */

static void run_uneven(test_rank *self) {
    for (int i = 0; i < 3; i++) {
        rank_barrier(self);
        if (self->id == 0)
            advance(1);
        rank_barrier(self);
        tam_registry *l = registries[self->id];
        uint32_t n = l->n;
        if (self->id == 0)
            l->n = 0;
        RANK_OK(self, report(self->comm, self->id));
        l->n = n;
    }
    RANK_CHECK(self, registries[self->id]->sums.ndomains == 6, "%u domains",
               registries[self->id]->sums.ndomains);
    RANK_CHECK(self, totals_of(registries[self->id]).known, "nothing is known");
}

static void run_nothing(test_rank *self) {
    tam_energy_run run = run_of(self->id);
    tam_registry *registry;
    RANK_OK(self, tam_registry_open(0, &registry));
    RANK_OK(self, tam_report_gather(self->comm, &run, registry, TAMIS_OK));
    tamis_energy_totals totals = totals_of(registry);
    RANK_CHECK(self, !totals.known && totals.missing[0], "something is known");
    tam_registry_close(registry);
}

static void a_rank_or_all_without_domains_are_normal(void **state) {
    (void)state;
    open_registries(5);
    test_context("rank 0 sees nothing");
    ranks_run(3, 0, run_uneven, NULL);
    test_context("nobody sees anything");
    ranks_run(3, 0, run_nothing, NULL);
    close_registries();
}

typedef struct wrong {
    const char *words;
    tamis_status (*call)(tamis_comm *comm, uint32_t id);
    tamis_status status;
} wrong;

static tamis_status with_too_many(tamis_comm *comm, uint32_t id) {
    tam_energy_run run = run_of(id);
    uint32_t n = registries[id]->n;
    registries[id]->n = UINT32_MAX;
    tamis_status status = tam_report_gather(comm, &run, registries[id], TAMIS_OK);
    registries[id]->n = n;
    return status;
}

static tamis_status decline(tamis_comm *comm, uint32_t id) {
    (void)id;
    return tam_report_gather(comm, NULL, NULL, tam_fail(TAMIS_E_NOMEM, "no memory for this"));
}

static tamis_status another(tamis_comm *comm, uint32_t id) {
    tamis_pipeline_config config = TAMIS_PIPELINE_CONFIG_INIT;
    tamis_pipeline *pipeline = NULL;
    (void)id;
    config.length = 100;
    return tamis_pipeline_create(comm, &config, &pipeline);
}

/* What the ranks on GPU 0 of node 0 see. */
static int64_t truth_of_first_ranks(void) {
    return (int64_t)(meters_find(&world, 0, "psys")->true_uj +
                     meters_find(&world, 0, "gpu-0")->true_uj);
}

static const wrong wrongs[] = {
    {"rank 1 reports 4294967295 energy domains, more than 4096", with_too_many, TAMIS_E_ARGUMENT},
    {"rank 1 could not report its energy: TAMIS_E_NOMEM|no memory for this", decline,
     TAMIS_E_NOMEM},
    {"rank 0 is in tamis_energy_report, rank 1 in tamis_pipeline_create", another,
     TAMIS_E_MISMATCH},
};

static void run_wrong(test_rank *self) {
    const wrong *w = self->shared;
    RANK_OK(self, report(self->comm, self->id));
    tam_energy_sums before = registries[self->id]->sums;
    if (self->id == 1)
        RANK_STATUS(self, w->status, w->call(self->comm, 1));
    else
        RANK_STATUS(self, w->status, report(self->comm, self->id));
    RANK_CHECK(self, has_word(tamis_last_error(), w->words), "\"%s\" does not say %s",
               tamis_last_error(), w->words);
    RANK_CHECK(self, self->id == 1 || has_word(tamis_last_error(), "rank 1"), "\"%s\"",
               tamis_last_error());
    RANK_CHECK(self, memcmp(&before, &registries[self->id]->sums, sizeof before) == 0,
               "the sums have changed");
    rank_barrier(self);
    if (self->id == 0)
        advance(1);
    rank_barrier(self);
    RANK_OK(self, report(self->comm, self->id));
    RANK_CHECK(self, registries[self->id]->sums.uj == truth_of_first_ranks(), "it counts %lld uJ",
               (long long)registries[self->id]->sums.uj);
}

static void a_wrong_call_has_no_effect_and_all_ranks_hear_of_it(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof wrongs / sizeof wrongs[0]; i++) {
        wrong w = wrongs[i];
        open_registries(6);
        advance(1);
        test_context("%s", w.words);
        ranks_run(3, 0, run_wrong, &w);
        close_registries();
    }
}

/* -- ranks that do not come ------------------------------------------------------------------- */

static void run_absent(test_rank *self) {
    RANK_OK(self, report(self->comm, self->id));
    uint64_t before_ms = now_ms();
    tam_energy_sums before = registries[self->id]->sums;
    rank_barrier(self);
    test_deadline(self->comm, test_short_ms());
    if (self->id == 1)
        return;
    RANK_STATUS(self, TAMIS_E_TIMEOUT, report(self->comm, self->id));
    RANK_STATUS(self, TAMIS_E_TIMEOUT, report(self->comm, self->id));
    RANK_CHECK(self, now_ms() - before_ms < test_short_ms() + test_grace_ms(), "it took %llu ms",
               (unsigned long long)(now_ms() - before_ms));
    RANK_CHECK(self, memcmp(&before, &registries[self->id]->sums, sizeof before) == 0,
               "the sums have changed");
}

static void an_absent_rank_is_waited_for_until_the_deadline(void **state) {
    (void)state;
    tamis_comm *comms[3];
    open_registries(7);
    advance(1);
    test_context("rank 1 does not report");
    ranks_run(3, 0, run_absent, NULL);
    tamis_comm_config config = TAMIS_COMM_CONFIG_INIT; /* a rank that came continues */
    assert_int_equal(tamis_comm_create_local(1, &config, comms), TAMIS_OK);
    advance(1);
    assert_int_equal(report(comms[0], 2), TAMIS_OK);
    assert_int_equal(registries[2]->sums.uj, truth_of_first_ranks());
    tamis_comm_destroy(comms[0]);
    close_registries();
}

static void run_silent(test_rank *self) {
    const uint64_t *nth = self->shared;
    RANK_OK(self, report(self->comm, self->id)); /* allocates room for boards and entries */
    RANK_OK(self, report(self->comm, self->id));
    tam_energy_sums before = registries[self->id]->sums;
    rank_barrier(self);
    if (self->id == 0)
        RANK_OK(self, tam_faulty_install(self->comm, TAM_FAULT_SILENT, *nth, 0));
    rank_barrier(self);
    test_deadline(self->comm, test_short_ms());
    RANK_STATUS(self, TAMIS_E_TIMEOUT, report(self->comm, self->id));
    RANK_CHECK(self, memcmp(&before, &registries[self->id]->sums, sizeof before) == 0,
               "the sums have changed");
}

static void a_rank_that_falls_silent_amid_a_report_changes_no_registry(void **state) {
    (void)state;
    for (uint64_t nth = 0; nth < 2; nth++) {
        open_registries(8);
        test_context("rank 0 falls silent at all-gather %d", (int)nth);
        ranks_run(3, 0, run_silent, &nth);
        close_registries();
    }
}

/* -- memory ----------------------------------------------------------------------------------- */

static void a_report_without_memory_leaks_nothing_and_counts_later(void **state) {
    (void)state;
    tamis_comm *comm;
    open_comms(1, &comm);
    meters_begin(&world, 9);
    advance(1);
    uint64_t live = tam_alloc_live();
    assert_int_equal(tam_registry_open(meters_show(&world, 0, NULL), &registries[0]), TAMIS_OK);
    long budget = 0;
    for (; budget < 20; budget++) {
        tam_alloc_budget(budget);
        tamis_status status = report(comm, 0);
        tam_alloc_budget(-1);
        if (status == TAMIS_OK)
            break;
        assert_int_equal(status, TAMIS_E_NOMEM);
        assert_int_equal(registries[0]->sums.reports, 0);
        assert_int_equal(tamis_comm_status(comm), TAMIS_OK);
    }
    assert_in_range(budget, 1, 19);
    assert_int_equal(registries[0]->sums.uj, truth_of_first_ranks());
    assert_int_equal(report(comm, 0), TAMIS_OK);
    uint64_t made = tam_alloc_made();
    assert_int_equal(report(comm, 0), TAMIS_OK);
    assert_int_equal(tam_alloc_made(), made);
    tam_registry_close(registries[0]);
    assert_int_equal(tam_alloc_live(), live);
    close_comms(1, &comm);
}

static void run_short(test_rank *self) {
    const long *budget = self->shared;
    rank_barrier(self);
    if (self->id == 0)
        tam_alloc_budget(*budget); /* of all ranks together: some get none */
    rank_barrier(self);
    tamis_status status = report(self->comm, self->id);
    rank_barrier(self);
    if (self->id == 0)
        tam_alloc_budget(-1);
    rank_barrier(self);
    RANK_CHECK(self, status == TAMIS_OK || status == TAMIS_E_NOMEM, "it gave %s: %s",
               tamis_status_name(status), tamis_last_error());
    uint64_t reports = registries[self->id]->sums.reports;
    RANK_CHECK(self, reports == (status == TAMIS_OK ? 1 : 0), "%llu reports",
               (unsigned long long)reports);
    RANK_OK(self, report(self->comm, self->id));
    rank_barrier(self);
    RANK_CHECK(self, same_sums(self->id, 0), "other sums");
    RANK_CHECK(self, registries[self->id]->sums.reports == reports + 1,
               "they do not fail in the same way");
    rank_barrier(self);
}

static void where_one_rank_has_no_memory_none_reports(void **state) {
    (void)state;
    for (long budget = 0; budget < 18; budget++) {
        open_registries(10);
        test_context("%ld allocations", budget);
        ranks_run(3, 0, run_short, &budget);
        close_registries();
    }
}

static void run_lacking(test_rank *self) {
    tam_registry *l = registries[self->id];
    uint32_t n = l->n;
    rank_barrier(self);
    if (self->id == 0) {
        l->n = 0;
        tam_alloc_budget(3); /* enough for its own entries, not for those of others */
    }
    rank_barrier(self);
    test_deadline(self->comm, test_short_ms());
    tamis_status status = report(self->comm, self->id);
    rank_barrier(self);
    if (self->id == 0)
        tam_alloc_budget(-1);
    l->n = n;
    RANK_CHECK(self, status != TAMIS_OK, "it reports");
    RANK_CHECK(self, tamis_comm_status(self->comm) != TAMIS_OK, "the comm lives");
    RANK_CHECK(self, l->sums.reports == 0, "%u reports", l->sums.reports);
}

static void a_rank_without_memory_for_those_of_others_loses_the_comm(void **state) {
    (void)state;
    open_registries(11);
    advance(1);
    ranks_run(3, 0, run_lacking, NULL);
    tamis_comm *comms[METERS_RANKS];
    open_comms(METERS_RANKS, comms);
    report_all(comms, 0);
    assert_int_equal(totals_of(registries[0]).uj, meters_truth_of_all(&world));
    close_comms(METERS_RANKS, comms);
    close_registries();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sixty_four_ranks_on_four_nodes_count_exactly),
        cmocka_unit_test(over_a_smaller_communicator_the_count_goes_on),
        cmocka_unit_test(ranks_that_missed_a_report_take_over_what_others_know),
        cmocka_unit_test(sums_that_have_come_apart_are_one_again_at_the_next_report),
        cmocka_unit_test(a_rank_or_all_without_domains_are_normal),
        cmocka_unit_test(a_wrong_call_has_no_effect_and_all_ranks_hear_of_it),
        cmocka_unit_test(an_absent_rank_is_waited_for_until_the_deadline),
        cmocka_unit_test(a_rank_that_falls_silent_amid_a_report_changes_no_registry),
        cmocka_unit_test(a_report_without_memory_leaks_nothing_and_counts_later),
        cmocka_unit_test(where_one_rank_has_no_memory_none_reports),
        cmocka_unit_test(a_rank_without_memory_for_those_of_others_loses_the_comm),
    };
    return cmocka_run_group_tests_name("energy_report", tests, NULL, NULL);
}
