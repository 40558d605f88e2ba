/* SPDX-License-Identifier: MIT */
#include "bench/common/launcher.h"

#include <stdlib.h>

/* The variables that launchers set. A launcher may run inside another, so the first row whose
 * variables are set counts. SLURM_NTASKS is not used: a shell in an allocation has it, too. */
typedef struct launcher {
    const char *size, *rank;
    bool mpi; /* it starts MPI's ranks */
} launcher;

static const launcher launchers[] = {
    {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", true}, /* mpirun of Open MPI */
    {"PMI_SIZE", "PMI_RANK", true},                  /* of MPICH and Intel MPI; srun --mpi=pmi2 */
    {"SLURM_STEP_NUM_TASKS", "PMIX_RANK", true},     /* srun --mpi=pmix */
    {NULL, "PMIX_RANK", true},                       /* only MPI knows how many */
    {"SLURM_STEP_NUM_TASKS", "SLURM_PROCID", false}, /* srun without MPI */
    {"WORLD_SIZE", "RANK", false},                   /* torchrun */
};

static uint32_t environment_number(const char *name) {
    const char *text = name ? getenv(name) : NULL;
    return text ? (uint32_t)strtoul(text, NULL, 10) : 0;
}

/* Their values at the first look, when options are parsed: MPI_Init sets some of them itself. */
static struct {
    bool known, mpi;
    const char *size;
    uint32_t rank, ranks;
} launched = {.size = "the launcher", .ranks = 1};

static void detect(void) {
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
    detect();
    return launched.rank;
}

uint32_t bench_launched_ranks(void) {
    detect();
    return launched.ranks;
}

const char *bench_launched_by(void) {
    detect();
    return launched.size;
}

bool bench_launched_mpi(void) {
    detect();
    return launched.mpi;
}

bool bench_launched_local_rank(uint32_t *out) {
    static const char *const names[] = {"OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID",
                                        "SLURM_LOCALID", NULL};
    for (const char *const *name = names; *name; name++) {
        if (getenv(*name)) {
            *out = environment_number(*name);
            return true;
        }
    }
    return false;
}
