/* SPDX-License-Identifier: MIT
 *
 * Explores the protocol of steps (start, exchange, commit, poison, shrink, migrate, resync): the
 * real library, 3 ranks, a network and a clock of its own, each fault at each point, and other
 * orders of what happens. In each execution all must hold that tests/explore/program.h says.
 *
 *     explore [--quick] [--jobs N] [--setting NAME] [--deeper N]      samples N times as dense
 *     explore --setting NAME --choices AT:OPTION,...      one execution, with all that happens
 */
#include "tests/explore/search.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const tamis_update adam = {
    sizeof(tamis_update), TAMIS_UPDATE_ADAM, 0.9, 0.99, 1e-8, 1.0, 0.0};

static const setting settings[] = {
    {.name = "tamis", .scheme = "tamis", .exact = true, .opens = 1},
    {.name = "eager", .scheme = "tamis", .exact = true, .eager = true, .opens = 1},
    {.name = "topk", .scheme = "topk", .exact = true, .eager = true, .brief = true, .opens = 1},
    {.name = "buckets", .scheme = "tamis", .exact = true, .bucket_length = 50, .opens = 1},
    {.name = "resync",
     .scheme = "tamis",
     .exact = true,
     .eager = true,
     .resyncs = true,
     .opens = 1},
    {.name = "created", .scheme = "tamis", .exact = true, .eager = true, .opens = 0},
    {.name = "adam", .scheme = "tamis", .eager = true, .update = &adam, .brief = true, .opens = 1},
};

enum { SETTINGS = sizeof settings / sizeof settings[0], BRIEF = 3 };

/* What is not whole is a sample, the same in each run. */
static const bounds whole[] = {{1, 0, {1}},     {0, 1, {1}},      {1, 1, {1, 60}},
                               {0, 2, {1, 16}}, {2, 0, {1, 500}}, {1, 2, {8, 20, 40}}};
static const bounds quick[] = {{1, 0, {4}}, {0, 1, {8}}, {1, 1, {12, 60}}};

/* What was asked for. */
typedef struct wish {
    const setting *only; /* NULL: all */
    const char *choices; /* NULL: many executions */
    bool few;
    uint32_t jobs, deeper;
} wish;

static void show(const setting *set, const bounds *b, const figures *t) {
    printf(
        "%-8s %u fault(s), %u deviation(s): %llu executions, %llu decisions; %llu times ranks went "
        "on after a failure, %llu times one went back a step, %llu times one had no reducer\n",
        set->name, b->faults, b->deviations, (unsigned long long)t->executions,
        (unsigned long long)t->decisions, (unsigned long long)t->recovered,
        (unsigned long long)t->went_back, (unsigned long long)t->hopeless);
}

static void show_all(const figures *t) {
    printf("faults:");
    for (uint32_t f = 1; f <= FAULTS; f++)
        printf("%s %s %llu", f > 1 ? "," : "", fault_name((fault)f),
               (unsigned long long)t->faults[f]);
    printf("\nfailed calls:");
    for (uint32_t s = 0, n = 0; s < 128; s++)
        if (t->statuses[s] > 0)
            printf("%s %s %llu", n++ > 0 ? "," : "", tamis_status_name((tamis_status)s),
                   (unsigned long long)t->statuses[s]);
    printf("\n%llu executions, %llu decisions\n", (unsigned long long)t->executions,
           (unsigned long long)t->decisions);
}

static int explore(const setting *set, const bounds *b, uint32_t jobs, figures *sum) {
    findings f = {0};
    search_run(set, b, jobs, &f);
    show(set, b, &f.seen);
    fflush(stdout);
    for (size_t i = 0; i < sizeof *sum / sizeof(uint64_t); i++)
        ((uint64_t *)(void *)sum)[i] += ((const uint64_t *)(const void *)&f.seen)[i];
    if (!f.failed)
        return 0;
    printf("FAILED: %s\n    explore --setting %s --choices ", f.failure, set->name);
    for (uint32_t i = 0; i < f.at.nchoices; i++)
        printf("%s%u:%u", i > 0 ? "," : "", f.at.choices[i].at, f.at.choices[i].option);
    printf("\n");
    return 1;
}

/* One of fewer at the last depth. */
static bounds deepen(bounds b, uint32_t deeper) {
    uint32_t *last = &b.stride[b.faults + b.deviations - 1];
    *last = *last > deeper ? *last / deeper : 1;
    return b;
}

static int explore_all(const setting *set, const wish *asked, figures *sum) {
    size_t count = asked->few ? sizeof quick / sizeof quick[0] : sizeof whole / sizeof whole[0];
    int failed = 0;
    for (size_t i = 0; i < (set->brief ? BRIEF : count) && !failed; i++) {
        const bounds b = deepen(asked->few ? quick[i] : whole[i], asked->deeper);
        failed = explore(set, &b, asked->jobs, sum);
    }
    return failed;
}

static int replay(const setting *set, const char *text) {
    static world w;
    choice choices[CHOICES_MOST];
    uint64_t reference[STEPS_MOST];
    uint32_t n = 0;
    for (const char *at = text; *at != '\0' && n < CHOICES_MOST; n++) {
        char *end;
        choices[n].at = (uint32_t)strtoul(at, &end, 10);
        choices[n].option = (uint32_t)strtoul(*end == ':' ? end + 1 : end, &end, 10);
        at = *end == ',' ? end + 1 : "";
    }
    world_refer(set, reference);
    search_try(&w, set, choices, n, reference, true);
    printf("%s\n", w.broken ? w.failure : "all is as it must be");
    return w.broken;
}

static const setting *find(const char *name) {
    for (size_t i = 0; i < SETTINGS; i++)
        if (strcmp(settings[i].name, name) == 0)
            return &settings[i];
    return NULL;
}

static bool read_arguments(int argc, char **argv, wish *out) {
    *out = (wish){.jobs = 2, .deeper = 1};
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        if (strcmp(argv[i], "--quick") == 0)
            out->few = true;
        else if (strcmp(argv[i], "--jobs") == 0 && ++i < argc)
            out->jobs = (uint32_t)strtoul(value, NULL, 10);
        else if (strcmp(argv[i], "--deeper") == 0 && ++i < argc)
            out->deeper = (uint32_t)strtoul(value, NULL, 10);
        else if (strcmp(argv[i], "--setting") == 0 && ++i < argc && find(value))
            out->only = find(value);
        else if (strcmp(argv[i], "--choices") == 0 && ++i < argc)
            out->choices = value;
        else
            return false;
    }
    return out->jobs > 0 && out->deeper > 0 && (!out->choices || out->only);
}

int main(int argc, char **argv) {
    figures sum = {0};
    wish asked;
    int failed = 0;
    if (!read_arguments(argc, argv, &asked)) {
        fprintf(stderr, "usage: explore [--quick] [--jobs N] [--deeper N] [--setting NAME "
                        "[--choices AT:OPTION,...]]\n");
        return 2;
    }
    setenv("TAMIS_LOG", "off", 1);
    if (asked.choices)
        return replay(asked.only, asked.choices);
    for (size_t s = 0; s < SETTINGS && !failed; s++)
        if (!asked.only || asked.only == &settings[s])
            failed = explore_all(&settings[s], &asked, &sum);
    if (!failed && sum.went_back == 0)
        failed = printf("FAILED: no ranks were ever a step apart\n") > 0;
    show_all(&sum);
    return failed;
}
