/* SPDX-License-Identifier: MIT */
#include "bench/info/flight.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FILES_MOST = 16384 };

/* What one rank left. */
typedef struct left {
    char name[300];
    json_t *head, *events; /* an array */
    int64_t group, rank, ranks;
    int64_t begun;      /* number of the last collective that began; 0: none */
    int64_t ended;      /* and that ended well */
    double began_s;     /* unix time of the first event */
    const json_t *last; /* event */
    int64_t waits_for;  /* as the last warning in the last collective says; -1: none */
    const char *lost;   /* status; NULL: it was not */
} left;

typedef struct pile {
    left *files;
    size_t count;
} pile;

static int64_t number(const json_t *event, const char *key, int64_t none) {
    const json_t *value = json_object_get(event, key);
    return json_is_integer(value) ? (int64_t)json_integer_value(value) : none;
}

static const char *text(const json_t *event, const char *key) {
    const char *value = json_string_value(json_object_get(event, key));
    return value ? value : "";
}

static bool is(const json_t *event, const char *kind) {
    return strcmp(text(event, "event"), kind) == 0;
}

/* Seconds of the hosts' calendar. */
static double unix_s(const left *l, const json_t *event) {
    int64_t ago_ns = number(l->head, "clock_ns", 0) - number(event, "at_ns", 0);
    return 1e-9 * (double)(number(l->head, "unix_ns", 0) - ago_ns);
}

/* -- reading ---------------------------------------------------------------------------------- */

static void digest(left *l) {
    size_t i;
    json_t *e;
    l->waits_for = -1;
    l->lost = NULL;
    json_array_foreach(l->events, i, e) {
        int64_t collective = number(e, "collective", 0);
        if (i == 0)
            l->began_s = unix_s(l, e);
        if (is(e, "begin")) {
            l->begun = collective;
            l->waits_for = -1;
        } else if (is(e, "end") && strcmp(text(e, "status"), "TAMIS_OK") == 0) {
            l->ended = collective;
        } else if (is(e, "late")) {
            l->waits_for = number(e, "waits_for", -1);
        } else if (is(e, "lost")) {
            l->lost = text(e, "status");
        }
        if (!is(e, "lost"))
            l->last = e;
    }
}

/* @return false: damaged, which was said */
static bool read_lines(FILE *file, left *l) {
    char line[4096];
    json_error_t error;
    for (int at = 1; fgets(line, sizeof line, file); at++) {
        json_t *record = json_loads(line, 0, &error);
        const char *kind = at == 1 ? "flight" : "event";
        if (!record || strcmp(text(record, "record"), kind) != 0) {
            fprintf(stderr,
                    "tamis_info: %s, line %d is no record of kind %s; the rest is ignored\n",
                    l->name, at, kind);
            json_decref(record);
            return at > 1;
        }
        if (at == 1)
            l->head = record;
        else
            json_array_append_new(l->events, record);
    }
    return l->head != NULL;
}

static bool read_file(const char *folder, const char *name, left *l) {
    char path[1024];
    *l = (left){.events = json_array()};
    snprintf(l->name, sizeof l->name, "%s", name);
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "r");
    if (!file) {
        fprintf(stderr, "tamis_info: cannot read %s: %s\n", path, strerror(errno));
        return false;
    }
    bool good = read_lines(file, l);
    fclose(file);
    l->group = number(l->head, "communicator", 0);
    l->rank = number(l->head, "rank", -1);
    l->ranks = number(l->head, "ranks", 0);
    digest(l);
    return good && l->rank >= 0 && l->rank < l->ranks;
}

static int by_rank(const void *a, const void *b) {
    const left *x = a, *y = b;
    if (x->group != y->group)
        return x->group < y->group ? -1 : 1;
    return x->rank != y->rank ? (x->rank < y->rank ? -1 : 1) : strcmp(x->name, y->name);
}

static bool read_folder(const char *folder, pile *out) {
    DIR *dir = opendir(folder);
    if (!dir) {
        fprintf(stderr, "tamis_info: cannot read the folder %s: %s\n", folder, strerror(errno));
        return false;
    }
    out->files = calloc(FILES_MOST, sizeof *out->files);
    for (struct dirent *e; out->files && out->count < FILES_MOST && (e = readdir(dir));) {
        size_t length = strlen(e->d_name);
        if (strncmp(e->d_name, "flight-", 7) != 0 || length < 7 + 6 ||
            strcmp(e->d_name + length - 6, ".jsonl") != 0)
            continue;
        left *l = &out->files[out->count];
        if (read_file(folder, e->d_name, l)) {
            out->count++;
            continue;
        }
        json_decref(l->head);
        json_decref(l->events);
    }
    closedir(dir);
    if (out->count == 0)
        fprintf(stderr, "tamis_info: no flight-*.jsonl in %s can be read\n", folder);
    else
        qsort(out->files, out->count, sizeof *out->files, by_rank);
    return out->count > 0;
}

