/* SPDX-License-Identifier: MIT
 *
 * Compares hashes first, and single options only if those differ.
 */
#include "bench/common/same_options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/common/measure.h"
#include "bench/common/option_values.h"

/* What the ranks compare first. */
typedef struct digest {
    uint64_t names, values;
} digest;

/* @return the first line that differs from rank 0's; none: past the last */
static size_t find_difference(const bench_option_value *all, uint32_t ranks) {
    const size_t end = ranks * (size_t)BENCH_OPTION_VALUES;
    size_t at = BENCH_OPTION_VALUES;
    while (at < end && memcmp(&all[at], &all[at % BENCH_OPTION_VALUES], sizeof *all) == 0)
        at++;
    return at;
}

static void report_option(bench_group *group) {
    bench_option_value *all = bench_alloc(group->nranks * (size_t)BENCH_OPTION_VALUES, sizeof *all);
    bench_allgather(group, bench_option_values_now()->lines,
                    sizeof bench_option_values_now()->lines, all);
    size_t at = find_difference(all, group->nranks);
    if (group->rank == 0)
        fprintf(stderr,
                "the ranks were given different options: --%s is %s on rank 0, but %s on rank %zu; "
                "give all ranks the same ones (only file names may differ)\n",
                all[at % BENCH_OPTION_VALUES].name, all[at % BENCH_OPTION_VALUES].value,
                all[at].value, at / BENCH_OPTION_VALUES);
    free(all);
}

/* @return the first rank whose options have other names than rank 0's; 0: none */
static uint32_t find_other_program(const digest *all, uint32_t ranks) {
    for (uint32_t r = 1; r < ranks; r++) {
        if (all[r].names != all[0].names)
            return r;
    }
    return 0;
}

bool bench_same_options(bench_group *group) {
    digest *all = bench_alloc(group->nranks, sizeof *all);
    bool values = true;
    const digest own = {bench_option_values_now()->names, bench_option_values_now()->values};
    bench_allgather(group, &own, sizeof own, all);
    uint32_t stranger = find_other_program(all, group->nranks);
    for (uint32_t r = 1; r < group->nranks; r++)
        values = values && all[r].values == all[0].values;
    free(all);
    if (stranger && group->rank == 0)
        fprintf(stderr,
                "rank %u runs a different program than rank 0, or a different version: start the "
                "same one on all ranks\n",
                stranger);
    if (!stranger && !values)
        report_option(group);
    return !stranger && values;
}
