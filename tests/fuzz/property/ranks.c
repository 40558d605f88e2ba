/* SPDX-License-Identifier: MIT
 *
 * Threads for ranks, and an all-gather or messages between them. A case takes about a millisecond,
 * so the threads stay from case to case and wait for the next one.
 */
#include "tests/fuzz/property/property.h"
#include "tests/support/loopback.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <tamis/callback.h>

/* -- threads ---------------------------------------------------------------------------------- */

static struct pool {
    pthread_mutex_t lock;
    pthread_cond_t begins, ended;
    uint32_t threads, wanted, running;
    uint64_t round;
    void (*body)(void *context, uint32_t rank);
    void *context;
} pool = {.lock = PTHREAD_MUTEX_INITIALIZER,
          .begins = PTHREAD_COND_INITIALIZER,
          .ended = PTHREAD_COND_INITIALIZER};

static void *serve(void *argument) {
    uint32_t rank = (uint32_t)(uintptr_t)argument;
    uint64_t seen = 0;
    pthread_mutex_lock(&pool.lock);
    for (;;) {
        while (pool.round == seen || rank >= pool.wanted) {
            seen = pool.round;
            pthread_cond_wait(&pool.begins, &pool.lock);
        }
        seen = pool.round;
        pthread_mutex_unlock(&pool.lock);
        pool.body(pool.context, rank);
        pthread_mutex_lock(&pool.lock);
        if (--pool.running == 0)
            pthread_cond_signal(&pool.ended);
    }
    return NULL;
}

/* Called with the lock held. A new thread must not mistake the round before for its own. */
static void add_threads(uint32_t nranks) {
    for (; pool.threads + 1 < nranks; pool.threads++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, serve, (void *)(uintptr_t)(pool.threads + 1)) != 0)
            abort();
        pthread_detach(thread);
    }
}

void ranks_do(uint32_t nranks, void (*body)(void *context, uint32_t rank), void *context) {
    pthread_mutex_lock(&pool.lock);
    pool.body = body;
    pool.context = context;
    pool.wanted = nranks;
    pool.running = nranks - 1;
    pool.round++;
    add_threads(nranks);
    pthread_cond_broadcast(&pool.begins);
    pthread_mutex_unlock(&pool.lock);
    body(context, 0);
    pthread_mutex_lock(&pool.lock);
    while (pool.running > 0)
        pthread_cond_wait(&pool.ended, &pool.lock);
    pool.wanted = 0; /* threads new to the next round find no work in this one */
    pthread_mutex_unlock(&pool.lock);
}

/* Long, so that a busy machine does not count as a hang. */
uint32_t fuzz_timeout_ms = 120000;

/* -- the caller's all-gather ------------------------------------------------------------------ */

typedef struct endpoint {
    fuzz_board *board;
    uint32_t rank;
    const void *send;
    size_t bytes;
} endpoint;

struct fuzz_board {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint32_t nranks, waiting;
    uint64_t round;
    bool broken;
    loopback *letters; /* NULL: all-gathers */
    endpoint endpoints[MOST_RANKS];
};

static bool rendezvous(fuzz_board *b) {
    pthread_mutex_lock(&b->lock);
    uint64_t round = b->round;
    if (++b->waiting == b->nranks) {
        b->waiting = 0;
        b->round++;
        pthread_cond_broadcast(&b->changed);
    }
    while (b->round == round && !b->broken)
        pthread_cond_wait(&b->changed, &b->lock);
    bool complete = b->round != round;
    pthread_mutex_unlock(&b->lock);
    return complete;
}

static void break_board(fuzz_board *b) {
    pthread_mutex_lock(&b->lock);
    b->broken = true;
    pthread_cond_broadcast(&b->changed);
    pthread_mutex_unlock(&b->lock);
}

static tamis_status gather(void *context, const void *send, void *recv, size_t bytes) {
    endpoint *own = context;
    fuzz_board *b = own->board;
    own->send = send;
    own->bytes = bytes;
    if (!rendezvous(b))
        return TAMIS_E_TRANSPORT;
    bool same_size = true;
    for (uint32_t r = 0; r < b->nranks; r++) {
        same_size = same_size && b->endpoints[r].bytes == bytes;
        if (same_size)
            memcpy((char *)recv + r * bytes, b->endpoints[r].send, bytes);
    }
    if (!same_size)
        break_board(b);
    return rendezvous(b) ? TAMIS_OK : TAMIS_E_TRANSPORT;
}

static bool connect_board(fuzz_board *b, const tamis_comm_config *config, tamis_comm **comms) {
    for (uint32_t r = 0; r < b->nranks; r++) {
        tamis_callbacks callbacks = TAMIS_CALLBACKS_INIT;
        b->endpoints[r] = (endpoint){.board = b, .rank = r};
        callbacks.rank = r;
        callbacks.nranks = b->nranks;
        callbacks.allgather = gather;
        callbacks.context = &b->endpoints[r];
        if (tamis_comm_create_callback(&callbacks, config, &comms[r]) != TAMIS_OK)
            return false;
    }
    return true;
}

bool ranks_connect(const fuzz_case *c, fuzz_board **board, tamis_comm **comms) {
    tamis_comm_config config = TAMIS_COMM_CONFIG_INIT;
    config.timeout_ms = fuzz_timeout_ms;
    *board = NULL;
    if (!c->callback)
        return tamis_comm_create_local(c->nranks, &config, comms) == TAMIS_OK;
    fuzz_board *b = calloc(1, sizeof *b);
    if (!b)
        return false;
    pthread_mutex_init(&b->lock, NULL);
    pthread_cond_init(&b->changed, NULL);
    b->nranks = c->nranks;
    *board = b;
    if (!c->messages)
        return connect_board(b, &config, comms);
    b->letters = loopback_create(c->nranks, 0);
    loopback_comms(b->letters, comms);
    return true;
}

void ranks_leave(fuzz_board *board, tamis_comm *comm) {
    tamis_comm_abort(comm);
    if (board)
        break_board(board);
}

void ranks_part(uint32_t nranks, fuzz_board *board, tamis_comm **comms) {
    for (uint32_t r = 0; r < nranks; r++)
        tamis_comm_destroy(comms[r]);
    if (!board)
        return;
    if (board->letters)
        loopback_destroy(board->letters);
    pthread_cond_destroy(&board->changed);
    pthread_mutex_destroy(&board->lock);
    free(board);
}
