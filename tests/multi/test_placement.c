/* SPDX-License-Identifier: MIT
 *
 * Planned buckets follow the number of ranks (docs/overlap.md), so a run that goes on with more may
 * cut them in other places. A state of other buckets must be refused, also where they are as many
 * and as long in all. They do not follow the transport.
 */
#include "collectives/reducer/reducer.h"
#include "tests/support/data.h"
#include "tests/support/loopback.h"
#include "tests/support/ranks.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <tamis/state.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

enum { FEW = 5, P = RANKS_MOST, SEGMENTS = 3, N = 30000 };

typedef struct run_case {
    bool loads;
    uint32_t nbuckets, second; /* the first segment of bucket 0 */
    size_t bytes[P];
    void *control[P];
    float *residual[P];
    tamis_status loaded[P];
    bool told[P];
} run_case;

/* At least 7,813 elements of 5 ranks, 11,639 of 32. */
static tamis_status make(tamis_comm *comm, tamis_reducer **out) {
    static const tamis_segment segments[] = {{"a", 15000}, {"b", 6000}, {"c", 9000}};
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    tamis_layout *layout = NULL;
    config.density = 0.01;
    config.scheme = "all+norm+predict+pairs";
    config.nonfinite = TAMIS_NONFINITE_DROP;
    config.link_latency_us = 40.0;
    config.link_gbit = 0.01;
    config.bucket_length = TAMIS_BUCKETS_PLANNED;
    tamis_status status = tamis_layout_create(segments, SEGMENTS, &layout);
    if (status == TAMIS_OK)
        status = tamis_reducer_create(comm, layout, &config, out);
    tamis_layout_destroy(layout);
    return status;
}

static void save(test_rank *self, run_case *c, tamis_reducer *r) {
    float *grad = malloc(N * sizeof *grad);
    const tamis_step step = data_step(grad);
    for (uint32_t s = 0; s < 3; s++) {
        data_fill_real(self->id, s, N, grad);
        grad[5] = s == 2 ? 3e38f : grad[5]; /* no rollback, whose size would differ */
        RANK_OK(self, tamis_reducer_start(r, &step));
        RANK_OK(self, tamis_reducer_wait(r));
    }
    free(grad);
    RANK_OK(self, tamis_reducer_control_bytes(r, &c->bytes[self->id]));
    c->control[self->id] = malloc(c->bytes[self->id]);
    c->residual[self->id] = malloc(N * sizeof(float));
    RANK_OK(self, tamis_reducer_save_control(r, c->control[self->id], c->bytes[self->id]));
    RANK_OK(self, tamis_reducer_save_residual(r, c->residual[self->id]));
}

static void run(test_rank *self) {
    run_case *c = self->shared;
    tamis_reducer *r = NULL;
    RANK_OK(self, make(self->comm, &r));
    if (self->id == 0) {
        c->nbuckets = r->nbuckets;
        c->second = r->buckets[0].first_segment;
    }
    if (!c->loads) {
        save(self, c, r);
    } else {
        c->loaded[self->id] = tamis_reducer_load_memory(r, c->control[0], c->bytes[0], NULL);
        c->told[self->id] = has_word(tamis_last_error(), "buckets begin elsewhere");
    }
    tamis_reducer_destroy(r);
}

static void run_over_messages(run_case *c) {
    tamis_comm *comms[P];
    loopback *m = loopback_create(P, 0);
    loopback_comms(m, comms);
    ranks_run_on(comms, P, run, c);
    for (uint32_t r = 0; r < P; r++)
        tamis_comm_destroy(comms[r]);
    loopback_destroy(m);
}

static void a_state_of_other_buckets_is_refused(void **state) {
    static run_case c;
    (void)state;
    test_context("few ranks");
    ranks_run(FEW, 0, run, &c);
    assert_int_equal(c.nbuckets, 2);
    assert_int_equal(c.second, 2);
    c.loads = true;
    for (int messages = 0; messages < 2; messages++) {
        test_context("many ranks%s", messages ? ", in stages" : "");
        if (messages)
            run_over_messages(&c);
        else
            ranks_run(P, 0, run, &c);
        assert_int_equal(c.nbuckets, 2);
        assert_int_equal(c.second, 1);
        for (uint32_t r = 0; r < P; r++) {
            assert_int_equal(c.loaded[r], TAMIS_E_FORMAT);
            assert_true(c.told[r]);
        }
    }
    for (uint32_t r = 0; r < FEW; r++) {
        free(c.control[r]);
        free(c.residual[r]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_state_of_other_buckets_is_refused),
    };
    return cmocka_run_group_tests_name("placement", tests, NULL, NULL);
}
