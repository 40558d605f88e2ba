/* SPDX-License-Identifier: MIT
 * test: waits
 *
 * Processes that join a job over UCX: nothing is lost or counted twice, moments are the mean of the
 * others', and whoever dies, stops, differs or is no newcomer at all costs the job nothing.
 */
#include "tests/support/data.h"
#include "tests/support/ports.h"
#include "tests/support/processes.h"
#include "tests/support/ranks.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tamis/elastic.h>
#include <tamis/local.h>
#include <tamis/state.h>
#include <tamis/stats.h>
#include <tamis/ucx.h>
#include <unistd.h>

enum { N = 3000, BEFORE = 5, AFTER = 6, MOST = 3 };

static int failures;
static uint32_t njob = 2; /* ranks of a job; one more joins */

static void expect(const char *what, uint32_t nranks, process_body body, void *arg, int last) {
    int statuses[PROCESSES_MOST];
    test_port_choose();
    processes_run(nranks, 100, body, arg, statuses);
    bool well = true;
    for (uint32_t r = 0; r < nranks; r++)
        well = well && statuses[r] == (r == nranks - 1 ? last : 0);
    failures += !well;
    printf("%s: %s, exit statuses%s\n", what, well ? "passed" : "FAILED",
           processes_text(statuses, nranks));
}

/* -- a job and who joins it ------------------------------------------------------------------- */

typedef struct scene {
    const char *scheme;
    const tamis_update *update;
    tamis_op op;
    double density; /* of the newcomer; 0: that of the others */
} scene;

typedef struct job {
    tamis_comm *comm;
    tamis_reducer *r;
    uint32_t id;
    float applied[N];
} job;

static tamis_status open_reducer(job *j, const scene *s, double density) {
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    config.scheme = s->scheme;
    config.density = density;
    config.op = s->op;
    config.bucket_length = N / 3;
    config.update = s->update;
    return data_reducer(j->comm, N, &config, &j->r);
}

static int steps(job *j, uint32_t from, uint32_t until) {
    static float grad[N];
    const tamis_step step = data_step(grad);
    for (uint32_t i = from; i < until; i++) {
        data_fill(DATA_HEAVY, j->id, i, N, grad);
        DEMAND_OK(tamis_reducer_start(j->r, &step));
        DEMAND_OK(tamis_reducer_wait(j->r));
        for (size_t e = 0; e < N; e++)
            j->applied[e] += grad[e];
    }
    return 0;
}

static int open_job(job *j, const scene *s, uint32_t timeout_ms) {
    tamis_comm_config config = TAMIS_COMM_CONFIG_INIT;
    config.timeout_ms = timeout_ms;
    test_port_place(j->id, njob);
    DEMAND_OK(tamis_comm_create_ucx(NULL, &config, &j->comm));
    DEMAND_OK(open_reducer(j, s, 0.02));
    return steps(j, 0, BEFORE);
}

/* As many calls on all ranks. @param larger  [out]  NULL: nobody came */
static int await_newcomer(job *j, tamis_comm **larger, int calls) {
    *larger = NULL;
    for (int i = 0; i < calls && !*larger; i++) {
        DEMAND_OK(tamis_comm_grow(j->comm, NULL, larger));
        sleep_ms(10);
    }
    return 0;
}

static int come(job *j, const scene *s, tamis_comm **larger) {
    tamis_comm_config config = TAMIS_COMM_CONFIG_INIT;
    config.timeout_ms = test_long_ms();
    DEMAND_OK(tamis_comm_create_local(1, NULL, &j->comm));
    DEMAND_OK(open_reducer(j, s, s->density > 0.0 ? s->density : 0.02));
    DEMAND_OK(tamis_comm_join_ucx(NULL, &config, larger));
    return 0;
}

static int move(job *j, tamis_comm *larger) {
    tamis_migration report = TAMIS_MIGRATION_INIT;
    tamis_reducer *migrated;
    DEMAND(tamis_comm_joined(larger) == 1 && tamis_comm_nranks(larger) == njob + 1,
           "%u of %u joined", tamis_comm_joined(larger), tamis_comm_nranks(larger));
    DEMAND_OK(tamis_reducer_migrate(j->r, larger, &report, &migrated));
    DEMAND(report.step == BEFORE && report.gone == 0, "step %d, gone %u", (int)report.step,
           report.gone);
    tamis_reducer_destroy(j->r);
    tamis_comm_destroy(j->comm);
    j->r = migrated;
    j->comm = larger;
    DEMAND_OK(tamis_comm_broadcast(larger, 0, j->applied, sizeof j->applied));
    return 0;
}

