/* SPDX-License-Identifier: MIT
 *
 * Choices of a command line, and the message about wrong usage.
 */
#ifndef TAMIS_BENCH_USAGE_H
#define TAMIS_BENCH_USAGE_H

/** Set the program's name for messages. */
void bench_usage_program(const char *name);

/** Print one message to stderr and end the process with status 2. If rank 0 calls it too, only rank
 * 0 prints. */
_Noreturn void bench_usage(const char *format, ...) __attribute__((format(printf, 1, 2)));

/** The index-th word of a list "a|b|c"; valid until the next call. */
const char *bench_choice(const char *values, int index);

#endif
