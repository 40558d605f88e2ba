/* SPDX-License-Identifier: MIT
 *
 * nccl_ranks [P] [small] [dead]: several NCCL ranks on one device, for correctness only: the ranks
 * are processes that NCCL takes for machines and joins by sockets, so no time made here means
 * anything. tests/gpu.sh sets the environment that this needs.
 *
 *     (nothing)  steps over NCCL against the CPU, bit for bit: waited for, joined, captured
 *     small      a few of them, each scheme once
 *     dead       the last rank ends in the middle; the others must come back with an error in time
 *                and save their state; `small`: with a short deadline
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cuda_runtime_api.h>
#include <tamis/nccl.h>
#include <tamis/state.h>

#include "tests/gpu/compare.h"
#include "tests/gpu/processes.h"

enum { SKIPPED = 77, PATIENCE_S = 150, LATE_S = 20, ALIVE = 3, N = 100000 };

typedef struct arguments {
    uint32_t nranks;
    bool small, dead;
} arguments;

static tamis_comm *make_nccl(process *self, const arguments *a) {
    tamis_comm_config config = TAMIS_COMM_CONFIG_INIT;
    tamis_comm *nccl = NULL;
    config.timeout_ms = a->dead && a->small ? 4000 : 10000;
    if (tamis_comm_create_nccl(self->comm, &config, &nccl) != TAMIS_OK)
        fprintf(stderr, "rank %u: %s\n", self->rank, tamis_last_error());
    return nccl;
}

/* -- results ---------------------------------------------------------------------------------- */

static int compare_all(process *self, tamis_comm *nccl, bool small) {
    compare_case c;
    unsigned ran = 0, bad = 0;
    for (unsigned i = 0; compare_list(i, small, &c); i++) {
        if (small && !compare_brief(i))
            continue;
        ran++;
        uint64_t wrong = compare_run(nccl, self->comm, &c);
        if (wrong == 0)
            continue;
        bad++;
        printf("rank %u: %s: %s\n", self->rank, compare_name(&c),
               wrong == UINT64_MAX ? "failed" : "differs from the CPU");
        if (tamis_comm_status(nccl) != TAMIS_OK)
            break;
    }
    if (self->rank == 0)
        printf("{\"record\":\"parity\",\"ranks\":%u,\"transport\":\"nccl\",\"cases\":%u,"
               "\"different\":%u}\n",
               self->nranks, ran, bad);
    return bad > 0 || ran == 0;
}

/* -- a rank that dies ------------------------------------------------------------------------- */

static tamis_reducer *make_reducer(tamis_comm *nccl) {
    const tamis_segment segment = {"all", N};
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    tamis_layout *layout = NULL;
    tamis_reducer *reducer = NULL;
    config.device = TAMIS_DEVICE_CUDA;
    if (tamis_layout_create(&segment, 1, &layout) != TAMIS_OK ||
        tamis_reducer_create(nccl, layout, &config, &reducer) != TAMIS_OK)
        fprintf(stderr, "%s\n", tamis_last_error());
    tamis_layout_destroy(layout);
    return reducer;
}

static tamis_status one_step(tamis_reducer *reducer, void *grad) {
    tamis_step step = TAMIS_STEP_INIT;
    step.grad = grad;
    tamis_status status = tamis_reducer_start(reducer, &step);
    return status == TAMIS_OK ? tamis_reducer_wait(reducer) : status;
}

static int survive(process *self, tamis_reducer *reducer, void *grad) {
    char path[64];
    time_t begin = time(NULL);
    tamis_status status = one_step(reducer, grad);
    long seconds = (long)(time(NULL) - begin);
    snprintf(path, sizeof path, "nccl_ranks.%ld.rank%u", (long)getpid(), self->rank);
    tamis_status saved = tamis_reducer_save(reducer, path);
    unlink(path);
    printf("{\"record\":\"dead\",\"rank\":%u,\"status\":\"%s\",\"seconds\":%ld,\"saved\":\"%s\"}\n",
           self->rank, tamis_status_name(status), seconds, tamis_status_name(saved));
    return tamis_status_loss(status) != TAMIS_LOST_COMM || seconds > LATE_S || saved != TAMIS_OK;
}

static int lose_a_rank(process *self, tamis_comm *nccl) {
    void *grad = NULL;
    int bad = 1;
    tamis_reducer *reducer = make_reducer(nccl);
    if (!reducer || cudaMalloc(&grad, N * sizeof(float)) != cudaSuccess ||
        cudaMemset(grad, 0, N * sizeof(float)) != cudaSuccess)
        goto destroy_reducer;
    for (int step = 0; step < ALIVE; step++) {
        if (one_step(reducer, grad) != TAMIS_OK) {
            fprintf(stderr, "rank %u: %s\n", self->rank, tamis_last_error());
            goto destroy_reducer;
        }
    }
    if (self->rank + 1 == self->nranks)
        processes_die(self);
    bad = survive(self, reducer, grad);

destroy_reducer:
    tamis_reducer_destroy(reducer);
    return bad;
}

/* -- ranks ------------------------------------------------------------------------------------ */

static int run(process *self, void *context) {
    const arguments *a = context;
    tamis_comm *nccl;
    if (!compare_choose(self->device) || !(nccl = make_nccl(self, a)))
        return 1;
    int bad = a->dead ? lose_a_rank(self, nccl) : compare_all(self, nccl, a->small);
    tamis_comm_destroy(nccl);
    return bad;
}

int main(int argc, char **argv) {
    arguments a = {.nranks = 2};
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "small") == 0)
            a.small = true;
        else if (strcmp(argv[i], "dead") == 0)
            a.dead = true;
        else
            a.nranks = (uint32_t)atoi(argv[i]);
    }
    if (a.nranks < 1 || a.nranks > PROCESSES_MOST) {
        fprintf(stderr, "usage: nccl_ranks [P] [small] [dead], P from 1 to %d\n", PROCESSES_MOST);
        return 2;
    }
    if (!processes_ask(compare_device))
        return SKIPPED;
    return processes_run(a.nranks, PATIENCE_S, run, &a);
}
