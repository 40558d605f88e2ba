/* SPDX-License-Identifier: MIT
 *
 * Local steps refuse ranks that differ, reducers that somebody else steps or that do not fit, and
 * bad arguments.
 */
#include "tests/multi/local_case.h"

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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_differs),
        cmocka_unit_test(test_stepped),
        cmocka_unit_test(test_arguments),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
