/* SPDX-License-Identifier: MIT
 *
 * The caller's own messages (tamis_callbacks) go wrong: every kind of fault in calls of post and
 * test, all with all and in stages. test_messages [CASES | all]
 *
 * test: slow waits
 */
#include "tests/faults/outcome.h"
#include "tests/support/data.h"
#include "tests/support/loopback.h"
#include "tests/support/ranks.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <tamis/callback.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

enum { TIMEOUT_MS = 500, COPIES = 8 };

typedef enum kind {
    POST_ERROR,   /* a message is refused */
    POST_FLIP,    /* sent, but a bit differs */
    POST_CUT,     /* sent, but shorter */
    POST_DROP,    /* sent, so it seems: it never comes */
    POST_STUCK,   /* never sent, and never complete */
    TEST_ERROR,   /* completions are lost, and said so */
    TEST_FORGET,  /* completions are lost */
    TEST_LATE,    /* completions are told by the next call only */
    TEST_SHORT,   /* a byte less is said to have come */
    TEST_LONG,    /* more than there was room for */
    TEST_FOREIGN, /* a ticket that is none */
    TEST_EARLY,   /* a ticket of a message that is not in flight, or not complete */
    TEST_TWICE,   /* a completion is told twice */
    KINDS
} kind;

static const char *const names[KINDS] = {"post error", "flipped bit", "cut",  "dropped", "stuck",
                                         "test error", "forgotten",   "late", "short",   "longer",
                                         "no ticket",  "early",       "twice"};

typedef struct line {
    void *end; /* of the loopback */
    kind what;
    bool fires, fired;
    uint64_t nth, posts, tests, random;
    void *copies[COPIES];
    uint32_t ncopies;
    tam_done lost; /* to be told later */
    bool has_lost;
} line;

static bool hits(line *l, uint64_t *count) {
    bool hit = ++*count == l->nth && l->fires;
    l->fired = l->fired || hit;
    return hit;
}

/* The memory may be read long after, so it stays until the end of the case. */
static void *copy_of(line *l, const void *from, size_t bytes) {
    void *copy = malloc(bytes + 1);
    if (!copy || l->ncopies == COPIES)
        abort();
    memcpy(copy, from, bytes);
    return l->copies[l->ncopies++] = copy;
}

static tamis_status post(void *context, const tamis_message *m) {
    line *l = context;
    tam_message own = {m->peer, m->channel, m->sends != 0, m->memory, m->bytes};
    bool counts = l->what == POST_ERROR || l->what == POST_STUCK || m->sends;
    if (l->what > POST_STUCK || !counts || !hits(l, &l->posts))
        return loopback_p2p.post(l->end, m->ticket, &own);
    if (l->what == POST_ERROR)
        return TAMIS_E_TRANSPORT;
    if (l->what == POST_DROP) {
        l->lost = (tam_done){m->ticket, m->bytes};
        l->has_lost = true;
    }
    if (l->what == POST_DROP || l->what == POST_STUCK)
        return TAMIS_OK;
    own.memory = copy_of(l, m->memory, m->bytes);
    if (l->what == POST_FLIP)
        ((unsigned char *)own.memory)[l->random / 8 % m->bytes] ^=
            (unsigned char)(1u << l->random % 8);
    else
        own.bytes -= 1 + l->random % m->bytes;
    return loopback_p2p.post(l->end, m->ticket, &own);
}

static void tell(tam_done *done, uint32_t *count, tam_done one) {
    if (*count < TAMIS_TICKETS)
        done[(*count)++] = one;
}

static tamis_status spoil(line *l, tam_done *done, uint32_t *count) {
    tam_done *last = &done[*count - 1];
    switch (l->what) {
    case TEST_ERROR:
        return TAMIS_E_TRANSPORT;
    case TEST_LATE:
        l->lost = *last;
        l->has_lost = true;
        --*count;
        return TAMIS_OK;
    case TEST_FORGET:
        *count = 0;
        return TAMIS_OK;
    case TEST_SHORT:
        last->bytes -= last->bytes > 0;
        return TAMIS_OK;
    case TEST_LONG:
        last->bytes += (size_t)1 << l->random % 40;
        return TAMIS_OK;
    case TEST_FOREIGN:
        last->ticket = TAMIS_TICKETS + (uint32_t)(l->random % 1000);
        return TAMIS_OK;
    case TEST_EARLY:
        tell(done, count, (tam_done){(uint32_t)(l->random % TAMIS_TICKETS), 56});
        return TAMIS_OK;
    default:
        tell(done, count, *last);
        return TAMIS_OK;
    }
}

