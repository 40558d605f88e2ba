/* SPDX-License-Identifier: MIT
 * test: waits
 *
 * joins [EVENTS [SEED]]: ranks over UCX die at any moment, and newcomers take their places, until
 * there were so many deaths and births. All hold the same parameters all the time, whoever lives
 * goes on, and the memory of a rank that lives through it all stays level.
 */
#include "tests/support/data.h"
#include "tests/support/kills.h"
#include "tests/support/load.h"
#include "tests/support/ports.h"
#include "tests/support/ranks.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <tamis/elastic.h>
#include <tamis/ucx.h>
#include <time.h>
#include <unistd.h>

enum { N = 20000, RANKS = 4, TRIES = 40, LIFE_US = 400000, SOON_US = 60000, PARAMS_EVERY = 8 };

/* What all processes see. */
typedef struct shared {
    atomic_bool ends;
    atomic_uint steps, joins, deaths, failures;
    atomic_uint resident_kib; /* of the rank that lives */
} shared;

static shared *all;

typedef struct job {
    tamis_comm *comm;
    tamis_reducer *r;
    uint32_t id; /* of this process */
    uint64_t step;
    float params[N], before[N]; /* before: the last applied step */
} job;

static void give_up(const char *call) {
    fprintf(stderr, "%s: %s\n", call, tamis_last_error());
    atomic_fetch_add(&all->failures, 1);
    fflush(NULL);
    _exit(9);
}

/* -- the job ---------------------------------------------------------------------------------- */

/* Go on over another communicator, with the parameters of its rank 0. */
static tamis_status move(job *j, tamis_comm *other) {
    tamis_migration report = TAMIS_MIGRATION_INIT;
    tamis_reducer *migrated = NULL;
    tamis_status status = tamis_reducer_migrate(j->r, other, &report, &migrated);
    if (status != TAMIS_OK)
        return status;
    tamis_comm *old = j->comm;
    tamis_reducer_destroy(j->r);
    j->r = migrated;
    j->comm = other;
    tamis_comm_destroy(old);
    if (report.step < j->step)
        memcpy(j->params, j->before, sizeof j->params);
    j->step = report.step;
    return tamis_comm_broadcast(other, 0, j->params, sizeof j->params);
}

static void check_lost(tamis_status status, const char *call) {
    if (tamis_status_loss(status) != TAMIS_LOST_COMM)
        give_up(call);
}

/* @param  from  of which a communicator was lost; j->comm, or one on which nothing was yet */
static void recover(job *j, tamis_comm *from) {
    tamis_comm *smaller = NULL;
    for (int i = 0; i < TRIES; i++) {
        if (tamis_comm_shrink(from, NULL, &smaller) != TAMIS_OK)
            continue;
        if (from != j->comm)
            tamis_comm_destroy(from);
        tamis_status status = move(j, smaller);
        if (status == TAMIS_OK)
            return;
        check_lost(status, "tamis_reducer_migrate");
        from = smaller;
    }
    give_up("tamis_comm_shrink");
}

/* @return whether another communicator took the place of this one */
static bool enlarge(job *j) {
    tamis_comm *larger = NULL;
    tamis_status status = tamis_comm_grow(j->comm, NULL, &larger);
    if (status != TAMIS_OK) {
        check_lost(status, "tamis_comm_grow");
        recover(j, j->comm);
        return true;
    }
    if (!larger)
        return false;
    if (tamis_comm_rank(larger) == 0)
        atomic_fetch_add(&all->joins, tamis_comm_joined(larger));
    status = move(j, larger);
    if (status != TAMIS_OK) {
        check_lost(status, "tamis_reducer_migrate");
        recover(j, larger);
    }
    return true;
}

/* They end together. */
static bool go_on(job *j, tamis_status *status) {
    unsigned char own = atomic_load(&all->ends), ends[64] = {0};
    *status = tamis_comm_allgather(j->comm, &own, 1, ends);
    return *status != TAMIS_OK || !memchr(ends, 1, sizeof ends);
}

static unsigned resident_kib(void) {
    unsigned long pages = 0;
    FILE *file = fopen("/proc/self/statm", "re");
    if (!file || fscanf(file, "%*u %lu", &pages) != 1)
        pages = 0;
    if (file)
        fclose(file);
    return (unsigned)(pages * (unsigned long)sysconf(_SC_PAGESIZE) / 1024);
}

static void run(job *j, bool lives) {
    tamis_status status;
    while (go_on(j, &status)) {
        if (status == TAMIS_OK && enlarge(j))
            continue;
        if (status == TAMIS_OK)
            status = kills_step(j->r, j->id % 8, N, &j->step, j->params, j->before);
        if (status != TAMIS_OK) {
            check_lost(status, "a step");
            recover(j, j->comm);
        }
        if (lives && status == TAMIS_OK) {
            atomic_store(&all->resident_kib, resident_kib());
            atomic_fetch_add(&all->steps, 1);
        }
    }
    tamis_reducer_destroy(j->r);
    tamis_comm_destroy(j->comm);
}

static void open_reducer(job *j, uint64_t seed) {
    static const char *const schemes[] = {"tamis", "topk", "oktopk", "exdyna", "dense"};
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    tamis_update update = TAMIS_UPDATE_INIT;
    config.scheme = schemes[seed % 5];
    config.density = 0.02;
    config.bucket_length = seed % 3 == 0 ? 0 : N / 3;
    if (seed % 4 == 0 && seed % 5 != 4) {
        update.rule = TAMIS_UPDATE_ADAM;
        config.scheme = NULL;
        config.update = &update;
    }
    if (data_reducer(j->comm, N, &config, &j->r) != TAMIS_OK)
        give_up("tamis_reducer_create");
}

