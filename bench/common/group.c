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

#include "bench/common/alike.h"
#include "bench/common/device.h"
#include "bench/common/group_mpi.h"
#include "bench/common/options.h"

/* -- launchers -------------------------------------------------------------------------------- */

/* What launchers set. The first row whose variables are there is the one that counts: a launcher may
 * run inside another. SLURM_NTASKS is none of them: a shell in an allocation has it, too. */
typedef struct launcher {
    const char *size, *rank;
    bool mpi; /* it starts MPI's ranks */
} launcher;

static const launcher launchers[] = {
    {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", true}, /* mpirun of Open MPI */
    {"PMI_SIZE", "PMI_RANK", true},                  /* of MPICH and Intel MPI; srun --mpi=pmi2 */
    {"SLURM_STEP_NUM_TASKS", "PMIX_RANK", true},     /* srun --mpi=pmix */
    {NULL, "PMIX_RANK", true},                       /* how many is for MPI to say */
    {"SLURM_STEP_NUM_TASKS", "SLURM_PROCID", false}, /* srun without MPI */
    {"WORLD_SIZE", "RANK", false},                   /* torchrun */
};

static uint32_t environment_number(const char *name) {
    const char *text = name ? getenv(name) : NULL;
    return text ? (uint32_t)strtoul(text, NULL, 10) : 0;
}

/* What they said when it was first asked for, by the options: MPI_Init sets some of them itself. */
static struct {
    bool known, mpi;
    const char *size;
    uint32_t rank, ranks;
} launched = {.size = "the launcher", .ranks = 1};

static void look(void) {
    for (size_t i = 0; !launched.known && i < sizeof launchers / sizeof launchers[0]; i++) {
        const launcher *l = &launchers[i];
        if ((l->size && !getenv(l->size)) || !getenv(l->rank))
            continue;
        launched.known = true;
        launched.mpi = l->mpi;
        launched.rank = environment_number(l->rank);
        if (environment_number(l->size) > 0) {
            launched.size = l->size;
            launched.ranks = environment_number(l->size);
        }
    }
    launched.known = true;
}

uint32_t bench_launched_rank(void) {
    look();
    return launched.rank;
}

uint32_t bench_launched_ranks(void) {
    look();
    return launched.ranks;
}

const char *bench_launched_by(void) {
    look();
    return launched.size;
}

uint32_t bench_machine_rank(const bench_group *group) {
    static const char *const names[] = {"OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID",
                                        "SLURM_LOCALID", NULL};
    for (const char *const *name = names; group->transport == BENCH_MPI && *name; name++) {
        if (getenv(*name))
            return environment_number(*name);
    }
    return group->rank;
}

static bool under_mpi_launcher(void) {
    look();
    return launched.mpi;
}

/* NCCL starts from a group of the kind that the launcher suggests. */
static bench_transport kind_of(int transport) {
    if (transport != BENCH_NCCL)
        return (bench_transport)transport;
    return under_mpi_launcher() && bench_mpi_built() ? BENCH_MPI : BENCH_LOCAL;
}

/* One rank in each of several processes would be so many runs beside each other. */
static void refuse_copies(int transport) {
    uint32_t ranks = bench_launched_ranks();
    if (ranks > 1 && kind_of(transport) == BENCH_LOCAL && !under_mpi_launcher())
        bench_usage("%s is %u, but what started these processes does not start MPI, so each would "
                    "run by itself: start them with mpirun -np %u, or srun --mpi=pmix -n %u",
                    bench_launched_by(), ranks, ranks, ranks);
    if (ranks > 1 && kind_of(transport) == BENCH_LOCAL)
        bench_usage("--transport %s runs all ranks in one process here; start it without mpirun",
                    bench_choice(BENCH_TRANSPORTS, transport));
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
    refuse_copies(*transport);
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
    if (!bench_alike(group))
        return 2;
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
