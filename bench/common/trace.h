/* SPDX-License-Identifier: MIT
 *
 * What every rank did when, as a Chrome trace: a JSON array for chrome://tracing and Perfetto. A
 * process is a rank, numbered from 1; its threads are the one that opened the trace and the
 * library's. Phases of a
 * reducer come from config.on_phase; the program adds its own.
 *
 * All times are on one clock, rank 0's. The ranks exchange the times at which they enter and leave
 * a few all-gathers. No rank leaves one before every rank has entered it, so
 *
 *     rank 0   enter 0 ......... leave 0          enter r - leave 0 <= clock r - clock 0
 *     rank r         enter r ...... leave r       leave r - enter 0 >= clock r - clock 0
 *
 * and the tightest bounds of all gathers give the difference, with an error of at most half their
 * distance; the file states it for each rank. Bounds that enclose zero mean one machine, whose
 * ranks share CLOCK_MONOTONIC: then nothing is corrected. This is done once, at the start; later
 * drift between the clocks of several machines is not corrected.
 */
#ifndef TAMIS_BENCH_TRACE_H
#define TAMIS_BENCH_TRACE_H

#include <stdio.h>

#include "bench/common/group.h"

enum { BENCH_TRACE_MAX = 1 << 16 }; /* events of a rank; later ones are only counted */

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

/** Collective. Allocates all memory of the trace. */
bench_trace *bench_trace_open(bench_group *group);

/** Record an event that has just ended; `name` has at most 15 letters, times are from bench_now_s.
 * Any thread; no locks. Nothing happens if `trace` is NULL. */
void bench_trace_add(bench_trace *trace, const char *name, uint64_t step, bench_part part,
                     uint32_t number, double begin_s, double end_s);

/** Add a phase of a reducer: config.on_phase, with the trace as its context. */
void bench_trace_phase(void *trace, const tamis_phase_event *event);

/** Collective: write the events of all ranks and free the trace. No thread may add to it any more,
 * so destroy reducers first. Closes rank 0's `file`. NULL is fine. */
void bench_trace_close(bench_trace *trace, FILE *file);

#endif
