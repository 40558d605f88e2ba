/* SPDX-License-Identifier: MIT
 *
 * Measuring a link: it ends in time however slow the link is, a disturbance does not count, and a
 * failure during it is an error on all ranks.
 *
 * test: waits
 */
#include "collectives/transport/faulty.h"
#include "collectives/transport/calibrate_costs.h"
#include "tests/support/data.h"
#include "tests/support/gather.h"
#include "tests/support/ranks.h"
#include "tests/support/scratch.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tamis/elastic.h>
#include <unistd.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

enum { RANKS = 3, N = 5000, BUDGET_MS = 80, LARGEST = 1 << 22 };

static tamis_status create(test_rank *self, tamis_reducer **out) {
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    tamis_layout *layout = data_layout(N);
    config.scheme = "auto";
    self->where = "tamis_reducer_create";
    tamis_status status = tamis_reducer_create(self->comm, layout, &config, out);
    tamis_layout_destroy(layout);
    return status;
}

/* -- faults ----------------------------------------------------------------------------------- */

/* Operation 0 is the handshake; in 1, 2 and 4 the ranks exchange figures, 7 is a sum, 9 an
 * all-gather. There are at least 12. */
typedef struct fault_case {
    tam_fault fault;
    uint64_t nth;
    uint32_t argument;
    tamis_status status; /* on rank 1, where it happens */
    const char *words;   /* of its message there */
    bool told;           /* the others are notified; else only their deadline shows it */
} fault_case;

typedef struct fault_run {
    const fault_case *what;
    uint32_t timeout_ms; /* of the communicators */
    bool early;          /* rank 1 timed out before its fault */
} fault_run;

static void run_fault(test_rank *self) {
    fault_run *run = self->shared;
    const fault_case *c = run->what;
    tamis_reducer *r = NULL, *again = NULL;
    if (self->id == 1)
        RANK_OK(self, tam_faulty_install(self->comm, c->fault, c->nth, c->argument));
    uint64_t start_ms = now_ms();
    tamis_status status = create(self, &r);
    uint64_t took_ms = now_ms() - start_ms;
    RANK_CHECK(self, tamis_status_loss(status) == TAMIS_LOST_COMM && r == NULL, "it got %s",
               tamis_status_name(status));
    RANK_CHECK(self, strlen(tamis_last_error()) > 20, "it says: %s", tamis_last_error());
    RANK_CHECK(self, took_ms < run->timeout_ms + test_grace_ms(), "it took %llu ms",
               (unsigned long long)took_ms);
    if (self->id == 1)
        run->early = status == TAMIS_E_TIMEOUT && !has_word(tamis_last_error(), c->words);
    if (self->id == 1 && !run->early) {
        RANK_STATUS(self, c->status, status);
        RANK_CHECK(self, has_word(tamis_last_error(), c->words), "it says: %s", tamis_last_error());
    }
    RANK_STATUS(self, status, create(self, &again)); /* at once: the communicator is lost */
    if (c->told)
        tamis_comm_abort(self->comm);
}

static void what_goes_wrong_meanwhile_is_an_error_on_all_ranks(void **state) {
    static const fault_case cases[] = {
        {TAM_FAULT_ERROR, 1, 0, TAMIS_E_TRANSPORT, "injected", false},
        {TAM_FAULT_ERROR, 7, 0, TAMIS_E_TRANSPORT, "injected", true},
        {TAM_FAULT_SILENT, 2, 0, TAMIS_E_TIMEOUT, "silent", false},
        {TAM_FAULT_SILENT, 9, 0, TAMIS_E_TIMEOUT, "silent", false},
        {TAM_FAULT_FLIP, 1, 3, TAMIS_E_PROTOCOL, "measurements of rank 0", true},
        {TAM_FAULT_FLIP, 4, 24 * 8 + 62, TAMIS_E_PROTOCOL, "measurements of rank 1", true},
        {TAM_FAULT_FLIP, 4, 48 * 8 + 130, TAMIS_E_PROTOCOL, "measurements of rank 2", true},
        {TAM_FAULT_SPOIL, 4, 62, TAMIS_E_PROTOCOL, "measurements of rank 1", true},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const fault_case *c = &cases[i];
        fault_run run = {.what = c};
        test_context("fault %d at operation %llu", c->fault, (unsigned long long)c->nth);
        run.timeout_ms = c->told ? test_long_ms() : 2 * test_short_ms();
        do { /* on a busy machine even sound ranks may take longer to come */
            ranks_run(RANKS, run.timeout_ms, run_fault, &run);
            run.timeout_ms *= 3;
        } while (run.early && run.timeout_ms < 200000);
        assert_false(run.early);
    }
}

