/* SPDX-License-Identifier: MIT */
#define _DEFAULT_SOURCE /* madvise */
#include "bench/common/measure.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double bench_quantile(double *values, size_t count, double q) {
    if (count == 0)
        return 0.0;
    qsort(values, count, sizeof *values, compare);
    size_t rank = (size_t)ceil(q * (double)count);
    return values[rank == 0 ? 0 : rank - 1];
}

double bench_median(double *values, size_t count) {
    double lower = bench_quantile(values, count, 0.5);
    return count % 2 || count == 0 ? lower : 0.5 * (lower + values[count / 2]);
}

void *bench_alloc(size_t count, size_t size) {
    size_t huge = (size_t)2 << 20, page = 4096;
    if (count > (SIZE_MAX - huge) / (size ? size : 1)) {
        fprintf(stderr, "%zu elements of %zu bytes are more than memory can address\n", count,
                size);
        exit(1);
    }
    size_t align = count * size >= huge ? huge : page;
    size_t bytes = (count * size + align - 1) / align * align;
    void *memory = aligned_alloc(align, bytes ? bytes : align);
    if (!memory) {
        fprintf(stderr, "no memory for %zu bytes; use smaller sizes or fewer ranks\n", bytes);
        exit(1);
    }
    if (align == huge)
        madvise(memory, bytes, MADV_HUGEPAGE); /* optional: without it only slower */
    memset(memory, 0, bytes ? bytes : align);
    return memory;
}
