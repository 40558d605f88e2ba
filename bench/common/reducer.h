/* SPDX-License-Identifier: MIT
 *
 * Sets any option of a reducer from a command line, by the library's own table (docs/options.md).
 */
#ifndef TAMIS_BENCH_REDUCER_H
#define TAMIS_BENCH_REDUCER_H

#include <tamis/tamis.h>

/** Set the options of a list "name=value,update.name=value,..."; NULL: none. The library checks
 * ranges. An unknown name or value is a usage error.
 * @param  own     names that the program sets itself, separated by '|'
 * @param  update  NULL: there is none to set */
void bench_reducer_set(const char *text, const char *own, tamis_reducer_config *config,
                       tamis_update *update);

/** Check such a list when options are read; a usage error if it could not be set. */
void bench_reducer_check(const char *text, const char *own);

#endif