/* -- what it says ----------------------------------------------------------------------------- */

/* The begin of a collective; NULL: not among the events that are left. */
static const json_t *begin_of(const left *l, int64_t collective) {
    size_t i;
    json_t *e;
    json_array_foreach(l->events, i, e) {
        if (is(e, "begin") && number(e, "collective", 0) == collective)
            return e;
    }
    return NULL;
}

static bool alike(const json_t *a, const json_t *b) {
    return strcmp(text(a, "call"), text(b, "call")) == 0 &&
           number(a, "bytes", 0) == number(b, "bytes", 0) &&
           number(a, "step", -1) == number(b, "step", -1);
}

static const char *describe(const json_t *begin, char *out, size_t size) {
    int64_t step = number(begin, "step", -1), bucket = number(begin, "bucket", -1);
    int at = snprintf(out, size, "%s of %" PRId64 " bytes", text(begin, "call"),
                      number(begin, "bytes", 0));
    if (step >= 0)
        at += snprintf(out + at, size - (size_t)at, " in step %" PRId64, step);
    if (bucket >= 0)
        snprintf(out + at, size - (size_t)at, ", bucket %" PRId64, bucket);
    return out;
}

/* The first collective that a rank makes otherwise than the first file's. */
static bool find_difference(const left *files, size_t count) {
    char one[160], other[160];
    size_t i;
    json_t *e;
    json_array_foreach(files[0].events, i, e) {
        if (!is(e, "begin"))
            continue;
        for (size_t r = 1; r < count; r++) {
            const json_t *theirs = begin_of(&files[r], number(e, "collective", 0));
            if (!theirs || alike(e, theirs))
                continue;
            printf("=> collective %" PRId64 " differs: rank %" PRId64 " makes %s, rank %" PRId64
                   " %s: the ranks do not call the library in the same order\n",
                   number(e, "collective", 0), files[0].rank, describe(e, one, sizeof one),
                   files[r].rank, describe(theirs, other, sizeof other));
            return true;
        }
    }
    return false;
}

static void list_absent(const left *files, size_t count, char *out, size_t size) {
    size_t at = 0, r = 0;
    out[0] = '\0';
    for (int64_t rank = 0; rank < files[0].ranks && at + 32 < size; rank++) {
        while (r < count && files[r].rank < rank)
            r++;
        if (r == count || files[r].rank != rank)
            at += (size_t)snprintf(out + at, size - at, " %" PRId64, rank);
    }
}

static void list_behind(const left *files, size_t count, int64_t most, char *out, size_t size) {
    size_t at = 0;
    out[0] = '\0';
    for (size_t r = 0; r < count && at + 32 < size; r++) {
        if (files[r].begun < most)
            at += (size_t)snprintf(out + at, size - at, " %" PRId64, files[r].rank);
    }
}

/* A rank that waits for the rank for which most others wait, and how many they are; NULL: nobody
 * said for whom. */
static const left *accuser(const left *files, size_t count, size_t *votes) {
    const left *one = NULL;
    *votes = 0;
    for (size_t r = 0; r < count; r++) {
        size_t own = 0;
        for (size_t q = 0; q < count && files[r].waits_for >= 0; q++)
            own += files[q].waits_for == files[r].waits_for;
        if (own > *votes) {
            *votes = own;
            one = &files[r];
        }
    }
    return one;
}

/* What the ranks themselves said before their deadline counts more than how far each has come: one
 * that was held up may go on while the others give up. */
static void conclude(const left *files, size_t count) {
    char absent[512], behind[512], what[160] = "none that is left";
    size_t votes;
    const left *ahead = &files[0], *one = accuser(files, count, &votes);
    for (size_t r = 1; r < count; r++)
        ahead = files[r].begun > ahead->begun ? &files[r] : ahead;
    if (find_difference(files, count))
        return;
    list_absent(files, count, absent, sizeof absent);
    list_behind(files, count, ahead->begun, behind, sizeof behind);
    int64_t collective = one ? one->begun : ahead->begun;
    const json_t *begin = begin_of(one ? one : ahead, collective);
    if (begin)
        describe(begin, what, sizeof what);
    printf("=> ");
    if (absent[0])
        printf("rank(s)%s left no file: dead, or not given the folder; ", absent);
    if (one)
        printf("%zu rank(s) waited for rank %" PRId64 " in collective %" PRId64 ", %s\n", votes,
               one->waits_for, collective, what);
    else if (behind[0])
        printf("rank(s)%s are behind: the others have begun collective %" PRId64 ", %s\n", behind,
               collective, what);
    else if (ahead->ended < ahead->begun)
        printf("all are in collective %" PRId64 ", %s\n", collective, what);
    else
        printf("all ranks have ended collective %" PRId64 ", %s: they are outside of the library\n",
               collective, what);
}

