/* SPDX-License-Identifier: MIT
 *
 * Staged collectives that fail on a simulated network: damaged messages, ranks in other calls, a
 * dead rank, plans that are none.
 */
#include "tests/unit/coll_job.h"

#include "lib/contracts/value_codec.h"

/* A flipped bit of any message is found by its receiver, and by nobody else. */
static void a_flipped_bit_is_found_at_its_hop(void **state) {
    (void)state;
    enum { P = 11, COUNT = 300 };
    tam_plan plan = tam_plan_make(P, 1, 4);
    static float values[P][COUNT];
    uint64_t found = 0, flip = 0;
    bool was_quiet = tam_errors_quiet(true);
    for (bool hit = true; hit; found += hit) {
        job j = open_job(&plan, 256, ++flip);
        for (uint32_t r = 0; r < P; r++)
            tam_coll_begin_sum(&j.colls[r], values[r], COUNT, NULL);
        hit = run(&j) != TAMIS_OK;
        assert_true(!hit || strstr(tamis_last_error(), "damaged") ||
                    strstr(tamis_last_error(), "begin as one"));
        assert_int_equal(hit, flip <= tam_sim_counted(j.sim).messages || hit);
        close_job(&j);
    }
    tam_errors_quiet(was_quiet);
    assert_true(found > 100);
}

/* -- of two collectives, the first fails at one rank ------------------------------------------ */

typedef struct pair {
    job *job;
    tamis_status *statuses;
    bool *second; /* whether a rank is in the second one */
    unsigned char *memory;
    size_t bytes;
    uint32_t from, to; /* of the message that was refused first */
} pair;

static void begin_one(pair *p, uint32_t rank) {
    size_t n = p->job->nranks, own = rank * (n + 1) * p->bytes;
    tam_coll_begin_gather(&p->job->colls[rank], p->memory + own, p->bytes,
                          p->memory + own + p->bytes);
}

static tamis_status advance_pair(void *context, uint32_t rank, bool *done) {
    pair *p = context;
    tam_coll *coll = &p->job->colls[rank];
    bool moved;
    tamis_status status = tam_coll_advance(coll, &moved, done);
    if (status != TAMIS_OK) {
        p->statuses[rank] = status;
        if (p->to == p->job->nranks)
            assert_int_equal(
                sscanf(tamis_last_error(), "a message from rank %u to rank %u", &p->from, &p->to),
                2);
        return tam_coll_advance(coll, &moved, done);
    }
    if (*done && coll->failed == TAMIS_OK && !p->second[rank]) {
        p->second[rank] = true;
        begin_one(p, rank);
        return advance_pair(context, rank, done);
    }
    return TAMIS_OK;
}

/* @return whether there was such a message, and it was refused */
static bool refuse_message(const tam_plan *plan, size_t bytes, uint64_t flip) {
    uint32_t n = plan->nranks;
    job j = open_job(plan, 128, flip);
    pair p = {&j,
              calloc(n, sizeof(tamis_status)),
              calloc(n, sizeof(bool)),
              calloc(n * (n + 1), bytes),
              bytes,
              n,
              n};
    double seconds;
    for (uint32_t r = 0; r < n; r++)
        begin_one(&p, r);
    if (tam_sim_run(j.sim, advance_pair, &p, &seconds) != TAMIS_OK)
        fail_msg("P %u, message %d: %s", n, (int)flip, tamis_last_error());
    for (uint32_t r = 0; p.to < n && r < n; r++) {
        assert_int_equal(p.statuses[r], TAMIS_E_PROTOCOL);
        assert_int_equal(j.colls[r].blamed, p.from);
    }
    free(p.statuses);
    free(p.second);
    free(p.memory);
    close_job(&j);
    return p.to < n;
}

/* Also those that have all of the first collective, and wait in the second. */
static void all_ranks_hear_of_a_refused_message(void **state) {
    (void)state;
    static const uint32_t sizes[] = {2, 5, 8};
    bool was_quiet = tam_errors_quiet(true);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        tam_plan plan = tam_plan_linear(sizes[i]);
        for (size_t bytes = 20; bytes <= 300; bytes += 280) {
            uint64_t first = sizes[i] * (sizes[i] - 1); /* messages, or headers, of the first */
            for (uint64_t flip = 1; flip <= first; flip++)
                assert_true(refuse_message(&plan, bytes, flip));
        }
    }
    tam_errors_quiet(was_quiet);
}

