/* SPDX-License-Identifier: MIT */
#include "bench/info/flight.h"

#include "bench/info/flight_files.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* -- what it says ----------------------------------------------------------------------------- */

static bool same_event(const json_t *a, const json_t *b) {
    return strcmp(flight_text(a, "call"), flight_text(b, "call")) == 0 &&
           flight_number(a, "bytes", 0) == flight_number(b, "bytes", 0) &&
           flight_number(a, "step", -1) == flight_number(b, "step", -1);
}

static const char *describe(const json_t *begin, char *out, size_t size) {
    int64_t step = flight_number(begin, "step", -1), bucket = flight_number(begin, "bucket", -1);
    int at = snprintf(out, size, "%.40s of %" PRId64 " bytes", flight_text(begin, "call"),
                      flight_number(begin, "bytes", 0));
    if (step >= 0)
        at += snprintf(out + at, size - (size_t)at, " in step %" PRId64, step);
    if (bucket >= 0)
        snprintf(out + at, size - (size_t)at, ", bucket %" PRId64, bucket);
    return out;
}

/* The first collective that a rank makes otherwise than the first file's. */
static bool find_difference(const left *files, size_t count) {
    char one[160], other[160];
    for (size_t i = 0; count > 0 && i < files[0].nbegins; i++) {
        const json_t *e = files[0].begins[i];
        int64_t collective = flight_number(e, "collective", 0);
        for (size_t r = 1; r < count; r++) {
            const json_t *theirs = flight_begin(&files[r], collective);
            if (!theirs || same_event(e, theirs))
                continue;
            printf("=> collective %" PRId64 " differs: rank %" PRId64 " makes %s, rank %" PRId64
                   " %s: the ranks do not call the library in the same order\n",
                   collective, files[0].rank, describe(e, one, sizeof one), files[r].rank,
                   describe(theirs, other, sizeof other));
            return true;
        }
    }
    return false;
}

/* A list of ranks, of which as many are named as there is room for. */
typedef struct list {
    char text[512];
    size_t length;
    int64_t named;
} list;

enum { LIST_TAIL = 64 }; /* a rank, and how many more */

static bool has_space(const list *l) {
    return l->length + LIST_TAIL < sizeof l->text;
}

static void add_to_list(list *l, int64_t rank) {
    l->length +=
        (size_t)snprintf(l->text + l->length, sizeof l->text - l->length, " %" PRId64, rank);
    l->named++;
}

static void end_list(list *l, int64_t all) {
    if (l->named < all)
        snprintf(l->text + l->length, sizeof l->text - l->length, " and %" PRId64 " more",
                 all - l->named);
}

/* No two files are of one rank. */
static void list_absent(const left *files, size_t count, list *out) {
    size_t r = 0;
    for (int64_t rank = 0; rank < files[0].ranks && has_space(out); rank++) {
        while (r < count && files[r].rank < rank)
            r++;
        if (r == count || files[r].rank != rank)
            add_to_list(out, rank);
    }
    end_list(out, files[0].ranks - (int64_t)count);
}

static bool is_behind(const left *l, int64_t most) {
    return l->begun < most;
}

static bool is_inside(const left *l, int64_t most) {
    return l->ended < most;
}

static bool is_damaged(const left *l, int64_t most) {
    (void)most;
    return l->damaged;
}

