/* SPDX-License-Identifier: MIT
 *
 * A message that comes twice: the second time the receiver is in the next collective, of the same
 * kind and size. And one that comes in parts. Two ranks and a network that this test makes.
 */
#include "collectives/coll/coll.h"
#include "lib/policy/plan.h"
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

enum { CAPACITY = 2048, QUEUE = 16 };

typedef struct end {
    unsigned char sent[TAM_P2P_CHANNELS][QUEUE][CAPACITY];
    size_t bytes[TAM_P2P_CHANNELS][QUEUE];
    tam_message due[TAM_P2P_CHANNELS][QUEUE]; /* receives, */
    uint32_t tickets[TAM_P2P_CHANNELS][QUEUE];
    uint32_t nsent[TAM_P2P_CHANNELS], ndue[TAM_P2P_CHANNELS], ncame[TAM_P2P_CHANNELS];
    tam_done ended[QUEUE];
    uint32_t nended;
} end;

static tamis_status post(void *self, uint32_t ticket, const tam_message *m) {
    end *e = self;
    uint32_t *next = m->sends ? &e->nsent[m->channel] : &e->ndue[m->channel];
    assert_true(*next < QUEUE && m->bytes <= CAPACITY);
    if (m->sends) {
        memcpy(e->sent[m->channel][*next], m->memory, m->bytes);
        e->bytes[m->channel][*next] = m->bytes;
        e->ended[e->nended++] = (tam_done){ticket, m->bytes};
    } else {
        e->due[m->channel][*next] = *m;
        e->tickets[m->channel][*next] = ticket;
    }
    ++*next;
    return TAMIS_OK;
}

static tamis_status test(void *self, tam_done *done, uint32_t *count) {
    end *e = self;
    memcpy(done, e->ended, e->nended * sizeof e->ended[0]);
    *count = e->nended;
    e->nended = 0;
    return TAMIS_OK;
}

static void cancel(void *self, uint32_t ticket) {
    (void)self, (void)ticket;
}

static const tam_p2p p2p = {.name = "test", .post = post, .test = test, .cancel = cancel};

/* The nth message that was sent, to the receive whose turn it is. */
static void deliver(end *to, const end *from, uint32_t channel, uint32_t nth) {
    uint32_t turn = to->ncame[channel]++;
    assert_true(nth < from->nsent[channel] && turn < to->ndue[channel]);
    memcpy(to->due[channel][turn].memory, from->sent[channel][nth], from->bytes[channel][nth]);
    to->ended[to->nended++] = (tam_done){to->tickets[channel][turn], from->bytes[channel][nth]};
}

static void advance(tam_coll *coll, tamis_status expected, bool expected_done) {
    bool moved, done = false;
    assert_int_equal(tam_coll_advance(coll, &moved, &done), expected);
    assert_int_equal(done, expected_done);
}

static void test_a_message_that_comes_again_is_refused(void **state) {
    const tam_plan plan = tam_plan_linear(2);
    static end ends[2];
    tam_coll colls[2];
    int given[2] = {10, 11}, got[2][2];
    (void)state;
    for (uint32_t r = 0; r < 2; r++) {
        assert_int_equal(tam_coll_open(&colls[r], &p2p, &ends[r], r, &plan, 1024), TAMIS_OK);
        tam_coll_begin_gather(&colls[r], &given[r], sizeof given[r], got[r]);
        advance(&colls[r], TAMIS_OK, false);
    }
    deliver(&ends[0], &ends[1], TAM_CHANNEL_HEADERS, 0);
    deliver(&ends[1], &ends[0], TAM_CHANNEL_HEADERS, 0);
    for (uint32_t r = 0; r < 2; r++) {
        advance(&colls[r], TAMIS_OK, true);
        assert_true(got[r][0] == 10 && got[r][1] == 11);
    }
    tam_coll_begin_gather(&colls[0], &given[0], sizeof given[0], got[0]);
    advance(&colls[0], TAMIS_OK, false);
    deliver(&ends[0], &ends[1], TAM_CHANNEL_HEADERS, 0);
    advance(&colls[0], TAMIS_E_PROTOCOL, false);
    assert_non_null(strstr(tamis_last_error(), "it belongs to another call"));
    for (uint32_t r = 0; r < 2; r++)
        tam_coll_close(&colls[r], false);
}

/* What is long travels behind its header, by itself, and may come much later. */
static void test_a_message_is_taken_when_all_of_it_has_come(void **state) {
    enum { CHUNK = 1024, BYTES = CHUNK + 300, PIECES = 2 };
    const tam_plan plan = tam_plan_linear(2);
    static end ends[2];
    static unsigned char given[2][BYTES], got[2][2 * BYTES];
    tam_coll colls[2];
    (void)state;
    for (uint32_t r = 0; r < 2; r++) {
        memset(given[r], 10 + (int)r, BYTES);
        assert_int_equal(tam_coll_open(&colls[r], &p2p, &ends[r], r, &plan, CHUNK), TAMIS_OK);
        tam_coll_begin_gather(&colls[r], given[r], BYTES, got[r]);
        advance(&colls[r], TAMIS_OK, false);
    }
    for (uint32_t piece = 0; piece < PIECES; piece++) {
        advance(&colls[0], TAMIS_OK, false);
        deliver(&ends[0], &ends[1], TAM_CHANNEL_HEADERS, piece);
        advance(&colls[0], TAMIS_OK, false);
        advance(&colls[0], TAMIS_OK, false);
        deliver(&ends[0], &ends[1], TAM_CHANNEL_STREAMS, piece);
    }
    advance(&colls[0], TAMIS_OK, true);
    assert_memory_equal(got[0], given[0], BYTES);
    assert_memory_equal(got[0] + BYTES, given[1], BYTES);
    for (uint32_t r = 0; r < 2; r++)
        tam_coll_close(&colls[r], false);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_message_that_comes_again_is_refused),
        cmocka_unit_test(test_a_message_is_taken_when_all_of_it_has_come),
    };
    return cmocka_run_group_tests_name("repeats", tests, NULL, NULL);
}
