/* SPDX-License-Identifier: MIT
 *
 * The settings of tamis_schemes, from its command line.
 */
#ifndef TAMIS_SCHEMES_SETTINGS_H
#define TAMIS_SCHEMES_SETTINGS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <tamis/tamis.h>

enum { SCHEMES_RANKS = 16, SCHEMES_DENSITIES = 8 };

typedef struct schemes_settings {
    const char *input, *schemes, *rank_list, *density_list, *json;
    uint32_t ranks[SCHEMES_RANKS];
    double densities[SCHEMES_DENSITIES];
    size_t nranks, ndensities;
    uint64_t elements, segments, steps, checks, warmup, seed;
    bool list, speed;
    FILE *report; /* rank 0's; NULL: none */
} schemes_settings;

/** Parse and check; ends the process on wrong usage, and for --list. */
void schemes_settings_read(int argc, char **argv, schemes_settings *out);

/** Whether the command line asks for this preset. */
bool schemes_wanted(const schemes_settings *settings, const char *name);

#endif
