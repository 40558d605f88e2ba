/* SPDX-License-Identifier: MIT
 *
 * A row for each number of ranks.
 */
#ifndef TAMIS_BENCH_SCALE_TABLE_H
#define TAMIS_BENCH_SCALE_TABLE_H

#include "bench/scale/settings.h"

typedef struct scale_row {
    scale_case c;
    tam_plan plan;
    scale_counts counts;
    scale_memory memory;
    double formula_s, simulated_s; /* not simulated: -1 */
    double linear_s, usual_s, dense_s;
    double break_even;
    tam_plan best;
    double best_s; /* simulated, of all candidates; -1: not asked for */
} scale_row;

void scale_table_header(const scale_settings *s);
void scale_table_row(const scale_settings *s, const scale_row *row);

#endif
