/* SPDX-License-Identifier: MIT
 *
 * Local steps: the rule against a plain simulation of all ranks; conservation; NaN; H by measured
 * times; presets.
 *
 * test: tsan
 */
#include "tests/multi/local_case.h"

/* -- the rule, in plain loops over all ranks -------------------------------------------------- */

typedef struct simulation {
    double params[RANKS][N], since[RANKS][N], base[N], momentum[N], mean[N];
} simulation;

static void exchange_simulated(simulation *s) {
    for (size_t i = 0; i < N; i++) {
        s->mean[i] = 0.0;
        for (uint32_t r = 0; r < RANKS; r++) {
            s->mean[i] += (s->base[i] - s->params[r][i]) / RANKS;
            s->since[r][i] = s->params[r][i];
        }
    }
}

static void apply_simulated(simulation *s, const local_case *c) {
    for (size_t i = 0; i < N; i++) {
        s->momentum[i] = c->momentum * s->momentum[i] + s->mean[i];
        s->base[i] -= c->lr * (s->mean[i] + c->momentum * s->momentum[i]);
        for (uint32_t r = 0; r < RANKS; r++)
            s->params[r][i] = s->base[i] + (s->params[r][i] - s->since[r][i]);
    }
}

static void simulate(local_case *c) {
    simulation *s = calloc(1, sizeof *s);
    uint32_t position = c->offset;
    bool under_way = false;
    for (size_t i = 0; i < N; i++) {
        s->base[i] = (float)first_param(i);
        for (uint32_t r = 0; r < RANKS; r++)
            s->params[r][i] = s->base[i];
    }
    for (uint32_t t = 0; t < STEPS; t++) {
        for (uint32_t r = 0; r < RANKS; r++)
            for (size_t i = 0; i < N; i++)
                s->params[r][i] += change(r, t, i, s->params[r][i]);
        position++;
        for (int again = 0; again < 2; again++) {
            if (under_way && position >= c->delay) {
                apply_simulated(s, c);
                under_way = false;
            }
            if (!under_way && position >= c->steps) {
                exchange_simulated(s);
                position = 0;
                under_way = true;
            }
        }
        memcpy(c->want[t], s->params, sizeof s->params);
    }
    free(s);
}

static void run_rule(test_rank *self) {
    local_case *c = self->shared;
    run u = {0};
    begin(&u, self, c);
    for (uint32_t t = 0; t < STEPS && !self->failure[0]; t++) {
        train(&u, t);
        RANK_OK(self, tamis_local_step(u.local, u.parts));
        for (size_t i = 0; i < N; i++)
            RANK_CHECK(self, fabs(u.params[i] - c->want[t][self->id][i]) < 1e-5,
                       "step %u, element %zu: %.9g, not %.9g", t, i, (double)u.params[i],
                       c->want[t][self->id][i]);
    }
    c->base[self->id] = hash_base(&u);
    end(&u);
}

static void test_rule(void **state) {
    (void)state;
    static const struct {
        uint32_t steps, delay, offset;
        double lr, momentum;
    } grid[] = {{4, 0, 0, 0.7, 0.9}, {1, 0, 0, 1.0, 0.0}, {5, 0, 3, 0.5, 0.0},
                {4, 1, 0, 0.7, 0.9}, {4, 4, 1, 1.0, 0.5}, {1, 1, 0, 0.3, 0.0},
                {7, 3, 6, 0.7, 0.9}, {30, 2, 0, 0.7, 0.9}};
    for (size_t i = 0; i < sizeof grid / sizeof grid[0]; i++) {
        local_case *c = calloc(1, sizeof *c);
        c->scheme = "dense";
        c->density = 1.0;
        c->steps = grid[i].steps;
        c->delay = grid[i].delay;
        c->offset = grid[i].offset;
        c->lr = grid[i].lr;
        c->momentum = grid[i].momentum;
        test_context("H %u, delay %u, offset %u", c->steps, c->delay, c->offset);
        simulate(c);
        ranks_run(RANKS, 0, run_rule, c);
        for (uint32_t r = 1; r < RANKS; r++)
            assert_true(c->base[r] == c->base[0]);
        free(c);
    }
}

/* -- nothing is lost -------------------------------------------------------------------------- */

