/* SPDX-License-Identifier: MIT
 *
 * Kernels on the CPU and host path on a fake runtime: whatever travels, steps give the bits that
 * the CPU gives, driven by the host or by the device.
 *
 * test: slow
 */
#include "tests/cuda/backend.h"
#include "tests/support/schemes.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

enum { TYPES = TAMIS_VALUE_END - TAMIS_VALUE_FLOAT32 };

static const trial_backend *const places[] = {&backend_host_driven, &backend_stream};

static trial_record run(const trial *what) {
    trial_record record;
    if (!trial_run(what, &record))
        fail_msg("[%s] was refused: %s", what->scheme, record.sentence[0]);
    check_ranks_identical(&record);
    return record;
}

static void compare(trial what, const trial_backend *place) {
    trial_record cpu = run(&what);
    what.backend = place;
    trial_record cuda = run(&what);
    check_same(&cpu, &cuda);
    record_free(&cpu);
    record_free(&cuda);
}

static void test_every_way_to_travel_gives_the_bits_of_the_cpu(void **state) {
    static const char *const schemes[] = {"tamis", "topk", "micro", "cyclic+norm+predict+pairs"};
    (void)state;
    for (int s = 0; s < 4; s++)
        for (tamis_index_codec f = TAMIS_INDEX_AUTO; f < TAMIS_INDEX_END; f++) {
            trial what = trial_usual(schemes[s], 3, 1601, 0.05);
            what.steps = 3;
            what.real = true;
            what.index_codec = f;
            what.bucket_length = f % 2 ? 400 : 0;
            what.value_codec = (tamis_value_codec)(TAMIS_VALUE_FLOAT32 + (s + f) % TYPES);
            compare(what, places[0]);
            compare(what, places[1]);
        }
}

/* Long enough for several blocks of a device, and several of values for each owner. */
static void test_long_lists_give_the_bits_of_the_cpu(void **state) {
    static const char *const schemes[] = {"tamis", "topk", "cyclic+norm+predict+pairs"};
    (void)state;
    for (int i = 0; i < 5; i++) {
        trial what = trial_usual(schemes[i % 3], 3 + (uint32_t)i % 3, 70000, 0.1);
        what.steps = 2;
        what.real = true;
        what.index_codec = (tamis_index_codec)(TAMIS_INDEX_U32 + i);
        what.value_codec = (tamis_value_codec)(TAMIS_VALUE_FLOAT32 + (i + 2) % TYPES);
        compare(what, &backend_stream);
    }
}

/* Values and sums in every pair of types. */
static void test_sums_may_travel_in_another_type(void **state) {
    (void)state;
    for (int up = TAMIS_VALUE_FLOAT32; up < TAMIS_VALUE_END; up++) {
        trial what = trial_usual("tamis", 4, 9001, 0.1);
        what.steps = 2;
        what.real = true;
        what.value_codec = (tamis_value_codec)up;
        for (int down = TAMIS_VALUE_FLOAT32; down < TAMIS_VALUE_END; down++) {
            what.sum_codec = (tamis_value_codec)down;
            compare(what, &backend_stream);
        }
    }
}

/* -- CPUs and devices in one job -------------------------------------------------------------- */

static void compare_mixed(trial what) {
    trial_record cpu = run(&what);
    what.backend = &backend_mixed;
    trial_record mixed = run(&what);
    check_same(&cpu, &mixed);
    for (uint32_t s = 0; s < what.steps; s++)
        for (uint32_t r = 0; r < what.nranks; r++)
            assert_int_equal(record_moment(&mixed, s, r)->stats.wire_bytes,
                             record_moment(&cpu, s, r)->stats.wire_bytes);
    record_free(&cpu);
    record_free(&mixed);
}

static trial mixed(const char *scheme) {
    trial what = trial_usual(scheme, 3, 1601, 0.05);
    what.steps = 3;
    what.real = true;
    return what;
}

static void test_cpus_and_devices_send_each_other_the_same_bytes(void **state) {
    static const char *const schemes[] = {"tamis", "topk", "micro", "cyclic+norm+predict+pairs"};
    uint32_t value_codec = 0;
    scheme_case preset;
    (void)state;
    for (int s = 0; s < 4; s++)
        for (tamis_index_codec f = TAMIS_INDEX_AUTO; f < TAMIS_INDEX_END; f++, value_codec++) {
            trial what = mixed(schemes[s]);
            what.index_codec = f;
            what.value_codec = (tamis_value_codec)(TAMIS_VALUE_FLOAT32 + value_codec % TYPES);
            what.bucket_length = f % 2 ? 400 : 0;
            compare_mixed(what);
        }
    for (size_t i = 0; scheme_preset(i, &preset); i++) {
        if (strcmp(preset.name, "dense") != 0)
            compare_mixed(mixed(preset.name));
    }
}

/* A device sums other runs of a gradient, and chooses no dense buckets. */
static void test_dense_and_auto_want_the_same_everywhere(void **state) {
    static const char *const schemes[] = {"dense", "auto"};
    (void)state;
    for (int i = 0; i < 2; i++) {
        trial what = mixed(schemes[i]);
        trial_record record;
        what.backend = &backend_mixed;
        assert_false(trial_run(&what, &record));
        assert_int_equal(record.created[0], TAMIS_E_MISMATCH);
        assert_non_null(strstr(record.sentence[0], "device cuda (1), dense or auto differs"));
        record_free(&record);
    }
}

static void test_cpus_and_devices_update_the_same_way(void **state) {
    tamis_update update = TAMIS_UPDATE_INIT;
    (void)state;
    update.norm_matching = 2.0;
    trial what = mixed("tamis-update");
    what.update = &update;
    what.value_codec = TAMIS_VALUE_FP4;
    compare_mixed(what);
    compare(what, &backend_stream);
    update = (tamis_update)TAMIS_UPDATE_INIT;
    update.rule = TAMIS_UPDATE_MOMENTUM;
    compare_mixed(what);
    what.bucket_length = 400;
    what.value_codec = TAMIS_VALUE_FP2;
    compare(what, &backend_stream);
}

/* A step that the device drives by itself has no time of its own on the host. */
static void check_driver(tamis_index_codec index_codec, tamis_value_codec value_codec) {
    trial what = trial_usual("tamis", 2, 1601, 0.05);
    what.steps = 2;
    what.index_codec = index_codec;
    what.value_codec = value_codec;
    what.backend = &backend_stream;
    trial_record record = run(&what);
    assert_false(record_moment(&record, 1, 0)->stats.accumulate_s > 0.0);
    record_free(&record);
}

static void test_the_device_drives_whatever_travels(void **state) {
    (void)state;
    for (int i = 0; i < 5; i++)
        check_driver((tamis_index_codec)(TAMIS_INDEX_U32 + i),
                     (tamis_value_codec)(TAMIS_VALUE_FLOAT32 + i));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_way_to_travel_gives_the_bits_of_the_cpu),
        cmocka_unit_test(test_long_lists_give_the_bits_of_the_cpu),
        cmocka_unit_test(test_sums_may_travel_in_another_type),
        cmocka_unit_test(test_cpus_and_devices_send_each_other_the_same_bytes),
        cmocka_unit_test(test_dense_and_auto_want_the_same_everywhere),
        cmocka_unit_test(test_cpus_and_devices_update_the_same_way),
        cmocka_unit_test(test_the_device_drives_whatever_travels),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
