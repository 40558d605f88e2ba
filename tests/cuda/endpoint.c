/* SPDX-License-Identifier: MIT */
#include "tests/cuda/endpoint.h"

#include "tests/support/data.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tamis/nccl.h>

tamis_reducer_config endpoint_config(tamis_device device, const char *scheme) {
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    config.scheme = scheme ? scheme : "tamis";
    config.density = 0.05;
    config.device = device;
    return config;
}

void endpoint_connect(test_rank *self, uint32_t timeout_ms, tamis_comm **out) {
    tamis_comm_config limit = TAMIS_COMM_CONFIG_INIT;
    limit.timeout_ms = timeout_ms;
    RANK_CUDA(self, cudaSetDevice((int)self->id));
    RANK_OK(self, tamis_comm_create_nccl(self->comm, &limit, out));
}

static void furnish(test_rank *self, const endpoint_order *order, endpoint *s) {
    tamis_reducer_config config = endpoint_config(TAMIS_DEVICE_CUDA, order->scheme);
    config.nonfinite = order->nonfinite;
    RANK_OK(self, data_reducer(s->comm, ENDPOINT_N, &config, &s->reducer));
    RANK_CUDA(self, cudaStreamCreateWithFlags(&s->stream, cudaStreamNonBlocking));
    RANK_CUDA(self, cudaMalloc((void **)&s->grad, ENDPOINT_BYTES));
    RANK_CUDA(self, cudaMallocHost((void **)&s->given, (size_t)ENDPOINT_STEPS * ENDPOINT_BYTES));
    RANK_CUDA(self, cudaMallocHost((void **)&s->got, (size_t)ENDPOINT_STEPS * ENDPOINT_BYTES));
    for (uint32_t i = 0; i < ENDPOINT_STEPS; i++)
        data_fill_real(self->id, i, ENDPOINT_N, s->given + i * ENDPOINT_N);
}

bool endpoint_open(test_rank *self, const endpoint_order *order, endpoint *out) {
    static const endpoint_order usual = {.nonfinite = TAMIS_NONFINITE_ERROR};
    if (!order)
        order = &usual;
    *out = (endpoint){0};
    endpoint_connect(self, order->timeout_ms, &out->comm);
    if (!self->failure[0])
        furnish(self, order, out);
    return !self->failure[0];
}

void endpoint_close(endpoint *s) {
    tamis_reducer_destroy(s->reducer);
    tamis_comm_destroy(s->comm);
    cudaStreamDestroy(s->stream);
    cudaFree(s->grad);
    cudaFreeHost(s->given);
    cudaFreeHost(s->got);
}

/* -- steps ------------------------------------------------------------------------------------ */

tamis_step endpoint_step(const endpoint *s) {
    tamis_step step = TAMIS_STEP_INIT;
    step.grad = s->grad;
    step.stream = s->stream;
    return step;
}

void endpoint_put(test_rank *self, const endpoint *s, uint32_t number) {
    RANK_CUDA(self, cudaMemcpyAsync(s->grad, s->given + number * ENDPOINT_N, ENDPOINT_BYTES,
                                    cudaMemcpyHostToDevice, s->stream));
}

void endpoint_fetch(test_rank *self, const endpoint *s, uint32_t number) {
    RANK_CUDA(self, cudaMemcpyAsync(s->got + number * ENDPOINT_N, s->grad, ENDPOINT_BYTES,
                                    cudaMemcpyDeviceToHost, s->stream));
}

static void join_one(test_rank *self, const endpoint *s, uint32_t number) {
    tamis_step step = endpoint_step(s);
    endpoint_put(self, s, number);
    RANK_OK(self, tamis_reducer_start(s->reducer, &step));
    RANK_OK(self, tamis_reducer_join(s->reducer, s->stream));
    endpoint_fetch(self, s, number);
}

void endpoint_join(test_rank *self, const endpoint *s, uint32_t first, uint32_t end) {
    for (uint32_t i = first; i < end && !self->failure[0]; i++)
        join_one(self, s, i);
}

static void wait_one(test_rank *self, const endpoint *s, uint32_t number) {
    tamis_step step = endpoint_step(s);
    endpoint_put(self, s, number);
    RANK_OK(self, tamis_reducer_start(s->reducer, &step));
    RANK_OK(self, tamis_reducer_wait(s->reducer));
    memcpy(s->got + number * ENDPOINT_N, s->grad, ENDPOINT_BYTES);
}

void endpoint_wait(test_rank *self, const endpoint *s, uint32_t first, uint32_t end) {
    for (uint32_t i = first; i < end && !self->failure[0]; i++)
        wait_one(self, s, i);
}

tamis_status endpoint_try(const endpoint *s) {
    tamis_step step = endpoint_step(s);
    tamis_status status = tamis_reducer_start(s->reducer, &step);
    return status == TAMIS_OK ? tamis_reducer_wait(s->reducer) : status;
}

/* -- the same on the CPU ---------------------------------------------------------------------- */

void endpoint_compute(test_rank *self, uint32_t first, uint32_t end, tamis_reducer *cpu,
                      float *out) {
    tamis_step step = TAMIS_STEP_INIT;
    for (uint32_t i = first; i < end; i++) {
        step.grad = out + i * ENDPOINT_N;
        data_fill_real(self->id, i, ENDPOINT_N, step.grad);
        RANK_OK(self, tamis_reducer_start(cpu, &step));
        RANK_OK(self, tamis_reducer_wait(cpu));
    }
}

void endpoint_compare(test_rank *self, const char *scheme, uint32_t first, uint32_t end,
                      const float *got) {
    tamis_reducer_config config = endpoint_config(TAMIS_DEVICE_CPU, scheme);
    tamis_reducer *cpu = NULL;
    float *expected = malloc((size_t)ENDPOINT_STEPS * ENDPOINT_BYTES);
    RANK_CHECK(self, expected, "no memory");
    RANK_OK(self, data_reducer(self->comm, ENDPOINT_N, &config, &cpu));
    endpoint_compute(self, 0, end, cpu, expected);
    for (uint32_t i = first; i < end && !self->failure[0]; i++)
        if (memcmp(got + i * ENDPOINT_N, expected + i * ENDPOINT_N, ENDPOINT_BYTES) != 0)
            rank_fail(self, __FILE__, __LINE__, "step %u differs from the CPU's", i);
    tamis_reducer_destroy(cpu);
    free(expected);
}

void endpoint_path(const test_rank *self, const char *name, char out[SCRATCH_PATH]) {
    char own[48];
    snprintf(own, sizeof own, "%s.%u", name, self->id);
    scratch_path(own, out);
}
