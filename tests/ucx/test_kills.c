/* SPDX-License-Identifier: MIT
 * test: waits
 *
 * kills [RUNS [SEED]]: one or two of 2 to 5 ranks over UCX are killed at any moment; the others go
 * on.
 */
#include "tests/support/kills.h"
#include "tests/support/load.h"
#include "tests/support/processes.h"

#include <stdio.h>
#include <stdlib.h>
#include <tamis/ucx.h>

static int rank_of_run(const tamis_callbacks *rendezvous, void *arg) {
    const uint64_t *seed = arg;
    tamis_comm_config config = TAMIS_COMM_CONFIG_INIT;
    tamis_comm *comm = NULL;
    config.timeout_ms = test_long_ms();
    if (tamis_comm_create_ucx(rendezvous, &config, &comm) != TAMIS_OK)
        return 1;
    kills_run(comm, *seed, true);
    return 0;
}

/* @return whether all ended well, or were killed */
static bool try_seed(uint64_t seed) {
    int statuses[PROCESSES_MOST];
    uint32_t nranks = 2 + (uint32_t)(seed / 2 % 4), well = 0, killed = 0;
    processes_run(nranks, 100, rank_of_run, &seed, statuses);
    for (uint32_t r = 0; r < nranks; r++) {
        well += statuses[r] == 0;
        killed += statuses[r] == 128 + 9;
    }
    bool sound = well > 0 && well + killed == nranks && killed <= 1 + seed % 2;
    if (!sound)
        fprintf(stderr, "seed %llu, %u ranks:%s\n", (unsigned long long)seed, nranks,
                processes_text(statuses, nranks));
    return sound;
}

int main(int argc, char **argv) {
    uint64_t runs = argc > 1 ? strtoull(argv[1], NULL, 10) : 24, sound = 0;
    uint64_t first = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    for (uint64_t seed = first; seed < first + runs; seed++)
        sound += try_seed(seed);
    printf("%llu runs: %llu sound\n", (unsigned long long)runs, (unsigned long long)sound);
    return sound != runs;
}
