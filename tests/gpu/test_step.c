/* SPDX-License-Identifier: MIT
 *
 * test_step [P] [small] [brief]: whole steps on a CUDA device against the CPU, bit for bit, over
 * the presets, types and outputs; P ranks are processes that share the device and exchange through
 * host memory. `small`: short gradients; `brief`: every scheme once. Ends with 77 where there is no
 * device.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/gpu/compare.h"
#include "tests/gpu/processes.h"

enum { SKIPPED = 77, PATIENCE_S = 150 };

typedef struct arguments {
    uint32_t nranks;
    bool small, brief;
} arguments;

static int run(process *self, void *context) {
    const arguments *a = context;
    compare_case c;
    unsigned ran = 0, bad = 0;
    if (!compare_choose(self->device))
        return 1;
    for (unsigned i = 0; compare_list(i, a->small, &c); i++) {
        if (a->brief && !compare_brief(i))
            continue;
        ran++;
        uint64_t wrong = compare_run(self->comm, self->comm, &c);
        if (wrong == 0)
            continue;
        bad++;
        printf("rank %u: %s: %s\n", self->rank, compare_name(&c),
               wrong == UINT64_MAX ? "failed" : "differs from the CPU");
        if (tamis_comm_status(self->comm) != TAMIS_OK)
            break;
    }
    if (self->rank == 0)
        printf("{\"record\":\"parity\",\"ranks\":%u,\"transport\":\"%s\",\"cases\":%u,"
               "\"different\":%u}\n",
               self->nranks, tamis_comm_transport(self->comm), ran, bad);
    return bad > 0 || ran == 0;
}

int main(int argc, char **argv) {
    arguments a = {.nranks = 1};
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "small") == 0)
            a.small = true;
        else if (strcmp(argv[i], "brief") == 0)
            a.brief = true;
        else
            a.nranks = (uint32_t)atoi(argv[i]);
    }
    if (a.nranks < 1 || a.nranks > PROCESSES_MOST) {
        fprintf(stderr, "usage: test_step [P] [small] [brief], P from 1 to %d\n", PROCESSES_MOST);
        return 2;
    }
    if (!processes_ask(compare_device))
        return SKIPPED;
    return processes_run(a.nranks, PATIENCE_S, run, &a);
}
