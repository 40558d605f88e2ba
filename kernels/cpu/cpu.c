/* SPDX-License-Identifier: MIT
 *
 * The device row of the CPU, and the walks over chosen indices.
 */
#include "kernels/cpu/cpu.h"

#include "kernels/cpu/select.h"
#include "kernels/cpu/sweep.h"
#include "lib/base/base.h"
#include "lib/base/half.h"

/* Indices ascend but are far apart: hardware does not prefetch them, so we do, so many ahead. */
enum { AHEAD = 24 };

enum { COUNTED = 1 << 16 }; /* elements in a run: enough to start a thread for */

typedef struct cpu_device {
    const tam_grid *grid;
    tam_sweep sweep;
    tam_select select;
    double *group_sums;
} cpu_device;

static void cpu_close(void *self) {
    cpu_device *cpu = self;
    if (!cpu)
        return;
    tam_free(cpu->group_sums);
    tam_select_close(&cpu->select);
    tam_sweep_close(&cpu->sweep);
    tam_free(cpu);
}

static tamis_status cpu_open(const tam_grid *grid, size_t capacity, uint32_t threads, void **out) {
    tamis_status status = TAMIS_E_NOMEM;
    cpu_device *cpu = tam_alloc(sizeof *cpu);
    if (!cpu)
        return tam_fail(status, "no memory for a device");
    cpu->grid = grid;
    status = tam_sweep_open(grid, capacity, threads, &cpu->sweep);
    if (status != TAMIS_OK)
        goto err_close;
    status = tam_select_open(&cpu->sweep, &cpu->select);
    if (status != TAMIS_OK)
        goto err_close;
    cpu->group_sums = tam_alloc_array(grid->ngroups, sizeof cpu->group_sums[0]);
    if (!cpu->group_sums) {
        status = tam_fail(TAMIS_E_NOMEM, "no memory for sums of %u groups", grid->ngroups);
        goto err_close;
    }
    *out = cpu;
    return TAMIS_OK;

err_close:
    cpu_close(cpu);
    return status;
}

static void *cpu_alloc(void *self, size_t bytes) {
    (void)self;
    return tam_alloc(bytes);
}

static void cpu_release(void *self, void *memory) {
    (void)self;
    tam_free(memory);
}

static tamis_status cpu_read(void *self, const void *device, size_t bytes, void *host) {
    (void)self;
    memcpy(host, device, bytes);
    return TAMIS_OK;
}

static tamis_status cpu_write(void *self, const void *host, size_t bytes, void *device) {
    (void)self;
    memcpy(device, host, bytes);
    return TAMIS_OK;
}

/* In the order of tile.h. Lanes without a tile would add +0, so they are left out. */
static double cpu_sum_group(const tam_sweep *sweep, const tam_group *group) {
    double u[TAM_GROUP_LANES];
    uint32_t lanes = TAM_GROUP_LANES;
    while (lanes > 1 && lanes / 2 >= group->ntiles)
        lanes /= 2;
    memset(u, 0, lanes * sizeof u[0]);
    for (uint32_t t = 0; t < group->ntiles; t++)
        u[t % lanes] += sweep->tile_sums[group->first_tile + t];
    for (uint32_t half = lanes / 2; half > 0; half /= 2) {
        for (uint32_t j = 0; j < half; j++)
            u[j] += u[j + half];
    }
    return u[0];
}

/* Nothing to wait for: all calls are synchronous. */
static tamis_status cpu_follow(void *self, void *stream) {
    (void)self;
    (void)stream;
    return TAMIS_OK;
}

static tamis_status cpu_accumulate(void *self, const tam_accumulate *job, tam_accumulated *out) {
    cpu_device *cpu = self;
    const tam_grid *grid = cpu->grid;
    tam_span all = {0, grid->ntiles};
    out->nonfinite = tam_sweep_run(&cpu->sweep, job, all, &out->candidates);
    uint32_t bad = tam_sweep_bad_tile(&cpu->sweep);
    out->nonfinite_segment =
        bad < grid->ntiles ? grid->groups[grid->tiles[bad].group].segment : TAM_SEGMENT_UNKNOWN;
    out->group_sums = cpu->group_sums;
    for (uint32_t g = 0; g < grid->ngroups; g++) {
        cpu->group_sums[g] = cpu_sum_group(&cpu->sweep, &grid->groups[g]);
        cpu->select.last_thresholds[g] = job->thresholds[g];
    }
    return TAMIS_OK;
}

/* 32-bit integers within a run, so that compilers vectorise it. */
static uint64_t count_run(const float *acc, size_t length, int32_t threshold) {
    int32_t count = 0;
    for (size_t i = 0; i < length; i++)
        count += (int32_t)tam_magnitude(acc[i]) >= threshold;
    return (uint64_t)count;
}

static tamis_status cpu_count(void *self, const float *acc, uint32_t threshold, uint64_t *out) {
    const cpu_device *cpu = self;
    const size_t n = cpu->grid->n, runs = (n + COUNTED - 1) / COUNTED;
    uint64_t count = 0;
#ifdef _OPENMP
#pragma omp parallel for num_threads(cpu->sweep.threads) reduction(+ : count) if (runs > 1)
#endif
    for (size_t i = 0; i < runs; i++) {
        size_t left = n - i * COUNTED;
        count += count_run(acc + i * COUNTED, left < COUNTED ? left : COUNTED, (int32_t)threshold);
    }
    *out = count;
    return TAMIS_OK;
}

