/* SPDX-License-Identifier: MIT */
#include "bench/common/option_values.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tamis/tamis.h>
#include <xxhash.h>

static bench_option_values recorded;

static void put_text(const char *text, char *out, size_t size) {
    if (strlen(text) < size)
        snprintf(out, size, "%s", text);
    else
        snprintf(out, size, "%.32s... (%016llx)", text,
                 (unsigned long long)XXH3_64bits(text, strlen(text)));
}

/* The shortest text that no other value has. */
static void put_real(double value, char *out, size_t size) {
    if (isnan(value)) {
        put_text("not given", out, size);
        return;
    }
    for (int digits = 6; digits <= 17; digits++) {
        snprintf(out, size, "%.*g", digits, value);
        if (strtod(out, NULL) == value)
            return;
    }
}

static void put_value(const bench_option *option, char *out, size_t size) {
    const char *text;
    switch (option->kind) {
    case BENCH_FLAG:
        put_text(*(const bool *)option->target ? "given" : "not given", out, size);
        break;
    case BENCH_FILE:
        put_text(*(const char *const *)option->target ? "given" : "not given", out, size);
        break;
    case BENCH_TEXT:
        text = *(const char *const *)option->target;
        put_text(text ? text : "not given", out, size);
        break;
    case BENCH_COUNT:
    case BENCH_BYTES:
        snprintf(out, size, "%llu", (unsigned long long)*(const uint64_t *)option->target);
        break;
    case BENCH_REAL:
        put_real(*(const double *)option->target, out, size);
        break;
    case BENCH_CHOICE:
        put_text(*(const int *)option->target < 0
                     ? "not given"
                     : bench_choice(option->values, *(const int *)option->target),
                 out, size);
    }
}

void bench_option_values_record(const char *program, const bench_option *options, size_t count) {
    memset(&recorded, 0, sizeof recorded);
    recorded.names = XXH3_64bits_withSeed(program, strlen(program), (XXH64_hash_t)tamis_version());
    for (size_t i = 0; i < count && i < BENCH_OPTION_VALUES; i++) {
        bench_option_value *l = &recorded.lines[i];
        snprintf(l->name, sizeof l->name, "%s", options[i].name);
        put_value(&options[i], l->value, sizeof l->value);
        recorded.names = XXH3_64bits_withSeed(l->name, sizeof l->name, recorded.names);
        recorded.values = XXH3_64bits_withSeed(l->value, sizeof l->value, recorded.values);
    }
}

const bench_option_values *bench_option_values_now(void) {
    return &recorded;
}
