/* SPDX-License-Identifier: MIT
 *
 * The options of this process as parsed: a line for each option, in the order of the table.
 */
#ifndef TAMIS_BENCH_OPTION_VALUES_H
#define TAMIS_BENCH_OPTION_VALUES_H

#include "bench/common/options.h"

enum { BENCH_OPTION_VALUES = 128 }; /* as many as options.c takes */

typedef struct bench_option_value {
    char name[24];
    char value[64]; /* a long one is cut and hashed */
} bench_option_value;

typedef struct bench_option_values {
    uint64_t names, values; /* hashes; lines can be compared only if the names are equal */
    bench_option_value lines[BENCH_OPTION_VALUES];
} bench_option_values;

/** Record the values of the options; bench_options_parse calls this. */
void bench_option_values_record(const char *program, const bench_option *options, size_t count);

const bench_option_values *bench_option_values_now(void);

#endif