/* A run of many chunks that its receiver expects to be a little longer or shorter. */
static void runs_of_other_lengths_are_refused_as_such(void **state) {
    (void)state;
    tam_plan plan = tam_plan_linear(2);
    static unsigned char memory[4][1200];
    bool was_quiet = tam_errors_quiet(true);
    for (size_t bytes = 20; bytes <= 1000; bytes += 7) {
        job j = open_job(&plan, 128, 0);
        const size_t send_at[2][3] = {{0, 0, 200}, {0, 20, 20}};
        const size_t recv_at[2][3] = {{0, 0, 20}, {0, bytes, bytes}};
        for (uint32_t r = 0; r < 2; r++)
            tam_coll_begin_runs(&j.colls[r], memory[2 * r], send_at[r], memory[2 * r + 1],
                                recv_at[r]);
        tamis_status status = run(&j);
        assert_int_equal(status, bytes == 200 ? TAMIS_OK : TAMIS_E_PROTOCOL);
        assert_true(bytes == 200 || strstr(tamis_last_error(), "longer or shorter"));
        close_job(&j);
    }
    tam_errors_quiet(was_quiet);
}

/* As the driver does at deadlines, which come first to those in the earliest step. */
static void fail_the_earliest(job *j, uint32_t dead, tamis_status *statuses) {
    uint32_t least = UINT32_MAX;
    for (uint32_t r = 0; r < j->nranks; r++) {
        if (r != dead && statuses[r] == TAMIS_OK && j->colls[r].step < least)
            least = j->colls[r].step;
    }
    for (uint32_t r = 0; r < j->nranks; r++) {
        char text[64];
        if (r == dead || statuses[r] != TAMIS_OK || j->colls[r].step != least)
            continue;
        statuses[r] = TAMIS_E_TIMEOUT;
        tam_coll_fail(&j->colls[r], TAMIS_E_TIMEOUT,
                      tam_coll_missing(&j->colls[r], text, sizeof text));
    }
}

typedef struct wake {
    job *job;
    tamis_status *statuses;
} wake;

static tamis_status advance_recording(void *context, uint32_t rank, bool *done) {
    wake *w = context;
    bool moved;
    tamis_status status = tam_coll_advance(&w->job->colls[rank], &moved, done);
    if (status != TAMIS_OK)
        w->statuses[rank] = status;
    if (status != TAMIS_OK) /* sends abort messages */
        status = tam_coll_advance(&w->job->colls[rank], &moved, done);
    return status;
}

typedef enum call { SUM, FUSED_SUM, SCATTER, SPREAD, CALLS } call;

enum { FEW = 40 }; /* values, and bytes in which they travel: zeros */

static void begin_call(call which, tam_coll *coll, float *values, unsigned char *list) {
    const tam_value_codec *type = tam_value_codec_of(TAMIS_VALUE_INT8);
    if (which == SCATTER)
        tam_coll_begin_scatter(coll, type, list, values, FEW, NULL);
    else if (which == SPREAD)
        tam_coll_begin_spread(coll, type, list, FEW);
    else
        tam_coll_begin_sum(coll, values, FEW, NULL);
}

static void name_the_dead(uint32_t nranks, uint32_t dead, call which) {
    enum { FUSED = 64 };
    tam_plan plan = tam_plan_make(nranks, 1, 4);
    plan.fused_bytes = which == FUSED_SUM ? FUSED : 0;
    job j = open_job_of(&plan, 512, &(tam_sim_config){.has_dead = true, .dead = dead});
    tamis_status *statuses = calloc(nranks, sizeof *statuses);
    float *values = calloc(nranks, FEW * sizeof *values);
    unsigned char *encoded = calloc(nranks, 2 * FEW);
    wake w = {&j, statuses};
    double seconds;
    for (uint32_t r = 0; r < nranks; r++)
        begin_call(which, &j.colls[r], values + r * FEW, encoded + r * 2 * FEW);
    assert_int_equal(tam_sim_run(j.sim, advance_recording, &w, &seconds), TAMIS_E_STATE);
    tamis_status status = TAMIS_E_STATE;
    for (uint32_t i = 0; i < j.colls[0].nsteps && status != TAMIS_OK; i++) {
        fail_the_earliest(&j, dead, statuses);
        status = tam_sim_run(j.sim, advance_recording, &w, &seconds);
    }
    assert_int_equal(status, TAMIS_OK);
    for (uint32_t r = 0; r < nranks; r++) {
        if (r == dead)
            continue;
        assert_int_equal(statuses[r], TAMIS_E_TIMEOUT);
        assert_int_equal(j.colls[r].blamed, dead);
    }
    free(statuses);
    free(values);
    free(encoded);
    close_job(&j);
}

