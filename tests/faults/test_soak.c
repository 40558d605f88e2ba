/* SPDX-License-Identifier: MIT
 *
 * Many small steps of eight ranks, in lives. A life begins with the state that the last one left,
 * also of another number of ranks, and something goes wrong in it three times: a rank dies with or
 * without a word, one abandons the communicator, or gives NaN. Those that are left go on. Gradients
 * are whole numbers and results are sums, so after every life
 *
 *     what had waited + what was given = what was applied + what waits + what the dead held
 *
 * to the last unit; replicas are equal; memory, descriptors and threads are what they were.
 *
 *     TEST_SOAK=1000000 build/release/tests/faults/test_faults_soak soak
 *
 * test: slow
 */
#include "lib/base/base.h"
#include "tests/support/data.h"
#include "tests/support/ranks.h"
#include <dirent.h>
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tamis/elastic.h>
#include <tamis/state.h>
#include <unistd.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

enum { RANKS = 8, N = 160, EVENTS = 3, STEPS_USUAL = 20000, EVENT_STEPS = 300 };
enum { SILENT_MS = 200 };

/* The first lives fill caches, a few hundred KiB a thread. */
enum { KIB_MOST = 1024, KIB_FEW_STEPS = 4096, FEW_STEPS = 100000 };

typedef enum what { LEAVES, FALLS_SILENT, ABANDONS, GIVES_NAN, WHATS } what;

/* Before a step of a life one rank does something, unless it is dead. */
typedef struct event {
    what what;
    uint32_t rank;
    uint64_t step;
} event;

/* What a rank leaves behind. held_back: what it would hold if it had not made its last step */
typedef struct remains {
    uint64_t step, hash;
    bool out; /* it died, or the others have gone on without it */
    double given[N], applied[N], held[N], held_back[N];
    tamis_reducer *reducer; /* of a silent one, until the life is over */
    tamis_comm *comm;
} remains;

/* Where those that were left went on. */
typedef struct recovery {
    uint64_t step;
    uint32_t left; /* a bit for each rank */
} recovery;

typedef struct life {
    const char *scheme;
    uint64_t seed, first, last; /* steps */
    event events[EVENTS];
    uint32_t nsaved; /* ranks of the state that it begins with; 0: none */
    float saved[RANKS][N];
    void *control[RANKS];
    size_t control_bytes[RANKS];
    remains ranks[RANKS];
    pthread_mutex_t lock;
    recovery recoveries[4 * EVENTS];
    uint32_t nrecoveries;
} life;

typedef struct figures {
    uint64_t steps, lives, extinct, deaths, went_back, happened[WHATS];
} figures;

/* -- one rank --------------------------------------------------------------------------------- */

typedef struct self {
    test_rank *rank;
    life *l;
    remains *mine;
    tamis_comm *comm;
    tamis_reducer *reducer;
    uint32_t ids[RANKS]; /* of the ranks of comm, when the life began */
    float last[N];       /* the last result */
    unsigned passed;     /* events of this rank, a bit for each */
} self;

static void add(const float *values, double sign, double *sums) {
    for (size_t i = 0; i < N; i++)
        sums[i] += sign * (double)values[i];
}

static void hold(const self *s, double *out) {
    const float *residual = NULL;
    memset(out, 0, N * sizeof out[0]);
    if (tamis_reducer_residual(s->reducer, &residual) == TAMIS_OK && residual)
        add(residual, 1.0, out);
}

static void fill(const self *s, float *grad) {
    uint64_t key = data_mix(s->l->seed ^ (s->mine->step * RANKS + s->rank->id));
    for (size_t i = 0; i < N; i++) {
        uint64_t bits = data_mix(key + i);
        grad[i] = (float)(bits % 5 == 0 ? (int)(bits >> 8 & 1023) - 512 : (int)(bits >> 8 & 7) - 3);
    }
}