/* -- time ------------------------------------------------------------------------------------- */

/* A link whose every message takes a while. */
typedef struct slow_link {
    uint32_t sleep_us;   /* of every message */
    uint64_t us_per_mib; /* and of its bytes */
    uint64_t operations; /* on rank 0 */
    tam_costs costs;     /* of rank 0 */
} slow_link;

static tamis_status slow_down(void *context, uint32_t rank, uint64_t op, void *recv, size_t bytes) {
    slow_link *link = context;
    uint64_t us = link->sleep_us + bytes * link->us_per_mib / (1 << 20);
    (void)recv;
    for (uint64_t end_ms = now_ms() + us / 1000; us > 0 && now_ms() < end_ms;)
        sleep_ms(1);
    if (rank == 0)
        link->operations = op + 1;
    return TAMIS_OK;
}

static void run_slow(test_rank *self) {
    slow_link *link = self->shared;
    tamis_reducer *r = NULL;
    RANK_OK(self, create(self, &r));
    if (self->id == 0)
        link->costs = self->comm->costs;
    tamis_reducer_destroy(r);
}

static void measure_over(slow_link *link) {
    tamis_comm *comms[RANKS];
    gather *records = gather_create(RANKS, test_long_ms(), slow_down, link);
    gather_comms(records, comms);
    ranks_run_on(comms, RANKS, run_slow, link);
    for (uint32_t r = 0; r < RANKS; r++)
        tamis_comm_destroy(comms[r]);
    gather_destroy(records);
}

/* Every operation takes 2 ms, so there is time for 40 at most, plus two sizes of each kind, which
 * are always measured once, plus three handshakes. */
static void it_ends_in_time_however_slow_the_link_is(void **state) {
    enum { SLEEP_MS = 2, SIZES = 6, OPERATIONS = 6, HANDSHAKES = 3 };
    slow_link link = {.sleep_us = 1000 * SLEEP_MS};
    (void)state;
    test_context("2 ms a message");
    measure_over(&link);
    assert_true(link.operations <= BUDGET_MS / SLEEP_MS + SIZES * OPERATIONS + HANDSHAKES);
    assert_true(link.costs.sum.count >= 2 && link.costs.gather.count >= 2);
}

/* 100 ms per MiB: sizes that would take long are left out, and extrapolated. */
static void what_would_take_long_is_left_out(void **state) {
    slow_link link = {.us_per_mib = 100000};
    (void)state;
    test_context("100 ms a MiB");
    measure_over(&link);
    const tam_curve *sum = &link.costs.sum;
    bool fitted = sum->size[0] == 0.0; /* no time for three repetitions: ignore the figures */
    assert_true(fitted || (sum->count >= 2 && sum->size[sum->count - 1] < LARGEST));
    double largest_s = tam_curve_at(sum, LARGEST);
    if (!fitted && !(largest_s > 0.5 && largest_s < 50.0)) /* 16 MiB of each rank */
        fail_msg("%u sizes; a sum of %d floats should take %g s", sum->count, LARGEST, largest_s);
}

/* -- few repetitions -------------------------------------------------------------------------- */

/* What the library says while it measures, to be freed. */
static char *measure_and_listen(slow_link *link) {
    char path[SCRATCH_PATH];
    size_t bytes;
    scratch_path("heard.log", path);
    fflush(stderr);
    int before = dup(STDERR_FILENO);
    assert_non_null(freopen(path, "w", stderr));
    measure_over(link);
    fflush(stderr);
    dup2(before, STDERR_FILENO);
    close(before);
    char *said = (char *)scratch_read(path, &bytes);
    assert_non_null(said);
    said[bytes] = '\0';
    return said;
}

static void expect_near(const char *what, double seconds, double least, double most) {
    if (!(seconds > least && seconds < most))
        fail_msg("%s: %g s, not %g to %g", what, seconds, least, most);
}

/* 30 ms a message, 20 ms more for each 1024 bytes of each rank: there is time for each size once. A
 * sum of few floats is one all-gather here. Rank 0 has two cores of others beside it, so times may
 * be longer, but not shorter. */
