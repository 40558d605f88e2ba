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
#include <tamis/elastic.h>

/* The barrier yields instead of sleeping: waking a thread would cost more than what is measured. */
typedef struct bench_shared {
    atomic_uint arrived, round;
    const void **sends; /* [nranks] */
    bench_main body;
    void *context;
    struct bench_shared *_Atomic next; /* of the ranks that are left, once there are fewer */
} bench_shared;

typedef struct local_rank {
    bench_group group;
    pthread_t thread;
    int status;
} local_rank;

static void local_barrier(bench_group *group) {
    bench_shared *shared = group->shared;
    if (group->survives) { /* the library has deadlines */
        bench_try(group, tamis_comm_check_equal(group->comm, shared, 0), "another rank is gone");
        return;
    }
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
    for (uint32_t r = 0; r < group->nranks && !group->lost; r++)
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
    for (uint32_t r = 0; r < group->nranks && !group->lost; r++) {
        const uint64_t *theirs = group->shared->sends[r];
        for (size_t i = 0; i < count; i++)
            out[i] = theirs[i] > out[i] ? theirs[i] : out[i];
    }
    local_barrier(group);
}

/* Nothing to do: all ranks are threads of this process, which ends. */
static void end_all(void) {}

/* -- fewer ranks ------------------------------------------------------------------------------ */

static const char *survive(bench_group *group) {
    (void)group;
    return NULL;
}

/* Waiting for each other is the library's, and so are its errors. */
static void wake(bench_group *group) {
    (void)group;
}

static bool agree(bench_group *group, bool yes) {
    if (yes)
        local_barrier(group);
    return yes && !group->lost;
}

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

/* The first of the ranks that are left makes it; threads die only where the program lets them. */
static bool shrink(bench_group *group) {
    bench_shared *old = group->shared;
    if (group->rank == 0) {
        bench_shared *made = make_shared(group->nranks);
        if (!made)
            bench_fail(group, "no memory");
        atomic_store(&old->next, made);
    }
    while (!atomic_load(&old->next))
        sched_yield();
    group->shared = atomic_load(&old->next);
    return true;
}

static void free_shared(bench_shared *shared) {
    while (shared) {
        bench_shared *next = atomic_load(&shared->next);
        free((void *)shared->sends);
        free(shared);
        shared = next;
    }
}

static void die(void) {}

static const bench_group_kind local = {local_barrier, local_allgather, no_sum,  share_max,
                                       share_all,     end_all,         survive, wake,
                                       agree,         shrink,          die};

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
    bool left = !all[0].group.dead;
    for (uint32_t r = 1; r < ranks; r++) {
        pthread_join(all[r].thread, NULL);
        status = all[r].status > status ? all[r].status : status;
        left = left || !all[r].group.dead;
    }
    if (!left) {
        fprintf(stderr, "all %u ranks have died: nobody has ended the run\n", ranks);
        status = 1;
    }
    for (uint32_t r = 0; r < ranks; r++)
        tamis_comm_destroy(all[r].group.comm);

free_arrays:
    free_shared(shared);
    free(all);
    free(comms);
    return status;
}
