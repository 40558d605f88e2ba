/* SPDX-License-Identifier: MIT */
#include "tests/support/kills.h"

#include "tests/support/data.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <tamis/elastic.h>
#include <time.h>
#include <unistd.h>

enum { N = KILLS_MOST, STEPS = 200, TRIES = 40, RUN_US = 120000, SOON_US = 15000 };

typedef struct job {
    tamis_comm *comm;
    tamis_reducer *r;
    uint32_t rank, nranks;      /* of the first communicator */
    float params[N], before[N]; /* before: the last applied step */
    uint64_t step, recovered;
} job;

tamis_status kills_step(tamis_reducer *r, uint32_t rank, size_t n, uint64_t *number, float *params,
                        float *before) {
    static float grad[KILLS_MOST];
    const tamis_step step = data_step(grad);
    data_fill(DATA_HEAVY, rank, (uint32_t)*number % 4, n, grad);
    tamis_status status = tamis_reducer_start(r, &step);
    if (status == TAMIS_OK)
        status = tamis_reducer_wait(r);
    if (status != TAMIS_OK)
        return status;
    memcpy(before, params, n * sizeof before[0]);
    for (size_t i = 0; i < n; i++)
        params[i] -= grad[i];
    (*number)++;
    return TAMIS_OK;
}

static void give_up(const char *call) {
    fprintf(stderr, "%s: %s\n", call, tamis_last_error());
    fflush(NULL);
    _exit(9);
}

/* Who dies meanwhile is left behind in turn. */
static tamis_comm *shrink(tamis_comm *comm) {
    tamis_comm *smaller = NULL;
    for (int i = 0; i < TRIES; i++)
        if (tamis_comm_shrink(comm, NULL, &smaller) == TAMIS_OK)
            return smaller;
    give_up("tamis_comm_shrink");
    return NULL;
}

static void recover(job *j) {
    tamis_migration report = TAMIS_MIGRATION_INIT;
    tamis_reducer *migrated = NULL;
    tamis_comm *from = j->comm;
    for (;;) {
        tamis_comm *smaller = shrink(from);
        if (from != j->comm)
            tamis_comm_destroy(from);
        from = smaller;
        tamis_status status = tamis_reducer_migrate(j->r, smaller, &report, &migrated);
        if (status == TAMIS_OK)
            break;
        if (tamis_status_loss(status) != TAMIS_LOST_COMM)
            give_up("tamis_reducer_migrate");
    }
    tamis_reducer_destroy(j->r);
    tamis_comm_destroy(j->comm);
    j->r = migrated;
    j->comm = from;
    j->recovered++;
    if (report.step < j->step)
        memcpy(j->params, j->before, sizeof j->params);
    j->step = report.step;
}

/* -- deaths ----------------------------------------------------------------------------------- */

static uint64_t death_us; /* after the begin of the run; 0: this rank lives */

static void *die(void *arg) {
    static const char words[] = "a rank dies\n";
    const struct timespec span = {(time_t)(death_us / 1000000), (long)(death_us % 1000000) * 1000};
    (void)arg;
    nanosleep(&span, NULL);
    if (write(STDERR_FILENO, words, sizeof words - 1) < 0)
        _exit(9);
    raise(SIGKILL);
    return NULL;
}

static void draw_deaths(uint64_t rank, uint64_t nranks, uint64_t seed) {
    uint64_t first = data_mix(2 * seed), second = data_mix(2 * seed + 1), one = first % nranks;
    uint64_t other = (one + 1 + second % (nranks - 1)) % nranks, us = 1 + (first >> 8) % RUN_US;
    uint64_t later = seed % 4 == 1 ? (second >> 8) % RUN_US : us + (second >> 8) % SOON_US;
    if (rank == one)
        death_us = us;
    if (rank == other && nranks > 2 && seed % 2 == 1)
        death_us = 1 + later;
    pthread_t thread;
    prctl(PR_SET_TIMERSLACK, 1ul, 0ul, 0ul, 0ul);
    if (death_us > 0 && pthread_create(&thread, NULL, die, NULL) != 0)
        _exit(9);
}

/* The last step is applied by all that live, or by none: who was alone in it makes it again. */
static void run(job *j) {
    tamis_status status;
    for (;;) {
        while (j->step < STEPS &&
               (status = kills_step(j->r, j->rank, N, &j->step, j->params, j->before)) == TAMIS_OK)
            ;
        if (j->step == STEPS &&
            tamis_comm_check_equal(j->comm, j->params, sizeof j->params) == TAMIS_OK)
            return;
        if (tamis_comm_status(j->comm) == TAMIS_OK)
            give_up("a step");
        recover(j);
    }
}

static void open_reducer(job *j, uint64_t seed) {
    static const char *const schemes[] = {"tamis", "topk", "oktopk", "exdyna", "dense"};
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    config.scheme = schemes[seed % 5];
    config.density = 0.02;
    config.bucket_length = seed % 3 == 0 ? 0 : N / 3;
    if (data_reducer(j->comm, N, &config, &j->r) != TAMIS_OK ||
        tamis_comm_check_equal(j->comm, j->params, sizeof j->params) != TAMIS_OK)
        give_up("tamis_reducer_create");
}

uint64_t kills_run(tamis_comm *comm, uint64_t seed, bool dies) {
    static job j;
    j = (job){.comm = comm, .rank = tamis_comm_rank(comm), .nranks = tamis_comm_nranks(comm)};
    open_reducer(&j, seed);
    if (dies)
        draw_deaths(j.rank, j.nranks, seed);
    run(&j);
    tamis_reducer_destroy(j.r);
    tamis_comm_destroy(j.comm);
    return j.recovered;
}
