/* SPDX-License-Identifier: MIT
 *
 * Drives getopt_long by one table.
 */
#include "bench/common/options.h"

#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/common/launcher.h"
#include "bench/common/option_values.h"

enum { MAX_OPTIONS = 128, FIRST_LONG = 256 };

static int find_choice(const char *values, const char *text) {
    for (int i = 0; *bench_choice(values, i); i++) {
        if (strcmp(bench_choice(values, i), text) == 0)
            return i;
    }
    return -1;
}

/* -- help ------------------------------------------------------------------------------------- */

static void default_text(const bench_option *option, char *out, size_t size) {
    uint64_t count;
    const char *text;
    out[0] = '\0';
    switch (option->kind) {
    case BENCH_FLAG:
        break;
    case BENCH_TEXT:
    case BENCH_FILE:
        text = *(const char *const *)option->target;
        if (text)
            snprintf(out, size, " [%s]", text);
        break;
    case BENCH_COUNT:
        count = *(const uint64_t *)option->target;
        if (count)
            snprintf(out, size, " [%llu]", (unsigned long long)count);
        break;
    case BENCH_BYTES:
        count = *(const uint64_t *)option->target;
        if (count)
            snprintf(out, size, " [%lluM]", (unsigned long long)(count >> 20));
        break;
    case BENCH_REAL:
        if (!isnan(*(const double *)option->target)) /* NaN: it depends, and `help` says on what */
            snprintf(out, size, " [%g]", *(const double *)option->target);
        break;
    case BENCH_CHOICE:
        if (*(const int *)option->target >= 0)
            snprintf(out, size, " [%s]",
                     bench_choice(option->values, *(const int *)option->target));
    }
}

static void print_help(const char *program, const char *purpose, const bench_option *options,
                       size_t count) {
    printf("Usage: %s [options]\n\n%s\n\n", program, purpose);
    for (size_t i = 0; i < count; i++) {
        const bench_option *option = &options[i];
        char letter[8] = "   ", name[80], fallback[128];
        if (option->letter)
            snprintf(letter, sizeof letter, "-%c,", option->letter);
        snprintf(name, sizeof name, "%s --%s %s", letter, option->name,
                 option->kind == BENCH_FLAG ? "" : option->values);
        default_text(option, fallback, sizeof fallback);
        printf("  %-38s", name);
        if (strlen(name) >= 38) /* help2man would take the help for more of the name */
            printf("\n%40s", "");
        printf(" %s%s\n", option->help, fallback);
    }
    printf("      --%-32s %s\n", "help", "print this help");
}

/* -- values ----------------------------------------------------------------------------------- */

static void check_bounds(const bench_option *option, const char *text, double value) {
    if (!(value >= option->low && value <= option->high))
        bench_usage("--%s %s is out of range: %.10g to %.10g are allowed", option->name, text,
                    option->low, option->high);
}

static uint64_t parse_whole(const bench_option *option, const char *text) {
    char *end;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    bool ok = text[0] >= '0' && text[0] <= '9' && errno == 0;
    if (ok && option->kind == BENCH_BYTES && *end) {
        static const char suffixes[] = "KMG";
        const char *at = strchr(suffixes, *end & ~0x20);
        unsigned shift = at ? 10 * (unsigned)(at - suffixes + 1) : 0;
        ok = at && value <= UINT64_MAX >> shift;
        value = ok ? value << shift : 0;
        end++;
    }
    if (!ok || *end)
        bench_usage("--%s needs a whole number%s, not \"%s\"", option->name,
                    option->kind == BENCH_BYTES ? " with an optional suffix K, M or G" : "", text);
    check_bounds(option, text, (double)value);
    return value;
}

static double parse_real(const bench_option *option, const char *text) {
    char *end;
    double value = strtod(text, &end);
    if (end == text || *end)
        bench_usage("--%s needs a number, not \"%s\"", option->name, text);
    check_bounds(option, text, value);
    return value;
}