/* What is given counts when the reducer has it; what a failed step gave waits there. */
static tamis_status one_step(self *s, bool nan) {
    float grad[N], given[N];
    double before[N];
    const tamis_step step = data_step(grad);
    fill(s, grad);
    memcpy(given, grad, sizeof given);
    if (nan)
        grad[N / 2] = NAN;
    hold(s, before);
    tamis_status status = tamis_reducer_start(s->reducer, &step);
    if (status != TAMIS_OK)
        return status;
    status = tamis_reducer_wait(s->reducer);
    if (nan) /* that entry is dropped, the others wait */
        given[N / 2] = 0.0f;
    add(given, 1.0, s->mine->given);
    if (status == TAMIS_E_NONFINITE) { /* a step in which nothing was applied */
        memset(grad, 0, sizeof grad);
    } else if (status != TAMIS_OK) {
        add(given, 1.0, s->mine->held_back);
        return status;
    }
    memcpy(s->mine->held_back, before, sizeof before);
    add(given, 1.0, s->mine->held_back);
    add(grad, 1.0, s->mine->applied);
    memcpy(s->last, grad, sizeof grad);
    s->mine->hash = data_hash(s->mine->hash, grad, sizeof grad);
    s->mine->step++;
    return TAMIS_OK;
}

static tamis_status make(self *s) {
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    config.scheme = s->l->scheme;
    config.density = 0.05;
    config.op = TAMIS_OP_SUM;
    return data_reducer(s->comm, N, &config, &s->reducer);
}

/* As many ranks as before go on with their own states; else the first have the residuals. */
static void load(self *s) {
    const life *l = s->l;
    uint32_t me = s->rank->id, from = me < l->nsaved ? me : 0;
    float zero[N] = {0}, residual[N];
    bool whole = l->nsaved == s->rank->nranks;
    memcpy(residual, me < l->nsaved ? l->saved[me] : zero, sizeof residual);
    for (uint32_t r = s->rank->nranks; me == 0 && r < l->nsaved; r++)
        for (size_t i = 0; i < N; i++)
            residual[i] += l->saved[r][i];
    RANK_OK(s->rank, tamis_reducer_load_memory(s->reducer, l->control[from], l->control_bytes[from],
                                               whole ? residual : NULL));
    if (!whole)
        RANK_OK(s->rank, tamis_reducer_load_memory(s->reducer, NULL, 0, residual));
    add(residual, 1.0, s->mine->given); /* it was, in another life */
}

static void save(self *s) {
    life *l = s->l;
    const float *residual;
    uint32_t me = s->rank->id;
    RANK_OK(s->rank, tamis_reducer_control_bytes(s->reducer, &l->control_bytes[me]));
    free(l->control[me]);
    l->control[me] = malloc(l->control_bytes[me]);
    RANK_OK(s->rank, tamis_reducer_save_control(s->reducer, l->control[me], l->control_bytes[me]));
    RANK_OK(s->rank, tamis_reducer_residual(s->reducer, &residual));
    memcpy(l->saved[me], residual, sizeof l->saved[me]);
}

/* -- what goes wrong -------------------------------------------------------------------------- */

static void leave(self *s, bool silent) {
    s->mine->out = true;
    hold(s, s->mine->held);
    if (silent) {
        s->mine->reducer = s->reducer;
        s->mine->comm = s->comm;
        return;
    }
    tamis_reducer_destroy(s->reducer);
    tamis_comm_destroy(s->comm);
}

static void record_recovery(self *s, uint64_t step) {
    life *l = s->l;
    uint32_t left = 0;
    for (uint32_t r = 0; r < tamis_comm_nranks(s->comm); r++)
        left |= 1u << s->ids[r];
    pthread_mutex_lock(&l->lock);
    recovery *last = l->nrecoveries ? &l->recoveries[l->nrecoveries - 1] : NULL;
    if (!last || last->left != left || last->step != step)
        l->recoveries[l->nrecoveries++] = (recovery){step, left};
    pthread_mutex_unlock(&l->lock);
}

