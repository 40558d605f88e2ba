/* SPDX-License-Identifier: MIT
 *
 * What both kinds of groups share.
 */
#include "bench/common/group.h"

#include <sched.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "bench/common/launcher.h"
#include "bench/common/measure.h"

uint32_t bench_machine_rank(const bench_group *group) {
    uint32_t rank;
    bool given = group->transport == BENCH_MPI && bench_launched_local_rank(&rank);
    return given ? rank : group->rank;
}

void bench_barrier(bench_group *group) {
    if (!group->lost)
        group->kind->barrier(group);
}

void bench_allgather(bench_group *group, const void *send, size_t bytes, void *recv) {
    if (!group->lost)
        group->kind->allgather(group, send, bytes, recv);
    if (group->lost)
        memset(recv, 0, group->nranks * bytes);
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
    return same || group->lost;
}

bool bench_mpi_sum(bench_group *group, const float *send, float *out, size_t count) {
    return group->kind->sum(group, send, out, count);
}

void bench_share_max(bench_group *group, const uint64_t *mine, size_t count, uint64_t *out,
                     bench_message *message) {
    message->pending = false;
    memset(out, 0, count * sizeof out[0]);
    if (!group->lost)
        group->kind->share_max(group, mine, count, out, message);
}

void bench_share_all(bench_group *group, const void *send, size_t bytes, void *recv,
                     bench_message *message) {
    message->pending = false;
    memset(recv, 0, group->nranks * bytes);
    if (!group->lost)
        group->kind->share_all(group, send, bytes, recv, message);
}

static void (*_Atomic last_words)(const bench_group *group);

void bench_at_fail(void (*say)(const bench_group *group)) {
    atomic_store(&last_words, say);
}

/* End the whole job: the other ranks wait for this one and would hang. */
static _Noreturn void end_process(const bench_group *group) {
    void (*say)(const bench_group *) = atomic_exchange(&last_words, NULL);
    if (say)
        say(group);
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
    if (status == TAMIS_OK || group->lost)
        return;
    if (!group->survives || tamis_status_loss(status) < TAMIS_LOST_COMM)
        bench_fail(group, "%s: %s: %s", what, tamis_status_name(status), tamis_last_error());
    fprintf(stderr, "rank %u: %s: %s: %s\n", group->number, what, tamis_status_name(status),
            tamis_last_error());
    bench_lose(group);
}

/* -- going on with fewer ranks ---------------------------------------------------------------- */

const char *bench_survive(bench_group *group) {
    const char *why = group->kind->survive(group);
    group->survives = !why;
    return why;
}

void bench_lose(bench_group *group) {
    if (!group->lost && group->survives)
        group->kind->wake(group);
    group->lost = true;
}

bool bench_end(bench_group *group) {
    if (!group->survives)
        bench_barrier(group);
    if (group->lost || !group->survives)
        return !group->lost;
    group->agreed = true;
    if (!group->kind->agree(group, true))
        bench_lose(group);
    return !group->lost;
}

void bench_regroup(bench_group *group) {
    if (!group->agreed)
        group->kind->agree(group, false);
    group->agreed = true;
}

bool bench_shrink(bench_group *group, tamis_comm *smaller) {
    tamis_comm_destroy(group->comm);
    group->comm = smaller;
    group->rank = tamis_comm_rank(smaller);
    group->nranks = tamis_comm_nranks(smaller);
    group->agreed = group->lost = false;
    if (!group->kind->shrink(group))
        bench_lose(group);
    return !group->lost;
}

void bench_die(bench_group *group) {
    group->dead = true;
    group->kind->die();
}

double bench_timeout_s(void) {
    const char *text = getenv("TAMIS_TIMEOUT_MS");
    unsigned long ms = text ? strtoul(text, NULL, 10) : 0;
    return 1e-3 * (double)(ms ? ms : 300000);
}