/* -- nothing is lost -------------------------------------------------------------------------- */

/* What a rank gives, with its share in the result. */
static void add_given(uint32_t id, bool mean, float *sum) {
    static float grad[N];
    for (uint32_t i = id < njob ? 0 : BEFORE; i < BEFORE + AFTER; i++) {
        float share = !mean ? 1.0f : 1.0f / (float)(i < BEFORE ? njob : njob + 1);
        data_fill(DATA_HEAVY, id, i, N, grad);
        for (size_t e = 0; e < N; e++)
            sum[e] += share * grad[e];
    }
}

static int check_whole(const job *j, bool mean) {
    static float own[N], all[MOST * N], given[N];
    uint32_t nranks = njob + 1;
    float share = mean ? 1.0f / (float)nranks : 1.0f;
    if (tamis_reducer_save_residual(j->r, own) != TAMIS_OK) /* scheme dense has none */
        memset(own, 0, sizeof own);
    DEMAND_OK(tamis_comm_allgather(j->comm, own, sizeof own, all));
    for (uint32_t id = 0; id < nranks; id++)
        add_given(id, mean, given);
    for (size_t e = 0; e < N; e++) {
        float found = j->applied[e];
        for (uint32_t r = 0; r < nranks; r++)
            found += share * all[r * N + e];
        DEMAND(found == given[e], "element %zu: %g given, %g found", e, (double)given[e],
               (double)found);
    }
    return 0;
}

static int nothing_is_lost(const tamis_callbacks *net, void *arg) {
    static job j;
    const scene *s = arg;
    tamis_comm *larger = NULL;
    j.id = net->rank;
    if (j.id < njob)
        DEMAND(open_job(&j, s, test_long_ms()) == 0, "the job");
    DEMAND((j.id < njob ? await_newcomer(&j, &larger, 6000) : come(&j, s, &larger)) == 0, "join");
    DEMAND(larger, "nobody came");
    DEMAND(move(&j, larger) == 0 && steps(&j, BEFORE, BEFORE + AFTER) == 0, "the larger job");
    DEMAND(check_whole(&j, s->op == TAMIS_OP_MEAN) == 0, "sums");
    DEMAND_OK(tamis_comm_check_equal(j.comm, j.applied, sizeof j.applied));
    tamis_reducer_destroy(j.r);
    tamis_comm_destroy(j.comm);
    return 0;
}

/* A rank alone has then what it had: no part of it twice. */
static int a_newcomer_dies(const tamis_callbacks *net, void *arg) {
    static job j;
    static float left[N], given[N], grad[N];
    const scene *s = arg;
    tamis_comm *other = NULL;
    tamis_reducer *migrated = NULL;
    j.id = net->rank;
    if (j.id < njob)
        DEMAND(open_job(&j, s, test_long_ms()) == 0, "the job");
    DEMAND((j.id < njob ? await_newcomer(&j, &other, 6000) : come(&j, s, &other)) == 0, "join");
    DEMAND(other && move(&j, other) == 0, "the larger job");
    if (j.id == njob)
        raise(SIGKILL);
    while (tamis_comm_check_equal(j.comm, "", 0) == TAMIS_OK)
        sleep_ms(1);
    DEMAND_OK(tamis_comm_shrink(j.comm, NULL, &other));
    DEMAND_OK(tamis_reducer_migrate(j.r, other, NULL, &migrated));
    DEMAND_OK(tamis_reducer_save_residual(migrated, left));
    for (uint32_t i = 0; i < BEFORE; i++) {
        data_fill(DATA_HEAVY, j.id, i, N, grad);
        for (size_t e = 0; e < N; e++)
            given[e] += grad[e];
    }
    for (size_t e = 0; e < N; e++)
        DEMAND(j.applied[e] + left[e] == given[e], "element %zu: %g given, %g found", e,
               (double)given[e], (double)(j.applied[e] + left[e]));
    return 0;
}

/* -- moments ---------------------------------------------------------------------------------- */

static int check_mean(const job *j, const float *own, const char *what) {
    static float all[MOST * N];
    DEMAND_OK(tamis_comm_allgather(j->comm, own, N * sizeof own[0], all));
    for (size_t e = 0; e < N; e++)
        DEMAND(all[2 * N + e] == all[e] / 2 + all[N + e] / 2, "%s moment %zu: %g of %g and %g",
               what, e, (double)all[2 * N + e], (double)all[e], (double)all[N + e]);
    return 0;
}

