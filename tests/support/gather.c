/* SPDX-License-Identifier: MIT
 *
 * An all-gather between threads: board and barrier.
 */
#include "tests/support/gather.h"
#include "tests/support/ranks.h"
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

typedef struct endpoint {
    gather *board;
    uint32_t rank;
    uint64_t op;
    const void *send;
    size_t bytes;
} endpoint;

struct gather {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint32_t nranks, waiting, limit_ms;
    uint64_t generation;
    bool broken;
    gather_hook hook;
    void *context;
    endpoint endpoints[RANKS_MOST];
};

gather *gather_create(uint32_t nranks, uint32_t limit_ms, gather_hook hook, void *context) {
    gather *board = calloc(1, sizeof *board);
    assert_non_null(board);
    assert_true(nranks <= RANKS_MOST);
    pthread_mutex_init(&board->lock, NULL);
    pthread_cond_init(&board->changed, NULL);
    board->nranks = nranks;
    board->limit_ms = limit_ms;
    board->hook = hook;
    board->context = context;
    for (uint32_t r = 0; r < nranks; r++)
        board->endpoints[r] = (endpoint){.board = board, .rank = r};
    return board;
}

void gather_destroy(gather *board) {
    pthread_cond_destroy(&board->changed);
    pthread_mutex_destroy(&board->lock);
    free(board);
}

void gather_leave(gather *board) {
    pthread_mutex_lock(&board->lock);
    board->broken = true;
    pthread_cond_broadcast(&board->changed);
    pthread_mutex_unlock(&board->lock);
}

static struct timespec limit_from_now(uint32_t ms) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    t.tv_nsec += (long)(ms % 1000) * 1000000;
    t.tv_sec += ms / 1000 + t.tv_nsec / 1000000000;
    t.tv_nsec %= 1000000000;
    return t;
}

static tamis_status rendezvous(gather *board) {
    struct timespec limit = limit_from_now(board->limit_ms);
    int late = 0;
    pthread_mutex_lock(&board->lock);
    uint64_t generation = board->generation;
    if (++board->waiting == board->nranks) {
        board->waiting = 0;
        board->generation++;
        pthread_cond_broadcast(&board->changed);
    }
    while (board->generation == generation && !board->broken && late != ETIMEDOUT)
        late = pthread_cond_timedwait(&board->changed, &board->lock, &limit);
    bool complete = board->generation != generation;
    board->broken |= !complete;
    pthread_mutex_unlock(&board->lock);
    return complete ? TAMIS_OK : late == ETIMEDOUT ? TAMIS_E_TIMEOUT : TAMIS_E_TRANSPORT;
}

static tamis_status allgather(void *context, const void *send, void *recv, size_t bytes) {
    endpoint *self = context;
    gather *board = self->board;
    tamis_status status;
    self->send = send;
    self->bytes = bytes;
    if ((status = rendezvous(board)) != TAMIS_OK)
        return status;
    bool same_size = true;
    for (uint32_t r = 0; r < board->nranks; r++) {
        same_size &= board->endpoints[r].bytes == bytes;
        if (same_size)
            memcpy((char *)recv + r * bytes, board->endpoints[r].send, bytes);
    }
    if ((status = rendezvous(board)) != TAMIS_OK)
        return status;
    if (!same_size)
        return TAMIS_E_TRANSPORT;
    uint64_t op = self->op++;
    return board->hook ? board->hook(board->context, self->rank, op, recv, bytes * board->nranks)
                       : TAMIS_OK;
}

tamis_callbacks gather_callbacks(gather *board, uint32_t rank) {
    tamis_callbacks callbacks = TAMIS_CALLBACKS_INIT;
    callbacks.rank = rank;
    callbacks.nranks = board->nranks;
    callbacks.allgather = allgather;
    callbacks.context = &board->endpoints[rank];
    return callbacks;
}

void gather_comms(gather *board, tamis_comm **comms) {
    tamis_comm_config config = TAMIS_COMM_CONFIG_INIT;
    config.timeout_ms = test_long_ms();
    for (uint32_t r = 0; r < board->nranks; r++) {
        const tamis_callbacks callbacks = gather_callbacks(board, r);
        if (tamis_comm_create_callback(&callbacks, &config, &comms[r]) != TAMIS_OK)
            fail_msg("tamis_comm_create_callback: %s", tamis_last_error());
    }
}
