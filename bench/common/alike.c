/* SPDX-License-Identifier: MIT
 *
 * A line for each option, in the order of the table; hashes are compared first.
 */
#include "bench/common/alike.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "bench/common/measure.h"

enum { LINES_MOST = 64 };

typedef struct line {
    char name[24];
    char value[64]; /* a long one is cut and hashed */
} line;

/* What a rank shows first. Without the same names the lines cannot be compared. */
typedef struct digest {
    uint64_t names, values;
} digest;

static struct {
    digest digest;
    line lines[LINES_MOST];
} noted;

static void put_text(const char *text, char *out, size_t size) {
    if (strlen(text) < size)
        snprintf(out, size, "%s", text);
    else
        snprintf(out, size, "%.32s... (%016llx)", text,
                 (unsigned long long)XXH3_64bits(text, strlen(text)));
}

/* As short as it can be without another value being the same text. */
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

void bench_alike_note(const char *program, const bench_option *options, size_t count) {
    memset(&noted, 0, sizeof noted);
    noted.digest.names =
        XXH3_64bits_withSeed(program, strlen(program), (XXH64_hash_t)tamis_version());
    for (size_t i = 0; i < count && i < LINES_MOST; i++) {
        line *l = &noted.lines[i];
        snprintf(l->name, sizeof l->name, "%s", options[i].name);
        put_value(&options[i], l->value, sizeof l->value);
        noted.digest.names = XXH3_64bits_withSeed(l->name, sizeof l->name, noted.digest.names);
        noted.digest.values = XXH3_64bits_withSeed(l->value, sizeof l->value, noted.digest.values);
    }
}

/* @return the first line that differs from rank 0's; none: past the last */
static size_t find_difference(const line *all, uint32_t ranks) {
    const size_t end = ranks * (size_t)LINES_MOST;
    size_t at = LINES_MOST;
    while (at < end && memcmp(&all[at], &all[at % LINES_MOST], sizeof *all) == 0)
        at++;
    return at;
}

static void say_option(bench_group *group) {
    line *all = bench_alloc(group->nranks * (size_t)LINES_MOST, sizeof *all);
    bench_allgather(group, noted.lines, sizeof noted.lines, all);
    size_t at = find_difference(all, group->nranks);
    if (group->rank == 0)
        fprintf(stderr,
                "the ranks were given other options: --%s is %s on rank 0, but %s on rank %zu; "
                "give all ranks the same ones (only names of files may differ)\n",
                all[at % LINES_MOST].name, all[at % LINES_MOST].value, all[at].value,
                at / LINES_MOST);
    free(all);
}

/* @return the first rank whose options have other names than rank 0's; none: 0 */
static uint32_t find_stranger(const digest *all, uint32_t ranks) {
    for (uint32_t r = 1; r < ranks; r++) {
        if (all[r].names != all[0].names)
            return r;
    }
    return 0;
}

bool bench_alike(bench_group *group) {
    digest *all = bench_alloc(group->nranks, sizeof *all);
    bool values = true;
    bench_allgather(group, &noted.digest, sizeof noted.digest, all);
    uint32_t stranger = find_stranger(all, group->nranks);
    for (uint32_t r = 1; r < group->nranks; r++)
        values = values && all[r].values == all[0].values;
    free(all);
    if (stranger && group->rank == 0)
        fprintf(stderr,
                "rank %u runs another program than rank 0, or another version of it: start the "
                "same one on all ranks\n",
                stranger);
    if (!stranger && !values)
        say_option(group);
    return !stranger && values;
}
