/* SPDX-License-Identifier: MIT
 *
 * Any option of a reducer on a command line, by the library's own table (docs/options.md).
 */
#ifndef TAMIS_BENCH_REDUCER_H
#define TAMIS_BENCH_REDUCER_H

#include <tamis/tamis.h>

/** Set what a list "name=value,update.name=value,..." says; NULL: nothing. Ranges are checked by
 * the library. A usage error if a name or value is none.
 * @param  own     names that the program sets itself, separated by '|'
 * @param  update  NULL: there is none to be set */
void bench_reducer_set(const char *text, const char *own, tamis_reducer_config *config,
                       tamis_update *update);

/** Whether such a list could be set: for when options are read. */
void bench_reducer_check(const char *text, const char *own);

#endif