static void print_rank(const left *l, double end_s) {
    char last[200] = "none";
    if (l->last && is(l->last, "begin"))
        describe(l->last, last, sizeof last);
    else if (l->last)
        snprintf(last, sizeof last, "%s", text(l->last, "event"));
    printf("%6" PRId64 " %12" PRId64 " %10" PRId64 " %8" PRId64 " %9.3f  %-22s %s\n", l->rank,
           l->begun, l->ended, l->last ? number(l->last, "step", -1) : -1,
           l->last ? end_s - unix_s(l, l->last) : 0.0, l->lost ? l->lost : "-", last);
}

static void print_group(const left *files, size_t count) {
    double end_s = 0.0;
    for (size_t r = 0; r < count; r++) {
        double own_s = files[r].last ? unix_s(&files[r], files[r].last) : 0.0;
        end_s = own_s > end_s ? own_s : end_s;
    }
    printf("# communicator %" PRId64 ": %zu files of %" PRId64 " ranks, transport %s, plan %s\n"
           "# collectives: number of the last one that began, and that ended; ago: seconds from "
           "the\n#   rank's last event to the last of all, by the hosts' clocks\n",
           files[0].group, count, files[0].ranks, text(files[0].head, "transport"),
           text(files[0].head, "plan"));
    printf("#%5s %12s %10s %8s %9s  %-22s %s\n", "rank", "begun", "ended", "step", "ago", "lost",
           "last event");
    for (size_t r = 0; r < count; r++)
        print_rank(&files[r], end_s);
    for (size_t r = 1; r < count; r++) {
        if (files[r].rank != files[r - 1].rank && files[r].ranks == files[0].ranks)
            continue;
        printf("=> %s and %s do not belong together: of an earlier run, or of disjoint groups; "
               "give each run and group a folder of its own\n",
               files[r - 1].name, files[r].name);
        return;
    }
    conclude(files, count);
}

/* -- trace ------------------------------------------------------------------------------------ */

static void add_span(json_t *spans, const left *l, const json_t *begin, double until_s,
                     double origin_s, const char *status) {
    double at_s = unix_s(l, begin);
    json_array_append_new(
        spans, json_pack("{ss ss sf sf sI sI s{sI sI sI ss}}", "name", text(begin, "call"), "ph",
                         "X", "ts", 1e6 * (at_s - origin_s), "dur", 1e6 * (until_s - at_s), "pid",
                         (json_int_t)l->group, "tid", (json_int_t)l->rank, "args", "collective",
                         (json_int_t)number(begin, "collective", 0), "step",
                         (json_int_t)number(begin, "step", -1), "bytes",
                         (json_int_t)number(begin, "bytes", 0), "status", status));
}

static void add_mark(json_t *spans, const left *l, const json_t *event, double origin_s) {
    json_array_append_new(spans,
                          json_pack("{ss ss ss sf sI sI}", "name", text(event, "event"), "ph", "i",
                                    "s", "t", "ts", 1e6 * (unix_s(l, event) - origin_s), "pid",
                                    (json_int_t)l->group, "tid", (json_int_t)l->rank));
}

static void add_rank(json_t *spans, const left *l, double origin_s) {
    const json_t *open = NULL;
    size_t i;
    json_t *e;
    json_array_foreach(l->events, i, e) {
        if (is(e, "begin"))
            open = e;
        else if (is(e, "end") && open)
            add_span(spans, l, open, unix_s(l, e), origin_s, text(e, "status"));
        else if (!is(e, "end"))
            add_mark(spans, l, e, origin_s);
        open = is(e, "end") ? NULL : open;
    }
    if (open)
        add_span(spans, l, open, 1e-9 * (double)number(l->head, "unix_ns", 0), origin_s,
                 "did not end");
}

static int write_trace(const pile *p, const char *path) {
    double origin_s = p->files[0].began_s;
    json_t *spans = json_array(), *all = json_pack("{so}", "traceEvents", spans);
    for (size_t r = 1; r < p->count; r++)
        origin_s = p->files[r].began_s < origin_s ? p->files[r].began_s : origin_s;
    for (size_t r = 0; r < p->count; r++)
        add_rank(spans, &p->files[r], origin_s);
    int failed = json_dump_file(all, path, JSON_COMPACT);
    json_decref(all);
    if (failed)
        fprintf(stderr, "tamis_info: cannot write %s: %s\n", path, strerror(errno));
    return failed ? 1 : 0;
}

int info_flight(const char *folder, const char *trace) {
    pile p = {0};
    int status = !read_folder(folder, &p);
    for (size_t from = 0, to; from < p.count; from = to) {
        for (to = from + 1; to < p.count && p.files[to].group == p.files[from].group;)
            to++;
        print_group(p.files + from, to - from);
    }
    if (status == 0 && trace[0])
        status = write_trace(&p, trace);
    for (size_t r = 0; r < p.count; r++) {
        json_decref(p.files[r].head);
        json_decref(p.files[r].events);
    }
    free(p.files);
    return status;
}
