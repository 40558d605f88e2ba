/* SPDX-License-Identifier: MIT
 *
 * Options that several programs have: rows of their tables (options.h).
 */
#ifndef TAMIS_BENCH_OPTION_ROWS_H
#define TAMIS_BENCH_OPTION_ROWS_H

#include "bench/common/half.h"
#include "bench/common/options.h"

/* clang-format off */
#define BENCH_ROW_RANKS(target) \
    {"ranks", 0, BENCH_COUNT, target, "P", 1, 4096, "ranks of transport local (default 1)"}
#define BENCH_ROW_TRANSPORT(target) \
    {"transport", 0, BENCH_CHOICE, target, BENCH_TRANSPORTS, 0, 0, \
     "default: mpi under mpirun, else local"}
#define BENCH_ROW_VALUES(target) \
    {"values", 0, BENCH_CHOICE, target, BENCH_VALUES, 0, 0, \
     "encoding of values on the wire; auto: float32"}
#define BENCH_ROW_SUM_VALUES(target) \
    {"sum-values", 0, BENCH_CHOICE, target, BENCH_VALUES, 0, 0, \
     "encoding of their sums on the wire; auto: as --values, but int8 for fp4, fp4 for fp2"}
#define BENCH_ROW_JSON(target) \
    {"json", 0, BENCH_FILE, target, "FILE", 0, 0, "write records to FILE; -: stdout"}
/** For programs that print a table. */
#define BENCH_ROW_JSON_TABLE(target) \
    {"json", 0, BENCH_FILE, target, "FILE", 0, 0, \
     "write records to FILE; -: stdout, and the table goes to stderr"}
/* clang-format on */

#endif
