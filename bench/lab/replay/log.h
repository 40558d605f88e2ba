/* SPDX-License-Identifier: MIT
 *
 * Logs as JSON Lines: decisions of a governor with the windows that they hold (docs/energy.md),
 * or windows of a meter (schema tamis.energy/1). What else a log holds is passed over.
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
    size_t count, capacity;
    bool windows, decisions; /* what it holds: windows of a meter, or of decisions */
    bool cut;                /* the last line is incomplete and was left out */
    double t0_unix;
} replay_log;

/** Ends the process with status 2, naming file and line, if it is not such a log. */
void replay_log_read(const char *path, replay_log *out);
void replay_log_free(replay_log *log);

#endif