static void follow(self *s, const tamis_comm *smaller) {
    for (uint32_t r = 0; r < tamis_comm_nranks(smaller); r++)
        s->ids[r] = s->ids[tamis_comm_rank_before(smaller, r)];
}

/* Again, as long as others are lost on the way. @return what follows s->comm; NULL: the others have
 * gone on without this rank, or it has failed */
static tamis_comm *migrate(self *s, tamis_migration *report, tamis_reducer **migrated) {
    tamis_comm *lost = s->comm, *smaller = NULL;
    tamis_status status = TAMIS_E_TIMEOUT;
    while (tamis_status_loss(status) == TAMIS_LOST_COMM) {
        status = tamis_comm_shrink(lost, NULL, &smaller);
        if (lost != s->comm)
            tamis_comm_destroy(lost);
        if (status != TAMIS_OK)
            break;
        follow(s, smaller);
        lost = smaller;
        status = tamis_reducer_migrate(s->reducer, smaller, report, migrated);
    }
    if (status == TAMIS_OK)
        return smaller;
    if (status != TAMIS_E_TIMEOUT || !has_word(tamis_last_error(), "too late"))
        rank_status(s->rank, __FILE__, __LINE__, "shrink and migrate", TAMIS_OK, status);
    return NULL;
}

/* @return false: it is over for this rank */
static bool recover(self *s) {
    tamis_reducer *migrated = NULL;
    tamis_migration report = TAMIS_MIGRATION_INIT;
    tamis_comm *smaller = migrate(s, &report, &migrated);
    if (!smaller) {
        leave(s, true);
        return false;
    }
    if (report.step < s->mine->step) {
        add(s->last, -1.0, s->mine->applied);
        s->mine->step--;
    }
    s->mine->hash = 0; /* of what follows */
    tamis_reducer_destroy(s->reducer);
    tamis_comm_destroy(s->comm);
    s->reducer = migrated;
    s->comm = smaller;
    record_recovery(s, report.step);
    return report.step == s->mine->step;
}

static const event *event_now(self *s) {
    for (uint32_t i = 0; i < EVENTS; i++) {
        const event *e = &s->l->events[i];
        if (e->rank == s->rank->id && e->step == s->mine->step && !(s->passed >> i & 1)) {
            s->passed |= 1u << i;
            return e;
        }
    }
    return NULL;
}

/* @return false: it is over for this rank */
static bool go_on(self *s) {
    const event *e = event_now(s);
    tamis_status status = TAMIS_OK;
    if (e && (e->what == LEAVES || e->what == FALLS_SILENT)) {
        leave(s, e->what == FALLS_SILENT);
        return false;
    }
    if (e && e->what == ABANDONS)
        status = tamis_comm_abort(s->comm);
    if (status == TAMIS_OK)
        status = one_step(s, e && e->what == GIVES_NAN);
    if (status == TAMIS_OK)
        return true;
    if (tamis_status_loss(status) == TAMIS_LOST_COMM)
        return recover(s);
    return rank_status(s->rank, __FILE__, __LINE__, "a step", TAMIS_OK, status);
}

static void live(test_rank *rank) {
    self s = {.rank = rank, .l = rank->shared, .comm = rank->comm};
    s.mine = &s.l->ranks[rank->id];
    s.mine->step = s.l->first;
    for (uint32_t r = 0; r < rank->nranks; r++)
        s.ids[r] = r;
    RANK_OK(rank, make(&s));
    if (s.l->nsaved > 0)
        load(&s);
    test_deadline(s.comm, test_stretch_ms(SILENT_MS));
    while (s.mine->step < s.l->last && !rank->failure[0])
        if (!go_on(&s))
            return;
    hold(&s, s.mine->held);
    save(&s);
    tamis_reducer_destroy(s.reducer);
    tamis_comm_destroy(s.comm);
}

/* -- what must hold --------------------------------------------------------------------------- */