static int moments_are_the_mean(const tamis_callbacks *net, void *arg) {
    static job j;
    static float first[N], second[N];
    const scene *s = arg;
    tamis_comm *larger = NULL;
    uint64_t passes = 0;
    j.id = net->rank;
    if (j.id < njob)
        DEMAND(open_job(&j, s, test_long_ms()) == 0, "the job");
    DEMAND((j.id < njob ? await_newcomer(&j, &larger, 6000) : come(&j, s, &larger)) == 0, "join");
    DEMAND(larger && move(&j, larger) == 0, "the larger job");
    DEMAND_OK(tamis_reducer_save_moments(j.r, first, second, &passes));
    DEMAND(passes == BEFORE, "%d passes", (int)passes);
    DEMAND(check_mean(&j, first, "first") == 0 && check_mean(&j, second, "second") == 0, "means");
    DEMAND(steps(&j, BEFORE, BEFORE + AFTER) == 0, "steps");
    DEMAND_OK(tamis_comm_check_equal(j.comm, j.applied, sizeof j.applied));
    return 0;
}

/* -- who is not taken in ---------------------------------------------------------------------- */

/* The old communicator and its reducers go on. */
static int another_option(const tamis_callbacks *net, void *arg) {
    static job j;
    const scene *s = arg;
    tamis_comm *larger = NULL;
    tamis_reducer *migrated = NULL;
    j.id = net->rank;
    if (j.id < njob)
        DEMAND(open_job(&j, s, test_long_ms()) == 0, "the job");
    DEMAND((j.id < njob ? await_newcomer(&j, &larger, 6000) : come(&j, s, &larger)) == 0, "join");
    DEMAND(larger, "nobody came");
    DEMAND(tamis_reducer_migrate(j.r, larger, NULL, &migrated) == TAMIS_E_MISMATCH &&
               has_word(tamis_last_error(), "density differs"),
           "%s", tamis_last_error());
    tamis_comm_destroy(larger);
    if (j.id < njob)
        DEMAND(steps(&j, BEFORE, BEFORE + AFTER) == 0, "the job without it");
    tamis_reducer_destroy(j.r);
    tamis_comm_destroy(j.comm);
    return 0;
}

typedef enum stranger { SILENT, JUNK, STOPS, DIES, STRANGERS } stranger;

/* Until the job makes an offer: where it begins, it closes the connection. */
static int await_offer(void) {
    const uint64_t greeting[] = {TEST_GREETING, 0};
    char offer[8];
    for (int s = test_port_connect(); s >= 0; s = test_port_connect()) {
        if (write(s, greeting, sizeof greeting) == sizeof greeting &&
            read(s, offer, sizeof offer) == sizeof offer)
            return 0;
        close(s);
    }
    DEMAND(false, "no offer");
}

/* A process that comes and is no good. */
static int disturb(stranger kind) {
    const uint64_t junk[] = {0x5a5a5a5a, 1, 2, 3};
    if (kind == STOPS || kind == DIES)
        DEMAND(await_offer() == 0, "no offer");
    if (kind == DIES)
        raise(SIGKILL);
    for (int i = 0; i < 10 && kind != STOPS; i++) { /* some while it begins, others when it runs */
        int s = test_port_connect();
        DEMAND(s >= 0, "nobody listens");
        if (kind == JUNK)
            DEMAND(write(s, junk, sizeof junk) > 0, "write");
        sleep_ms(100);
    }
    sleep_ms(test_stretch_ms(3000));
    return 0;
}

static int beside_a_stranger(const tamis_callbacks *net, void *arg) {
    static job j;
    const scene s = {.scheme = "tamis"};
    const stranger *kind = arg;
    tamis_comm *larger = NULL;
    j.id = net->rank;
    if (j.id == njob)
        return disturb(*kind);
    DEMAND(open_job(&j, &s, test_stretch_ms(5000)) == 0, "the job");
    DEMAND(await_newcomer(&j, &larger, 150) == 0, "grow");
    DEMAND(!larger, "the stranger was taken in");
    DEMAND(steps(&j, BEFORE, BEFORE + AFTER) == 0, "the job without it");
    tamis_reducer_destroy(j.r);
    tamis_comm_destroy(j.comm);
    return 0;
}

/* -- what callers do wrong -------------------------------------------------------------------- */

