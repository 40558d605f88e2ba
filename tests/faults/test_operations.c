/* SPDX-License-Identifier: MIT
 *
 * Whole collectives go wrong, over shared memory (transport/faulty.h) and over the caller's
 * all-gather (tamis_callbacks). test_operations [CASES | all]
 *
 * Shared memory has no checks of its own. What is selected is checked in its packet; its sums only
 * when the ranks compare their results, in the next step: until then a result may be wrong. What is
 * summed whole is not checked there at all, so it is not damaged.
 *
 * test: slow waits
 */
#include "collectives/transport/faulty.h"
#include "tests/faults/outcome.h"
#include "tests/support/data.h"
#include "tests/support/ranks.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <tamis/callback.h>
#include <time.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

enum { RANKS = 4, TIMEOUT_MS = 600, DELAY_MS = 3 };

static bool damages(tam_fault fault) {
    return fault == TAM_FAULT_FLIP || fault == TAM_FAULT_SPOIL;
}

static bool is_checked(const fault_config *config, tam_fault fault) {
    return !damages(fault) || strcmp(config->scheme, "dense") != 0;
}

static outcome outcome_of(const fault_config *config, uint64_t nth, tam_fault fault) {
    return (outcome){.config = config,
                     .nranks = RANKS,
                     .timeout_ms =
                         fault == TAM_FAULT_DELAY ? test_long_ms() : test_stretch_ms(TIMEOUT_MS),
                     .late = damages(fault),
                     .tells = fault != TAM_FAULT_SILENT,
                     .file = nth % 2 == 1};
}

static void finish(outcome *o, tam_fault fault, bool fired) {
    outcome_count(fired, o->failed);
    if (fault == TAM_FAULT_DELAY && o->failed)
        fail_msg("[%s] harmed by a delay", test_context_text());
    if (fired && !o->failed && (fault == TAM_FAULT_ERROR || fault == TAM_FAULT_SILENT))
        fail_msg("[%s] nobody noticed", test_context_text());
    outcome_free(o);
}

/* -- shared memory ---------------------------------------------------------------------------- */

/* @return whether there is such an operation */
static bool try_operation(const fault_config *config, tam_fault fault, uint64_t nth) {
    static const char *const names[] = {"none", "error", "delay", "silent",
                                        "flip", "late",  "spoil"};
    tamis_comm *comms[RANKS];
    tamis_comm_config comm_config = TAMIS_COMM_CONFIG_INIT;
    outcome o = outcome_of(config, nth, fault);
    uint32_t rank = (uint32_t)(nth % RANKS);
    uint64_t random = data_mix(nth * 8 + fault) >> 8;
    comm_config.timeout_ms = o.timeout_ms;
    assert_int_equal(tamis_comm_create_local(RANKS, &comm_config, comms), TAMIS_OK);
    uint32_t argument = damages(fault) ? (uint32_t)random : DELAY_MS;
    assert_int_equal(tam_faulty_install(comms[rank], fault, nth, argument), TAMIS_OK);
    test_context("%s over shared memory: %s at operation %llu of rank %u", config->name,
                 names[fault], (unsigned long long)nth, rank);
    outcome_try(&o, comms);
    bool fired = tam_faulty_fired(comms[rank]);
    finish(&o, fault, fired);
    for (uint32_t r = 0; r < RANKS; r++)
        tamis_comm_destroy(comms[r]);
    return fired;
}

static void any_fault_of_an_operation_is_found(void **state) {
    enum { MOST = 60 };
    const fault_config *config;
    (void)state;
    for (size_t c = 0; (config = fault_config_at(c)); c++) {
        if (!outcome_drawn())
            continue;
        uint64_t count = 0;
        while (count < MOST && try_operation(config, TAM_FAULT_DELAY, count))
            count++;
        assert_true(count > ATTEMPT_STEPS && count < MOST);
        for (int fault = TAM_FAULT_ERROR; fault <= (int)TAM_FAULT_SPOIL; fault++) {
            uint64_t stride = fault == TAM_FAULT_SILENT ? outcome_stride(count) : 1;
            bool tried = fault != TAM_FAULT_DELAY && is_checked(config, (tam_fault)fault);
            for (uint64_t nth = c % stride; tried && nth < count; nth += stride)
                try_operation(config, (tam_fault)fault, nth);
        }
    }
}

/* -- the caller's all-gather ------------------------------------------------------------------ */

typedef enum kind {
    RETURNS_ERROR,
    RETURNS_NONSENSE, /* no status at all */
    DAMAGES_OWN,      /* a bit of what this rank gets */
    DAMAGES_ALL,      /* a bit of what this rank gives */
    LEAVES_OUT,       /* what a rank gave is not there */
    SILENT,           /* never comes */
    KINDS
} kind;

/* The rendezvous of all ranks; who waits too long leaves with TAMIS_E_TIMEOUT. */
typedef struct board {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    const void *sends[RANKS];
    size_t bytes[RANKS];
    uint32_t came, left;
    uint64_t round;
    uint32_t timeout_ms;
} board;

typedef struct endpoint {
    board *board;
    uint32_t rank;
    kind what;
    bool fires, fired;
    uint64_t nth, count, random;
} endpoint;

/* @return whether all have come, or left so that the next round is on, before the deadline */
static bool await(board *b, uint64_t round, const uint32_t *count) {
    struct timespec end;
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += b->timeout_ms / 1000;
    end.tv_nsec += (long)(b->timeout_ms % 1000) * 1000000;
    end.tv_sec += end.tv_nsec / 1000000000;
    end.tv_nsec %= 1000000000;
    while (*count < RANKS && b->round == round) {
        if (pthread_cond_timedwait(&b->changed, &b->lock, &end) != 0)
            return *count == RANKS || b->round != round;
    }
    return true;
}

