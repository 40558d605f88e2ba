/* SPDX-License-Identifier: MIT
 *
 * GPUs over a pretended library: whatever it lacks or answers has its status and its sentence, and
 * a board counts once.
 */
#include "tests/energy/pretended/pretended.h"
#include "tests/support/sources.h"
#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

#define A "nvml:GPU-a"
#define B "nvml:GPU-b"

static pretended *whole, *bare;

static pretended *load(const char *path) {
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    pretended *state = library ? dlsym(library, PRETENDED_STATE) : NULL;
    if (!state)
        fail_msg("%s", dlerror());
    return state;
}

/* Two boards, of which the first has two partitions that are no boards. */
static void furnish(pretended *state) {
    static const char *const names[] = {"GPU-a", "GPU-b", "MIG-a0", "MIG-a1"};
    memset(state, 0, sizeof *state);
    atomic_store(&state->ngpus, 2);
    for (int i = 0; i < 4; i++) {
        pretended_gpu *gpu = &state->gpus[i];
        snprintf(gpu->uuid, sizeof gpu->uuid, "%s", names[i]);
        snprintf(gpu->bus, sizeof gpu->bus, i < 2 ? "0000:%x7:00.0" : "", i + 1);
        atomic_store(&gpu->board, i < 2 ? i : 0);
        atomic_store(&gpu->module_code, 3);
        atomic_store(&gpu->scoped_code, 3);
        atomic_store(&gpu->field_type, 3);
        atomic_store(&gpu->mj, 5000u + (uint64_t)i);
        atomic_store(&gpu->mw, 70000);
    }
}

static int begin(void **state) {
    (void)state;
    furnish(whole);
    furnish(bare);
    return 0;
}

static int load_all(void **state) {
    (void)state;
    whole = load(PRETENDED_WHOLE);
    bare = load(PRETENDED_BARE);
    return 0;
}

static opened open_with(const char *path, const char *gpus) {
    return source_open(&tam_source_nvml, &(tamis_energy_config){.nvml_path = path, .gpus = gpus});
}

static opened open_whole(void) {
    return open_with(PRETENDED_WHOLE, NULL);
}

/* The one domain that says what is wrong with all. */
static void expect_nothing(const char *path, tamis_energy_status status, const char *words) {
    opened o = open_with(path, NULL);
    assert_int_equal(o.n, 1);
    source_expect_sensor(&o, "nvml", status, words);
    source_close(&o);
    assert_int_equal(atomic_load(&whole->begun), 0);
}

/* -- the library ------------------------------------------------------------------------------ */

static void without_library_the_source_is_absent(void **state) {
    (void)state;
    expect_nothing("/nonexistent/libnvidia-ml.so.1", TAMIS_ENERGY_ABSENT, "no library");
}

static void a_library_without_functions_is_named(void **state) {
    (void)state;
    expect_nothing(PRETENDED_EMPTY, TAMIS_ENERGY_UNSUPPORTED, "no function nvmlInit_v2");
}

static void a_function_that_all_need_is_named(void **state) {
    (void)state;
    expect_nothing(PRETENDED_WITHOUT_UUID, TAMIS_ENERGY_UNSUPPORTED,
                   "no function nvmlDeviceGetUUID");
}

static void without_optional_functions_power_is_read(void **state) {
    (void)state;
    opened o = open_with(PRETENDED_BARE, NULL);
    assert_true(source_sensor(&o, A).power);
    source_expect_value(&o, A, 70000000);
    source_close(&o);
}

static void without_the_driver_the_remedy_is_named(void **state) {
    (void)state;
    atomic_store(&whole->init_code, 9);
    expect_nothing(PRETENDED_WHOLE, TAMIS_ENERGY_ABSENT, "modprobe nvidia (NVML 9");
}

static void a_refused_start_is_denied(void **state) {
    (void)state;
    atomic_store(&whole->init_code, 4);
    expect_nothing(PRETENDED_WHOLE, TAMIS_ENERGY_DENIED, "permission denied");
}

static void an_unknown_code_keeps_the_librarys_words(void **state) {
    (void)state;
    atomic_store(&whole->count_code, 999);
    expect_nothing(PRETENDED_WHOLE, TAMIS_ENERGY_FAILED,
                   "NVML error 999 from nvmlDeviceGetCount_v2: Unknown Error");
}

static void a_driver_without_gpus_is_absent(void **state) {
    (void)state;
    atomic_store(&whole->ngpus, 0);
    expect_nothing(PRETENDED_WHOLE, TAMIS_ENERGY_ABSENT, "shows no GPU");
}

/* -- what a GPU can tell ---------------------------------------------------------------------- */

