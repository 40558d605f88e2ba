/* SPDX-License-Identifier: MIT
 *
 * Local steps against a plain simulation of all ranks; conservation; NaN, mismatches, lost
 * communicators; states at every step; H by measured times.
 */
#include "collectives/transport/faulty.h"
#include "tests/support/data.h"
#include "tests/support/ranks.h"

#include <tamis/local.h>

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

enum { N = 420, STEPS = 26, RANKS = 3 };

static const tamis_segment segments[] = {{"one", 100}, {"two", N - 100}};

typedef struct local_case {
    const char *name;
    const char *scheme;
    double density;
    tamis_wire_type wire;
    tamis_nonfinite nonfinite;
    uint32_t steps, delay, offset;
    double lr, momentum;
    /* of a run */
    uint32_t halt; /* goes on in new handles after this step; 0: never */
    uint64_t hash[RANKS_MOST], base[RANKS_MOST];
    double want[STEPS][RANKS][N];
    double sums[RANKS][N];
} local_case;

typedef struct run {
    test_rank *self;
    tamis_reducer *reducer;
    tamis_local *local;
    float params[N];
    float *parts[2];
} run;

/* What an optimizer step changes. */
static double change(uint32_t rank, uint32_t step, size_t i, double param) {
    uint64_t noise = data_mix(data_mix(rank * 1000 + step) + i);
    double spread = i % 7 == 0 ? 0.5 : 0.05;
    return spread * ((double)(noise % 2001) / 1000.0 - 1.0) - 0.02 * param;
}

static double first_param(size_t i) {
    return (double)(data_mix(i) % 1001) / 1000.0;
}

static void train(run *u, uint32_t step) {
    for (size_t i = 0; i < N; i++)
        u->params[i] += (float)change(u->self->id, step, i, u->params[i]);
}

static tamis_status make_reducer(test_rank *self, const local_case *c, tamis_reducer **out) {
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    tamis_layout *layout = NULL;
    config.scheme = c->scheme;
    config.density = c->density;
    config.wire_type = c->wire;
    config.nonfinite = c->nonfinite;
    tamis_status status = tamis_layout_create(segments, 2, &layout);
    if (status == TAMIS_OK)
        status = tamis_reducer_create(self->comm, layout, &config, out);
    tamis_layout_destroy(layout);
    return status;
}

static tamis_local_config config_of(const local_case *c) {
    tamis_local_config config = TAMIS_LOCAL_CONFIG_INIT;
    config.steps = c->steps;
    config.delay = c->delay;
    config.offset = c->offset;
    config.lr = c->lr;
    config.momentum = c->momentum;
    return config;
}

static void begin(run *u, test_rank *self, const local_case *c) {
    tamis_local_config config = config_of(c);
    u->self = self;
    u->parts[0] = u->params;
    u->parts[1] = u->params + 100;
    for (size_t i = 0; i < N; i++)
        u->params[i] = (float)first_param(i);
    RANK_OK(self, make_reducer(self, c, &u->reducer));
    RANK_OK(self, tamis_local_create(u->reducer, u->parts, &config, &u->local));
}

static void end(run *u) {
    tamis_local_destroy(u->local);
    tamis_reducer_destroy(u->reducer);
}

static uint64_t hash_base(const run *u) {
    const float *base = NULL;
    if (tamis_local_base(u->local, &base) != TAMIS_OK)
        return 0;
    return data_hash(0, base, N * sizeof *base);
}

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
        tamis_wire_type wire;
    } grid[] = {{"tamis", TAMIS_WIRE_AUTO},
                {"tamis", TAMIS_WIRE_FP4},
                {"topk", TAMIS_WIRE_FP2},
                {"quantized", TAMIS_WIRE_FP2},
                {"quantized", TAMIS_WIRE_INT8}};
    for (size_t i = 0; i < sizeof grid / sizeof grid[0]; i++) {
        local_case *c = calloc(1, sizeof *c);
        *c = (local_case){
            .scheme = grid[i].scheme, .density = 0.1, .wire = grid[i].wire, .steps = 4, .lr = 1.0};
        test_context("%s, wire type %d", c->scheme, (int)c->wire);
        ranks_run(RANKS, 0, run_conserved, c);
        for (uint32_t r = 1; r < RANKS; r++)
            assert_true(c->base[r] == c->base[0]);
        free(c);
    }
}

