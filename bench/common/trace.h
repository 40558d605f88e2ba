/* SPDX-License-Identifier: MIT
 *
 * What every rank did when, as a Chrome trace: a JSON array for chrome://tracing and Perfetto. A
 * process is a rank; its threads are the one that opened the trace and the library's. Phases of a
 * reducer come by config.on_phase, the program adds its own.
 *
 * One clock for all ranks, that of rank 0. The ranks exchange the times t at which they enter and
 * leave a few gathers; no rank leaves one before every rank has entered it, so
 *
 *     rank 0   enter 0 ......... leave 0          enter r - leave 0 <= clock r - clock 0
 *     rank r         enter r ...... leave r       leave r - enter 0 >= clock r - clock 0
 *
 * and the tightest bounds of all gathers tell the difference, with an error of at most half of what
 * lies between them; the file says it for each rank. Bounds that hold zero mean one machine, whose
 * ranks share CLOCK_MONOTONIC: then nothing is corrected. This is done once, at the start: how
 * clocks of several machines drift apart later is not followed.
 */
#ifndef TAMIS_BENCH_TRACE_H
#define TAMIS_BENCH_TRACE_H

#include <stdio.h>

#include "bench/common/group.h"

enum { BENCH_TRACE_MOST = 1 << 16 }; /* events of a rank: the first ones; others are counted */

typedef struct bench_trace bench_trace;

/** What an event is about: the name of its number in the viewer. */
typedef enum bench_part {
    BENCH_PART_STEP = 0, /* the whole step: no number */
    BENCH_PART_BUCKET = 1,
    BENCH_PART_LAYER = 2,
    BENCH_PART_MICRO_BATCH = 3
} bench_part;

/** Open FILE on the first rank, NULL on others and for a NULL path. Wrong paths are a usage
 * error. */
FILE *bench_trace_file(const char *path);

/** Collective. All memory is taken here. */
bench_trace *bench_trace_open(bench_group *group);

/** Record what ended just now; `name` has at most 15 letters, times are of bench_now_s. Any thread;
 * no locks. Nothing happens if `trace` is NULL. */
void bench_trace_add(bench_trace *trace, const char *name, uint64_t step, bench_part part,
                     uint32_t number, double begin_s, double end_s);

/** The same for a reducer: config.on_phase, with the trace as its context. */
void bench_trace_phase(void *trace, const tamis_phase_event *event);

/** Collective: write the events of all ranks and free the trace; nobody may add to it any more, so
 * destroy reducers first. `file`, of rank 0, is closed. NULL is fine. */
void bench_trace_close(bench_trace *trace, FILE *file);

#endif
