/* SPDX-License-Identifier: MIT
 *
 * What both kinds of groups share.
 */
#include "bench/common/group.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "bench/common/launcher.h"

uint32_t bench_machine_rank(const bench_group *group) {
    uint32_t rank;
    bool given = group->transport == BENCH_MPI && bench_launched_local_rank(&rank);
    return given ? rank : group->rank;
}

void bench_barrier(bench_group *group) {
    group->kind->barrier(group);
}

void bench_allgather(bench_group *group, const void *send, size_t bytes, void *recv) {
    group->kind->allgather(group, send, bytes, recv);
}

static double *gather_doubles(bench_group *group, double value) {
    double *all = malloc(group->nranks * sizeof *all);
    if (!all)
        bench_fail(group, "no memory");
    bench_allgather(group, &value, sizeof value, all);
    return all;
}

double bench_sum(bench_group *group, double value) {
    double *all = gather_doubles(group, value), sum = 0.0;
    for (uint32_t r = 0; r < group->nranks; r++)
        sum += all[r];
    free(all);
    return sum;
}

double bench_max(bench_group *group, double value) {
    double *all = gather_doubles(group, value), max = all[0];
    for (uint32_t r = 1; r < group->nranks; r++)
        max = all[r] > max ? all[r] : max;
    free(all);
    return max;
}

bool bench_same(bench_group *group, uint64_t value) {
    uint64_t *all = malloc(group->nranks * sizeof *all);
    bool same = true;
    if (!all)
        bench_fail(group, "no memory");
    bench_allgather(group, &value, sizeof value, all);
    for (uint32_t r = 0; r < group->nranks; r++)
        same = same && all[r] == value;
    free(all);
    return same;
}

bool bench_mpi_sum(bench_group *group, const float *send, float *out, size_t count) {
    return group->kind->sum(group, send, out, count);
}

/* End the whole job: the other ranks wait for this one and would hang. */
static _Noreturn void end_process(const bench_group *group) {
    fflush(NULL);
    group->kind->end_all();
    _exit(1);
}

void bench_fail(bench_group *group, const char *format, ...) {
    char sentence[512];
    va_list args;
    va_start(args, format);
    vsnprintf(sentence, sizeof sentence, format, args);
    va_end(args);
    fprintf(stderr, "rank %u: %s\n", group->number, sentence);
    end_process(group);
}

void bench_try(bench_group *group, tamis_status status, const char *what) {
    if (status != TAMIS_OK)
        bench_fail(group, "%s: %s: %s", what, tamis_status_name(status), tamis_last_error());
}