static tamis_status test(void *context, uint32_t tickets[TAMIS_TICKETS],
                         size_t bytes[TAMIS_TICKETS], uint32_t *count) {
    line *l = context;
    tam_done done[2 * TAMIS_TICKETS];
    bool late = l->has_lost;
    tamis_status status = loopback_p2p.test(l->end, done, count);
    if (late)
        tell(done, count, l->lost);
    l->has_lost = false;
    if (l->what > POST_STUCK && *count > 0 && hits(l, &l->tests))
        status = spoil(l, done, count);
    for (uint32_t i = 0; i < *count; i++) {
        tickets[i] = done[i].ticket;
        bytes[i] = done[i].bytes;
    }
    return status;
}

static void cancel(void *context, uint32_t ticket) {
    line *l = context;
    loopback_p2p.cancel(l->end, ticket);
}

static tamis_comm *open_line(line *l, uint32_t rank, uint32_t nranks, uint32_t timeout_ms) {
    tamis_callbacks callbacks = TAMIS_CALLBACKS_INIT;
    tamis_comm_config config = TAMIS_COMM_CONFIG_INIT;
    tamis_comm *comm = NULL;
    config.timeout_ms = timeout_ms;
    callbacks.rank = rank;
    callbacks.nranks = nranks;
    callbacks.context = l;
    callbacks.post = post;
    callbacks.test = test;
    callbacks.cancel = cancel;
    if (tamis_comm_create_callback(&callbacks, &config, &comm) != TAMIS_OK)
        fail_msg("tamis_comm_create_callback: %s", tamis_last_error());
    return comm;
}

/* @return calls of the faulty rank that count, for POST_ERROR and for TEST_ERROR */
static uint64_t try_one(outcome *o, kind what, uint32_t rank, uint64_t nth) {
    tamis_comm *comms[ATTEMPT_RANKS];
    line *lines = calloc(o->nranks, sizeof *lines);
    loopback *m = loopback_create(o->nranks, 0);
    assert_non_null(lines);
    for (uint32_t r = 0; r < o->nranks; r++) {
        lines[r] = (line){.end = loopback_end(m, r),
                          .what = what,
                          .fires = r == rank,
                          .nth = nth,
                          .random = data_mix(nth * KINDS + what) >> 8};
        comms[r] = open_line(&lines[r], r, o->nranks, o->timeout_ms);
    }
    test_context("%s, %u ranks: %s at call %llu of rank %u", o->config->name, o->nranks,
                 names[what], (unsigned long long)nth, rank);
    outcome_try(o, comms);
    outcome_free(o);
    for (uint32_t r = 0; r < o->nranks; r++)
        tamis_comm_destroy(comms[r]);
    uint64_t calls = what > POST_STUCK ? lines[rank].tests : lines[rank].posts;
    if (nth > 0)
        outcome_count(lines[rank].fired, o->failed);
    if (lines[rank].fired && what == TEST_LATE && o->failed)
        fail_msg("[%s] harmed: a late word is none", test_context_text());
    for (uint32_t r = 0; r < o->nranks; r++) {
        for (uint32_t i = 0; i < lines[r].ncopies; i++)
            free(lines[r].copies[i]);
    }
    free(lines);
    loopback_destroy(m);
    return calls;
}

static void try_config(const fault_config *config, uint32_t nranks) {
    static uint64_t turn;
    for (kind what = 0; what < KINDS; what++) {
        outcome whole = {.config = config, .nranks = nranks, .timeout_ms = test_long_ms()};
        uint64_t calls = try_one(&whole, what, 0, 0), stride = outcome_stride(calls);
        assert_false(whole.failed);
        uint64_t first = stride > 1 ? data_mix(++turn) % stride : 0;
        for (uint64_t nth = 1 + first; nth <= calls; nth += stride) {
            outcome o = {.config = config,
                         .nranks = nranks,
                         .timeout_ms = test_stretch_ms(TIMEOUT_MS),
                         .file = nth % 2 == 0};
            try_one(&o, what, (uint32_t)(data_mix(nth + turn) % nranks), nth);
        }
    }
}

/* 4 ranks exchange all with all; 9, which is more than 8 and no power of two, in stages. */
static void any_fault_of_a_message_is_found(void **state) {
    const fault_config *config;
    (void)state;
    for (size_t c = 0; (config = fault_config_at(c)); c++) {
        if (!outcome_drawn())
            continue;
        try_config(config, 4);
        if (c % 4 == 0)
            try_config(config, 9);
    }
    outcome_show();
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_fault_of_a_message_is_found),
    };
    outcome_arguments(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
