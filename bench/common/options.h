/* SPDX-License-Identifier: MIT
 *
 * Command lines of the bench programs: one table of options drives parsing, --help with the
 * defaults, the message about an unknown option or value, and the check that all ranks were given
 * the same (option_values.h, same_options.h). Wrong usage ends with status 2.
 */
#ifndef TAMIS_BENCH_OPTIONS_H
#define TAMIS_BENCH_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "bench/common/usage.h"

typedef enum bench_kind {
    BENCH_FLAG,  /* bool *, no value */
    BENCH_TEXT,  /* const char ** */
    BENCH_FILE,  /* the same; the only kind whose value may differ between ranks */
    BENCH_COUNT, /* uint64_t * */
    BENCH_BYTES, /* uint64_t *, suffix K, M or G */
    BENCH_REAL,  /* double * */
    BENCH_CHOICE /* int *, index into `values` */
} bench_kind;

typedef struct bench_option {
    const char *name;
    char letter; /* 0: only the long name */
    bench_kind kind;
    void *target;       /* holds the default when parsing begins */
    const char *values; /* CHOICE: separated by '|'; else the word for the value in --help */
    double low, high;   /* COUNT, BYTES, REAL: bounds, both included */
    const char *help;
} bench_option;

/** Parse the whole command line. Ends the process on --help (0) and on wrong usage (2). */
void bench_options_parse(const char *program, const char *purpose, const bench_option *options,
                         size_t count, int argc, char **argv);

/** Parse a list of numbers "a,b,c" into out[most], each in (low, high]; usage error if invalid. */
size_t bench_parse_list(const char *name, const char *text, double low, double high, size_t most,
                        double *out);

/** Parse a list of whole numbers from 1 on. */
size_t bench_parse_counts(const char *name, const char *text, double high, size_t most,
                          double *out);

#endif
