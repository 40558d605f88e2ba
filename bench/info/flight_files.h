/* SPDX-License-Identifier: MIT
 *
 * Files of flight recorders: reading them, and what each says of its rank. They may be damaged in
 * any way, as by a process that died while it wrote: what cannot be read is named, and left out.
 */
#ifndef TAMIS_BENCH_INFO_FLIGHT_FILES_H
#define TAMIS_BENCH_INFO_FLIGHT_FILES_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/** What one rank left. */
typedef struct left {
    char name[300];
    json_t *header, *events; /* an array */
    bool damaged;            /* lines are missing or not as they were: it says nothing for sure */
    int64_t group, rank, ranks;
    int64_t begun;         /* number of the last collective that began; 0: none */
    int64_t ended;         /* and that ended well */
    double began_s;        /* unix time of the first event */
    const json_t *last;    /* event */
    const json_t **begins; /* [nbegins] of collectives without a gap, */
    size_t nbegins;        /* the last of which is `begun` */
    int64_t waits_for;     /* as the last warning in the last collective says, if that has not ended
                              well; -1: none */
    const char *lost;      /* status; NULL: it was not */
} left;

typedef struct pile {
    left *files; /* [count] by communicator, rank and name */
    size_t count;
} pile;

/** A number of an event, or of a file's first line. `none`: it has no such number. */
int64_t flight_number(const json_t *event, const char *key, int64_t none);

/** "": it has no such text. */
const char *flight_text(const json_t *event, const char *key);

bool flight_is(const json_t *event, const char *kind);

/** Seconds of the hosts' calendar. */
double flight_unix_s(const left *file, const json_t *event);

/** The begin of a collective, of a file that is not damaged. @return NULL: not among its events */
const json_t *flight_begin(const left *file, int64_t collective);

/** Read FOLDER/flight-*.jsonl. What is left out is said on stderr.
 * @return false: there is none, which was said */
bool flight_read(const char *folder, pile *out);
void flight_free(pile *p);

#endif
