/* SPDX-License-Identifier: MIT
 *
 * States of local steps: saved and loaded at every step; what is damaged or of another step is
 * refused.
 */
#include "tests/multi/local_case.h"

#include <tamis/state.h>

static void go_on_elsewhere(run *u, const local_case *c) {
    test_rank *self = u->self;
    run next = {0};
    size_t bytes = 0, control_bytes = 0;
    float params[N], residual[N];
    bool has_residual = strcmp(c->scheme, "dense") != 0;
    memcpy(params, u->params, sizeof params);
    RANK_OK(self, tamis_local_bytes(u->local, &bytes));
    RANK_OK(self, tamis_reducer_control_bytes(u->reducer, &control_bytes));
    unsigned char *state = malloc(bytes + 1), *control = malloc(control_bytes);
    RANK_OK(self, tamis_local_save(u->local, state + 1, bytes));
    RANK_OK(self, tamis_reducer_save_control(u->reducer, control, control_bytes));
    if (has_residual)
        RANK_OK(self, tamis_reducer_save_residual(u->reducer, residual));
    begin(&next, self, c);
    RANK_OK(self, tamis_reducer_load_memory(next.reducer, control, control_bytes,
                                            has_residual ? residual : NULL));
    RANK_OK(self, tamis_local_load(next.local, state + 1, bytes));
    memcpy(next.params, params, sizeof params);
    free(control);
    free(state);
    end(u);
    *u = next;
    u->parts[0] = u->params;
    u->parts[1] = u->params + 100;
}

static void run_resumed(test_rank *self) {
    local_case *c = self->shared;
    run u = {0};
    begin(&u, self, c);
    uint64_t hash = 0;
    for (uint32_t t = 0; t < STEPS && !self->failure[0]; t++) {
        train(&u, t);
        if (t == c->spoils && t > 0)
            u.params[3] = 3e38f;
        tamis_status status = tamis_local_step(u.local, u.parts);
        RANK_CHECK(self, status == TAMIS_OK || (c->spoils > 0 && status == TAMIS_E_NONFINITE),
                   "step %u: %s", t, tamis_last_error());
        if (t + 1 == c->halt)
            go_on_elsewhere(&u, c);
        hash = data_hash(hash, u.params, sizeof u.params);
    }
    c->hash[self->id] = data_hash(hash, u.params, sizeof u.params);
    end(&u);
}

static void test_resumed(void **state) {
    (void)state;
    static const struct {
        const char *scheme;
        uint32_t delay;
        double momentum;
    } grid[] = {{"dense", 0, 0.9}, {"dense", 3, 0.9}, {"tamis", 0, 0.0}, {"tamis", 2, 0.9}};
    for (size_t i = 0; i < sizeof grid / sizeof grid[0]; i++) {
        local_case *c = calloc(1, sizeof *c);
        *c = (local_case){.scheme = grid[i].scheme,
                          .density = 0.1,
                          .value_codec = TAMIS_VALUE_AUTO,
                          .steps = 5,
                          .offset = 1,
                          .delay = grid[i].delay,
                          .lr = 0.7,
                          .momentum = grid[i].momentum};
        uint64_t straight[RANKS];
        ranks_run(RANKS, 0, run_resumed, c);
        memcpy(straight, c->hash, sizeof straight);
        for (c->halt = 1; c->halt < 13; c->halt += test_stride(4)) {
            test_context("%s, delay %u, saved after step %u", c->scheme, c->delay, c->halt);
            ranks_run(RANKS, 0, run_resumed, c);
            assert_memory_equal(straight, c->hash, sizeof straight);
        }
        free(c);
    }
}

/* The next round begins in the call that collects one. A handle that was saved with an exchange
 * under way reports that it was lost, one that has loaded does not; bits are equal. */
static void test_resumed_after_a_lost_round(void **state) {
    (void)state;
    uint64_t straight[RANKS];
    local_case *c = calloc(1, sizeof *c);
    *c = (local_case){.scheme = "dense",
                      .density = 1.0,
                      .nonfinite = TAMIS_NONFINITE_ERROR,
                      .steps = 4,
                      .delay = 4,
                      .lr = 0.7,
                      .spoils = 6};
    ranks_run(RANKS, 0, run_resumed, c);
    memcpy(straight, c->hash, sizeof straight);
    for (c->halt = 5; c->halt < 18; c->halt++) {
        test_context("H = delay, saved after step %u", c->halt);
        ranks_run(RANKS, 0, run_resumed, c);
        assert_memory_equal(straight, c->hash, sizeof straight);
    }
    free(c);
}

static void run_refuses_states(test_rank *self) {
    local_case *c = self->shared;
    run u = {0};
    size_t bytes = 0;
    begin(&u, self, c);
    for (uint32_t t = 0; t < 5; t++) {
        train(&u, t);
        RANK_OK(self, tamis_local_step(u.local, u.parts));
    }
    RANK_OK(self, tamis_local_bytes(u.local, &bytes));
    unsigned char *state = malloc(bytes);
    RANK_STATUS(self, TAMIS_E_ARGUMENT, tamis_local_save(u.local, state, bytes - 1));
    RANK_STATUS(self, TAMIS_E_ARGUMENT, tamis_local_save(u.local, NULL, bytes));
    RANK_OK(self, tamis_local_save(u.local, state, bytes));
    RANK_STATUS(self, TAMIS_E_FORMAT, tamis_local_load(u.local, state, bytes - 4));
    RANK_STATUS(self, TAMIS_E_FORMAT, tamis_local_load(u.local, state, 7));
    for (size_t at = 0; at < bytes; at += at < 160 ? 1 : 397) {
        state[at] ^= 4;
        RANK_STATUS(self, TAMIS_E_FORMAT, tamis_local_load(u.local, state, bytes));
        state[at] ^= 4;
    }
    RANK_OK(self, tamis_local_load(u.local, state, bytes));
    run other = {0}; /* its reducer is at another step */
    begin(&other, self, c);
    RANK_STATUS(self, TAMIS_E_FORMAT, tamis_local_load(other.local, state, bytes));
    RANK_CHECK(self, strstr(tamis_last_error(), "saved at step 1 of the reducer"), "%s",
               tamis_last_error());
    end(&other);
    free(state);
    end(&u);
}

static void test_refuses_states(void **state) {
    (void)state;
    local_case *c = calloc(1, sizeof *c);
    *c = (local_case){.scheme = "tamis", .density = 0.1, .steps = 3, .delay = 2, .lr = 0.5};
    ranks_run(2, 0, run_refuses_states, c);
    free(c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_resumed),
        cmocka_unit_test(test_resumed_after_a_lost_round),
        cmocka_unit_test(test_refuses_states),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
