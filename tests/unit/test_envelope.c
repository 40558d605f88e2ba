/* SPDX-License-Identifier: MIT
 *
 * What a message must say: whoever takes one for another, of another call, stage, chunk or sender,
 * would add or gather the wrong values without a word.
 */
#include "collectives/coll/envelope.h"
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

enum { FROM = 2, SELF = 5, BYTES = 16 };

typedef struct message {
    tam_envelope header;
    unsigned char body[BYTES];
} message;

static message usual(void) {
    message m = {.header = {.call = 77,
                            .number = 3,
                            .rank = FROM,
                            .chunk = 4,
                            .step = 1,
                            .extra = 9,
                            .streams = 123},
                 .body = "eleven char"};
    return m;
}

static void check(message m, const char *words) {
    const tam_envelope_due due = {.call = 77,
                                  .number = 3,
                                  .rank = FROM,
                                  .chunk = 4,
                                  .step = 1,
                                  .bytes = BYTES,
                                  .extra_known = true,
                                  .extra = 9};
    tam_envelope_seal(&m.header, BYTES);
    tamis_status status = tam_envelope_open(&m.header, sizeof m, FROM, SELF);
    if (status == TAMIS_OK)
        status = tam_envelope_compare(&m.header, &due, SELF);
    if (status == TAMIS_OK)
        status = tam_envelope_check(&m.header, 123, SELF);
    assert_int_equal(status, words ? TAMIS_E_PROTOCOL : TAMIS_OK);
    if (words)
        assert_non_null(strstr(tamis_last_error(), words));
}

static void test_a_message_that_is_due_is_taken(void **state) {
    (void)state;
    check(usual(), NULL);
}

static void test_a_message_that_is_not_due_is_refused(void **state) {
    message m = usual();
    (void)state;
    m.header.call++, check(m, "another call"), m = usual();
    m.header.number--, check(m, "another call"), m = usual();
    m.header.step++, check(m, "another stage"), m = usual();
    m.header.chunk++, check(m, "another stage"), m = usual();
    m.header.chunk--, check(m, "another stage"), m = usual();
    m.header.extra++, check(m, "longer or shorter"), m = usual();
    m.header.streams ^= 1, check(m, "damaged on the way"), m = usual();
    m.header.rank++, check(m, "another sender");
}

/* Every bit of header and body; what travels by itself has a hash of its own. */
static void test_every_bit_is_sealed(void **state) {
    message sealed = usual();
    (void)state;
    tam_envelope_seal(&sealed.header, BYTES);
    assert_int_equal(tam_envelope_open(&sealed.header, sizeof sealed, FROM, SELF), TAMIS_OK);
    for (size_t bit = 0; bit < 8 * sizeof sealed; bit++) {
        message m = sealed;
        ((unsigned char *)&m)[bit / 8] ^= (unsigned char)(1u << bit % 8);
        assert_int_equal(tam_envelope_open(&m.header, sizeof m, FROM, SELF), TAMIS_E_PROTOCOL);
    }
    assert_int_equal(tam_envelope_open(&sealed.header, sizeof sealed - 1, FROM, SELF),
                     TAMIS_E_PROTOCOL);
    assert_int_equal(tam_envelope_open(&sealed.header, sizeof sealed.header - 1, FROM, SELF),
                     TAMIS_E_PROTOCOL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_message_that_is_due_is_taken),
        cmocka_unit_test(test_a_message_that_is_not_due_is_refused),
        cmocka_unit_test(test_every_bit_is_sealed),
    };
    return cmocka_run_group_tests_name("envelope", tests, NULL, NULL);
}