/* The step from which the others went on without it. */
static uint64_t step_without(const life *l, uint32_t rank) {
    for (uint32_t i = 0; i < l->nrecoveries; i++)
        if (!(l->recoveries[i].left >> rank & 1))
            return l->recoveries[i].step;
    fail_msg("[%s] nobody has noticed that rank %u is gone", test_context_text(), rank);
    return 0;
}

static const double *held_by(const life *l, uint32_t rank, figures *f) {
    const remains *one = &l->ranks[rank];
    uint64_t step = one->out ? step_without(l, rank) : one->step;
    if (one->step != step && one->step != step + 1)
        fail_msg("[%s] rank %u was at step %llu, the others went on from %llu", test_context_text(),
                 rank, (unsigned long long)one->step, (unsigned long long)step);
    f->went_back += one->step != step;
    return one->step == step ? one->held : one->held_back;
}

/* @return a rank that is left; RANKS: none is. On a busy machine all may be late but the one that
 * is to die */
static uint32_t check_replicas(const life *l) {
    uint32_t first = RANKS;
    for (uint32_t r = 0; r < RANKS; r++) {
        if (l->ranks[r].out)
            continue;
        first = first == RANKS ? r : first;
        if (l->ranks[r].hash != l->ranks[first].hash || l->ranks[r].step != l->last)
            fail_msg("[%s] ranks %u and %u differ", test_context_text(), first, r);
    }
    return first;
}

static void check_mass(const life *l, uint32_t first, figures *f) {
    double missing[N];
    memcpy(missing, l->ranks[first].applied, sizeof missing);
    for (uint32_t r = 0; r < RANKS; r++) {
        const double *held = held_by(l, r, f);
        for (size_t i = 0; i < N; i++)
            missing[i] += held[i] - l->ranks[r].given[i];
    }
    for (size_t i = 0; i < N; i++)
        if (missing[i] != 0.0)
            fail_msg("[%s] %g too much of entry %zu", test_context_text(), missing[i], i);
}

/* States of those that are left come first. */
static void close_up(life *l, figures *f) {
    l->nsaved = 0;
    for (uint32_t r = 0; r < RANKS; r++) {
        if (l->ranks[r].out) {
            f->deaths++;
            continue;
        }
        void *control = l->control[l->nsaved];
        memmove(l->saved[l->nsaved], l->saved[r], sizeof l->saved[r]);
        l->control[l->nsaved] = l->control[r];
        l->control[r] = l->nsaved == r ? l->control[r] : control;
        l->control_bytes[l->nsaved] = l->control_bytes[r];
        l->nsaved++;
    }
}

static void bury(life *l) {
    for (uint32_t r = 0; r < RANKS; r++)
        if (l->ranks[r].reducer) {
            tamis_comm_abort(l->ranks[r].comm);
            tamis_reducer_destroy(l->ranks[r].reducer);
            tamis_comm_destroy(l->ranks[r].comm);
        }
}

/* -- lives ------------------------------------------------------------------------------------ */

/* Two ranks at least are left: each event has a rank of its own. */
static void plan(life *l, uint64_t number, figures *f) {
    static const char *const schemes[] = {"tamis", "topk", "deft", "micro"};
    l->seed = data_mix(number);
    l->first = number == 0 ? 0 : l->last;
    l->last = l->first;
    if (number % 16 == 0) { /* another scheme has another state */
        l->scheme = schemes[number / 16 % 4];
        l->nsaved = 0;
    }
    if (l->nsaved == 0)
        l->first = l->last = 0;
    for (uint32_t i = 0; i < EVENTS; i++) {
        uint64_t bits = data_mix(l->seed + i);
        l->last += 1 + bits % EVENT_STEPS;
        bool rarely = (bits >> 20) % 8 != 0; /* a silent rank costs a second */
        what happens = (what)((bits >> 12) % WHATS);
        l->events[i] = (event){happens == FALLS_SILENT && rarely ? LEAVES : happens,
                               (uint32_t)((l->seed + 3 * i) % RANKS), l->last};
        f->happened[l->events[i].what]++;
    }
    l->last += 1 + l->seed % EVENT_STEPS;
    l->nrecoveries = 0;
    memset(l->ranks, 0, sizeof l->ranks);
}

