/* SPDX-License-Identifier: MIT
 *
 * Reads energy logs (JSON Lines, schema tamis.energy/1), as far as a governor needs them. From a
 * log with decisions it takes those and their windows; else the windows that the meter wrote.
 */
#ifndef TAMIS_REPLAY_LOG_H
#define TAMIS_REPLAY_LOG_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include <tamis/governor.h>

typedef struct replay_entry {
    size_t line;
    bool budget; /* only a new budget: the next three */
    double watts, g_per_h;
    uint64_t until_step;
    tamis_governor_window window;
    double unix_s; /* of its end; NAN: unknown */
    bool decided;  /* `decision` is valid */
    tamis_governor_decision decision;
} replay_entry;

typedef struct replay_log {
    replay_entry *entries;
    size_t count, room;
    bool decisions; /* all windows are of decisions */
    bool cut;       /* the last line is incomplete and was left out */
    double t0_unix;
} replay_log;

/** Ends the process with status 2, naming file and line, if it is not such a log. */
void replay_log_read(const char *path, replay_log *out);
void replay_log_free(replay_log *log);

#endif
