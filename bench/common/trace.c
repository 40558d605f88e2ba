/* SPDX-License-Identifier: MIT */
#include "bench/common/trace.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "bench/common/launcher.h"
#include "bench/common/measure.h"
#include "bench/common/options.h"

enum { CLOCK_GATHERS = 64, EVENTS_AT_ONCE = 128, NAME_SIZE = 16 };

typedef struct event {
    char name[NAME_SIZE];
    double begin_s, end_s; /* clock of this rank; when sent to rank 0: since the origin */
    uint64_t step;
    uint32_t number;
    uint16_t part;
    uint16_t library; /* 1: made by a thread of the library */
} event;

/* At most two threads add at a time. An atomic addition reserves a place for each event; events are
 * read only after both threads are done. */
struct bench_trace {
    bench_group *group;
    pthread_t caller;
    double origin_s; /* of the trace, on the clock of this rank */
    double error_s;  /* of that origin */
    atomic_size_t added;
    event *events; /* [BENCH_TRACE_MAX] */
};

FILE *bench_trace_file(const char *path) {
    if (!path || bench_launched_rank() != 0)
        return NULL;
    FILE *file = fopen(path, "w");
    if (!file)
        bench_usage("--trace %s cannot be written: %s", path, strerror(errno));
    return file;
}

/* -- one clock -------------------------------------------------------------------------------- */

/* Each all-gather carries the times of the one before. */
static void align(bench_trace *trace) {
    double(*all)[2] = bench_alloc(trace->group->nranks, sizeof *all), mine[2] = {0.0, 0.0};
    double low = -INFINITY, high = INFINITY;
    for (int gather = 0; gather < CLOCK_GATHERS; gather++) {
        double enter = bench_now_s();
        bench_allgather(trace->group, mine, sizeof mine, all);
        double leave = bench_now_s();
        if (gather > 0) {
            low = fmax(low, mine[0] - all[0][1]);
            high = fmin(high, mine[1] - all[0][0]);
        }
        mine[0] = enter;
        mine[1] = leave;
    }
    bool one_machine = low <= 0.0 && high >= 0.0;
    trace->origin_s = all[0][0] + (one_machine ? 0.0 : 0.5 * (low + high));
    trace->error_s = one_machine ? 0.0 : 0.5 * (high - low);
    free(all);
}

bench_trace *bench_trace_open(bench_group *group) {
    bench_trace *trace = bench_alloc(1, sizeof *trace);
    trace->group = group;
    trace->caller = pthread_self();
    trace->events = bench_alloc(BENCH_TRACE_MAX, sizeof *trace->events);
    atomic_init(&trace->added, 0);
    align(trace);
    return trace;
}

/* -- recording -------------------------------------------------------------------------------- */

void bench_trace_add(bench_trace *trace, const char *name, uint64_t step, bench_part part,
                     uint32_t number, double begin_s, double end_s) {
    if (!trace)
        return;
    size_t at = atomic_fetch_add_explicit(&trace->added, 1, memory_order_relaxed);
    if (at >= BENCH_TRACE_MAX)
        return;
    event *e = &trace->events[at];
    snprintf(e->name, sizeof e->name, "%s", name);
    e->begin_s = begin_s;
    e->end_s = end_s;
    e->step = step;
    e->number = number;
    e->part = (uint16_t)part;
    e->library = !pthread_equal(pthread_self(), trace->caller);
}

void bench_trace_phase(void *trace, const tamis_phase_event *ended) {
    bool whole = ended->bucket == TAMIS_NO_BUCKET;
    bench_trace_add(trace, tamis_phase_name(ended->phase), ended->step,
                    whole ? BENCH_PART_STEP : BENCH_PART_BUCKET, ended->bucket,
                    1e-9 * (double)ended->begin_ns, 1e-9 * (double)ended->end_ns);
}

/* -- the file --------------------------------------------------------------------------------- */

typedef struct head {
    uint64_t count, dropped;
    double error_s;
} head;

static head head_of(const bench_trace *trace) {
    uint64_t added = atomic_load(&trace->added);
    uint64_t count = added < BENCH_TRACE_MAX ? added : BENCH_TRACE_MAX;
    return (head){count, added - count, trace->error_s};
}

/* Perfetto takes process 0 and thread 0 for its own. */
static uint32_t shown(uint32_t number) {
    return number + 1;
}

