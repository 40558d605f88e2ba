/* SPDX-License-Identifier: MIT
 *
 * Shared by the tests of staged collectives: ranks on a simulated network.
 */
#ifndef TEST_COLL_JOB_H
#define TEST_COLL_JOB_H

#include "collectives/coll/coll.h"
#include "collectives/transport/simulated.h"
#include "lib/transport/tag.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

static const tam_net net = {.ranks_per_node = 8,
                            .near_s = 1e-6,
                            .near_s_per_byte = 5e-12,
                            .far_s = 3e-6,
                            .far_s_per_byte = 2e-11,
                            .message_s = 4e-7,
                            .copy_s_per_byte = 5e-11};

/* -- ranks on a simulated network ------------------------------------------------------------- */

typedef struct job {
    uint32_t nranks;
    tam_coll *colls;
    tam_sim *sim;
} job;

static inline tamis_status advance(void *context, uint32_t rank, bool *done) {
    bool moved;
    return tam_coll_advance(&((job *)context)->colls[rank], &moved, done);
}

static inline job open_job_of(const tam_plan *plan, size_t chunk, const tam_sim_config *wanted) {
    tam_sim_config config = *wanted;
    config.nranks = plan->nranks;
    config.net = net;
    config.jitter = 0.5;
    config.seed = 7;
    job j = {.nranks = plan->nranks, .colls = calloc(plan->nranks, sizeof(tam_coll))};
    assert_int_equal(tam_sim_open(&config, &j.sim), TAMIS_OK);
    for (uint32_t r = 0; r < plan->nranks; r++)
        assert_int_equal((config.held ? tam_coll_open_empty : tam_coll_open)(
                             &j.colls[r], &tam_sim_p2p, tam_sim_end(j.sim, r), r, plan, chunk),
                         TAMIS_OK);
    return j;
}

static inline job open_job(const tam_plan *plan, size_t chunk, uint64_t flip) {
    return open_job_of(plan, chunk, &(tam_sim_config){.flip = flip});
}

static inline void close_job(job *j) {
    for (uint32_t r = 0; r < j->nranks; r++)
        tam_coll_close(&j->colls[r], false);
    tam_sim_close(j->sim);
    free(j->colls);
}

static inline tamis_status run(job *j) {
    double seconds;
    return tam_sim_run(j->sim, advance, j, &seconds);
}

#endif