static int wrong_addresses(const tamis_callbacks *net, void *arg) {
    static job j;
    const scene s = {.scheme = "tamis"};
    tamis_comm *larger = NULL, *alone = NULL;
    (void)arg;
    j.id = net->rank;
    DEMAND(open_job(&j, &s, test_long_ms()) == 0, "the job");
    DEMAND(tamis_comm_grow(NULL, NULL, &larger) == TAMIS_E_ARGUMENT, "NULL");
    DEMAND(tamis_comm_grow(j.comm, NULL, NULL) == TAMIS_E_ARGUMENT, "NULL");
    DEMAND(tamis_comm_grow(j.comm, j.id ? "127.0.0.1:1" : "127.0.0.1:2", &larger) ==
                   TAMIS_E_MISMATCH &&
               has_word(tamis_last_error(), "address of newcomers"),
           "%s", tamis_last_error());
    DEMAND(tamis_comm_grow(j.comm, "198.51.100.1:29999", &larger) == TAMIS_E_ARGUMENT &&
               has_word(tamis_last_error(), "no rank can listen"),
           "%s", tamis_last_error());
    DEMAND(tamis_comm_grow(j.comm, "nowhere", &larger) == TAMIS_E_ARGUMENT, "%s",
           tamis_last_error());
    DEMAND_OK(tamis_comm_grow(j.comm, NULL, &larger));
    unsetenv("TAMIS_RENDEZVOUS");
    DEMAND(tamis_comm_create_local(1, NULL, &alone) == TAMIS_OK &&
               tamis_comm_grow(alone, "127.0.0.1:1", &larger) == TAMIS_E_UNSUPPORTED &&
               has_word(tamis_last_error(), "transport local"),
           "%s", tamis_last_error());
    DEMAND(!larger && steps(&j, BEFORE, BEFORE + AFTER) == 0, "the job goes on");
    tamis_comm_destroy(alone);
    tamis_reducer_destroy(j.r);
    tamis_comm_destroy(j.comm);
    return 0;
}

static int no_job(const tamis_callbacks *net, void *arg) {
    tamis_comm_config config = TAMIS_COMM_CONFIG_INIT;
    tamis_comm *comm = NULL;
    (void)net, (void)arg;
    config.timeout_ms = 300;
    DEMAND(tamis_comm_join_ucx(NULL, &config, NULL) == TAMIS_E_ARGUMENT, "NULL");
    DEMAND(tamis_comm_join_ucx("nowhere", &config, &comm) == TAMIS_E_ARGUMENT, "nowhere");
    DEMAND(tamis_comm_join_ucx(NULL, &config, &comm) == TAMIS_E_TIMEOUT && !comm &&
               has_word(tamis_last_error(), "no job took this process in"),
           "%s", tamis_last_error());
    return 0;
}

int main(void) {
    static const char *const schemes[] = {"tamis", "topk", "oktopk", "exdyna", "deft", "dense"};
    static const char *const kinds[] = {"silent", "junk", "stops", "dies"};
    tamis_update update = TAMIS_UPDATE_INIT;
    update.rule = TAMIS_UPDATE_ADAM;
    update.beta1 = 0.9;
    for (size_t i = 0; i < sizeof schemes / sizeof schemes[0]; i++) {
        scene s = {.scheme = schemes[i], .op = TAMIS_OP_SUM};
        expect(schemes[i], njob + 1, nothing_is_lost, &s, 0);
    }
    njob = 1; /* so that all shares are exact */
    for (size_t i = 0; i < sizeof schemes / sizeof schemes[0]; i++) {
        scene s = {.scheme = schemes[i], .op = TAMIS_OP_MEAN};
        expect(schemes[i], njob + 1, nothing_is_lost, &s, 0);
    }
    scene mean = {.scheme = "tamis", .op = TAMIS_OP_MEAN};
    expect("a newcomer dies", njob + 1, a_newcomer_dies, &mean, 128 + 9);
    njob = 2;
    scene adam = {.update = &update}, other = {.scheme = "tamis", .density = 0.05};
    expect("moments", njob + 1, moments_are_the_mean, &adam, 0);
    expect("another option", njob + 1, another_option, &other, 0);
    for (stranger k = 0; k < STRANGERS; k++)
        expect(kinds[k], njob + 1, beside_a_stranger, &k, k == DIES ? 128 + 9 : 0);
    expect("wrong addresses", njob, wrong_addresses, NULL, 0);
    expect("no job", 1, no_job, NULL, 0);
    return failures > 0;
}
