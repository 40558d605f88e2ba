/* SPDX-License-Identifier: MIT */
#include "tests/faults/attempt.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct endpoint {
    attempt a;
    tamis_comm *comm;
} endpoint;

static void *run_endpoint(void *arg) {
    endpoint *s = arg;
    attempt_run(&s->a, s->comm);
    if (s->a.reducer)
        attempt_save(&s->a, NULL);
    return NULL;
}

/* In the end, and by element: residuals + applied = given. And all ranks have the same results. */
static bool is_right(const endpoint *endpoints, const reference *ref) {
    for (uint32_t r = 0; r < ref->nranks; r++) {
        const attempt *a = &endpoints[r].a;
        if (a->status != TAMIS_OK || a->broken[0] ||
            memcmp(a->hash, ref->hash, sizeof ref->hash) != 0) {
            fprintf(stderr, "%s of %u ranks without a fault: rank %u: %s %s%s\n", ref->config->name,
                    ref->nranks, r, tamis_status_name(a->status), a->sentence, a->broken);
            return false;
        }
    }
    for (size_t i = 0; i < ATTEMPT_N; i++) {
        double residuals = 0, given = 0, params = (double)endpoints[0].a.params[ATTEMPT_STEPS][i];
        for (uint32_t r = 0; r < ref->nranks; r++) {
            residuals += (double)endpoints[r].a.left[i];
            given += endpoints[r].a.given[i];
        }
        if (!attempt_adds_up(ref->config, residuals, params, given)) {
            fprintf(stderr,
                    "%s of %u ranks without a fault: element %zu: %g wait, %g applied, %g given\n",
                    ref->config->name, ref->nranks, i, residuals, params, given);
            return false;
        }
    }
    return true;
}

bool reference_make(const fault_config *config, uint32_t nranks, reference *out) {
    tamis_comm *comms[ATTEMPT_RANKS];
    pthread_t threads[ATTEMPT_RANKS];
    endpoint *endpoints = calloc(nranks, sizeof *endpoints);
    *out = (reference){.config = config, .nranks = nranks};
    if (nranks > ATTEMPT_RANKS || !endpoints ||
        tamis_comm_create_local(nranks, NULL, comms) != TAMIS_OK)
        abort();
    for (uint32_t r = 0; r < nranks; r++) {
        attempt_clear(&endpoints[r].a, config, r, nranks);
        endpoints[r].comm = comms[r];
        if (pthread_create(&threads[r], NULL, run_endpoint, &endpoints[r]) != 0)
            abort();
    }
    for (uint32_t r = 0; r < nranks; r++)
        pthread_join(threads[r], NULL);
    memcpy(out->hash, endpoints[0].a.hash, sizeof out->hash);
    bool right = is_right(endpoints, out);
    for (uint32_t r = 0; r < nranks; r++) {
        attempt_free(&endpoints[r].a);
        tamis_comm_destroy(comms[r]);
    }
    free(endpoints);
    return right;
}
