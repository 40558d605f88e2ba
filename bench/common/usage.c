/* SPDX-License-Identifier: MIT */
#include "bench/common/usage.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench/common/launcher.h"

enum { OTHERS_WAIT_S = 2 };

static const char *program_name = "bench";

void bench_usage_program(const char *name) {
    program_name = name;
}

/* A launcher ends all ranks as soon as one exits. So rank 0 prints first, and another rank prints
 * only if rank 0 found no error. */
void bench_usage(const char *format, ...) {
    va_list args;
    if (bench_launched_rank() != 0)
        sleep(OTHERS_WAIT_S);
    va_start(args, format);
    fprintf(stderr, "%s: ", program_name);
    vfprintf(stderr, format, args);
    fputs("\n", stderr);
    va_end(args);
    exit(2);
}

const char *bench_choice(const char *values, int index) {
    static _Thread_local char word[32];
    for (; index > 0 && *values; index--) {
        values += strcspn(values, "|");
        values += *values == '|';
    }
    snprintf(word, sizeof word, "%.*s", (int)strcspn(values, "|"), values);
    return word;
}