/* Also where the last stage is fused, and so takes one step alone; and in the halves of a sum
 * whose values travel in another form, which have each stage once. */
static void all_ranks_name_the_dead_one(void **state) {
    (void)state;
    bool was_quiet = tam_errors_quiet(true);
    for (call which = SUM; which < CALLS; which++) {
        for (uint32_t p = 2; p < 40; p++)
            for (uint32_t dead = 0; dead < p; dead += 1 + p / 8)
                name_the_dead(p, dead, which);
        name_the_dead(256, 77, which);
        name_the_dead(1000, 999, which);
    }
    tam_errors_quiet(was_quiet);
}

/* No stage is too large for the buffers unnoticed, and no number of ranks either. */
static void what_is_no_plan_is_refused(void **state) {
    (void)state;
    bool was_quiet = tam_errors_quiet(true);
    tam_plan bad[] = {tam_plan_usual(TAM_PLAN_RANKS_MAX + 1, 1), tam_plan_make(64, 1, 8),
                      tam_plan_linear(0)};
    bad[1].radix[0] = 16; /* 16x8 of 64 virtual ranks */
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        tam_coll coll;
        assert_int_equal(tam_coll_open(&coll, &tam_sim_p2p, NULL, 0, &bad[i], 128),
                         TAMIS_E_UNSUPPORTED);
        assert_non_null(strstr(tamis_last_error(), "no plan of"));
        tam_coll_close(&coll, false);
    }
    tam_errors_quiet(was_quiet);
}

/* Whatever is chosen can be opened: of 2400 ranks in nodes of 8, of which some have two virtual
 * ranks, two levels would be 8x512, which is refused. */
static void all_candidates_can_be_opened(void **state) {
    static const uint32_t nodes[] = {1, 2, 4, 8, 16};
    uint32_t levels = 0;
    (void)state;
    for (uint32_t nranks = 2; nranks <= 5000; nranks += nranks < 40 ? 1 : 8)
        for (size_t n = 0; n < sizeof nodes / sizeof nodes[0]; n++) {
            tam_plan plans[TAM_PLAN_CANDIDATES];
            tam_plan_candidates(nranks, nodes[n], plans);
            for (uint32_t i = 0; i < TAM_PLAN_CANDIDATES; i++) {
                tam_coll coll;
                if (tam_coll_open_empty(&coll, &tam_sim_p2p, NULL, 0, &plans[i], 128) != TAMIS_OK)
                    fail_msg("%u ranks, candidate %u: %s", nranks, i, tamis_last_error());
                tam_coll_close(&coll, false);
            }
            levels += plans[1].nstages == 2;
        }
    assert_true(levels > 100);
    bool was_quiet = tam_errors_quiet(true);
    const tam_plan wide = {2400, 4096, 2, {8, 512}, 0};
    tam_coll coll;
    assert_int_equal(tam_coll_open_empty(&coll, &tam_sim_p2p, NULL, 0, &wide, 128),
                     TAMIS_E_UNSUPPORTED);
    tam_coll_close(&coll, false);
    tam_errors_quiet(was_quiet);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_candidates_can_be_opened),
        cmocka_unit_test(a_flipped_bit_is_found_at_its_hop),
        cmocka_unit_test(all_ranks_hear_of_a_refused_message),
        cmocka_unit_test(runs_of_other_lengths_are_refused_as_such),
        cmocka_unit_test(all_ranks_name_the_dead_one),
        cmocka_unit_test(what_is_no_plan_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
