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

/* Nothing to do: all ranks are threads of this process, which ends. */
static void end_all(void) {}

static bench_shared *make_shared(uint32_t ranks) {
    bench_shared *shared = calloc(1, sizeof *shared);
    if (shared)
        shared->sends = calloc(ranks, sizeof *shared->sends);
    if (shared && !shared->sends) {
        free(shared);
        shared = NULL;
    }
    return shared;
}

static const bench_group_kind local = {local_barrier, local_allgather, no_sum, end_all};

static void *local_thread(void *argument) {
    local_rank *self = argument;
    self->status = self->group.shared->body(&self->group, self->group.shared->context);
    return NULL;
}

int bench_local_launch(uint32_t ranks, bench_main body, void *context) {
    tamis_comm **comms = calloc(ranks, sizeof *comms);
    local_rank *all = calloc(ranks, sizeof *all);
    bench_shared *shared = make_shared(ranks);
    int status = 1;

    if (!comms || !all || !shared) {
        fprintf(stderr, "no memory for %u ranks\n", ranks);
        goto free_arrays;
    }
    shared->body = body;
    shared->context = context;
    if (tamis_comm_create_local(ranks, NULL, comms) != TAMIS_OK) {
        fprintf(stderr, "cannot create %u local ranks: %s\n", ranks, tamis_last_error());
        goto free_arrays;
    }
    for (uint32_t r = 0; r < ranks; r++) {
        all[r].group = (bench_group){.rank = r,
                                     .number = r,
                                     .nranks = ranks,
                                     .transport = BENCH_LOCAL,
                                     .kind = &local,
                                     .comm = comms[r],
                                     .shared = shared};
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
        tamis_comm_destroy(all[r].group.comm);

free_arrays:
    if (shared)
        free((void *)shared->sends);
    free(shared);
    free(all);
    free(comms);
    return status;
}
