/* SPDX-License-Identifier: MIT
 *
 * Shared memory, one piece for each rank, and a barrier that gives up:
 *
 *     +---------+------------+-- piece of rank 0 --+-- piece of rank 1 --+ ...
 *     | arrived | generation |
 *     +---------+------------+---------------------+---------------------+
 */
#ifndef _GNU_SOURCE /* MAP_ANONYMOUS */
#define _GNU_SOURCE
#endif
#include "tests/gpu/processes.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <tamis/callback.h>
#include <time.h>
#include <unistd.h>

enum { PIECE = 1 << 20, PATIENCE_S = 30, TIMEOUT_MS = 20000, DIES = 77 };

typedef struct shared {
    atomic_uint arrived, generation;
    _Alignas(64) unsigned char pieces[][PIECE];
} shared;

typedef struct rank_context {
    process self;
    shared *memory;
} rank_context;

/* -- all-gather ------------------------------------------------------------------------------- */

static int rendezvous(rank_context *r) {
    unsigned generation = atomic_load(&r->memory->generation);
    time_t begin = time(NULL);
    if (atomic_fetch_add(&r->memory->arrived, 1) + 1 == r->self.nranks) {
        atomic_store(&r->memory->arrived, 0);
        atomic_fetch_add(&r->memory->generation, 1);
        return 1;
    }
    while (atomic_load(&r->memory->generation) == generation) {
        if (time(NULL) - begin > PATIENCE_S)
            return 0;
        usleep(20);
    }
    return 1;
}

static tamis_status allgather(void *context, const void *send, void *recv, size_t bytes) {
    rank_context *r = context;
    for (size_t at = 0; at < bytes; at += PIECE) {
        size_t part = bytes - at < PIECE ? bytes - at : PIECE;
        memcpy(r->memory->pieces[r->self.rank], (const char *)send + at, part);
        if (!rendezvous(r))
            return TAMIS_E_TIMEOUT;
        for (uint32_t from = 0; from < r->self.nranks; from++)
            memcpy((char *)recv + from * bytes + at, r->memory->pieces[from], part);
        if (!rendezvous(r))
            return TAMIS_E_TIMEOUT;
    }
    return TAMIS_OK;
}

/* -- processes -------------------------------------------------------------------------------- */

static int run_rank(rank_context *r, process_main body, void *context) {
    tamis_callbacks callbacks = TAMIS_CALLBACKS_INIT;
    tamis_comm_config config = TAMIS_COMM_CONFIG_INIT;
    callbacks.rank = r->self.rank;
    callbacks.nranks = r->self.nranks;
    callbacks.allgather = allgather;
    callbacks.context = r;
    config.timeout_ms = TIMEOUT_MS;
    if (tamis_comm_create_callback(&callbacks, &config, &r->self.comm) != TAMIS_OK) {
        fprintf(stderr, "rank %u: %s\n", r->self.rank, tamis_last_error());
        return 1;
    }
    int bad = body(&r->self, context);
    tamis_comm_destroy(r->self.comm);
    return bad;
}

/* For NCCL each rank is a machine of its own, else it would refuse to share a device. */
static void name_host(uint32_t rank) {
    char name[32];
    snprintf(name, sizeof name, "tamis-rank%u", rank);
    setenv("NCCL_HOSTID", name, 1);
}

static int wait_for(uint32_t nranks) {
    int bad = 0;
    for (uint32_t i = 0; i < nranks; i++) {
        int status = 0;
        if (wait(&status) < 0)
            return 1;
        if (WIFSIGNALED(status))
            fprintf(stderr, "a rank was ended by signal %d\n", WTERMSIG(status));
        bad |= !WIFEXITED(status) || (WEXITSTATUS(status) != 0 && WEXITSTATUS(status) != DIES);
    }
    return bad;
}

static int run_one(rank_context *r, unsigned seconds, process_main body, void *context) {
    name_host(r->self.rank);
    alarm(seconds);
    int bad = run_rank(r, body, context);
    alarm(0);
    return bad;
}

static int run_many(shared *memory, uint32_t nranks, unsigned seconds, process_main body,
                    void *context) {
    uint32_t started = 0;
    fflush(NULL);
    for (; started < nranks; started++) {
        pid_t child = fork();
        if (child < 0)
            break;
        if (child > 0)
            continue;
        rank_context r = {.self = {.rank = started, .nranks = nranks}, .memory = memory};
        int bad = run_one(&r, seconds, body, context);
        fflush(NULL);
        _exit(bad ? 1 : 0);
    }
    return wait_for(started) || started < nranks;
}

int processes_run(uint32_t nranks, unsigned seconds, process_main body, void *context) {
    size_t bytes = sizeof(shared) + (size_t)nranks * PIECE;
    shared *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    rank_context alone = {.self = {.rank = 0, .nranks = 1}, .memory = memory};
    if (memory == MAP_FAILED)
        return 1;
    int bad = nranks == 1 ? run_one(&alone, seconds, body, context)
                          : run_many(memory, nranks, seconds, body, context);
    munmap(memory, bytes);
    return bad;
}

void processes_die(process *self) {
    (void)self;
    _exit(DIES);
}

bool processes_ask(bool (*question)(void)) {
    int status = 0;
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        bool yes = question();
        fflush(NULL);
        _exit(yes ? 0 : 1);
    }
    return child > 0 && waitpid(child, &status, 0) == child && status == 0;
}
