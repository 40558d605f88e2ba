/* SPDX-License-Identifier: MIT */
#include "bench/info/flight_files.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FILES_MOST = 16384 };

int64_t flight_number(const json_t *event, const char *key, int64_t none) {
    const json_t *value = json_object_get(event, key);
    return json_is_integer(value) ? (int64_t)json_integer_value(value) : none;
}

const char *flight_text(const json_t *event, const char *key) {
    const char *value = json_string_value(json_object_get(event, key));
    return value ? value : "";
}

bool flight_is(const json_t *event, const char *kind) {
    return strcmp(flight_text(event, "event"), kind) == 0;
}

/* Unsigned: numbers of damaged files may be anything. */
double flight_unix_s(const left *l, const json_t *event) {
    uint64_t clock_ns = (uint64_t)flight_number(l->header, "clock_ns", 0);
    uint64_t ago_ns = clock_ns - (uint64_t)flight_number(event, "at_ns", 0);
    return 1e-9 * (double)(int64_t)((uint64_t)flight_number(l->header, "unix_ns", 0) - ago_ns);
}

const json_t *flight_begin(const left *l, int64_t collective) {
    int64_t first = l->begun - (int64_t)l->nbegins;
    return collective > first && collective <= l->begun ? l->begins[collective - first - 1] : NULL;
}

/* -- one file --------------------------------------------------------------------------------- */

/* They are counted one by one. A rank that went on while it wrote has overwritten some. */
static void take_begin(left *l, const json_t *e) {
    int64_t collective = flight_number(e, "collective", 0);
    l->damaged = l->damaged || collective <= l->begun;
    if (collective - 1 != l->begun)
        l->nbegins = 0;
    l->begun = collective;
    l->begins[l->nbegins++] = e;
    l->waits_for = -1;
}

static void digest(left *l) {
    size_t i;
    json_t *e;
    l->waits_for = -1;
    json_array_foreach(l->events, i, e) {
        if (i == 0)
            l->began_s = flight_unix_s(l, e);
        if (flight_is(e, "begin")) {
            take_begin(l, e);
        } else if (flight_is(e, "end") && strcmp(flight_text(e, "status"), "TAMIS_OK") == 0) {
            l->ended = flight_number(e, "collective", 0);
            l->waits_for = -1;
        } else if (flight_is(e, "late")) {
            l->waits_for = flight_number(e, "waits_for", -1);
        } else if (flight_is(e, "lost")) {
            l->lost = flight_text(e, "status");
        }
        if (!flight_is(e, "lost"))
            l->last = e;
    }
}

/* The first line is the header. Lines that are not what they should be are left out. */
static void read_lines(FILE *file, left *l) {
    char *line = NULL;
    size_t capacity = 0;
    ssize_t length;
    for (int at = 1; (length = getline(&line, &capacity, file)) > 0 && (l->header || at == 1);
         at++) {
        json_t *record = json_loadb(line, (size_t)length, 0, NULL);
        const char *kind = at == 1 ? "flight" : "event";
        if (!record || strcmp(flight_text(record, "record"), kind) != 0) {
            fprintf(stderr, "tamis_info: %s, line %d is no record of kind %s, and is ignored\n",
                    l->name, at, kind);
            json_decref(record);
            l->damaged = true;
        } else if (at == 1) {
            l->header = record;
        } else {
            json_array_append_new(l->events, record);
        }
    }
    if (!l->header && !l->damaged)
        fprintf(stderr, "tamis_info: %s is empty, and is ignored\n", l->name);
    free(line);
}

static void free_file(left *l) {
    json_decref(l->header);
    json_decref(l->events);
    free(l->begins);
}

/* @return false: it says nothing, which was said */
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
    read_lines(file, l);
    fclose(file);
    l->begins = calloc(json_array_size(l->events) + 1, sizeof l->begins[0]);
    if (!l->header || !l->begins)
        return false;
    l->group = flight_number(l->header, "communicator", 0);
    l->rank = flight_number(l->header, "rank", -1);
    l->ranks = flight_number(l->header, "ranks", 0);
    digest(l);
    if (l->rank >= 0 && l->rank < l->ranks)
        return true;
    fprintf(stderr,
            "tamis_info: %s is ignored: its header says rank %" PRId64 " of %" PRId64 " ranks\n",
            name, l->rank, l->ranks);
    return false;
}

/* -- all of a folder -------------------------------------------------------------------------- */

static int by_rank(const void *a, const void *b) {
    const left *x = a, *y = b;
    if (x->group != y->group)
        return x->group < y->group ? -1 : 1;
    return x->rank != y->rank ? (x->rank < y->rank ? -1 : 1) : strcmp(x->name, y->name);
}

static bool is_ours(const char *name) {
    size_t length = strlen(name);
    return strncmp(name, "flight-", 7) == 0 && length >= 7 + 6 &&
           strcmp(name + length - 6, ".jsonl") == 0;
}

static bool add_file(const char *folder, const char *name, pile *out) {
    left *more = out->files;
    if ((out->count & (out->count - 1)) == 0) /* there is room for the next power of two */
        more = realloc(out->files, (2 * out->count + 1) * sizeof *more);
    if (!more || out->count >= FILES_MOST) {
        fprintf(stderr, "tamis_info: too many files: %s and others are ignored\n", name);
        return false;
    }
    out->files = more;
    if (read_file(folder, name, &more[out->count]))
        out->count++;
    else
        free_file(&more[out->count]);
    return true;
}

bool flight_read(const char *folder, pile *out) {
    DIR *dir = opendir(folder);
    bool more = true;
    *out = (pile){0};
    if (!dir) {
        fprintf(stderr, "tamis_info: cannot read the folder %s: %s\n", folder, strerror(errno));
        return false;
    }
    for (struct dirent *e; more && (e = readdir(dir));)
        more = !is_ours(e->d_name) || add_file(folder, e->d_name, out);
    closedir(dir);
    if (out->count == 0)
        fprintf(stderr, "tamis_info: no flight-*.jsonl in %s can be read\n", folder);
    else
        qsort(out->files, out->count, sizeof *out->files, by_rank);
    return out->count > 0;
}

void flight_free(pile *p) {
    for (size_t r = 0; r < p->count; r++)
        free_file(&p->files[r]);
    free(p->files);
}
