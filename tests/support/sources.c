/* SPDX-License-Identifier: MIT */
#include "tests/support/sources.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

opened source_open(const tam_energy_source *source, const tam_energy_setup *setup) {
    opened o = {source, NULL};
    assert_int_equal(source->open(setup, &o.self), TAMIS_OK);
    return o;
}

void source_close(opened *o) {
    o->source->close(o->self);
    o->self = NULL;
}

static uint32_t find(const opened *o, const char *id) {
    tam_energy_place place;
    uint32_t count = o->source->count(o->self), index = 0;
    for (; index < count; index++) {
        o->source->place(o->self, index, &place);
        if (strcmp(place.id, id) == 0)
            break;
    }
    return index;
}

bool source_has(const opened *o, const char *id) {
    return find(o, id) < o->source->count(o->self);
}

uint32_t source_index(const opened *o, const char *id) {
    if (!source_has(o, id))
        fail_msg("there is no domain %s", id);
    return find(o, id);
}

tam_energy_place source_place(const opened *o, const char *id) {
    tam_energy_place place;
    o->source->place(o->self, source_index(o, id), &place);
    return place;
}

tam_energy_reading source_read(const opened *o, const char *id) {
    tam_energy_reading reading;
    o->source->read(o->self, source_index(o, id), &reading);
    return reading;
}

static void expect(const char *id, tamis_energy_status expected, const char *words,
                   tamis_energy_status got, const char *reason) {
    bool said = words[0] ? strstr(reason, words) != NULL : reason[0] == '\0';
    if (expected != got || !said)
        fail_msg("%s: status %d, \"%s\"; expected %d, \"%s\"", id, (int)got, reason, (int)expected,
                 words);
}

void source_expect_place(const opened *o, const char *id, tamis_energy_status status,
                         const char *words) {
    tam_energy_place place = source_place(o, id);
    expect(id, status, words, place.status, place.reason);
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

void source_check_memory(const tam_energy_source *source, const tam_energy_setup *setup) {
    uint64_t live = tam_alloc_live();
    void *self = NULL;
    for (long budget = 0;; budget++) {
        tam_alloc_budget(budget);
        tamis_status status = source->open(setup, &self);
        tam_alloc_budget(-1);
        if (status == TAMIS_OK) {
            assert_true(budget > 0);
            break;
        }
        assert_int_equal(status, TAMIS_E_NOMEM);
        assert_non_null(strstr(tamis_last_error(), source->name));
        assert_int_equal(tam_alloc_live(), live);
    }
    source->close(self);
    assert_int_equal(tam_alloc_live(), live);
}