/* -- NaN -------------------------------------------------------------------------------------- */

static bool finite_params(const run *u) {
    for (size_t i = 0; i < N; i++)
        if (!isfinite(u->params[i]))
            return false;
    return true;
}

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

/* -- ranks that differ ------------------------------------------------------------------------ */

static void run_differs(test_rank *self) {
    local_case *c = self->shared;
    tamis_local_config config = config_of(c);
    tamis_local *other = NULL;
    run u = {0};
    begin(&u, self, c);
    if (self->id == 1)
        config.lr = 0.25;
    RANK_STATUS(self, TAMIS_E_MISMATCH, tamis_local_create(u.reducer, u.parts, &config, &other));
    RANK_CHECK(self,
               strstr(tamis_last_error(), "outer lr differs: rank 0 has 0.5, rank 1 has 0.25"),
               "%s", tamis_last_error());
    config.lr = 0.5;
    u.params[3] += self->id == 2;
    RANK_STATUS(self, TAMIS_E_MISMATCH, tamis_local_create(u.reducer, u.parts, &config, &other));
    RANK_CHECK(self, strstr(tamis_last_error(), "base"), "%s", tamis_last_error());
    u.params[3] = self->id == 2 ? INFINITY : (float)first_param(3);
    RANK_STATUS(self, TAMIS_E_ARGUMENT, tamis_local_create(u.reducer, u.parts, &config, &other));
    RANK_CHECK(self, other == NULL, "an output was written");
    u.params[3] = (float)first_param(3);

    for (uint32_t t = 0; t < 3; t++) {
        train(&u, t);
        RANK_OK(self, tamis_local_step(u.local, u.parts));
    }
    if (self->id == 0)
        RANK_OK(self, tamis_local_set_steps(u.local, 3));
    float before[N];
    train(&u, 3);
    memcpy(before, u.params, sizeof before);
    RANK_STATUS(self, TAMIS_E_MISMATCH, tamis_local_step(u.local, u.parts));
    RANK_CHECK(self, strstr(tamis_last_error(), "steps differs: rank 0 has 3, rank 1 has 4"), "%s",
               tamis_last_error());
    RANK_CHECK(self, memcmp(before, u.params, sizeof before) == 0, "params have changed");
    RANK_OK(self, tamis_local_set_steps(u.local, 4));
    train(&u, 4);
    RANK_OK(self, tamis_local_step(u.local, u.parts));
    c->base[self->id] = hash_base(&u);
    end(&u);
}

static void test_differs(void **state) {
    (void)state;
    local_case *c = calloc(1, sizeof *c);
    *c = (local_case){.scheme = "tamis", .density = 0.1, .steps = 4, .lr = 0.5};
    ranks_run(RANKS, 0, run_differs, c);
    assert_true(c->base[1] == c->base[0] && c->base[2] == c->base[0]);
    free(c);
}

/* A reducer that somebody else steps. */
static void run_stepped(test_rank *self) {
    local_case *c = self->shared;
    float gradient[N] = {0};
    const tamis_step step = data_step(gradient);
    run u = {0};
    begin(&u, self, c);
    RANK_OK(self, tamis_reducer_start(u.reducer, &step));
    RANK_OK(self, tamis_reducer_wait(u.reducer));
    train(&u, 0);
    RANK_STATUS(self, TAMIS_E_STATE, tamis_local_step(u.local, u.parts));
    end(&u);
}