static tamis_status rendezvous(endpoint *s, const void *send, void *recv, size_t bytes,
                               bool leaves_out) {
    board *b = s->board;
    uint64_t round = b->round;
    b->sends[s->rank] = send;
    b->bytes[s->rank] = bytes;
    b->came++;
    pthread_cond_broadcast(&b->changed);
    if (!await(b, round, &b->came))
        return TAMIS_E_TIMEOUT;
    for (uint32_t r = 0; r < RANKS; r++) {
        if (b->bytes[r] != bytes)
            return TAMIS_E_PROTOCOL;
        if (!leaves_out || r != (s->rank + 1) % RANKS)
            memcpy((unsigned char *)recv + r * bytes, b->sends[r], bytes);
    }
    if (++b->left == RANKS) {
        b->came = b->left = 0;
        b->round++;
    }
    pthread_cond_broadcast(&b->changed);
    return await(b, round, &b->left) ? TAMIS_OK : TAMIS_E_TIMEOUT;
}

static void flip(const endpoint *s, unsigned char *memory, size_t bytes) {
    if (bytes > 0)
        memory[s->random / 8 % bytes] ^= (unsigned char)(1u << s->random % 8);
}

static tamis_status allgather(void *context, const void *send, void *recv, size_t bytes) {
    endpoint *s = context;
    bool hit = s->count++ == s->nth && s->fires;
    s->fired = s->fired || hit;
    if (hit && (s->what == RETURNS_ERROR || s->what == RETURNS_NONSENSE))
        return s->what == RETURNS_ERROR ? TAMIS_E_ABORTED : (tamis_status)12345;
    if (hit && s->what == SILENT) {
        sleep_ms(2 * s->board->timeout_ms);
        return TAMIS_E_TIMEOUT;
    }
    unsigned char *copy = malloc(bytes + 1);
    memcpy(copy, send, bytes);
    if (hit && s->what == DAMAGES_ALL)
        flip(s, copy, bytes);
    pthread_mutex_lock(&s->board->lock);
    tamis_status status = rendezvous(s, copy, recv, bytes, hit && s->what == LEAVES_OUT);
    pthread_mutex_unlock(&s->board->lock);
    if (hit && s->what == DAMAGES_OWN)
        flip(s, recv, bytes * RANKS);
    free(copy);
    return status;
}

static tamis_comm *open_endpoint(endpoint *s, uint32_t timeout_ms) {
    tamis_callbacks callbacks = TAMIS_CALLBACKS_INIT;
    tamis_comm_config config = TAMIS_COMM_CONFIG_INIT;
    tamis_comm *comm = NULL;
    config.timeout_ms = timeout_ms;
    callbacks.rank = s->rank;
    callbacks.nranks = RANKS;
    callbacks.context = s;
    callbacks.allgather = allgather;
    if (tamis_comm_create_callback(&callbacks, &config, &comm) != TAMIS_OK)
        fail_msg("tamis_comm_create_callback: %s", tamis_last_error());
    return comm;
}

static const tam_fault like[KINDS] = {TAM_FAULT_ERROR, TAM_FAULT_ERROR, TAM_FAULT_FLIP,
                                      TAM_FAULT_SPOIL, TAM_FAULT_FLIP,  TAM_FAULT_SILENT};

/* @param  fires  false: no fault  @return calls of rank 0 */
static uint64_t try_gather(const fault_config *config, kind what, bool fires, uint64_t nth) {
    static const char *const names[KINDS] = {"error",   "nonsense", "damaged for itself",
                                             "damaged", "left out", "silent"};
    tamis_comm *comms[RANKS];
    endpoint endpoints[RANKS];
    outcome o = outcome_of(config, nth, fires ? like[what] : TAM_FAULT_DELAY);
    o.late = false;
    board b = {.lock = PTHREAD_MUTEX_INITIALIZER,
               .changed = PTHREAD_COND_INITIALIZER,
               .timeout_ms = o.timeout_ms / 2};
    uint32_t rank = (uint32_t)(nth % RANKS);
    for (uint32_t r = 0; r < RANKS; r++) {
        endpoints[r] = (endpoint){.board = &b,
                                  .rank = r,
                                  .what = what,
                                  .fires = fires && r == rank,
                                  .nth = nth,
                                  .random = data_mix(nth * KINDS + what) >> 8};
        comms[r] = open_endpoint(&endpoints[r], o.timeout_ms);
    }
    test_context("%s over an all-gather: %s at call %llu of rank %u", config->name, names[what],
                 (unsigned long long)nth, rank);
    outcome_try(&o, comms);
    finish(&o, fires ? like[what] : TAM_FAULT_DELAY, endpoints[rank].fired);
    for (uint32_t r = 0; r < RANKS; r++)
        tamis_comm_destroy(comms[r]);
    return endpoints[0].count;
}

static void any_fault_of_an_allgather_is_found(void **state) {
    const fault_config *config;
    (void)state;
    for (size_t c = 0; (config = fault_config_at(c)); c++) {
        if (!outcome_drawn())
            continue;
        uint64_t count = try_gather(config, RETURNS_ERROR, false, 0);
        uint64_t stride = outcome_stride(count);
        assert_true(count > ATTEMPT_STEPS);
        for (kind what = 0; what < KINDS; what++) {
            uint64_t first = (c + what) % stride;
            for (uint64_t nth = first; nth < count; nth += stride)
                try_gather(config, what, true, nth);
        }
    }
    outcome_show();
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_fault_of_an_operation_is_found),
        cmocka_unit_test(any_fault_of_an_allgather_is_found),
    };
    outcome_arguments(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
