/* SPDX-License-Identifier: MIT
 *
 * The settings of tamis_replay, from its command line.
 */
#ifndef TAMIS_REPLAY_SETTINGS_H
#define TAMIS_REPLAY_SETTINGS_H

#include <stdbool.h>
#include <stdio.h>

#include "bench/lab/replay/job.h"

typedef struct replay_settings {
    const char *log, *intensity, *json, *make_trace;
    bool simulate, what_if, allow_cap;
    double constant; /* g/kWh; 0: unknown */
    double hours;    /* of work, for the simulator */
    uint64_t devices, lead, ranks, seed;
    job_plan plan; /* governor and carbon also for a log, the rest for the simulator only */
    FILE *report, *table;
} replay_settings;

/** Parse and check; opens the carbon trace. Ends the process on wrong usage. */
void replay_settings_read(int argc, char **argv, replay_settings *out);

#endif
