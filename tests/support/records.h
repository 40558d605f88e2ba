/* SPDX-License-Identifier: MIT
 *
 * Made-up windows of a meter, for tests of the logs written from them.
 */
#ifndef TEST_RECORDS_H
#define TEST_RECORDS_H

#include "lib/energy/log/log.h"

enum { RECORD_DOMAINS = 5 };

/** A window of a host with two GPUs, two packages and an unreadable memory counter. */
typedef struct test_record {
    const char *name;
    bool overlaps;
    tamis_energy_domain domains[RECORD_DOMAINS];
    tam_period_domain gained[RECORD_DOMAINS];
    tam_period period;
} test_record;

/** Time at which all logs of these tests begin: 1000 s, and 1700000000.25 in Unix seconds. */
#define RECORD_T0_NS UINT64_C(1000000000000)
#define RECORD_T0_UNIX 1700000000.25

/** A setup that lacks a path. */
tam_energy_log_setup record_setup(void);

/** Window `seq`, 5 s long. All is known except the memory. It points into itself. */
void record_known(test_record *out, uint64_t seq);

/** Window `seq` of a host on which nothing can be measured. */
void record_unknown(test_record *out, uint64_t seq);

/* -- logs ------------------------------------------------------------------------------------- */

/** A log of the domains of record_known. */
tamis_status record_try_log(const tam_energy_log_setup *setup, tam_energy_log **out);
tam_energy_log *record_log(const tam_energy_log_setup *setup);

/** Write a window; that of `seq`. */
void record_write(tam_energy_log *log, const test_record *window);
void record_add(tam_energy_log *log, uint64_t seq);

/** How often the words occur in a file; 0 if it is missing. */
size_t record_count_in(const char *path, const char *words);

/** Number of lines of a JSON file; all must be complete and the first a header. */
size_t record_lines(const char *path);

/** Write known.jsonl, unknown.jsonl and decisions.jsonl into a folder, for check_log.py and
 * check_convert.py. @return an exit code */
int record_samples(const char *folder);

#endif
