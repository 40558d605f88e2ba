/* SPDX-License-Identifier: MIT */
#include "tests/faults/attempt.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct seat {
    attempt a;
    tamis_comm *comm;
} seat;

static void *run_seat(void *arg) {
    seat *s = arg;
    attempt_run(&s->a, s->comm);
    if (s->a.reducer)
        attempt_save(&s->a, NULL);
    return NULL;
}

/* In the end, and by element: residuals + applied = given. And all ranks have the same results. */
static bool is_right(const seat *seats, const reference *ref) {
    for (uint32_t r = 0; r < ref->nranks; r++) {
        const attempt *a = &seats[r].a;
        if (a->status != TAMIS_OK || a->broken[0] ||
            memcmp(a->hash, ref->hash, sizeof ref->hash) != 0) {
            fprintf(stderr, "%s of %u ranks without a fault: rank %u: %s %s%s\n", ref->config->name,
                    ref->nranks, r, tamis_status_name(a->status), a->sentence, a->broken);
            return false;
        }
    }
    for (size_t i = 0; i < ATTEMPT_N; i++) {
        double residuals = 0, given = 0, params = (double)seats[0].a.params[ATTEMPT_STEPS][i];
        for (uint32_t r = 0; r < ref->nranks; r++) {
            residuals += (double)seats[r].a.left[i];
            given += seats[r].a.given[i];
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
    seat *seats = calloc(nranks, sizeof *seats);
    *out = (reference){.config = config, .nranks = nranks};
    if (nranks > ATTEMPT_RANKS || !seats ||
        tamis_comm_create_local(nranks, NULL, comms) != TAMIS_OK)
        abort();
    for (uint32_t r = 0; r < nranks; r++) {
        attempt_clear(&seats[r].a, config, r, nranks);
        seats[r].comm = comms[r];
        if (pthread_create(&threads[r], NULL, run_seat, &seats[r]) != 0)
            abort();
    }
    for (uint32_t r = 0; r < nranks; r++)
        pthread_join(threads[r], NULL);
    memcpy(out->hash, seats[0].a.hash, sizeof out->hash);
    bool right = is_right(seats, out);
    for (uint32_t r = 0; r < nranks; r++) {
        attempt_free(&seats[r].a);
        tamis_comm_destroy(comms[r]);
    }
    free(seats);
    return right;
}