static void test_stepped(void **state) {
    (void)state;
    local_case *c = calloc(1, sizeof *c);
    *c = (local_case){.scheme = "tamis", .density = 0.1, .steps = 1, .lr = 0.5};
    ranks_run(RANKS, 0, run_stepped, c);
    free(c);
}

/* -- arguments -------------------------------------------------------------------------------- */

static void check_config(run *u, tamis_local_config config, const char *word) {
    tamis_local *other = NULL;
    RANK_STATUS(u->self, TAMIS_E_ARGUMENT,
                tamis_local_create(u->reducer, u->parts, &config, &other));
    RANK_CHECK(u->self, strstr(tamis_last_error(), word), "\"%s\" lacks \"%s\"", tamis_last_error(),
               word);
}

#define BAD(word, ...)                                                                             \
    do {                                                                                           \
        tamis_local_config bad = config_of(self->shared);                                          \
        __VA_ARGS__;                                                                               \
        check_config(&u, bad, word);                                                               \
    } while (0)

static void run_arguments(test_rank *self) {
    run u = {0};
    tamis_local *other = NULL;
    const float *base;
    tamis_local_config good = config_of(self->shared);
    begin(&u, self, self->shared);
    BAD("steps", bad.steps = 0);
    BAD("steps", bad.steps = UINT32_MAX);
    BAD("steps_max", bad.steps_max = 1);
    BAD("delay", bad.delay = 5);
    BAD("offset", bad.offset = 4);
    BAD("lr", bad.lr = 0.0);
    BAD("lr", bad.lr = NAN);
    BAD("momentum", bad.momentum = 1.0);
    BAD("momentum", bad.momentum = -0.1);
    BAD("wait_share", bad.wait_share = NAN);
    BAD("size", bad.size = 3);
    float *none[2] = {NULL, NULL};
    float *odd[2] = {(float *)(void *)((char *)u.params + 2), u.params + 100};
    RANK_STATUS(self, TAMIS_E_ARGUMENT, tamis_local_create(NULL, u.parts, &good, &other));
    RANK_STATUS(self, TAMIS_E_ARGUMENT, tamis_local_create(u.reducer, NULL, &good, &other));
    RANK_STATUS(self, TAMIS_E_ARGUMENT, tamis_local_create(u.reducer, none, &good, &other));
    RANK_STATUS(self, TAMIS_E_ARGUMENT, tamis_local_create(u.reducer, u.parts, NULL, &other));
    RANK_STATUS(self, TAMIS_E_ARGUMENT, tamis_local_create(u.reducer, u.parts, &good, NULL));
    RANK_STATUS(self, TAMIS_E_ARGUMENT, tamis_local_step(NULL, u.parts));
    RANK_STATUS(self, TAMIS_E_ARGUMENT, tamis_local_step(u.local, NULL));
    RANK_STATUS(self, TAMIS_E_ARGUMENT, tamis_local_step(u.local, odd));
    RANK_STATUS(self, TAMIS_E_ARGUMENT, tamis_local_set_steps(u.local, 0));
    RANK_STATUS(self, TAMIS_E_ARGUMENT, tamis_local_set_steps(NULL, 3));
    RANK_STATUS(self, TAMIS_E_ARGUMENT, tamis_local_base(u.local, NULL));
    RANK_STATUS(self, TAMIS_E_ARGUMENT, tamis_local_base(NULL, &base));
    RANK_STATUS(self, TAMIS_E_ARGUMENT, tamis_local_stats_read(u.local, NULL));
    tamis_local_destroy(NULL);
    end(&u);
}

static void test_arguments(void **state) {
    (void)state;
    local_case *c = calloc(1, sizeof *c);
    *c = (local_case){.scheme = "dense", .density = 1.0, .steps = 4, .lr = 0.5};
    ranks_run(2, 0, run_arguments, c);
    free(c);
}

