/* SPDX-License-Identifier: MIT
 *
 * Addresses of gradients: any order of steps, moves, refusals and withdrawals, against a comparison
 * of all with all.
 */
#include "collectives/reducer/addresses.h"
#include "tests/support/data.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

enum { SEGMENTS = 700, MOST = 9, ELEMENT = 4, STEPS = 60 };

typedef struct model {
    tamis_layout *layout;
    tam_addresses addresses;
    uintptr_t at[SEGMENTS], next[SEGMENTS]; /* in this step, and where they would come */
    bool ready[SEGMENTS];
    uint64_t drawn;
} model;

static uint64_t draw(model *m, uint64_t below) {
    return data_mix(m->drawn++) % below;
}

static void open_model(model *m, uint64_t seed) {
    tamis_segment segments[SEGMENTS];
    *m = (model){.drawn = seed << 32};
    for (uint32_t s = 0; s < SEGMENTS; s++)
        segments[s] = (tamis_segment){.name = "one", .length = 1 + draw(m, MOST)};
    assert_int_equal(tamis_layout_create(segments, SEGMENTS, &m->layout), TAMIS_OK);
    assert_true(tam_addresses_open(&m->addresses, m->layout, ELEMENT));
}

static void close_model(model *m) {
    tam_addresses_close(&m->addresses);
    tamis_layout_destroy(m->layout);
}

/* New addresses for one of `every` segments: one behind the other, in a random order of segments or
 * from the last to the first, so that few overlap. */
static void move_some(model *m, uint64_t every) {
    bool backwards = draw(m, 2);
    uintptr_t pitch = (MOST + 1) * ELEMENT;
    for (uint32_t s = 0; s < SEGMENTS; s++) {
        uint64_t position = backwards ? SEGMENTS - 1 - s : s + SEGMENTS * draw(m, 2);
        if (draw(m, every) == 0)
            m->next[s] = 1000 + position * pitch + ELEMENT * draw(m, 3);
    }
}

static bool overlaps_another(const model *m, uint32_t segment) {
    uintptr_t begin = m->next[segment];
    uintptr_t end = begin + tam_segment_length(m->layout, segment) * ELEMENT;
    for (uint32_t s = 0; s < SEGMENTS; s++) {
        if (m->ready[s] && begin < m->at[s] + tam_segment_length(m->layout, s) * ELEMENT &&
            m->at[s] < end)
            return true;
    }
    return false;
}

static void add_one(model *m, uint32_t s) {
    bool refused = overlaps_another(m, s);
    tamis_status status = tam_addresses_add(&m->addresses, s, (void *)m->next[s], m->ready);
    assert_int_equal(status, refused ? TAMIS_E_ARGUMENT : TAMIS_OK);
    m->ready[s] = !refused;
    m->at[s] = m->next[s];
}

/* As after buckets that could not be launched. */
static void withdraw_some(model *m) {
    for (uint32_t s = 0; s < SEGMENTS; s++)
        m->ready[s] = m->ready[s] && draw(m, 3) > 0;
    tam_addresses_withdraw(&m->addresses, m->ready);
}

static void run_step(model *m) {
    uint32_t first = (uint32_t)draw(m, SEGMENTS), by = 1 + 2 * (uint32_t)draw(m, 2) * 5;
    memset(m->ready, 0, sizeof m->ready);
    tam_addresses_begin(&m->addresses);
    bool withdraws = draw(m, 4) == 0;
    for (uint32_t i = 0; i < SEGMENTS; i++) {
        add_one(m, (first + i * (SEGMENTS - by)) % SEGMENTS);
        if (withdraws && draw(m, SEGMENTS) < 2)
            withdraw_some(m);
    }
    for (uint32_t s = 0; s < SEGMENTS; s++) { /* those that were refused come somewhere else */
        if (!m->ready[s]) {
            m->next[s] = 10000000 + (uintptr_t)s * (MOST + 1) * ELEMENT;
            add_one(m, s);
        }
    }
}

static void all_overlaps_are_found_and_no_others(void **state) {
    (void)state;
    for (uint64_t seed = 0; seed < 8; seed++) {
        model m;
        open_model(&m, seed);
        move_some(&m, 1);
        for (int step = 0; step < STEPS; step++) {
            static const uint64_t every[] = {1, 2, 50, SEGMENTS, 10 * SEGMENTS};
            run_step(&m);
            move_some(&m, every[draw(&m, 5)]);
        }
        close_model(&m);
    }
}

/* What the blocks promise: none less than half full, however segments come. */
static void blocks_have_room_for_any_order(void **state) {
    model m;
    (void)state;
    open_model(&m, 9);
    for (int backwards = 0; backwards < 2; backwards++) {
        memset(m.ready, 0, sizeof m.ready);
        tam_addresses_begin(&m.addresses);
        for (uint32_t i = 0; i < SEGMENTS; i++) {
            uint32_t s = backwards ? SEGMENTS - 1 - i : i;
            m.next[s] = 1000 + (uintptr_t)(s + SEGMENTS * (unsigned)backwards) * 100;
            add_one(&m, s);
        }
        assert_int_equal(m.addresses.count, SEGMENTS);
        assert_in_range(m.addresses.nblocks, SEGMENTS / TAM_ADDRESS_BLOCK,
                        2 * SEGMENTS / TAM_ADDRESS_BLOCK + 1);
    }
    close_model(&m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_overlaps_are_found_and_no_others),
        cmocka_unit_test(blocks_have_room_for_any_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
