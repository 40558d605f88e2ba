/* SPDX-License-Identifier: MIT
 *
 * Ranks as threads of this process.
 */
#include "bench/common/group_local.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The barrier yields instead of sleeping: waking a thread would cost more than what is measured. */
typedef struct bench_shared {
    atomic_uint arrived, round;
    const void **sends; /* [nranks] */
    bench_main body;
    void *context;
} bench_shared;

typedef struct local_rank {
    bench_group group;
    pthread_t thread;
    int status;
} local_rank;

static void local_barrier(bench_group *group) {
    bench_shared *shared = group->shared;
    unsigned round = atomic_load(&shared->round);
    if (atomic_fetch_add(&shared->arrived, 1) + 1 == group->nranks) {
        atomic_store(&shared->arrived, 0);
        atomic_fetch_add(&shared->round, 1);
        return;
    }
    while (atomic_load(&shared->round) == round)
        sched_yield();
}

static void local_allgather(bench_group *group, const void *send, size_t bytes, void *recv) {
    group->shared->sends[group->rank] = send;
    local_barrier(group);
    for (uint32_t r = 0; r < group->nranks; r++)
        memcpy((char *)recv + r * bytes, group->shared->sends[r], bytes);
    local_barrier(group);
}

static bool no_sum(bench_group *group, const float *send, float *out, size_t count) {
    (void)group, (void)send, (void)out, (void)count;
    return false;
}

static void share_all(bench_group *group, const void *send, size_t bytes, void *recv,
                      bench_message *message) {
    message->pending = false;
    local_allgather(group, send, bytes, recv);
}

static void share_max(bench_group *group, const uint64_t *mine, size_t count, uint64_t *out,
                      bench_message *message) {
    message->pending = false;
    group->shared->sends[group->rank] = mine;
    local_barrier(group);
    memset(out, 0, count * sizeof *out);
    for (uint32_t r = 0; r < group->nranks; r++) {
        const uint64_t *theirs = group->shared->sends[r];
        for (size_t i = 0; i < count; i++)
            out[i] = theirs[i] > out[i] ? theirs[i] : out[i];
    }
    local_barrier(group);
}

static uint32_t own_rank(const bench_group *group) {
    return group->rank;
}

/* Nothing to do: all ranks are threads of this process, which ends. */
static void end_all(void) {}

static const bench_group_kind local = {local_barrier, local_allgather, no_sum, share_max,
                                       share_all,     own_rank,        end_all};

static void *local_thread(void *argument) {
    local_rank *self = argument;
    self->status = self->group.shared->body(&self->group, self->group.shared->context);
    return NULL;
}

int bench_local_launch(uint32_t ranks, bench_main body, void *context) {
    tamis_comm **comms = calloc(ranks, sizeof *comms);
    local_rank *all = calloc(ranks, sizeof *all);
    bench_shared shared = {0};
    int status = 1;

    shared.body = body;
    shared.context = context;
    shared.sends = calloc(ranks, sizeof *shared.sends);
    if (!comms || !all || !shared.sends) {
        fprintf(stderr, "no memory for %u ranks\n", ranks);
        goto free_arrays;
    }
    if (tamis_comm_create_local(ranks, NULL, comms) != TAMIS_OK) {
        fprintf(stderr, "cannot create %u local ranks: %s\n", ranks, tamis_last_error());
        goto free_arrays;
    }
    for (uint32_t r = 0; r < ranks; r++) {
        all[r].group = (bench_group){r, ranks, BENCH_LOCAL, &local, comms[r], &shared, NULL};
        if (r && pthread_create(&all[r].thread, NULL, local_thread, &all[r]) != 0)
            bench_fail(&all[r].group, "the thread of this rank could not be started");
    }
    local_thread(&all[0]);
    status = all[0].status;
    for (uint32_t r = 1; r < ranks; r++) {
        pthread_join(all[r].thread, NULL);
        status = all[r].status > status ? all[r].status : status;
    }
    for (uint32_t r = 0; r < ranks; r++)
        tamis_comm_destroy(comms[r]);

free_arrays:
    free((void *)shared.sends);
    free(all);
    free(comms);
    return status;
}