static void run_refused(test_rank *self) {
    static const struct {
        const char *word;
        tamis_reducer_config config;
    } cases[] = {
        {"exchange auto", {.scheme = "rotate+global+exact+auto"}},
        {"output sparse", {.output = TAMIS_OUTPUT_SPARSE}},
        {"op sum", {.op = TAMIS_OP_SUM}},
        {"16-bit gradients", {.grad_dtype = TAMIS_DTYPE_BFLOAT16}},
        {"ranks_per_node", {.ranks_per_node = 2}},
    };
    float params[N] = {0}, *parts[DATA_SEGMENTS_MOST];
    for (size_t i = 0; i < DATA_SEGMENTS_MOST; i++)
        parts[i] = params;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        tamis_reducer_config config = cases[i].config;
        tamis_local_config local = TAMIS_LOCAL_CONFIG_INIT;
        tamis_reducer *reducer = NULL;
        tamis_local *out = NULL;
        config.size = sizeof config;
        config.density = 0.1;
        config.residual_decay = 1.0;
        RANK_OK(self, data_reducer(self->comm, N, &config, &reducer));
        RANK_STATUS(self, TAMIS_E_UNSUPPORTED, tamis_local_create(reducer, parts, &local, &out));
        RANK_CHECK(self, strstr(tamis_last_error(), cases[i].word), "%s", tamis_last_error());
        tamis_reducer_destroy(reducer);
    }
}

static void test_refused(void **state) {
    (void)state;
    ranks_run(2, 0, run_refused, NULL);
}

/* -- states ----------------------------------------------------------------------------------- */