static void of_few_repetitions_the_link_is_found(void **state) {
    slow_link link = {.sleep_us = 30000, .us_per_mib = 20000 * 1024 / RANKS};
    (void)state;
    test_context("30 ms a message");
    char *said = measure_and_listen(&link);
    assert_null(strstr(said, "link_latency_us"));
    free(said);
    assert_true(link.costs.gather.count > 3); /* a model, not points that were measured once */
    expect_near("gather of nothing", tam_curve_at(&link.costs.gather, 0.0), 0.015, 0.1);
    expect_near("sum of nothing", tam_curve_at(&link.costs.sum, 0.0), 0.015, 0.1);
    expect_near("gather of 1 MiB", tam_curve_at(&link.costs.gather, 1 << 20), 10.0, 100.0);
    expect_near("pass over 2^20", tam_curve_at(&link.costs.pass, 1 << 20), 1e-4, 1e-3);
}

/* 40 ms whatever the size: 4096 bytes do not show how fast the link is. */
static void a_rate_that_is_not_to_be_seen_is_said_once(void **state) {
    slow_link link = {.sleep_us = 40000};
    bool told = false;
    (void)state;
    test_context("40 ms a message");
    for (int trial = 0; trial < 5 && !told; trial++) { /* a disturbance looks like a rate */
        char *said = measure_and_listen(&link), *first = strstr(said, "link_latency_us");
        told = first != NULL;
        assert_true(!told || strstr(first + 1, "link_latency_us") == NULL);
        free(said);
    }
    assert_true(told);
    expect_near("gather of nothing", tam_curve_at(&link.costs.gather, 0.0), 0.02, 0.15);
    /* two others, 1 Gbit/s */
    double grown_s = tam_curve_at(&link.costs.gather, 2e7) - tam_curve_at(&link.costs.gather, 1e7);
    expect_near("10 MB more", grown_s, 0.159, 0.161);
}

/* -- many ranks ------------------------------------------------------------------------------- */

static void what_is_gathered_does_not_grow_with_the_ranks(void **state) {
    enum { MIB_8 = 8 << 20 };
    size_t sizes[TAM_COST_GATHERS];
    (void)state;
    for (uint32_t nranks = 1; nranks <= 65536; nranks++) {
        tam_calibrate_costs_gathers(nranks, sizes);
        assert_true(sizes[0] >= 8 && sizes[0] < sizes[1] && sizes[1] < sizes[2]);
        assert_true(sizes[2] * nranks <= MIB_8);
        assert_true(nranks > 64 || (sizes[0] == 128 && sizes[1] == 4096 && sizes[2] == 1 << 17));
    }
}

/* -- disturbances ----------------------------------------------------------------------------- */

/* The first sum of 32 floats, and some later operations, take 10 ms. */
static void run_disturbed(test_rank *self) {
    tamis_reducer *r = NULL;
    if (self->id == 1) {
        RANK_OK(self, tam_faulty_install(self->comm, TAM_FAULT_DELAY, 12, 10));
        RANK_OK(self, tam_faulty_install(self->comm, TAM_FAULT_DELAY, 40, 10));
    }
    RANK_OK(self, create(self, &r));
    if (self->id == 0)
        *(double *)self->shared = self->comm->costs.sum.seconds[0]; /* all ranks have the same */
    tamis_reducer_destroy(r);
}

/* A busy machine may add disturbances of its own. */
static void one_disturbance_does_not_count(void **state) {
    double seconds = 1.0;
    (void)state;
    test_context("rank 1 is held up");
    for (int trial = 0; trial < 5 && seconds >= 5e-3; trial++)
        ranks_run(RANKS, 0, run_disturbed, &seconds);
    if (seconds >= 5e-3)
        fail_msg("a sum of few floats takes %g s", seconds);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_goes_wrong_meanwhile_is_an_error_on_all_ranks),
        cmocka_unit_test(it_ends_in_time_however_slow_the_link_is),
        cmocka_unit_test(what_would_take_long_is_left_out),
        cmocka_unit_test(of_few_repetitions_the_link_is_found),
        cmocka_unit_test(a_rate_that_is_not_to_be_seen_is_said_once),
        cmocka_unit_test(what_is_gathered_does_not_grow_with_the_ranks),
        cmocka_unit_test(one_disturbance_does_not_count),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
