/* SPDX-License-Identifier: MIT
 *
 * Parts of the programs that time: device memory, heavy-tailed numbers in it, medians. A call that
 * fails says so and ends the program.
 */
#ifndef TAMIS_GPU_TIMING_H
#define TAMIS_GPU_TIMING_H

#include <stddef.h>
#include <stdint.h>

enum { TIMING_PERIOD = 1 << 20 }; /* numbers that a long buffer repeats */

/** Unless `error`, a cudaError_t, is 0: print what failed, end the program. */
void timing_try(int error, const char *what);

void *timing_alloc(size_t bytes);                    /* device memory */
void *timing_upload(const void *host, size_t bytes); /* the same, with these bytes */
void *timing_host_array(size_t count, size_t size);  /* host memory, zeros */

/** Device memory that holds a piece of host memory again and again. */
void *timing_repeat(const void *piece, size_t piece_bytes, size_t bytes);

/** Number i of a stream, as tamis_perf has it: P(|x| > v (1 - v^2)^(-1/4)) = 1 - v. */
float timing_tail(uint64_t stream, uint64_t i);

/** Sorts them. */
double timing_median(float *times, size_t count);

#endif