static void write_head(FILE *file, uint32_t rank, const head *h) {
    static const char *const threads[] = {"caller", "library"};
    fprintf(file,
            "%s{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":%u,\"args\":{\"name\":\"rank %u\"}}",
            rank ? ",\n" : "[\n", shown(rank), rank);
    for (uint32_t t = 0; t < 2; t++)
        fprintf(file,
                ",\n{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":%u,\"tid\":%u,"
                "\"args\":{\"name\":\"%s\"}}",
                shown(rank), shown(t), threads[t]);
    fprintf(file,
            ",\n{\"ph\":\"M\",\"name\":\"process_labels\",\"pid\":%u,\"args\":{\"labels\":"
            "\"%llu events dropped, clock within %.1f us\",\"dropped\":%llu,"
            "\"clock_error_us\":%.3f}}",
            shown(rank), (unsigned long long)h->dropped, 1e6 * h->error_s,
            (unsigned long long)h->dropped, 1e6 * h->error_s);
}

static void write_event(FILE *file, uint32_t rank, const event *e) {
    static const char *const parts[] = {NULL, "bucket", "layer", "micro_batch"};
    fprintf(file,
            ",\n{\"ph\":\"X\",\"name\":\"%s\",\"pid\":%u,\"tid\":%u,\"ts\":%.3f,"
            "\"dur\":%.3f,\"args\":{\"step\":%llu",
            e->name, shown(rank), shown(e->library), 1e6 * e->begin_s,
            1e6 * (e->end_s - e->begin_s), (unsigned long long)e->step);
    if (parts[e->part])
        fprintf(file, ",\"%s\":%u", parts[e->part], e->number);
    fputs("}}", file);
}

/* In parts, so that rank 0 needs no memory for the events of all ranks. */
static void write_events(bench_trace *trace, const head *heads, FILE *file) {
    uint32_t nranks = trace->group->nranks;
    event *part = bench_alloc(EVENTS_AT_ONCE, sizeof *part);
    event *all = bench_alloc(nranks * (size_t)EVENTS_AT_ONCE, sizeof *all);
    uint64_t most = 0;
    for (uint32_t r = 0; r < nranks; r++)
        most = heads[r].count > most ? heads[r].count : most;

    for (uint64_t done = 0; done < most; done += EVENTS_AT_ONCE) {
        for (size_t i = 0; i < EVENTS_AT_ONCE && done + i < BENCH_TRACE_MAX; i++) {
            part[i] = trace->events[done + i];
            part[i].begin_s -= trace->origin_s;
            part[i].end_s -= trace->origin_s;
        }
        bench_allgather(trace->group, part, EVENTS_AT_ONCE * sizeof *part, all);
        for (size_t i = 0; file && i < nranks * (size_t)EVENTS_AT_ONCE; i++) {
            uint32_t rank = (uint32_t)(i / EVENTS_AT_ONCE);
            if (done + i % EVENTS_AT_ONCE < heads[rank].count)
                write_event(file, rank, &all[i]);
        }
    }
    free(all);
    free(part);
}

static void report_dropped(const head *heads, uint32_t nranks) {
    uint64_t dropped = 0;
    for (uint32_t r = 0; r < nranks; r++)
        dropped += heads[r].dropped;
    if (dropped)
        fprintf(stderr,
                "the trace holds the first %d events of a rank; %llu later ones were dropped\n",
                BENCH_TRACE_MAX, (unsigned long long)dropped);
}

void bench_trace_close(bench_trace *trace, FILE *file) {
    if (!trace)
        return;
    bench_group *group = trace->group;
    head mine = head_of(trace), *heads = bench_alloc(group->nranks, sizeof *heads);
    file = group->rank == 0 ? file : NULL;
    bench_allgather(group, &mine, sizeof mine, heads);
    for (uint32_t r = 0; file && r < group->nranks; r++)
        write_head(file, r, &heads[r]);
    write_events(trace, heads, file);
    if (file) {
        fputs("\n]\n", file);
        bool bad = ferror(file);
        if (fclose(file) != 0 || bad)
            bench_fail(group, "the trace could not be written: %s", strerror(errno));
        report_dropped(heads, group->nranks);
    }
    free(heads);
    free(trace->events);
    free(trace);
}