/* Most rows are all zero, so test run by run, without a branch per element. */
static bool is_touched(const float *row, uint32_t length) {
    enum { RUN = 64 };
    for (uint32_t at = 0; at < length; at += RUN) {
        uint32_t end = length - at < RUN ? length : at + RUN, any = 0;
        for (uint32_t i = at; i < end; i++)
            any |= tam_magnitude(row[i]);
        if (any)
            return true;
    }
    return false;
}

static tamis_status cpu_mark(void *self, const float *acc, uint32_t length, uint32_t nrows,
                             unsigned char *marks) {
    const cpu_device *cpu = self;
#ifdef _OPENMP
#pragma omp parallel for num_threads(cpu->sweep.threads) if (cpu->grid->n > COUNTED)
#endif
    for (uint32_t r = 0; r < nrows; r++)
        marks[r] = is_touched(acc + (size_t)r * length, length);
    (void)cpu;
    return TAMIS_OK;
}

static tamis_status cpu_select(void *self, const tam_select_job *job, uint32_t *indices,
                               tam_select_result *out) {
    cpu_device *cpu = self;
    tam_select_run(&cpu->select, job, indices, out);
    return TAMIS_OK;
}

static uint32_t ahead(const uint32_t *indices, size_t i, size_t count) {
    return indices[i + AHEAD < count ? i + AHEAD : count - 1];
}

static tamis_status cpu_gather(void *self, const float *acc, const uint32_t *indices, size_t count,
                               float *values) {
    (void)self;
    for (size_t i = 0; i < count; i++) {
        __builtin_prefetch(&acc[ahead(indices, i, count)]);
        values[i] = acc[indices[i]];
    }
    return TAMIS_OK;
}

static void cpu_scatter(float *to, const uint32_t *indices, size_t count, const float *values) {
    for (size_t i = 0; i < count; i++) {
        __builtin_prefetch(&to[ahead(indices, i, count)], 1);
        to[indices[i]] = values[i];
    }
}

static void scatter_narrow(uint16_t *to, tamis_dtype type, const uint32_t *indices, size_t count,
                           const float *values) {
    for (size_t i = 0; i < count; i++) {
        __builtin_prefetch(&to[ahead(indices, i, count)], 1);
        tam_narrow(&values[i], 1, type, &to[indices[i]]);
    }
}

/* Entries of one segment, which has a gradient of its own. */
static void scatter_segment(const tam_accumulate *target, uint32_t segment, const uint32_t *indices,
                            size_t count, const float *values) {
    size_t bytes = tam_type_bytes(target->type);
    unsigned char *to = target->grads[segment];
    uint32_t begin = target->seg_begin[segment];
    for (size_t i = 0; i < count; i++)
        tam_narrow(&values[i], 1, target->type, to + (indices[i] - begin) * bytes);
}

/* The pass has left in the gradient what the segment was before the step. */
static void descend_segment(const tam_accumulate *target, uint32_t segment, const uint32_t *indices,
                            size_t count, const float *values) {
    float *to = target->grads[segment], rate = target->rates[segment];
    uint32_t begin = target->seg_begin[segment];
    for (size_t i = 0; rate != 0.0f && i < count; i++) {
        __builtin_prefetch(&to[ahead(indices, i, count) - begin], 1);
        to[indices[i] - begin] -= rate * values[i];
    }
}

static void apply_segments(const tam_grid *grid, const tam_accumulate *target,
                           const uint32_t *indices, size_t count, const float *values) {
    size_t i = 0;
    for (uint32_t g = 0; g < grid->ngroups && i < count; g++) {
        const tam_group *group = &grid->groups[g];
        size_t end = tam_first_from(indices, i, count, (uint64_t)group->begin + group->length);
        if (target->before)
            descend_segment(target, group->segment, indices + i, end - i, values + i);
        else
            scatter_segment(target, group->segment, indices + i, end - i, values + i);
        i = end;
    }
}

static tamis_status cpu_apply(void *self, const tam_accumulate *target, const uint32_t *indices,
                              size_t count, float divisor, float *values) {
    cpu_device *cpu = self;
    for (size_t i = 0; i < count; i++)
        values[i] /= divisor;
    if (target->grad && target->type != TAMIS_DTYPE_FLOAT32)
        scatter_narrow(target->grad, target->type, indices, count, values);
    else if (target->grad)
        cpu_scatter(target->grad, indices, count, values);
    else if (target->grads)
        apply_segments(cpu->grid, target, indices, count, values);
    return TAMIS_OK;
}

static tamis_status cpu_put(void *self, float *acc, const uint32_t *indices, size_t count,
                            const float *values) {
    (void)self;
    if (values)
        cpu_scatter(acc, indices, count, values);
    for (size_t i = 0; !values && i < count; i++) {
        __builtin_prefetch(&acc[ahead(indices, i, count)], 1);
        acc[indices[i]] = 0.0f;
    }
    return TAMIS_OK;
}

bool tam_cpu_threaded(void) {
#ifdef _OPENMP
    return true;
#else
    return false;
#endif
}

const tam_device tam_device_cpu = {
    .name = "cpu",
    .open = cpu_open,
    .close = cpu_close,
    .alloc = cpu_alloc,
    .release = cpu_release,
    .read = cpu_read,
    .write = cpu_write,
    .check = NULL, /* there is no cheap way to find that memory is not of the host */
    .follow = cpu_follow,
    .accumulate = cpu_accumulate,
    .count = cpu_count,
    .mark = cpu_mark,
    .select = cpu_select,
    .gather = cpu_gather,
    .apply = cpu_apply,
    .put = cpu_put,
};