static void take(const bench_option *option, const char *text) {
    switch (option->kind) {
    case BENCH_FLAG:
        *(bool *)option->target = true;
        break;
    case BENCH_TEXT:
    case BENCH_FILE:
        *(const char **)option->target = text;
        break;
    case BENCH_COUNT:
    case BENCH_BYTES:
        *(uint64_t *)option->target = parse_whole(option, text);
        break;
    case BENCH_REAL:
        *(double *)option->target = parse_real(option, text);
        break;
    case BENCH_CHOICE:
        *(int *)option->target = find_choice(option->values, text);
        if (*(int *)option->target < 0)
            bench_usage("--%s %s is not known; allowed: %s", option->name, text, option->values);
    }
}

size_t bench_parse_list(const char *name, const char *text, double low, double high, size_t most,
                        double *out) {
    size_t count = 0;
    for (const char *at = text;;) {
        char *end;
        double value = strtod(at, &end);
        if (end == at || (*end && *end != ',') || !(value > low && value <= high))
            bench_usage("--%s needs numbers over %g and up to %g, separated by commas, not \"%s\"",
                        name, low, high, text);
        if (count == most)
            bench_usage("--%s takes at most %zu numbers", name, most);
        out[count++] = value;
        if (!*end)
            return count;
        at = end + 1;
    }
}

size_t bench_parse_counts(const char *name, const char *text, double high, size_t most,
                          double *out) {
    size_t count = bench_parse_list(name, text, 0.0, high, most, out);
    for (size_t i = 0; i < count; i++) {
        if (out[i] != floor(out[i]))
            bench_usage("--%s needs whole numbers, not %g", name, out[i]);
    }
    return count;
}

/* -- the command line ------------------------------------------------------------------------- */

static _Noreturn void refuse(const bench_option *options, size_t count, const char *text) {
    char all[1024] = "";
    size_t used = 0;
    for (size_t i = 0; i < count && used < sizeof all; i++)
        used += (size_t)snprintf(all + used, sizeof all - used, "--%s, ", options[i].name);
    bench_usage("unknown option %s; options are: %s--help", text, all);
}

void bench_options_parse(const char *program, const char *purpose, const bench_option *options,
                         size_t count, int argc, char **argv) {
    struct option table[MAX_OPTIONS + 2];
    char letters[2 * MAX_OPTIONS + 2] = ":";
    size_t nletters = 1;

    bench_usage_program(program);
    bench_launched_rank(); /* read the environment before MPI_Init changes it */
    if (count > MAX_OPTIONS)
        bench_usage("%zu options, at most %d: raise MAX_OPTIONS", count, MAX_OPTIONS);
    memset(table, 0, sizeof table);
    for (size_t i = 0; i < count; i++) {
        int argument = options[i].kind == BENCH_FLAG ? no_argument : required_argument;
        table[i] = (struct option){options[i].name, argument, NULL, FIRST_LONG + (int)i};
        if (options[i].letter)
            letters[nletters++] = options[i].letter;
        if (options[i].letter && argument == required_argument)
            letters[nletters++] = ':';
    }
    table[count] = (struct option){"help", no_argument, NULL, FIRST_LONG + (int)count};
    letters[nletters] = '\0';

    opterr = 0;
    for (int code; (code = getopt_long(argc, argv, letters, table, NULL)) != -1;) {
        size_t index = (size_t)(code - FIRST_LONG);
        if (code == ':')
            bench_usage("option %s requires a value", argv[optind - 1]);
        if (code == '?')
            refuse(options, count, argv[optind - 1]);
        for (size_t i = 0; code < FIRST_LONG && i < count; i++) {
            if (options[i].letter == code)
                index = i;
        }
        if (index == count) {
            if (bench_launched_rank() == 0)
                print_help(program, purpose, options, count);
            exit(0);
        }
        take(&options[index], optarg);
    }
    if (optind < argc)
        refuse(options, count, argv[optind]);
    bench_option_values_record(program, options, count);
}