static void go_on_elsewhere(run *u, const local_case *c) {
    test_rank *self = u->self;
    run next = {0};
    size_t bytes = 0, control_bytes = 0;
    float params[N], residual[N];
    bool keeps = strcmp(c->scheme, "dense") != 0;
    memcpy(params, u->params, sizeof params);
    RANK_OK(self, tamis_local_bytes(u->local, &bytes));
    RANK_OK(self, tamis_reducer_control_bytes(u->reducer, &control_bytes));
    unsigned char *state = malloc(bytes + 1), *control = malloc(control_bytes);
    RANK_OK(self, tamis_local_save(u->local, state + 1, bytes));
    RANK_OK(self, tamis_reducer_save_control(u->reducer, control, control_bytes));
    if (keeps)
        RANK_OK(self, tamis_reducer_save_residual(u->reducer, residual));
    begin(&next, self, c);
    RANK_OK(self, tamis_reducer_load_memory(next.reducer, control, control_bytes,
                                            keeps ? residual : NULL));
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
        RANK_OK(self, tamis_local_step(u.local, u.parts));
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
                          .wire = TAMIS_WIRE_AUTO,
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

/* -- a lost communicator ---------------------------------------------------------------------- */

typedef struct fault_case {
    local_case c;
    uint64_t nth;
    uint32_t until;            /* local steps, at most; */
    uint32_t failed_at[RANKS]; /* steps made; */
    bool apart;                /* not by all ranks as many */
    _Atomic bool failed;
    void *control[RANKS], *state[RANKS];
    size_t control_bytes[RANKS], bytes[RANKS];
    float params[RANKS][N], residual[RANKS][N], own_base[RANKS][N];
    double made[RANKS][N]; /* what local steps have changed */
    uint64_t base[RANKS];
} fault_case;

enum { FAULTY = 1 };

/* Before a first round is applied, all that a rank has changed is in its params or its residual. */
static void check_kept(run *u, const local_case *c, const float *residual, const double *made) {
    const float *base = NULL;
    tamis_local_stats stats = TAMIS_LOCAL_STATS_INIT;
    RANK_OK(u->self, tamis_local_base(u->local, &base));
    RANK_OK(u->self, tamis_local_stats_read(u->local, &stats));
    if (stats.rounds > 0 || stats.under_way)
        return;
    for (size_t i = 0; i < N; i++) {
        double waiting = strcmp(c->scheme, "dense") != 0 ? residual[i] : 0.0;
        RANK_CHECK(u->self, fabs(u->params[i] - base[i] - waiting - made[i]) < 1e-5,
                   "element %zu: params have moved %g, %g waits, but %g was made", i,
                   (double)(u->params[i] - base[i]), waiting, made[i]);
    }
}

static void run_fault(test_rank *self) {
    fault_case *f = self->shared;
    uint32_t id = self->id;
    run u = {0};
    begin(&u, self, &f->c);
    RANK_CHECK(self, rank_barrier(self), "a rank has left");
    if (id == FAULTY)
        RANK_OK(self, tam_faulty_install(self->comm, TAM_FAULT_ERROR, f->nth, 0));
    tamis_status status = TAMIS_OK;
    uint32_t t = 0;
    double *made = f->made[id];
    const float *base = NULL;
    for (; t < f->until && status == TAMIS_OK; t++) {
        float before[N];
        memcpy(before, u.params, sizeof before);
        train(&u, t);
        for (size_t i = 0; i < N; i++)
            made[i] += (double)u.params[i] - before[i];
        status = tamis_local_step(u.local, u.parts);
    }
    RANK_CHECK(self, status == TAMIS_OK || tamis_status_loss(status) == TAMIS_LOST_COMM, "%s",
               tamis_last_error());
    if (status != TAMIS_OK)
        RANK_OK(self, tamis_comm_abort(self->comm)); /* the others need not wait */
    RANK_CHECK(self, finite_params(&u), "params are not finite");
    f->failed_at[id] = t;
    memcpy(f->params[id], u.params, sizeof u.params);
    RANK_OK(self, tamis_local_base(u.local, &base));
    memcpy(f->own_base[id], base, sizeof f->own_base[id]);
    RANK_OK(self, tamis_local_bytes(u.local, &f->bytes[id]));
    RANK_OK(self, tamis_reducer_control_bytes(u.reducer, &f->control_bytes[id]));
    f->state[id] = malloc(f->bytes[id]);
    f->control[id] = malloc(f->control_bytes[id]);
    RANK_OK(self, tamis_local_save(u.local, f->state[id], f->bytes[id]));
    if (tamis_comm_status(self->comm) != TAMIS_OK) { /* the save waited in vain */
        f->failed = true;
        RANK_OK(self, tamis_comm_abort(self->comm));
    }
    RANK_OK(self, tamis_reducer_save_control(u.reducer, f->control[id], f->control_bytes[id]));
    if (strcmp(f->c.scheme, "dense") != 0)
        RANK_OK(self, tamis_reducer_save_residual(u.reducer, f->residual[id]));
    if (status != TAMIS_OK)
        check_kept(&u, &f->c, f->residual[id], made);
    end(&u);
}

/* Rounds without local steps send all that waits: the base is what all ranks have made. */
static void check_settled(run *u, const fault_case *f) {
    const float *base = NULL;
    for (uint32_t t = 0; t < 200 && !u->self->failure[0]; t++)
        RANK_OK(u->self, tamis_local_step(u->local, u->parts));
    RANK_OK(u->self, tamis_local_base(u->local, &base));
    for (size_t i = 0; i < N; i++) {
        double want = first_param(i);
        for (uint32_t r = 0; r < RANKS; r++)
            want += f->made[r][i] / RANKS;
        RANK_CHECK(u->self, fabs(base[i] - want) < 1e-4, "element %zu ends at %g, not at %g", i,
                   (double)base[i], want);
    }
}

/* As the header says: the reducer's state, align, the own state; else that of a rank that did not
 * apply the round. Then either what waits is sent, or all ranks go on for some rounds. */
static void run_after_fault(test_rank *self) {
    fault_case *f = self->shared;
    uint32_t id = self->id;
    uint64_t step;
    run u = {0};
    bool keeps = strcmp(f->c.scheme, "dense") != 0;
    begin(&u, self, &f->c);
    RANK_OK(self, tamis_reducer_load_memory(u.reducer, f->control[id], f->control_bytes[id],
                                            keeps ? f->residual[id] : NULL));
    RANK_OK(self, tamis_reducer_align(u.reducer, &step));
    tamis_status status = tamis_local_load(u.local, f->state[id], f->bytes[id]);
    bool back = status == TAMIS_E_FORMAT;
    if (back)
        status = tamis_local_load(u.local, f->state[FAULTY], f->bytes[FAULTY]);
    RANK_OK(self, status);
    memcpy(u.params, f->params[id], sizeof u.params);
    const float *base = NULL;
    RANK_OK(self, tamis_local_base(u.local, &base));
    for (size_t i = 0; back && i < N; i++)
        u.params[i] += base[i] - f->own_base[id][i];
    if (f->c.momentum == 0.0 && (keeps || !f->apart)) {
        check_settled(&u, f);
        f->base[id] = hash_base(&u);
        end(&u);
        return;
    }
    for (uint32_t t = 0; t < 12 && !self->failure[0]; t++) {
        train(&u, 100 + t);
        RANK_OK(self, tamis_local_step(u.local, u.parts));
    }
    f->base[id] = hash_base(&u);
    end(&u);
}

static void test_fault(void **state) {
    (void)state;
    static const struct {
        const char *scheme;
        uint32_t delay;
        bool settles;
        uint32_t until; /* 5: saved while an exchange is under way */
    } grid[] = {
        {"tamis", 0, false, STEPS},   {"tamis", 2, false, STEPS}, {"dense", 0, false, STEPS},
        {"dense", 2, false, STEPS},   {"tamis", 0, true, STEPS},  {"tamis", 2, true, STEPS},
        {"tamis", 4, true, STEPS},    {"dense", 0, true, STEPS},  {"dense", 2, true, STEPS},
        {"tamis", 2, true, 5},        {"dense", 2, true, 5},      {"quantized", 2, true, 5},
        {"quantized", 0, true, STEPS}};
    for (size_t i = 0; i < sizeof grid / sizeof grid[0]; i++) {
        uint64_t nth = 0;
        bool failed = true;
        for (; failed && nth < 12; nth += test_stride(3)) {
            fault_case *f = calloc(1, sizeof *f);
            f->c = (local_case){.scheme = grid[i].scheme,
                                .density = strcmp(grid[i].scheme, "tamis") == 0 ? 0.1 : 1.0,
                                .steps = 4,
                                .delay = grid[i].delay,
                                .lr = grid[i].settles ? 1.0 : 0.7,
                                .momentum = grid[i].settles ? 0.0 : 0.9};
            f->nth = nth;
            f->until = grid[i].until;
            test_context("%s, delay %u, %s, operation %llu fails", f->c.scheme, f->c.delay,
                         grid[i].settles ? "settles" : "goes on", (unsigned long long)nth);
            ranks_run(RANKS, 0, run_fault, f);
            failed = f->failed;
            for (uint32_t r = 0; r < RANKS; r++)
                f->apart = f->apart || f->failed_at[r] != f->failed_at[0];
            ranks_run(RANKS, 0, run_after_fault, f);
            for (uint32_t r = 1; r < RANKS; r++)
                assert_true(f->base[r] == f->base[0]);
            for (uint32_t r = 0; r < RANKS; r++) {
                free(f->state[r]);
                free(f->control[r]);
            }
            free(f);
        }
        assert_true(nth > 2 || grid[i].until < STEPS);
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
        cmocka_unit_test(test_rule),
        cmocka_unit_test(test_conserved),
        cmocka_unit_test(test_bad),
        cmocka_unit_test(test_differs),
        cmocka_unit_test(test_stepped),
        cmocka_unit_test(test_arguments),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_resumed),
        cmocka_unit_test(test_refuses_states),
        cmocka_unit_test(test_fault),
        cmocka_unit_test(test_paced),
        cmocka_unit_test(test_presets),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
