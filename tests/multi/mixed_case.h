/* SPDX-License-Identifier: MIT
 *
 * Shared by the tests of exchange auto: a reducer of which some buckets are dense.
 */
#ifndef TEST_MIXED_CASE_H
#define TEST_MIXED_CASE_H

#include "collectives/reducer/reducer.h"
#include "tests/support/data.h"
#include "tests/support/ranks.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

enum { SMALL = 200, LARGE = 8000, N = 3 * SMALL + LARGE, FIRST_LARGE = 2 * SMALL, RANKS = 3 };

/* Two small segments, a large one, a small one; each is a bucket. On this link a message's latency
 * costs as much as 2500 bytes, so small buckets are dense and the large one is not. */
static inline tamis_status open_mixed(tamis_comm *comm, tamis_reducer_config *config,
                                      tamis_reducer **out) {
    static const tamis_segment segments[] = {
        {"one", SMALL}, {"two", SMALL}, {"large", LARGE}, {"three", SMALL}};
    tamis_layout *layout;
    TAM_TRY(tamis_layout_create(segments, 4, &layout));
    config->scheme = "auto";
    config->op = TAMIS_OP_SUM;
    config->bucket_length = 1;
    tamis_status status = tamis_reducer_create(comm, layout, config, out);
    tamis_layout_destroy(layout);
    return status;
}

static inline tamis_reducer_config slow_link(void) {
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    config.link_latency_us = 20.0;
    config.link_gbit = 1.0;
    return config;
}

static inline bool is_large(size_t element) {
    return element >= FIRST_LARGE && element < FIRST_LARGE + LARGE;
}

static inline uint32_t count_dense(const tamis_reducer *r) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < r->nbuckets; i++)
        count += tam_scheme_dense(r->buckets[i].scheme);
    return count;
}

static inline void set_costs(tamis_comm *comm, const tam_link_model *link) {
    const tam_net net = tam_net_of_link(link, RANKS, 1);
    tam_costs_of_net(&net, &comm->stages, &comm->costs);
}

#endif