static void run_life(life *l, uint64_t number, figures *f) {
    tamis_comm_config config = TAMIS_COMM_CONFIG_INIT;
    tamis_comm *comms[RANKS];
    plan(l, number, f);
    test_context("life %llu: %s from step %llu with the states of %u ranks",
                 (unsigned long long)number, l->scheme, (unsigned long long)l->first, l->nsaved);
    config.timeout_ms = test_long_ms();
    assert_int_equal(tamis_comm_create_local(RANKS, &config, comms), TAMIS_OK);
    ranks_run_on(comms, RANKS, live, l);
    bury(l);
    uint32_t left = check_replicas(l);
    if (left < RANKS)
        check_mass(l, left, f);
    f->extinct += left == RANKS;
    close_up(l, f);
    f->steps += l->last - l->first;
    f->lives++;
}

static uint64_t count_entries(const char *folder) {
    DIR *all = opendir(folder);
    uint64_t count = 0;
    assert_non_null(all);
    while (readdir(all))
        count++;
    closedir(all);
    return count;
}

typedef struct usage {
    uint64_t kib, descriptors, threads, allocations;
} usage;

static usage usage_now(void) {
    usage now = {.descriptors = count_entries("/proc/self/fd"),
                 .threads = count_entries("/proc/self/task"),
                 .allocations = tam_alloc_live()};
    FILE *file = fopen("/proc/self/statm", "r");
    unsigned long long pages = 0;
    assert_non_null(file);
    assert_int_equal(fscanf(file, "%*u %llu", &pages), 1);
    fclose(file);
    now.kib = pages * (uint64_t)sysconf(_SC_PAGESIZE) / 1024;
    return now;
}

static void nothing_grows_and_nothing_is_lost(void **state) {
    const char *wanted = getenv("TEST_SOAK");
    uint64_t steps = wanted ? strtoull(wanted, NULL, 10) : STEPS_USUAL / test_stride(8);
    life *l = calloc(1, sizeof *l);
    figures f = {0};
    usage begin = {0}, end;
    (void)state;
    assert_non_null(l);
    pthread_mutex_init(&l->lock, NULL);
    while (f.steps < steps) {
        run_life(l, f.lives, &f);
        assert_true(test_freed(begin.allocations));
        if (f.steps < steps / 4 || f.lives < 8)
            begin = usage_now(); /* caches are as full as they get */
    }
    end = usage_now();
    printf("%llu steps in %llu lives (%llu extinct): %llu deaths (%llu silent), %llu abandoned, "
           "%llu NaN, "
           "%llu went back; %llu -> %llu KiB, %llu -> %llu descriptors, %llu -> %llu threads\n",
           (unsigned long long)f.steps, (unsigned long long)f.lives, (unsigned long long)f.extinct,
           (unsigned long long)f.deaths, (unsigned long long)f.happened[FALLS_SILENT],
           (unsigned long long)f.happened[ABANDONS], (unsigned long long)f.happened[GIVES_NAN],
           (unsigned long long)f.went_back, (unsigned long long)begin.kib,
           (unsigned long long)end.kib, (unsigned long long)begin.descriptors,
           (unsigned long long)end.descriptors, (unsigned long long)begin.threads,
           (unsigned long long)end.threads);
    assert_int_equal(end.descriptors, begin.descriptors);
    assert_int_equal(end.threads, begin.threads);
    if (!TEST_SANITIZED)
        assert_true(end.kib <= begin.kib + (steps < FEW_STEPS ? KIB_FEW_STEPS : KIB_MOST));
    for (uint32_t r = 0; r < RANKS; r++)
        free(l->control[r]);
    pthread_mutex_destroy(&l->lock);
    free(l);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_grows_and_nothing_is_lost),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
