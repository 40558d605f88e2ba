/* SPDX-License-Identifier: MIT */
#include "tests/cuda/backend.h"

#include <cuda_runtime_api.h>
#include <stddef.h>
#include <tamis/nccl.h>

static void *take(size_t bytes) {
    void *memory = NULL;
    if (cudaMalloc(&memory, bytes) != cudaSuccess)
        return NULL;
    return cudaMemset(memory, 0, bytes) == cudaSuccess ? memory : NULL;
}

static void give_back(void *memory) {
    cudaFree(memory);
}

static tamis_comm *stay(uint32_t rank, tamis_comm *local) {
    return cudaSetDevice((int)rank) == cudaSuccess ? local : NULL;
}

static tamis_comm *connect_nccl(uint32_t rank, tamis_comm *local) {
    tamis_comm *comm = NULL;
    if (cudaSetDevice((int)rank) != cudaSuccess)
        return NULL;
    return tamis_comm_create_nccl(local, NULL, &comm) == TAMIS_OK ? comm : NULL;
}

#define DEVICE .device = TAMIS_DEVICE_CUDA, .alloc = take, .release = give_back
const trial_backend backend_host_driven = {.name = "cuda, host-driven", DEVICE, .connect = stay};
const trial_backend backend_mixed = {
    .name = "cuda, host-driven, beside CPUs", DEVICE, .connect = stay, .odd = true};
const trial_backend backend_stream = {.name = "cuda, stream", DEVICE, .connect = connect_nccl};