/* @return how many there are */
static int64_t list_those(const left *files, size_t count, bool (*are)(const left *, int64_t),
                          int64_t most, list *out) {
    int64_t all = 0;
    for (size_t r = 0; r < count; r++) {
        bool one = are(&files[r], most);
        all += one;
        if (one && has_space(out))
            add_to_list(out, files[r].rank);
    }
    end_list(out, all);
    return all;
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

/* Nobody said for whom it waits. */
static void say_where(const left *files, size_t count, int64_t most, const char *what) {
    list behind = {0}, inside = {0};
    int64_t nbehind = list_those(files, count, is_behind, most, &behind);
    int64_t ninside = list_those(files, count, is_inside, most, &inside);
    if (nbehind > 0)
        printf("rank(s)%s are behind: the others have begun collective %" PRId64 ", %s\n",
               behind.text, most, what);
    else if (ninside == 0)
        printf("all ranks have ended collective %" PRId64 ", %s: they are outside of the library\n",
               most, what);
    else if (ninside < (int64_t)count)
        printf("rank(s)%s are in collective %" PRId64 ", %s, which the others have ended\n",
               inside.text, most, what);
    else
        printf("all are in collective %" PRId64 ", %s\n", most, what);
}

/* What the ranks themselves said before their deadline counts more than how far each has come: one
 * that was held up may go on while the others give up. */
static void conclude(const left *files, size_t count) {
    char what[160] = "none that is left";
    size_t votes;
    const left *ahead = &files[0], *one = accuser(files, count, &votes);
    for (size_t r = 1; r < count; r++)
        ahead = files[r].begun > ahead->begun ? &files[r] : ahead;
    int64_t collective = one ? one->begun : ahead->begun;
    const json_t *begin = flight_begin(one ? one : ahead, collective);
    if (begin)
        describe(begin, what, sizeof what);
    if (one)
        printf("%zu rank(s) waited for rank %" PRId64 " in collective %" PRId64 ", %s\n", votes,
               one->waits_for, collective, what);
    else
        say_where(files, count, collective, what);
}

/* What files that are damaged say of their ranks is not to be relied on. */
static void say_all(const left *files, size_t count) {
    list absent = {0}, damaged = {0};
    left *sure = calloc(count, sizeof *sure);
    size_t nsure = 0;
    for (size_t r = 0; sure && r < count; r++)
        if (!files[r].damaged)
            sure[nsure++] = files[r];
    if (!find_difference(sure, nsure)) {
        list_absent(files, count, &absent);
        list_those(files, count, is_damaged, 0, &damaged);
        printf("=> ");
        if (absent.named > 0)
            printf("rank(s)%s left no file: dead, or not given the folder; ", absent.text);
        if (damaged.named > 0)
            printf("the file(s) of rank(s)%s are damaged; ", damaged.text);
        if (nsure > 0)
            conclude(sure, nsure);
        else
            printf("nothing is known\n");
    }
    free(sure);
}

static void print_rank(const left *l, double end_s) {
    char last[200] = "none";
    if (l->last && flight_is(l->last, "begin"))
        describe(l->last, last, sizeof last);
    else if (l->last)
        snprintf(last, sizeof last, "%s", flight_text(l->last, "event"));
    printf("%6" PRId64 " %12" PRId64 " %10" PRId64 " %8" PRId64 " %9.3f  %-22s %s\n", l->rank,
           l->begun, l->ended, l->last ? flight_number(l->last, "step", -1) : -1,
           l->last ? end_s - flight_unix_s(l, l->last) : 0.0, l->lost ? l->lost : "-", last);
}

static void print_group(const left *files, size_t count) {
    double end_s = 0.0;
    for (size_t r = 0; r < count; r++) {
        double own_s = files[r].last ? flight_unix_s(&files[r], files[r].last) : 0.0;
        end_s = own_s > end_s ? own_s : end_s;
    }
    printf("# communicator %" PRId64 ": %zu files of %" PRId64 " ranks, transport %s, plan %s\n"
           "# collectives: number of the last one that began, and that ended; ago: seconds from "
           "the\n#   rank's last event to the last of all, by the hosts' clocks\n",
           files[0].group, count, files[0].ranks, flight_text(files[0].header, "transport"),
           flight_text(files[0].header, "plan"));
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
    say_all(files, count);
}

/* -- trace ------------------------------------------------------------------------------------ */

/* Perfetto takes process 0 and thread 0 for its own. */
static json_int_t shown(int64_t number) {
    return (json_int_t)number + 1;
}

static void add_name(json_t *spans, const left *l, const char *what, const char *kind,
                     int64_t number) {
    char name[64];
    snprintf(name, sizeof name, "%s %" PRId64, kind, number);
    json_array_append_new(spans,
                          json_pack("{ss ss sI sI s{ss}}", "ph", "M", "name", what, "pid",
                                    shown(l->group), "tid", shown(l->rank), "args", "name", name));
}

static void add_span(json_t *spans, const left *l, const json_t *begin, double until_s,
                     double origin_s, const char *status) {
    double at_s = flight_unix_s(l, begin);
    json_array_append_new(
        spans, json_pack("{ss ss sf sf sI sI s{sI sI sI ss}}", "name", flight_text(begin, "call"),
                         "ph", "X", "ts", 1e6 * (at_s - origin_s), "dur", 1e6 * (until_s - at_s),
                         "pid", shown(l->group), "tid", shown(l->rank), "args", "collective",
                         (json_int_t)flight_number(begin, "collective", 0), "step",
                         (json_int_t)flight_number(begin, "step", -1), "bytes",
                         (json_int_t)flight_number(begin, "bytes", 0), "status", status));
}

static void add_mark(json_t *spans, const left *l, const json_t *event, double origin_s) {
    json_array_append_new(spans, json_pack("{ss ss ss sf sI sI}", "name",
                                           flight_text(event, "event"), "ph", "i", "s", "t", "ts",
                                           1e6 * (flight_unix_s(l, event) - origin_s), "pid",
                                           shown(l->group), "tid", shown(l->rank)));
}

static void add_rank(json_t *spans, const left *l, double origin_s) {
    const json_t *open = NULL;
    size_t i;
    json_t *e;
    add_name(spans, l, "process_name", "communicator", l->group);
    add_name(spans, l, "thread_name", "rank", l->rank);
    json_array_foreach(l->events, i, e) {
        if (flight_is(e, "begin"))
            open = e;
        else if (flight_is(e, "end") && open)
            add_span(spans, l, open, flight_unix_s(l, e), origin_s, flight_text(e, "status"));
        else if (!flight_is(e, "end"))
            add_mark(spans, l, e, origin_s);
        open = flight_is(e, "end") ? NULL : open;
    }
    if (open)
        add_span(spans, l, open, 1e-9 * (double)flight_number(l->header, "unix_ns", 0), origin_s,
                 "did not end");
}

/* When the first event was. */
static double begin_s(const pile *p) {
    double first_s = 0.0;
    bool any = false;
    for (size_t r = 0; r < p->count; r++) {
        const left *l = &p->files[r];
        if (json_array_size(l->events) > 0 && (!any || l->began_s < first_s)) {
            first_s = l->began_s;
            any = true;
        }
    }
    return first_s;
}

static int write_trace(const pile *p, const char *path) {
    double origin_s = begin_s(p);
    json_t *spans = json_array(), *all = json_pack("{so}", "traceEvents", spans);
    for (size_t r = 0; r < p->count; r++)
        add_rank(spans, &p->files[r], origin_s);
    int failed = json_dump_file(all, path, JSON_COMPACT);
    json_decref(all);
    if (failed)
        fprintf(stderr, "tamis_info: cannot write %s: %s\n", path, strerror(errno));
    return failed ? 1 : 0;
}

int info_flight(const char *folder, const char *trace) {
    pile p;
    int status = !flight_read(folder, &p);
    for (size_t from = 0, to; from < p.count; from = to) {
        for (to = from + 1; to < p.count && p.files[to].group == p.files[from].group;)
            to++;
        print_group(p.files + from, to - from);
    }
    if (status == 0 && trace[0])
        status = write_trace(&p, trace);
    flight_free(&p);
    return status;
}
