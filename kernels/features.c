/* SPDX-License-Identifier: MIT
 *
 * What this build has, and why something is missing.
 */
#include "lib/base/base.h"

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/tile.h"
#ifdef TAM_HAVE_CUDA
#include "kernels/cuda/cuda.h"
#endif

#include <tamis/lists.h>

#ifndef TAM_MPI_VERSION
#define TAM_MPI_VERSION "MPI" /* of another machine, where it could not be asked */
#endif

static tamis_feature mpi_feature(void) {
#ifdef TAM_HAVE_MPI
    return (tamis_feature){sizeof(tamis_feature), "mpi", 1, "built with " TAM_MPI_VERSION};
#else
    return (tamis_feature){sizeof(tamis_feature), "mpi", 0, "built without MPI (TAMIS_MPI)"};
#endif
}

static tamis_feature ucx_feature(void) {
#ifdef TAM_HAVE_UCX
    return (tamis_feature){sizeof(tamis_feature), "ucx", 1,
                           "built with UCX; loads libucp.so.0 when it is used"};
#else
    return (tamis_feature){sizeof(tamis_feature), "ucx", 0, "built without UCX (TAMIS_UCX)"};
#endif
}

static tamis_feature openmp_feature(void) {
    if (tam_cpu_threaded())
        return (tamis_feature){sizeof(tamis_feature), "openmp", 1,
                               "built with OpenMP; TAMIS_THREADS or config.threads"};
    return (tamis_feature){sizeof(tamis_feature), "openmp", 0,
                           "built without OpenMP (TAMIS_OPENMP): one thread"};
}

static tamis_feature cuda_feature(void) {
#ifdef TAM_HAVE_CUDA
    const char *reason = tam_cuda_reason();
    if (reason)
        return (tamis_feature){sizeof(tamis_feature), "cuda", 0, reason};
    return (tamis_feature){sizeof(tamis_feature), "cuda", 1, tam_cuda_version()};
#else
    return (tamis_feature){sizeof(tamis_feature), "cuda", 0, "built without CUDA (TAMIS_CUDA)"};
#endif
}

static tamis_feature nccl_feature(void) {
#ifdef TAM_HAVE_NCCL
    return (tamis_feature){sizeof(tamis_feature), "nccl", 1,
                           "built with NCCL; needs a CUDA device"};
#else
    return (tamis_feature){sizeof(tamis_feature), "nccl", 0, "built without NCCL (TAMIS_NCCL)"};
#endif
}

static tamis_feature cpu_feature(const tam_tile_level *level) {
    bool best = tam_tile_best() == level;
    if (best)
        return (tamis_feature){sizeof(tamis_feature), level->name, 1, "in use"};
    if (level->available())
        return (tamis_feature){sizeof(tamis_feature), level->name, 1,
                               "available, not in use (TAMIS_CPU chooses)"};
    return (tamis_feature){sizeof(tamis_feature), level->name, 0, level->needs};
}

int tamis_feature_list(size_t index, tamis_feature *out) {
    static tamis_feature (*const parts[])(void) = {mpi_feature, ucx_feature, openmp_feature,
                                                   cuda_feature, nccl_feature};
    enum { PARTS = sizeof parts / sizeof parts[0] };
    size_t levels = 0;
    while (tam_tile_levels[levels].name)
        levels++;
    if (!out || index >= PARTS + levels)
        return 0;
    const tamis_feature own =
        index < PARTS ? parts[index]() : cpu_feature(&tam_tile_levels[index - PARTS]);
    return tam_struct_list("tamis_feature", &own, sizeof own, out);
}
