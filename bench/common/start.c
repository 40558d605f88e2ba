/* SPDX-License-Identifier: MIT */
#include "bench/common/start.h"

#ifdef TAMIS_BENCH_NCCL
#include <tamis/nccl.h>
#endif
#include <tamis/ucx.h>

#include "bench/common/same_options.h"
#include "bench/common/device.h"
#include "bench/common/group_local.h"
#include "bench/common/group_mpi.h"
#include "bench/common/launcher.h"
#include "bench/common/usage.h"

/* NCCL and UCX bootstrap over a group of the kind that the launcher suggests. */
static bench_transport kind_of(int transport) {
    if (transport != BENCH_NCCL && transport != BENCH_UCX)
        return (bench_transport)transport;
    return bench_launched_mpi() && bench_mpi_built() ? BENCH_MPI : BENCH_LOCAL;
}

/* Local ranks in each of several processes would be that many separate runs. */
static void check_launcher(int transport) {
    uint32_t ranks = bench_launched_ranks();
    if (ranks > 1 && kind_of(transport) == BENCH_LOCAL && !bench_launched_mpi())
        bench_usage("%s is %u, but the launcher of these processes does not start MPI, so each "
                    "would run alone: use mpirun -np %u, or srun --mpi=pmix -n %u",
                    bench_launched_by(), ranks, ranks, ranks);
    if (ranks > 1 && kind_of(transport) == BENCH_LOCAL)
        bench_usage("--transport %s runs all ranks in one process here; start it without mpirun",
                    bench_choice(BENCH_TRANSPORTS, transport));
}

void bench_launch_check(int *transport, uint64_t *ranks) {
    if (*transport < 0)
        *transport = bench_launched_mpi() && bench_mpi_built() ? BENCH_MPI : BENCH_LOCAL;
    if (*transport == BENCH_MPI && !bench_mpi_built())
        bench_usage("--transport mpi is not in this build");
    if (kind_of(*transport) == BENCH_MPI && *ranks)
        bench_usage("--ranks is for ranks that are threads; under mpirun give their number to "
                    "mpirun (mpirun -np %llu)",
                    (unsigned long long)*ranks);
    check_launcher(*transport);
    if (kind_of(*transport) == BENCH_LOCAL && *ranks == 0)
        *ranks = 1;
}

typedef struct launch {
    bench_transport transport;
    tamis_device device;
    bench_main body;
    void *context;
} launch;

#ifdef TAMIS_BENCH_NCCL
static void make_nccl(bench_group *group, tamis_comm **out) {
    bench_try(group, tamis_comm_create_nccl(group->comm, NULL, out),
              "cannot create an NCCL communicator");
}
#else
static void make_nccl(bench_group *group, tamis_comm **out) {
    (void)out;
    bench_fail(group, "this build has no NCCL");
}
#endif

#ifdef TAMIS_BENCH_UCX
static tamis_status gather_addresses(void *group, const void *send, void *recv, size_t bytes) {
    bench_allgather(group, send, bytes, recv);
    return TAMIS_OK;
}

static void make_ucx(bench_group *group, tamis_comm **out) {
    tamis_callbacks rendezvous = TAMIS_CALLBACKS_INIT;
    rendezvous.rank = group->rank;
    rendezvous.nranks = group->nranks;
    rendezvous.allgather = gather_addresses;
    rendezvous.context = group;
    bench_try(group, tamis_comm_create_ucx(&rendezvous, NULL, out), "cannot create a communicator");
}
#else
static void make_ucx(bench_group *group, tamis_comm **out) {
    (void)out;
    bench_fail(group, "this build has no UCX");
}
#endif

static int run_rank(bench_group *group, void *context) {
    const launch *l = context;
    tamis_comm *outer = group->comm, *made = NULL;
    if (!bench_same_options(group))
        return 2;
    bench_device_use(group, l->device);
    if (l->transport == BENCH_NCCL)
        make_nccl(group, &made);
    else if (l->transport == BENCH_UCX)
        make_ucx(group, &made);
    if (!made)
        return l->body(group, l->context);
    group->comm = made;
    int status = l->body(group, l->context);
    tamis_comm_destroy(made);
    group->comm = outer;
    return status;
}

int bench_launch(bench_transport transport, tamis_device device, uint32_t ranks, bench_main body,
                 void *context) {
    launch l = {transport, device, body, context};
    return kind_of(transport) == BENCH_MPI ? bench_mpi_launch(run_rank, &l)
                                           : bench_local_launch(ranks, run_rank, &l);
}
