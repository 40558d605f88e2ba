/* SPDX-License-Identifier: MIT
 *
 * More ranks than other tests have: what a rank sends hardly grows with them.
 */
#include "tests/support/data.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tamis/stats.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

enum { N = 262144, GROUPS = 161, STEPS = 3, MOST = 256 }; /* as many groups as ResNet-50 has */

typedef struct rank {
    tamis_comm *comm;
    pthread_t thread;
    uint32_t id;
    tamis_status status;
    char sentence[256];
    uint64_t bytes, selected, hash;
} rank;

static tamis_status open_reducer(rank *r, tamis_layout **layout, tamis_reducer **reducer) {
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    tamis_segment segments[GROUPS];
    char names[GROUPS][8];
    for (uint64_t g = 0; g < GROUPS; g++) {
        snprintf(names[g], sizeof names[g], "%u", (unsigned)g);
        segments[g] =
            (tamis_segment){.name = names[g], .length = N * (g + 1) / GROUPS - N * g / GROUPS};
    }
    config.density = 0.01;
    tamis_status status = tamis_layout_create(segments, GROUPS, layout);
    return status == TAMIS_OK ? tamis_reducer_create(r->comm, *layout, &config, reducer) : status;
}

static tamis_status run_steps(rank *r, tamis_reducer *reducer, float *grad) {
    tamis_stats stats = TAMIS_STATS_INIT;
    const tamis_step step = data_step(grad);
    for (uint32_t number = 0; number < STEPS; number++) {
        data_fill(DATA_HEAVY, r->id, number, N, grad);
        tamis_status status = tamis_reducer_start(reducer, &step);
        status = status == TAMIS_OK ? tamis_reducer_wait(reducer) : status;
        status = status == TAMIS_OK ? tamis_reducer_stats(reducer, &stats) : status;
        if (status != TAMIS_OK)
            return status;
    }
    r->bytes = stats.wire_bytes;
    r->selected = stats.selected;
    r->hash = data_hash(0, grad, N * sizeof *grad);
    return TAMIS_OK;
}

static void *work(void *arg) {
    rank *r = arg;
    tamis_layout *layout = NULL;
    tamis_reducer *reducer = NULL;
    float *grad = calloc(N, sizeof *grad);
    r->status = open_reducer(r, &layout, &reducer);
    if (r->status == TAMIS_OK)
        r->status = run_steps(r, reducer, grad);
    snprintf(r->sentence, sizeof r->sentence, "%s", tamis_last_error());
    tamis_reducer_destroy(reducer);
    tamis_layout_destroy(layout);
    free(grad);
    return NULL;
}

static void check(uint32_t nranks, uint64_t most_bytes) {
    static rank ranks[MOST];
    tamis_comm *comms[MOST];
    memset(ranks, 0, sizeof ranks);
    assert_int_equal(tamis_comm_create_local(nranks, NULL, comms), TAMIS_OK);
    for (uint32_t i = 0; i < nranks; i++) {
        ranks[i].comm = comms[i];
        ranks[i].id = i;
        assert_int_equal(pthread_create(&ranks[i].thread, NULL, work, &ranks[i]), 0);
    }
    for (uint32_t i = 0; i < nranks; i++)
        pthread_join(ranks[i].thread, NULL);
    for (uint32_t i = 0; i < nranks; i++) {
        if (ranks[i].status != TAMIS_OK)
            fail_msg("rank %u of %u: %s", i, nranks, ranks[i].sentence);
        assert_int_equal(ranks[i].hash, ranks[0].hash);
        assert_int_equal(ranks[i].selected, N / 100);
        if (ranks[i].bytes > most_bytes)
            fail_msg("rank %u of %u sent %llu bytes, not at most %llu", i, nranks,
                     (unsigned long long)ranks[i].bytes, (unsigned long long)most_bytes);
    }
    for (uint32_t i = 0; i < nranks; i++)
        tamis_comm_destroy(comms[i]);
}

/* Values and their sums take 8 k (P - 1) / P, 20,644; the rest are lists and headers. */
static void test_bytes_of_a_rank_hardly_grow_with_the_ranks(void **state) {
    (void)state;
    check(64, 31000);
    check(256, 34000);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bytes_of_a_rank_hardly_grow_with_the_ranks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
