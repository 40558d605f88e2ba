/* SPDX-License-Identifier: MIT
 *
 * Words of a command line, and what a program says of wrong usage.
 */
#ifndef TAMIS_BENCH_USAGE_H
#define TAMIS_BENCH_USAGE_H

/** The name under which a program speaks. */
void bench_usage_program(const char *name);

/** One sentence to stderr, of rank 0 if it comes here too, and the end of the process with
 * status 2. */
_Noreturn void bench_usage(const char *format, ...) __attribute__((format(printf, 1, 2)));

/** The index-th word of a list "a|b|c"; valid until the next call. */
const char *bench_choice(const char *values, int index);

#endif
