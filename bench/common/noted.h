/* SPDX-License-Identifier: MIT
 *
 * The options of this process as parsed: a line for each option, in the order of the table.
 */
#ifndef TAMIS_BENCH_NOTED_H
#define TAMIS_BENCH_NOTED_H

#include "bench/common/options.h"

enum { BENCH_NOTED_LINES = 128 }; /* as many as options.c takes */

typedef struct bench_noted_line {
    char name[24];
    char value[64]; /* a long one is cut and hashed */
} bench_noted_line;

typedef struct bench_noted {
    uint64_t names, values; /* hashes; lines can be compared only if the names are equal */
    bench_noted_line lines[BENCH_NOTED_LINES];
} bench_noted;

/** Note the values of the options; bench_options_parse calls this. */
void bench_note(const char *program, const bench_option *options, size_t count);

const bench_noted *bench_noted_now(void);

#endif
