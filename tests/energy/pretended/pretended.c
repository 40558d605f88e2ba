/* SPDX-License-Identifier: MIT
 *
 * Names and records are those of the library that this stands in for. Built three times: whole,
 * without a function that every meter needs, and without those that it can do without.
 */
#include "tests/energy/pretended/pretended.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define SHOWN __attribute__((visibility("default")))

extern pretended pretended_state;
SHOWN pretended pretended_state;

static void wait_while(atomic_int *flag) {
    while (atomic_load(flag))
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

int nvmlInit_v2(void);
SHOWN int nvmlInit_v2(void) {
    wait_while(&pretended_state.hang_init);
    int code = atomic_load(&pretended_state.init_code);
    if (code == 0)
        atomic_fetch_add(&pretended_state.begun, 1);
    return code;
}

int nvmlShutdown(void);
SHOWN int nvmlShutdown(void) {
    atomic_fetch_sub(&pretended_state.begun, 1);
    return 0;
}

int nvmlDeviceGetCount_v2(unsigned *count);
SHOWN int nvmlDeviceGetCount_v2(unsigned *count) {
    *count = atomic_load(&pretended_state.ngpus);
    return atomic_load(&pretended_state.count_code);
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, pretended_gpu **out);
SHOWN int nvmlDeviceGetHandleByIndex_v2(unsigned index, pretended_gpu **out) {
    if (index >= atomic_load(&pretended_state.ngpus))
        return 2;
    *out = &pretended_state.gpus[index];
    return atomic_load(&(*out)->handle_code);
}

#ifndef PRETENDED_WITHOUT_UUID
int nvmlDeviceGetUUID(const pretended_gpu *gpu, char *out, unsigned bytes);
SHOWN int nvmlDeviceGetUUID(const pretended_gpu *gpu, char *out, unsigned bytes) {
    snprintf(out, bytes, "%s", gpu->uuid);
    return 0;
}
#endif

#ifndef PRETENDED_BARE
static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static int find(const char *text, size_t offset, pretended_gpu **out) {
    for (int i = 0; i < PRETENDED_GPUS; i++) {
        *out = &pretended_state.gpus[i];
        if (text[0] && strcmp((const char *)*out + offset, text) == 0)
            return atomic_load(&(*out)->handle_code);
    }
    return 6;
}

const char *nvmlErrorString(int code);
SHOWN const char *nvmlErrorString(int code) {
    return code == 999 ? "Unknown Error" : "some error";
}

int nvmlDeviceGetHandleByUUID(const char *uuid, pretended_gpu **out);
SHOWN int nvmlDeviceGetHandleByUUID(const char *uuid, pretended_gpu **out) {
    return find(uuid, offsetof(pretended_gpu, uuid), out);
}

int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, pretended_gpu **out);
SHOWN int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, pretended_gpu **out) {
    return find(bus, offsetof(pretended_gpu, bus), out);
}

int nvmlDeviceIsMigDeviceHandle(const pretended_gpu *gpu, unsigned *out);
SHOWN int nvmlDeviceIsMigDeviceHandle(const pretended_gpu *gpu, unsigned *out) {
    *out = gpu != &pretended_state.gpus[atomic_load(&gpu->board)];
    return 0;
}

int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(const pretended_gpu *gpu, pretended_gpu **out);
SHOWN int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(const pretended_gpu *gpu,
                                                       pretended_gpu **out) {
    *out = &pretended_state.gpus[atomic_load(&gpu->board)];
    return 0;
}

static uint64_t count_mj(const pretended_gpu *gpu) {
    uint64_t tick_ms = atomic_load(&gpu->tick_ms);
    uint64_t ms = now_ns() / 1000000u;
    uint64_t grown = tick_ms ? ms / tick_ms * tick_ms * atomic_load(&gpu->watts) : 0;
    return atomic_load(&gpu->mj) + grown;
}

static int answer_mj(const pretended_gpu *gpu, unsigned long long *out) {
    static _Atomic uint64_t last_ns;
    atomic_fetch_add(&pretended_state.calls, 1);
    wait_while(&pretended_state.hang);
    uint64_t now = now_ns(), before = atomic_exchange(&last_ns, now);
    *out = now - before < atomic_load(&pretended_state.fast_ns) ? 0 : count_mj(gpu);
    return atomic_load(&gpu->energy_code);
}

int nvmlDeviceGetTotalEnergyConsumption(const pretended_gpu *gpu, unsigned long long *out);
SHOWN int nvmlDeviceGetTotalEnergyConsumption(const pretended_gpu *gpu, unsigned long long *out) {
    return answer_mj(gpu, out);
}

typedef struct field {
    uint32_t id, scope;
    int64_t stamp_us, latency_us;
    int32_t type, status;
    uint64_t value;
} field;

int nvmlDeviceGetFieldValues(const pretended_gpu *gpu, int count, field *fields);
SHOWN int nvmlDeviceGetFieldValues(const pretended_gpu *gpu, int count, field *fields) {
    for (int i = 0; i < count; i++) {
        field *f = &fields[i];
        unsigned long long mj = 0;
        bool module = f->scope == 1, scoped = f->id == 191, counter = scoped || f->id == 83;
        f->status = module ? atomic_load(&gpu->module_code) : scoped ? 0 : 3;
        if (scoped && f->status == 0)
            f->status = atomic_load(&gpu->scoped_code);
        f->type = counter ? atomic_load(&gpu->field_type) : 1;
        if (counter && f->status == 0 && answer_mj(gpu, &mj) != 0)
            f->status = atomic_load(&gpu->energy_code);
        mj += module && scoped ? atomic_load(&gpu->cpu_mj) : 0;
        f->value = counter ? mj : atomic_load(&gpu->mw);
    }
    return 0;
}
#endif

int nvmlDeviceGetPowerUsage(const pretended_gpu *gpu, unsigned *out);
SHOWN int nvmlDeviceGetPowerUsage(const pretended_gpu *gpu, unsigned *out) {
    atomic_fetch_add(&pretended_state.calls, 1);
    wait_while(&pretended_state.hang);
    *out = atomic_load(&gpu->mw);
    return atomic_load(&gpu->power_code);
}