/* lr 1 and no momentum: what left the ranks is in the base or in a residual. */
static void run_conserved(test_rank *self) {
    local_case *c = self->shared;
    run u = {0};
    const float *residual = NULL, *base = NULL;
    begin(&u, self, c);
    for (uint32_t t = 0; t < STEPS && !self->failure[0]; t++) {
        float before[N];
        train(&u, t);
        memcpy(before, u.params, sizeof before);
        RANK_OK(self, tamis_local_base(u.local, &base));
        if ((t + 1) % c->steps == 0)
            for (size_t i = 0; i < N; i++)
                c->sums[self->id][i] += (double)base[i] - before[i];
        RANK_OK(self, tamis_local_step(u.local, u.parts));
    }
    RANK_OK(self, tamis_reducer_residual(u.reducer, &residual));
    for (size_t i = 0; i < N; i++)
        c->sums[self->id][i] -= residual[i];
    RANK_CHECK(self, rank_barrier(self), "a rank has left");
    for (size_t i = 0; i < N; i++) {
        double left = 0.0, moved = RANKS * (first_param(i) - base[i]);
        for (uint32_t r = 0; r < RANKS; r++)
            left += c->sums[r][i];
        RANK_CHECK(self, fabs(left - moved) < 1e-4, "element %zu: %.9g sent, %.9g applied", i, left,
                   moved);
    }
    c->base[self->id] = hash_base(&u);
    end(&u);
}

static void test_conserved(void **state) {
    (void)state;
    static const struct {
        const char *scheme;
        tamis_value_codec value_codec;
    } grid[] = {{"tamis", TAMIS_VALUE_AUTO},
                {"tamis", TAMIS_VALUE_FP4},
                {"topk", TAMIS_VALUE_FP2},
                {"quantized", TAMIS_VALUE_FP2},
                {"quantized", TAMIS_VALUE_INT8}};
    for (size_t i = 0; i < sizeof grid / sizeof grid[0]; i++) {
        local_case *c = calloc(1, sizeof *c);
        *c = (local_case){.scheme = grid[i].scheme,
                          .density = 0.1,
                          .value_codec = grid[i].value_codec,
                          .steps = 4,
                          .lr = 1.0};
        test_context("%s, value codec %d", c->scheme, (int)c->value_codec);
        ranks_run(RANKS, 0, run_conserved, c);
        for (uint32_t r = 1; r < RANKS; r++)
            assert_true(c->base[r] == c->base[0]);
        free(c);
    }
}

/* -- NaN -------------------------------------------------------------------------------------- */

/* The round in which a rank has a NaN is lost on all ranks, and heals its params; none is lost if
 * such entries are dropped. */
static void run_bad(test_rank *self) {
    local_case *c = self->shared;
    run u = {0};
    uint32_t losses = 0, bad_step = c->delay > 0 ? 6 : 5;
    bool drops = c->nonfinite == TAMIS_NONFINITE_DROP;
    begin(&u, self, c);
    for (uint32_t t = 0; t < STEPS && !self->failure[0]; t++) {
        train(&u, t);
        if (t == bad_step && self->id == 1)
            u.params[77] = NAN;
        bool lost = t == 7 + c->delay && !drops;
        RANK_STATUS(self, lost ? TAMIS_E_NONFINITE : TAMIS_OK, tamis_local_step(u.local, u.parts));
        losses += lost;
        RANK_CHECK(self, t != 7 || c->delay > 0 || finite_params(&u), "params are not healed");
    }
    tamis_local_stats stats = TAMIS_LOCAL_STATS_INIT;
    RANK_OK(self, tamis_local_stats_read(u.local, &stats));
    RANK_CHECK(self, losses == !drops && stats.lost_rounds == losses && finite_params(&u),
               "%u rounds lost, %llu counted", losses, (unsigned long long)stats.lost_rounds);
    c->base[self->id] = hash_base(&u);
    end(&u);
}

static void test_bad(void **state) {
    (void)state;
    static const char *const schemes[] = {"dense", "tamis", "quantized"};
    for (size_t i = 0; i < 12; i++) {
        local_case *c = calloc(1, sizeof *c);
        *c = (local_case){.scheme = schemes[i % 3],
                          .nonfinite = i < 6 ? TAMIS_NONFINITE_ERROR : TAMIS_NONFINITE_DROP,
                          .density = 0.2,
                          .steps = 4,
                          .lr = 0.7,
                          .momentum = 0.9,
                          .delay = i % 6 < 3 ? 0 : 2};
        test_context("%s, delay %u, policy %d", c->scheme, c->delay, (int)c->nonfinite);
        ranks_run(RANKS, 0, run_bad, c);
        for (uint32_t r = 1; r < RANKS; r++)
            assert_true(c->base[r] == c->base[0]);
        free(c);
    }
}

/* -- H by measured times ---------------------------------------------------------------------- */