/* -- processes -------------------------------------------------------------------------------- */

static tamis_comm_config deadline(void) {
    tamis_comm_config config = TAMIS_COMM_CONFIG_INIT;
    config.timeout_ms = test_long_ms();
    return config;
}

static void begin(job *j, uint64_t seed) {
    const tamis_comm_config config = deadline();
    test_port_place(j->id, RANKS);
    if (tamis_comm_create_ucx(NULL, &config, &j->comm) != TAMIS_OK)
        give_up("tamis_comm_create_ucx");
    open_reducer(j, seed);
}

/* Whoever has no job yet has a communicator of its own. */
static void join(job *j, uint64_t seed) {
    const tamis_comm_config config = deadline();
    tamis_comm *larger = NULL;
    if (tamis_comm_create_local(1, &config, &j->comm) != TAMIS_OK)
        give_up("tamis_comm_create_local");
    open_reducer(j, seed);
    while (tamis_comm_join_ucx(NULL, &config, &larger) != TAMIS_OK)
        if (atomic_load(&all->ends))
            _exit(0);
    tamis_status status = move(j, larger);
    if (status != TAMIS_OK) {
        check_lost(status, "tamis_reducer_migrate");
        recover(j, larger);
    }
}

static uint64_t death_us;

static void *die(void *arg) {
    const struct timespec span = {(time_t)(death_us / 1000000), (long)(death_us % 1000000) * 1000};
    (void)arg;
    nanosleep(&span, NULL);
    if (!atomic_load(&all->ends))
        raise(SIGKILL);
    return NULL;
}

static pid_t start(uint32_t id, uint64_t seed, bool lives) {
    static job j;
    fflush(NULL);
    pid_t pid = fork();
    if (pid != 0)
        return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    uint64_t drawn = data_mix(1000 * seed + id);
    death_us = 1 + drawn % (id % 5 == 0 ? SOON_US : LIFE_US);
    pthread_t thread;
    if (!lives && id >= RANKS && pthread_create(&thread, NULL, die, NULL) != 0)
        _exit(9);
    j.id = id;
    if (id < RANKS)
        begin(&j, seed);
    else
        join(&j, seed);
    if (!lives && id < RANKS && pthread_create(&thread, NULL, die, NULL) != 0)
        _exit(9);
    run(&j, lives);
    fflush(NULL);
    _exit(0);
}

typedef struct crowd {
    pid_t pids[RANKS];
    uint32_t next; /* id */
    uint64_t seed;
} crowd;

/* @return how many had died, whose places are taken */
static unsigned look_after(crowd *c, uint32_t lives) {
    unsigned dead = 0;
    for (uint32_t i = 0; i < RANKS; i++) {
        int raw;
        if (waitpid(c->pids[i], &raw, WNOHANG) != c->pids[i])
            continue;
        if (i == lives || !WIFSIGNALED(raw) || WTERMSIG(raw) != SIGKILL) {
            fprintf(stderr, "seed %llu: process %u ended with %#x\n", (unsigned long long)c->seed,
                    i, (unsigned)raw);
            atomic_fetch_add(&all->failures, 1);
        }
        dead++;
        c->pids[i] = start(c->next++, c->seed, false);
    }
    return dead;
}

static void end_all(const crowd *c, uint32_t lives) {
    int raw = -1;
    atomic_store(&all->ends, true);
    waitpid(c->pids[lives], &raw, 0);
    atomic_fetch_add(&all->failures, raw != 0);
    for (uint32_t i = 0; i < RANKS; i++) {
        if (i == lives)
            continue;
        sleep_ms(100);
        kill(c->pids[i], SIGKILL); /* it may wait to join */
        waitpid(c->pids[i], &raw, 0);
    }
}

/* @return whether all is well */
static bool soak(uint64_t seed, unsigned events, unsigned seconds) {
    crowd c = {.next = RANKS, .seed = seed};
    const uint32_t lives = 1 + seed % (RANKS - 1);
    unsigned deaths = 0, early_kib = 0, before = atomic_load(&all->failures);
    time_t until = time(NULL) + (time_t)seconds;
    memset(all, 0, offsetof(shared, failures));
    test_port_choose();
    for (uint32_t i = 0; i < RANKS; i++)
        c.pids[i] = start(i, seed, i == lives);
    while (deaths + atomic_load(&all->joins) < events && time(NULL) < until &&
           atomic_load(&all->failures) == before) {
        deaths += look_after(&c, lives);
        if (early_kib == 0 && deaths + atomic_load(&all->joins) > events / 4)
            early_kib = atomic_load(&all->resident_kib);
        sleep_ms(1);
    }
    bool enough = deaths + atomic_load(&all->joins) >= events;
    end_all(&c, lives);
    printf("seed %llu: %u deaths, %u joins, %u steps; memory of the one that lives %u, %u KiB%s\n",
           (unsigned long long)seed, deaths, atomic_load(&all->joins), atomic_load(&all->steps),
           early_kib, atomic_load(&all->resident_kib), enough ? "" : "; TOO SLOW");
    return enough && atomic_load(&all->failures) == before;
}

int main(int argc, char **argv) {
    unsigned events = argc > 1 ? (unsigned)strtoul(argv[1], NULL, 10) : 8, sound = 0;
    uint64_t first = argc > 2 ? strtoull(argv[2], NULL, 10) : 1, runs = argc > 2 ? 1 : 4;
    all = mmap(NULL, sizeof *all, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (all == MAP_FAILED)
        return 1;
    for (uint64_t seed = first; seed < first + runs; seed++)
        sound += soak(seed, events, 100 + events / 4);
    return sound != runs;
}
