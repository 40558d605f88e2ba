/* SPDX-License-Identifier: MIT */
#include "tests/support/sources.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

opened source_open(const tam_energy_source *source, const tamis_energy_config *config) {
    opened o;
    assert_int_equal(tam_energy_find(source, config, &o), TAMIS_OK);
    return o;
}

void source_close(opened *o) {
    tam_energy_close(o);
}

static const tam_energy_sensor *find(const opened *o, const char *id) {
    for (uint32_t i = 0; i < o->n; i++) {
        if (strcmp(o->sensors[i].id, id) == 0)
            return &o->sensors[i];
    }
    return NULL;
}

bool source_has(const opened *o, const char *id) {
    return find(o, id) != NULL;
}

tam_energy_sensor source_sensor(const opened *o, const char *id) {
    if (!source_has(o, id))
        fail_msg("there is no domain %s", id);
    return *find(o, id);
}

tam_energy_reading source_read(const opened *o, const char *id) {
    tam_energy_reading reading;
    tam_energy_sensor sensor = source_sensor(o, id);
    tam_energy_read(o, &sensor, &reading);
    return reading;
}

/* In a child, through a pipe. The way to the folder may be closed to him, so he is put there
 * before; an assertion that fails in the child ends with its alarm. */
tam_energy_sensor source_sensor_unprivileged(const tam_energy_source *source, const char *root,
                                             const char *id) {
    tam_energy_sensor sensor = {0};
    int ends[2], status;
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        alarm(10);
        if (chdir(root) != 0)
            _exit(1);
        if (getuid() == 0 && (setgid(65534) != 0 || setuid(65534) != 0))
            _exit(1);
        opened o = source_open(source, &(tamis_energy_config){.sysfs_root = "."});
        sensor = source_sensor(&o, id);
        source_close(&o);
        _exit(write(ends[1], &sensor, sizeof sensor) != sizeof sensor);
    }
    close(ends[1]);
    assert_int_equal(read(ends[0], &sensor, sizeof sensor), sizeof sensor);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    close(ends[0]);
    return sensor;
}

static void expect(const char *id, tamis_energy_status expected, const char *words,
                   tamis_energy_status got, const char *reason) {
    bool said = words[0] ? strstr(reason, words) != NULL : reason[0] == '\0';
    if (expected != got || !said)
        fail_msg("%s: status %d, \"%s\"; expected %d, \"%s\"", id, (int)got, reason, (int)expected,
                 words);
}

void source_expect_sensor(const opened *o, const char *id, tamis_energy_status status,
                          const char *words) {
    tam_energy_sensor sensor = source_sensor(o, id);
    expect(id, status, words, sensor.status, sensor.reason);
}

void source_expect_read(const opened *o, const char *id, tamis_energy_status status,
                        const char *words) {
    tam_energy_reading reading = source_read(o, id);
    expect(id, status, words, reading.status, reading.reason);
}

void source_expect_value(const opened *o, const char *id, uint64_t value) {
    tam_energy_reading reading = source_read(o, id);
    expect(id, TAMIS_ENERGY_OK, "", reading.status, reading.reason);
    assert_int_equal(reading.value, value);
}

void source_check_memory(const tam_energy_source *source, const tamis_energy_config *config) {
    uint64_t live = tam_alloc_live();
    opened o;
    for (long budget = 0;; budget++) {
        tam_alloc_budget(budget);
        tamis_status status = tam_energy_find(source, config, &o);
        tam_alloc_budget(-1);
        if (status == TAMIS_OK) {
            assert_true(budget > 0);
            break;
        }
        assert_int_equal(status, TAMIS_E_NOMEM);
        assert_non_null(strstr(tamis_last_error(), source->name));
        assert_int_equal(tam_alloc_live(), live);
    }
    source_close(&o);
    assert_int_equal(tam_alloc_live(), live);
}
