/* SPDX-License-Identifier: MIT
 *
 * Ranks as threads: threads, watchdog, barrier, collected failures.
 */
#include "tests/support/ranks.h"

#include "collectives/transport/comm.h"
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tamis/elastic.h>
#include <time.h>
#include <unistd.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

struct ranks {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint32_t nranks, left, waiting;
    uint64_t generation;
    test_rank *first; /* the first that failed */
    rank_body body;
    test_rank rank[RANKS_MOST];
};

static char context[256];

void test_context(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(context, sizeof context, format, arguments);
    va_end(arguments);
}

const char *test_context_text(void) {
    return context;
}

bool has_word(const char *sentence, const char *words) {
    char copy[128];
    char *rest = copy;
    snprintf(copy, sizeof copy, "%s", words);
    for (char *word = strsep(&rest, "|"); word; word = strsep(&rest, "|"))
        if (strstr(sentence, word))
            return true;
    return false;
}

uint64_t now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

void sleep_ms(uint32_t ms) {
    struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000};
    nanosleep(&t, NULL);
}

bool test_freed(uint64_t live) {
    for (uint64_t until_ms = now_ms() + 20000; now_ms() < until_ms && tam_alloc_live() != live;)
        sleep_ms(1);
    return tam_alloc_live() == live;
}

void test_deadline(tamis_comm *comm, uint32_t timeout_ms) {
    comm->timeout_ns = timeout_ms * UINT64_C(1000000);
}

uint32_t test_stride(uint32_t few) {
    return TEST_SANITIZED || getenv("TEST_FEW") ? few : 1;
}

bool test_drawn(uint32_t few) {
    static bool begun;
    static uint32_t next;
    const char *draw = getenv("TEST_DRAW");
    if (!begun && draw)
        next = (uint32_t)strtoul(draw, NULL, 10);
    begun = true;
    return next++ % test_stride(few) == 0;
}

void rank_fail(test_rank *self, const char *file, int line, const char *format, ...) {
    ranks *all = self->all;
    pthread_mutex_lock(&all->lock);
    if (self->failure[0] == '\0') {
        const char *name = strrchr(file, '/');
        int used = snprintf(self->failure, sizeof self->failure, "rank %u of %u, %s:%d: ", self->id,
                            self->nranks, name ? name + 1 : file, line);
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(self->failure + used, sizeof self->failure - (size_t)used, format, arguments);
        va_end(arguments);
        if (!all->first)
            all->first = self;
    }
    pthread_mutex_unlock(&all->lock);
    if (self->comm)
        tamis_comm_abort(self->comm);
}

bool rank_status(test_rank *self, const char *file, int line, const char *call,
                 tamis_status expected, tamis_status got) {
    if (got == expected)
        return true;
    rank_fail(self, file, line, "%s gave %s, not %s; the last error is: %s", call,
              tamis_status_name(got), tamis_status_name(expected), tamis_last_error());
    return false;
}

bool rank_barrier(test_rank *self) {
    ranks *all = self->all;
    self->where = "barrier of the test";
    pthread_mutex_lock(&all->lock);
    uint64_t generation = all->generation;
    if (++all->waiting == all->nranks) {
        all->waiting = 0;
        all->generation++;
        pthread_cond_broadcast(&all->changed);
    }
    while (all->generation == generation && all->left == 0)
        pthread_cond_wait(&all->changed, &all->lock);
    bool complete = all->generation != generation;
    pthread_mutex_unlock(&all->lock);
    return complete;
}

static void *run_rank(void *argument) {
    test_rank *self = argument;
    self->all->body(self);
    pthread_mutex_lock(&self->all->lock);
    self->left = true;
    self->all->left++;
    pthread_cond_broadcast(&self->all->changed);
    pthread_mutex_unlock(&self->all->lock);
    return NULL;
}

/* Long, so that a busy machine does not count as a hang; less than ctest's limit. */
static uint32_t watchdog_s(void) {
    return 300 + 100 * test_load();
}

/* A hung thread cannot be stopped, so end the process. */
static void give_up(ranks *all) {
    fprintf(stderr, "HANG: [%s] after %u s these ranks have not returned:\n", context,
            watchdog_s());
    for (uint32_t r = 0; r < all->nranks; r++)
        if (!all->rank[r].left)
            fprintf(stderr, "  rank %u of %u, last seen at: %s\n", r, all->nranks,
                    all->rank[r].where ? all->rank[r].where : "the start of its body");
    if (all->first)
        fprintf(stderr, "  first failure: %s\n", all->first->failure);
    fflush(NULL);
    _exit(99);
}

static void watch(ranks *all) {
    struct timespec limit;
    clock_gettime(CLOCK_REALTIME, &limit);
    limit.tv_sec += watchdog_s();
    pthread_mutex_lock(&all->lock);
    while (all->left < all->nranks)
        if (pthread_cond_timedwait(&all->changed, &all->lock, &limit) != 0)
            give_up(all);
    pthread_mutex_unlock(&all->lock);
}

static void run_threads(ranks *all) {
    pthread_t threads[RANKS_MOST];
    for (uint32_t r = 0; r < all->nranks; r++)
        if (pthread_create(&threads[r], NULL, run_rank, &all->rank[r]) != 0) {
            fprintf(stderr, "cannot start a thread for rank %u\n", r);
            _exit(99);
        }
    watch(all);
    for (uint32_t r = 0; r < all->nranks; r++)
        pthread_join(threads[r], NULL);
}

/* Runs the ranks; copies the first failure out before `all` is freed. */
static bool run_all(tamis_comm *const *comms, uint32_t nranks, rank_body body, void *shared,
                    char failure[RANKS_SENTENCE]) {
    ranks *all = calloc(1, sizeof *all);
    assert_non_null(all);
    pthread_mutex_init(&all->lock, NULL);
    pthread_cond_init(&all->changed, NULL);
    all->nranks = nranks;
    all->body = body;
    for (uint32_t r = 0; r < nranks; r++) {
        test_rank *self = &all->rank[r];
        self->id = r;
        self->nranks = nranks;
        self->comm = comms[r];
        self->shared = shared;
        self->all = all;
    }
    run_threads(all);
    bool fine = all->first == NULL;
    if (!fine)
        memcpy(failure, all->first->failure, RANKS_SENTENCE);
    pthread_cond_destroy(&all->changed);
    pthread_mutex_destroy(&all->lock);
    free(all);
    return fine;
}

void ranks_run_on(tamis_comm *const *comms, uint32_t nranks, rank_body body, void *shared) {
    char failure[RANKS_SENTENCE];
    assert_true(nranks <= RANKS_MOST);
    if (!run_all(comms, nranks, body, shared, failure))
        fail_msg("[%s] %s", context, failure);
}

void ranks_run(uint32_t nranks, uint32_t timeout_ms, rank_body body, void *shared) {
    char failure[RANKS_SENTENCE];
    tamis_comm *comms[RANKS_MOST];
    tamis_comm_config config = TAMIS_COMM_CONFIG_INIT;
    config.timeout_ms = timeout_ms ? timeout_ms : test_long_ms();
    assert_true(nranks <= RANKS_MOST);
    tamis_status status = tamis_comm_create_local(nranks, &config, comms);
    if (status != TAMIS_OK)
        fail_msg("tamis_comm_create_local(%u): %s", nranks, tamis_last_error());
    bool fine = run_all(comms, nranks, body, shared, failure);
    for (uint32_t r = 0; r < nranks; r++)
        tamis_comm_destroy(comms[r]);
    if (!fine)
        fail_msg("[%s] %s", context, failure);
}
