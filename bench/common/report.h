/* SPDX-License-Identifier: MIT
 *
 * Records as JSON Lines, with the fields that say where a record was made.
 */
#ifndef TAMIS_BENCH_REPORT_H
#define TAMIS_BENCH_REPORT_H

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <tamis/tamis.h>

/** Open FILE for JSON Lines: NULL gives NULL, "-" stdout. Wrong paths are a usage error. */
FILE *bench_report_open(const char *path);

/** Write one object on one line and release the reference. With a NULL file only release it. A
 * write error is reported at once. */
void bench_report_write(FILE *file, json_t *record);

/** @return `status`, but 1 instead of 0 if any part of the records or of stdout was not written. */
int bench_report_close(FILE *file, int status);

/** A number, or null for NaN and Inf, which JSON lacks. */
json_t *bench_report_number(double value);

/** {"record": kind, "host": ..., "version": ...} */
json_t *bench_report_new(const char *kind);

/** Version of the linked library, "0.1.0". */
const char *bench_version(void);

/** Level of the CPU kernels in use: "portable", "avx2", "avx512" or "neon". */
const char *bench_cpu_level(void);

/** Policies of a scheme or preset; false if it is neither a preset nor four words. */
typedef struct bench_scheme {
    char ownership[16], budget[16], threshold[16], exchange[16];
} bench_scheme;

bool bench_scheme_find(const char *name, bench_scheme *out);

/** Refuse (status 2) a scheme that the library refuses, before any rank starts. */
void bench_scheme_check(const char *name, double density);

/** Likewise; what it leaves open filled in. @param update [in,out] NULL: gradients */
tamis_reducer_config bench_scheme_options(const char *name, double density, tamis_update *update);

/** Whether the scheme promises exactly k entries in every step. */
bool bench_scheme_exact(const bench_scheme *scheme);

#endif