static void counters_are_read_in_microjoules(void **state) {
    (void)state;
    opened o = open_whole();
    source_expect_sensor(&o, A, TAMIS_ENERGY_OK, "");
    assert_int_equal(source_sensor(&o, A).kind, TAMIS_ENERGY_GPU);
    source_expect_value(&o, A, 5000000);
    source_expect_value(&o, B, 5001000);
    source_close(&o);
    assert_int_equal(atomic_load(&whole->begun), 0);
}

static void without_a_counter_power_is_read(void **state) {
    (void)state;
    atomic_store(&whole->gpus[1].energy_code, 3);
    opened o = open_whole();
    assert_false(source_sensor(&o, A).power);
    assert_true(source_sensor(&o, B).power);
    source_expect_value(&o, B, 70000000);
    source_close(&o);
}

static void with_neither_the_gpu_is_unsupported(void **state) {
    (void)state;
    atomic_store(&whole->gpus[0].energy_code, 3);
    atomic_store(&whole->gpus[0].power_code, 3);
    opened o = open_whole();
    source_expect_sensor(&o, A, TAMIS_ENERGY_UNSUPPORTED, "neither energy");
    source_expect_sensor(&o, B, TAMIS_ENERGY_OK, "");
    source_close(&o);
}

static void a_denied_gpu_says_so(void **state) {
    (void)state;
    atomic_store(&whole->gpus[0].energy_code, 4);
    opened o = open_whole();
    source_expect_sensor(&o, A, TAMIS_ENERGY_DENIED, "permission denied");
    source_close(&o);
    furnish(whole);
    atomic_store(&whole->gpus[0].energy_code, 3);
    atomic_store(&whole->gpus[0].power_code, 4);
    o = open_whole();
    source_expect_sensor(&o, A, TAMIS_ENERGY_DENIED, "nvmlDeviceGetPowerUsage");
    source_close(&o);
}

static void a_gpu_that_was_lost_before_is_named_by_its_number(void **state) {
    (void)state;
    atomic_store(&whole->gpus[0].handle_code, 15);
    opened o = open_whole();
    source_expect_sensor(&o, "nvml:index-0", TAMIS_ENERGY_LOST, "fallen off the bus");
    source_expect_sensor(&o, B, TAMIS_ENERGY_OK, "");
    source_close(&o);
}

static void a_gpu_lost_on_the_way_says_so_and_others_go_on(void **state) {
    (void)state;
    opened o = open_whole();
    source_expect_value(&o, A, 5000000);
    atomic_store(&whole->gpus[0].energy_code, 15);
    source_expect_read(&o, A, TAMIS_ENERGY_LOST, "fallen off the bus");
    source_expect_value(&o, B, 5001000);
    source_close(&o);
}

static void errors_on_the_way_keep_code_and_function(void **state) {
    (void)state;
    opened o = open_whole();
    atomic_store(&whole->gpus[0].energy_code, 999);
    source_expect_read(&o, A, TAMIS_ENERGY_FAILED,
                       "NVML error 999 from nvmlDeviceGetTotalEnergyConsumption: Unknown Error");
    source_close(&o);
}

static void a_count_beyond_64_bits_is_garbled(void **state) {
    (void)state;
    opened o = open_whole();
    atomic_store(&whole->gpus[0].mj, UINT64_MAX / 1000 + 1);
    source_expect_read(&o, A, TAMIS_ENERGY_GARBLED, "not a plausible count of a GPU");
    source_close(&o);
}

/* -- fields ----------------------------------------------------------------------------------- */

static void a_field_of_another_type_is_left_for_the_function(void **state) {
    (void)state;
    atomic_store(&whole->gpus[0].module_code, 0);
    atomic_store(&whole->gpus[0].field_type, 0);
    opened o = open_whole();
    source_expect_value(&o, A, 5000000);
    source_close(&o);
}

static void a_module_is_told_from_a_gpu(void **state) {
    (void)state;
    atomic_store(&whole->gpus[0].module_code, 0);
    opened o = open_whole();
    assert_int_equal(source_sensor(&o, A).kind, TAMIS_ENERGY_MODULE);
    assert_int_equal(source_sensor(&o, B).kind, TAMIS_ENERGY_GPU);
    source_expect_value(&o, A, 5000000);
    source_close(&o);
}

/* A driver that looks at no scope shows the GPU's joules for the module: its CPU would be lost. */
static void the_counter_with_a_scope_is_the_modules(void **state) {
    (void)state;
    atomic_store(&whole->gpus[0].module_code, 0);
    atomic_store(&whole->gpus[0].scoped_code, 0);
    atomic_store(&whole->gpus[0].cpu_mj, 700);
    opened o = open_whole();
    assert_int_equal(source_sensor(&o, A).kind, TAMIS_ENERGY_MODULE);
    source_expect_value(&o, A, 5700000);
    source_close(&o);
    atomic_store(&whole->gpus[0].cpu_mj, 0);
    o = open_whole();
    assert_int_equal(source_sensor(&o, A).kind, TAMIS_ENERGY_GPU);
    source_expect_value(&o, A, 5000000);
    source_close(&o);
}

