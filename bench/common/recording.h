/* SPDX-License-Identifier: MIT
 *
 * Gradients of a run in a file, to be replayed through other schemes. The format is simple: byte
 * order and binary32 are the machine's, and an incomplete file is refused.
 *
 *     header      magic, length n, nsegments, ranks P, records, every
 *     segments    nsegments times: name, length
 *     record 0    rank 0: float32[n], rank 1: float32[n], ...        step 0
 *     record 1    the same                                           step `every`
 *
 * Each rank writes its part at its own offset, so no rank needs memory for others, and processes of
 * one machine write into one file as threads do.
 */
#ifndef TAMIS_BENCH_RECORDING_H
#define TAMIS_BENCH_RECORDING_H

#include "bench/common/group.h"

typedef struct bench_recording_header {
    char magic[8];
    uint64_t length, nsegments, ranks;
    uint64_t records, every; /* every: steps from one to the next */
} bench_recording_header;

typedef struct bench_recording_segment {
    char name[40];
    uint64_t length;
} bench_recording_segment;

typedef struct bench_recording {
    bench_recording_header header;
    bench_recording_segment *segments; /* [nsegments] */
    const float *gradients;            /* open only: [records][ranks][length] */
    void *map;                         /* open only */
    size_t bytes;                      /* of the whole file */
    int file;
} bench_recording;

/** Begin a file for `records` gradients of all ranks. Collective; ends all ranks if it cannot be
 * written. */
void bench_recording_create(bench_group *group, const char *path, const tamis_segment *segments,
                            size_t nsegments, uint64_t records, uint64_t every,
                            bench_recording *out);

/** Write the gradient of this rank, float32[length]. */
void bench_recording_put(bench_group *group, const bench_recording *recording, uint64_t record,
                         const float *gradient);

/** Open for reading, and check everything that the header says. On failure `error` holds a
 * message. */
bool bench_recording_open(const char *path, bench_recording *out, char *error, size_t error_size);

/** The gradient of a rank, in memory of the recording. */
const float *bench_recording_get(const bench_recording *recording, uint64_t record, uint32_t rank);

void bench_recording_close(bench_recording *recording);

#endif
