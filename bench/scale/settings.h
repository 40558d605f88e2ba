/* SPDX-License-Identifier: MIT
 *
 * Options of tamis_scale.
 */
#ifndef TAMIS_BENCH_SCALE_SETTINGS_H
#define TAMIS_BENCH_SCALE_SETTINGS_H

#include "bench/scale/scale.h"

#include <stdio.h>

typedef struct scale_settings {
    const char *net_text, *ranks_text, *json;
    scale_net net;
    double ranks[SCALE_RANKS];
    size_t nranks;
    uint64_t elements, ranks_per_node, local_steps, groups, simulate, steps, mpi_ranks;
    double density, index_bytes, incast_us, resend_us;
    scale_weather weather;
    bool candidates, verify, passes;
    int transport, values, sum_values; /* tamis_value_codec */
    const tam_value_codec *up, *down;
    FILE *report;
} scale_settings;

void scale_settings_read(int argc, char **argv, scale_settings *out);

/** The case of so many ranks. */
scale_case scale_case_of(const scale_settings *s, uint32_t nranks);

#endif
