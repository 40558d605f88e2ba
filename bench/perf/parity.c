/* SPDX-License-Identifier: MIT
 *
 * Steps on a CUDA device and the same steps on the CPU, over the same communicator. All their
 * results must have the same bits: indices, values, residual, gradient. check.c checks the CPU's
 * results against the rules.
 */
#include <stdlib.h>
#include <string.h>

#include "bench/common/device.h"
#include "bench/common/half.h"
#include "bench/common/measure.h"
#include "bench/perf/perf.h"

enum { STEPS = 3 };

typedef struct side {
    tamis_device device;
    tamis_reducer *reducer;
    void *grad;                                /* in the device's memory */
    tamis_result result;                       /* like those below in host memory */
    void *indices, *values, *residual, *after; /* after: the gradient; each at most [n] */
} side;

static void open_side(const perf_case *c, tamis_device device, side *out) {
    size_t n = c->shape.n;
    *out = (side){.device = device};
    out->reducer = perf_reducer(c, c->settings->scheme, (tamis_output)c->settings->output, device);
    out->grad = bench_device_alloc(device, c->grad_bytes);
    out->indices = bench_alloc(n, 4);
    out->values = bench_alloc(n, 4);
    out->residual = bench_alloc(n, 4);
    out->after = bench_alloc(n, 4);
}

static void close_side(side *s) {
    tamis_reducer_destroy(s->reducer);
    bench_device_free(s->device, s->grad);
    free(s->indices);
    free(s->values);
    free(s->residual);
    free(s->after);
}

static void fetch(tamis_device device, const void *memory, size_t bytes, void *host) {
    if (memory)
        bench_device_read(device, memory, bytes, host);
}

static void run_side(const perf_case *c, side *s, const void *given) {
    const float *residual;
    bench_device_write(s->device, given, c->grad_bytes, s->grad);
    perf_step(c, s->reducer, s->grad);
    s->result = (tamis_result)TAMIS_RESULT_INIT;
    bench_try(c->group, tamis_reducer_result(s->reducer, &s->result), "result of a step");
    bench_try(c->group, tamis_reducer_residual(s->reducer, &residual), "residual after a step");
    fetch(s->result.memory, s->result.indices, s->result.count * 4, s->indices);
    fetch(s->result.memory, s->result.values, s->result.count * 4, s->values);
    fetch(s->device, residual, c->shape.n * 4, s->residual);
    fetch(s->device, s->grad, c->grad_bytes, s->after);
}

static double differences(const void *a, const void *b, size_t count, size_t size) {
    double wrong = 0;
    if (memcmp(a, b, count * size) == 0)
        return 0;
    for (size_t i = 0; i < count; i++)
        wrong += memcmp((const char *)a + i * size, (const char *)b + i * size, size) != 0;
    return wrong;
}

static double compare(const perf_case *c, const side *a, const side *b) {
    size_t n = c->shape.n, count = a->result.count;
    if (count != b->result.count)
        return 1;
    return differences(a->indices, b->indices, count, 4) +
           differences(a->values, b->values, count, 4) +
           differences(a->residual, b->residual, n, 4) +
           differences(a->after, b->after, n, bench_type_bytes(c->type));
}

double perf_parity(const perf_case *c) {
    side cuda, cpu;
    float *given = bench_alloc(c->shape.n, sizeof *given);
    double wrong = 0;
    open_side(c, TAMIS_DEVICE_CUDA, &cuda);
    open_side(c, TAMIS_DEVICE_CPU, &cpu);
    for (uint64_t s = 0; s < STEPS; s++) {
        perf_gradient(&c->shape, c->settings->seed + 1, STEPS * c->group->rank + s, given);
        bench_narrow(c->type, given, c->shape.n, given);
        run_side(c, &cuda, given);
        run_side(c, &cpu, given);
        wrong += compare(c, &cuda, &cpu);
    }
    close_side(&cpu);
    close_side(&cuda);
    free(given);
    return bench_sum(c->group, wrong);
}
