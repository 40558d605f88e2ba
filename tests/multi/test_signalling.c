/* SPDX-License-Identifier: MIT
 *
 * Signalling NaNs, which raise an exception where a quiet one does not, in callers' input: refused
 * like any other NaN, even if exceptions stop the program (TEST_TRAPS).
 *
 * test: tsan
 */
#include "tests/support/ranks.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <tamis/energy.h>
#include <tamis/governor.h>
#include <tamis/pipeline.h>
#include <tamis/state.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

enum { N = 100 };

/* Written as bytes: a copy through an x87 register would make it quiet. */
static void spoil(void *real, size_t bytes) {
    const uint32_t single = 0x7fa00001u;
    const uint64_t twice = UINT64_C(0x7ff4000000000001);
    memcpy(real, bytes == sizeof single ? (const void *)&single : &twice, bytes);
}

static tamis_comm *comm;
static tamis_layout *layout;

static tamis_reducer *make(const tamis_update *update) {
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    tamis_reducer *r = NULL;
    config.density = 0.1;
    config.update = update;
    assert_int_equal(tamis_reducer_create(comm, layout, &config, &r), TAMIS_OK);
    return r;
}

static void options_of_a_reducer(void **state) {
    static const size_t fields[] = {offsetof(tamis_reducer_config, density),
                                    offsetof(tamis_reducer_config, density_max),
                                    offsetof(tamis_reducer_config, overselect),
                                    offsetof(tamis_reducer_config, capacity),
                                    offsetof(tamis_reducer_config, threshold),
                                    offsetof(tamis_reducer_config, link_gbit),
                                    offsetof(tamis_reducer_config, link_latency_us),
                                    offsetof(tamis_reducer_config, residual_decay)};
    (void)state;
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
        tamis_reducer *r = NULL;
        spoil((char *)&config + fields[i], sizeof(double));
        assert_int_equal(tamis_reducer_create(comm, layout, &config, &r), TAMIS_E_ARGUMENT);
        assert_non_null(strstr(tamis_last_error(), "nan"));
    }
}

static void options_of_an_update(void **state) {
    static const size_t fields[] = {offsetof(tamis_update, beta1), offsetof(tamis_update, beta2),
                                    offsetof(tamis_update, epsilon), offsetof(tamis_update, scale)};
    (void)state;
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
        tamis_update update = TAMIS_UPDATE_INIT;
        tamis_reducer *r = NULL;
        spoil((char *)&update + fields[i], sizeof(double));
        config.update = &update;
        assert_int_equal(tamis_reducer_create(comm, layout, &config, &r), TAMIS_E_ARGUMENT);
    }
}

static void densities_and_scales(void **state) {
    tamis_reducer *r = make(NULL);
    tamis_step step = TAMIS_STEP_INIT;
    double density;
    float grad[N] = {0};
    (void)state;
    spoil(&density, sizeof density);
    assert_int_equal(tamis_reducer_set_density(r, density), TAMIS_E_ARGUMENT);
    step.grad = grad;
    spoil(&step.scale, sizeof step.scale);
    assert_int_equal(tamis_reducer_start(r, &step), TAMIS_E_ARGUMENT);
    tamis_reducer_destroy(r);
}

static void states(void **state) {
    const tamis_update update = TAMIS_UPDATE_INIT;
    tamis_reducer *r = make(&update);
    float good[N] = {0}, bad[N] = {0};
    (void)state;
    spoil(&bad[3], sizeof bad[3]);
    assert_int_equal(tamis_reducer_load_memory(r, NULL, 0, bad), TAMIS_E_ARGUMENT);
    assert_int_equal(tamis_reducer_load_moments(r, bad, good, 3), TAMIS_E_ARGUMENT);
    assert_int_equal(tamis_reducer_load_moments(r, good, bad, 3), TAMIS_E_ARGUMENT);
    assert_int_equal(tamis_reducer_load_moments(r, good, good, UINT64_MAX), TAMIS_E_ARGUMENT);
    assert_int_equal(tamis_reducer_load_moments(r, good, good, UINT64_MAX - 1), TAMIS_OK);
    tamis_reducer_destroy(r);
}

static void options_of_meters_governors_and_pipelines(void **state) {
    tamis_energy_config energy = TAMIS_ENERGY_CONFIG_INIT;
    tamis_governor_config governor = TAMIS_GOVERNOR_CONFIG_INIT;
    tamis_pipeline_config pipeline = TAMIS_PIPELINE_CONFIG_INIT;
    tamis_energy *e = NULL;
    tamis_governor *g = NULL;
    tamis_pipeline *p = NULL;
    (void)state;
    energy.sources = "none";
    spoil(&energy.window_s, sizeof energy.window_s);
    assert_int_equal(tamis_energy_create(&energy, &e), TAMIS_E_ARGUMENT);
    spoil(&governor.dead_band, sizeof governor.dead_band);
    assert_int_equal(tamis_governor_create(&governor, &g), TAMIS_E_ARGUMENT);
    pipeline.length = N;
    spoil(&pipeline.density, sizeof pipeline.density);
    assert_int_equal(tamis_pipeline_create(comm, &pipeline, &p), TAMIS_E_ARGUMENT);
}

static int open_all(void **state) {
    static const tamis_segment segment = {"w", N};
    (void)state;
    return tamis_comm_create_local(1, NULL, &comm) != TAMIS_OK ||
           tamis_layout_create(&segment, 1, &layout) != TAMIS_OK;
}

static int close_all(void **state) {
    (void)state;
    tamis_layout_destroy(layout);
    tamis_comm_destroy(comm);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(options_of_a_reducer),
        cmocka_unit_test(options_of_an_update),
        cmocka_unit_test(densities_and_scales),
        cmocka_unit_test(states),
        cmocka_unit_test(options_of_meters_governors_and_pipelines),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
