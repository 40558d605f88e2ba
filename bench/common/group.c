/* SPDX-License-Identifier: MIT
 *
 * What both kinds of group share, and the local kind. The MPI kind is in group_mpi.c.
 */
#include "bench/common/group.h"

#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifdef TAMIS_BENCH_NCCL
#include <tamis/nccl.h>
#endif

#include "bench/common/device.h"
#include "bench/common/group_mpi.h"
#include "bench/common/options.h"

/* -- launchers -------------------------------------------------------------------------------- */

static uint32_t environment_number(const char *const *names, uint32_t fallback) {
    for (; *names; names++) {
        const char *text = getenv(*names);
        if (text && *text)
            return (uint32_t)strtoul(text, NULL, 10);
    }
    return fallback;
}

uint32_t bench_launched_rank(void) {
    static const char *const names[] = {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", NULL};
    return environment_number(names, 0);
}

uint32_t bench_launched_ranks(void) {
    static const char *const names[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", NULL};
    uint32_t ranks = environment_number(names, 0);
    static const char *const steps[] = {"SLURM_STEP_NUM_TASKS", NULL};
    return ranks ? ranks : getenv("PMIX_RANK") ? environment_number(steps, 1) : 1;
}

uint32_t bench_machine_rank(const bench_group *group) {
    static const char *const names[] = {"OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID",
                                        "SLURM_LOCALID", NULL};
    return group->transport == BENCH_MPI ? environment_number(names, group->rank) : group->rank;
}

static bool under_mpi_launcher(void) {
    return getenv("OMPI_COMM_WORLD_SIZE") || getenv("PMIX_RANK") || getenv("PMI_SIZE");
}

/* NCCL starts from a group of the kind that the launcher suggests. */
static bench_transport kind_of(int transport) {
    if (transport != BENCH_NCCL)
        return (bench_transport)transport;
    return under_mpi_launcher() && bench_mpi_built() ? BENCH_MPI : BENCH_LOCAL;
}

void bench_launch_check(int *transport, uint64_t *ranks) {
    if (*transport < 0)
        *transport = under_mpi_launcher() && bench_mpi_built() ? BENCH_MPI : BENCH_LOCAL;
    if (*transport == BENCH_MPI && !bench_mpi_built())
        bench_usage("--transport mpi is not in this build");
    if (kind_of(*transport) == BENCH_MPI && *ranks)
        bench_usage("--ranks is for ranks that are threads; under mpirun it says how many "
                    "(mpirun -np %llu)",
                    (unsigned long long)*ranks);
    if (kind_of(*transport) == BENCH_LOCAL && bench_launched_ranks() > 1)
        bench_usage("--transport %s runs all ranks in one process here; start it without mpirun",
                    bench_choice(BENCH_TRANSPORTS, *transport));
    if (kind_of(*transport) == BENCH_LOCAL && *ranks == 0)
        *ranks = 1;
}

/* -- local ranks ------------------------------------------------------------------------------ */

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

static void *local_thread(void *argument) {
    local_rank *self = argument;
    self->status = self->group.shared->body(&self->group, self->group.shared->context);
    return NULL;
}

static int launch_local(uint32_t ranks, bench_main body, void *context) {
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
        fprintf(stderr, "cannot make %u local ranks: %s\n", ranks, tamis_last_error());
        goto free_arrays;
    }
    for (uint32_t r = 0; r < ranks; r++) {
        all[r].group = (bench_group){r, ranks, BENCH_LOCAL, comms[r], &shared, NULL};
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

/* -- both kinds ------------------------------------------------------------------------------- */

typedef struct launch {
    bench_transport transport;
    tamis_device device;
    bench_main body;
    void *context;
} launch;

#ifdef TAMIS_BENCH_NCCL
static void make_nccl(bench_group *group, tamis_comm **out) {
    bench_try(group, tamis_comm_create_nccl(group->comm, NULL, out),
              "cannot make an NCCL communicator");
}
#else
static void make_nccl(bench_group *group, tamis_comm **out) {
    (void)out;
    bench_fail(group, "this build has no NCCL");
}
#endif

static int run_rank(bench_group *group, void *context) {
    const launch *l = context;
    tamis_comm *outer = group->comm, *nccl = NULL;
    bench_device_use(group, l->device);
    if (l->transport == BENCH_NCCL) {
        make_nccl(group, &nccl);
        group->comm = nccl;
    }
    int status = l->body(group, l->context);
    tamis_comm_destroy(nccl);
    group->comm = outer;
    return status;
}

int bench_launch(bench_transport transport, tamis_device device, uint32_t ranks, bench_main body,
                 void *context) {
    launch l = {transport, device, body, context};
    return kind_of(transport) == BENCH_MPI ? bench_mpi_launch(run_rank, &l)
                                           : launch_local(ranks, run_rank, &l);
}

void bench_barrier(bench_group *group) {
    if (group->transport == BENCH_MPI)
        bench_mpi_barrier(group);
    else
        local_barrier(group);
}

void bench_allgather(bench_group *group, const void *send, size_t bytes, void *recv) {
    if (group->transport == BENCH_MPI)
        bench_mpi_allgather(group, send, bytes, recv);
    else
        local_allgather(group, send, bytes, recv);
}

static double *gather_doubles(bench_group *group, double value) {
    double *all = malloc(group->nranks * sizeof *all);
    if (!all)
        bench_fail(group, "no memory");
    bench_allgather(group, &value, sizeof value, all);
    return all;
}

double bench_sum(bench_group *group, double value) {
    double *all = gather_doubles(group, value), sum = 0.0;
    for (uint32_t r = 0; r < group->nranks; r++)
        sum += all[r];
    free(all);
    return sum;
}

double bench_max(bench_group *group, double value) {
    double *all = gather_doubles(group, value), max = all[0];
    for (uint32_t r = 1; r < group->nranks; r++)
        max = all[r] > max ? all[r] : max;
    free(all);
    return max;
}

bool bench_same(bench_group *group, uint64_t value) {
    uint64_t *all = malloc(group->nranks * sizeof *all);
    bool same = true;
    if (!all)
        bench_fail(group, "no memory");
    bench_allgather(group, &value, sizeof value, all);
    for (uint32_t r = 0; r < group->nranks; r++)
        same = same && all[r] == value;
    free(all);
    return same;
}

bool bench_mpi_sum(bench_group *group, const float *send, float *out, size_t count) {
    if (group->transport != BENCH_MPI)
        return false;
    bench_mpi_allreduce(group, send, out, count);
    return true;
}

/* The other ranks wait for this one: without an end of the whole job they would hang. */
static _Noreturn void leave(const bench_group *group) {
    fflush(NULL);
    if (group->transport == BENCH_MPI)
        bench_mpi_abort();
    _exit(1);
}

void bench_fail(bench_group *group, const char *format, ...) {
    char sentence[512];
    va_list args;
    va_start(args, format);
    vsnprintf(sentence, sizeof sentence, format, args);
    va_end(args);
    uint32_t rank = group->transport == BENCH_MPI ? bench_mpi_rank() : group->rank;
    fprintf(stderr, "rank %u: %s\n", rank, sentence);
    leave(group);
}

void bench_try(bench_group *group, tamis_status status, const char *what) {
    if (status == TAMIS_OK)
        return;
    bench_fail(group, "%s: %s: %s", what, tamis_status_name(status), tamis_last_error());
}