static void run_paced(test_rank *self) {
    local_case *c = self->shared;
    tamis_local_config config = config_of(c);
    tamis_local_stats stats = TAMIS_LOCAL_STATS_INIT;
    run u = {0};
    begin(&u, self, c);
    tamis_local_destroy(u.local);
    config.wait_share = 0.001; /* steps take next to nothing, so exchanges are the rarest allowed */
    config.steps_max = 12;
    RANK_OK(self, tamis_local_create(u.reducer, u.parts, &config, &u.local));
    RANK_OK(self, tamis_local_set_steps(u.local, 5)); /* from there on */
    for (uint32_t t = 0; t < 60; t++)
        RANK_OK(self, tamis_local_step(u.local, u.parts));
    RANK_OK(self, tamis_local_stats_read(u.local, &stats));
    RANK_CHECK(self, stats.steps == 12, "H is %u", stats.steps);
    RANK_CHECK(self, stats.waiting_share > 0.001 && stats.waiting_share <= 1.0, "share %g",
               stats.waiting_share);
    end(&u);
}

static void run_leisurely(test_rank *self) {
    local_case *c = self->shared;
    tamis_local_config config = config_of(c);
    tamis_local_stats stats = TAMIS_LOCAL_STATS_INIT;
    run u = {0};
    begin(&u, self, c);
    tamis_local_destroy(u.local);
    config.wait_share = 0.99; /* nearly any exchange is cheap enough */
    RANK_OK(self, tamis_local_create(u.reducer, u.parts, &config, &u.local));
    for (uint32_t t = 0; t < 14; t++) {
        sleep_ms(20);
        RANK_OK(self, tamis_local_step(u.local, u.parts));
    }
    RANK_OK(self, tamis_local_stats_read(u.local, &stats));
    RANK_CHECK(self, stats.steps < 4, "H is %u", stats.steps);
    RANK_CHECK(self, stats.step_s > 0.019, "a step of 20 ms took %g s", stats.step_s);
    end(&u);
}

static void test_paced(void **state) {
    (void)state;
    local_case *c = calloc(1, sizeof *c);
    *c = (local_case){.scheme = "tamis", .density = 0.1, .steps = 4, .lr = 0.5};
    ranks_run(RANKS, 0, run_paced, c);
    ranks_run(RANKS, 0, run_leisurely, c);
    free(c);
}

/* -- presets ---------------------------------------------------------------------------------- */

static void run_preset(test_rank *self) {
    const tamis_local_preset_info *preset = self->shared;
    tamis_local_config config = TAMIS_LOCAL_CONFIG_INIT;
    tamis_reducer_config reducer_config = TAMIS_REDUCER_CONFIG_INIT;
    tamis_local_stats stats = TAMIS_LOCAL_STATS_INIT;
    run u = {.self = self, .parts = {u.params, u.params + 100}};
    tamis_layout *layout = NULL;
    RANK_OK(self, tamis_local_preset(preset->name, &reducer_config, &config));
    RANK_CHECK(self, config.steps == preset->steps && config.lr == preset->lr, "another preset");
    RANK_OK(self, tamis_layout_create(segments, 2, &layout));
    RANK_OK(self, tamis_reducer_create(self->comm, layout, &reducer_config, &u.reducer));
    RANK_OK(self, tamis_local_create(u.reducer, u.parts, &config, &u.local));
    tamis_layout_destroy(layout);
    for (uint32_t t = 0; t < 2 * config.steps; t++) {
        train(&u, t);
        RANK_OK(self, tamis_local_step(u.local, u.parts));
    }
    RANK_OK(self, tamis_local_stats_read(u.local, &stats));
    RANK_CHECK(self, stats.rounds == 2 && stats.position == 0, "%llu rounds",
               (unsigned long long)stats.rounds);
    end(&u);
}

static void test_presets(void **state) {
    (void)state;
    size_t count = 0;
    tamis_local_preset_info info = TAMIS_LOCAL_PRESET_INFO_INIT;
    tamis_local_config config = TAMIS_LOCAL_CONFIG_INIT;
    tamis_reducer_config reducer = TAMIS_REDUCER_CONFIG_INIT;
    for (; tamis_local_preset_list(count, &info); count++)
        ranks_run(RANKS, 0, run_preset, &info);
    assert_true(count >= 2);
    assert_int_equal(tamis_local_preset("nonsense", &reducer, &config), TAMIS_E_ARGUMENT);
    assert_non_null(strstr(tamis_last_error(), "diloco, sparseloco"));
    assert_int_equal(tamis_local_preset(NULL, &reducer, &config), TAMIS_E_ARGUMENT);
    assert_int_equal(tamis_local_preset("diloco", NULL, &config), TAMIS_E_ARGUMENT);
    assert_int_equal(tamis_local_preset("diloco", &reducer, NULL), TAMIS_E_ARGUMENT);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rule),  cmocka_unit_test(test_conserved), cmocka_unit_test(test_bad),
        cmocka_unit_test(test_paced), cmocka_unit_test(test_presets),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