/* -- which GPUs ------------------------------------------------------------------------------- */

static void partitions_of_one_board_count_once(void **state) {
    (void)state;
    opened o = open_with(PRETENDED_WHOLE, "MIG-a0,MIG-a1,GPU-a");
    assert_int_equal(o.n, 1);
    source_expect_value(&o, A, 5000000);
    source_close(&o);
}

static void gpus_are_found_by_what_was_asked_not_by_order(void **state) {
    (void)state;
    opened o = open_with(PRETENDED_WHOLE, "0000:27:00.0,GPU-a,0000:17:00.0");
    assert_int_equal(o.n, 2);
    source_expect_value(&o, B, 5001000);
    source_expect_value(&o, A, 5000000);
    source_close(&o);
    o = open_with(PRETENDED_WHOLE, "GPU-b");
    assert_false(source_has(&o, A));
    source_close(&o);
}

static void a_gpu_that_is_not_there_is_absent(void **state) {
    (void)state;
    opened o = open_with(PRETENDED_WHOLE, "GPU-z,,0000:99:00.0,GPU-a");
    assert_int_equal(o.n, 3);
    source_expect_sensor(&o, "nvml:GPU-z", TAMIS_ENERGY_ABSENT, "nvidia-smi -L");
    source_expect_sensor(&o, "nvml:0000:99:00.0", TAMIS_ENERGY_ABSENT, "PciBusId");
    source_expect_value(&o, A, 5000000);
    source_close(&o);
}

static void gpus_by_name_need_a_function_that_is_named(void **state) {
    (void)state;
    opened o = open_with(PRETENDED_BARE, "GPU-a");
    source_expect_sensor(&o, A, TAMIS_ENERGY_UNSUPPORTED, "nvmlDeviceGetHandleByUUID");
    source_close(&o);
}

/* -- memory ----------------------------------------------------------------------------------- */

static void every_allocation_may_fail(void **state) {
    (void)state;
    source_check_memory(&tam_source_nvml, &(tamis_energy_config){.nvml_path = PRETENDED_WHOLE});
    assert_int_equal(atomic_load(&whole->begun), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(without_library_the_source_is_absent, begin),
        cmocka_unit_test_setup(a_library_without_functions_is_named, begin),
        cmocka_unit_test_setup(a_function_that_all_need_is_named, begin),
        cmocka_unit_test_setup(without_optional_functions_power_is_read, begin),
        cmocka_unit_test_setup(without_the_driver_the_remedy_is_named, begin),
        cmocka_unit_test_setup(a_refused_start_is_denied, begin),
        cmocka_unit_test_setup(an_unknown_code_keeps_the_librarys_words, begin),
        cmocka_unit_test_setup(a_driver_without_gpus_is_absent, begin),
        cmocka_unit_test_setup(counters_are_read_in_microjoules, begin),
        cmocka_unit_test_setup(without_a_counter_power_is_read, begin),
        cmocka_unit_test_setup(with_neither_the_gpu_is_unsupported, begin),
        cmocka_unit_test_setup(a_denied_gpu_says_so, begin),
        cmocka_unit_test_setup(a_gpu_that_was_lost_before_is_named_by_its_number, begin),
        cmocka_unit_test_setup(a_gpu_lost_on_the_way_says_so_and_others_go_on, begin),
        cmocka_unit_test_setup(errors_on_the_way_keep_code_and_function, begin),
        cmocka_unit_test_setup(a_count_beyond_64_bits_is_garbled, begin),
        cmocka_unit_test_setup(a_field_of_another_type_is_left_for_the_function, begin),
        cmocka_unit_test_setup(a_module_is_told_from_a_gpu, begin),
        cmocka_unit_test_setup(the_counter_with_a_scope_is_the_modules, begin),
        cmocka_unit_test_setup(partitions_of_one_board_count_once, begin),
        cmocka_unit_test_setup(gpus_are_found_by_what_was_asked_not_by_order, begin),
        cmocka_unit_test_setup(a_gpu_that_is_not_there_is_absent, begin),
        cmocka_unit_test_setup(gpus_by_name_need_a_function_that_is_named, begin),
        cmocka_unit_test_setup(every_allocation_may_fail, begin),
    };
    return cmocka_run_group_tests(tests, load_all, NULL);
}
