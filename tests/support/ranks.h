/* SPDX-License-Identifier: MIT
 *
 * Ranks as threads. A body runs once per rank; a watchdog ends the process loudly when they do not
 * come back. cmocka's asserts belong to the main thread only, so a rank that finds something wrong
 * leaves a sentence, and the test fails with it when all ranks are back.
 */
#ifndef TEST_RANKS_H
#define TEST_RANKS_H

#include "tests/support/load.h"
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <tamis/tamis.h>

enum { RANKS_MOST = 32, RANKS_SENTENCE = 768 };

typedef struct ranks ranks;

typedef struct test_rank {
    uint32_t id, nranks;
    tamis_comm *comm;
    void *shared; /* what ranks_run was given */
    ranks *all;
    const char *_Atomic where; /* for the watchdog */
    atomic_bool left;
    char failure[RANKS_SENTENCE];
} test_rank;

typedef void (*rank_body)(test_rank *self);

/** Run `body` on every rank of new local communicators; fails the test if a rank failed.
 *  @param timeout_ms  of the communicators; 0: test_long_ms() */
void ranks_run(uint32_t nranks, uint32_t timeout_ms, rank_body body, void *shared);

/** The same over communicators that the caller made and destroys. */
void ranks_run_on(tamis_comm *const *comms, uint32_t nranks, rank_body body, void *shared);

/** What is being tried: opens the message of every failure and of the watchdog. Main thread. */
void test_context(const char *format, ...) __attribute__((format(printf, 1, 2)));
const char *test_context_text(void);

/** Wait for all ranks, outside the library. @return false if a rank has left its body. */
bool rank_barrier(test_rank *self);

/** Leave a sentence and give the communicator up, so that the other ranks do not wait. */
void rank_fail(test_rank *self, const char *file, int line, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/** As rank_fail if `got` is not `expected`. @return whether it is. */
bool rank_status(test_rank *self, const char *file, int line, const char *call,
                 tamis_status expected, tamis_status got);

/* In a body: note the place, check, leave the body when the check fails. */
#define RANK_STATUS(self, expected, call)                                                          \
    do {                                                                                           \
        (self)->where = #call;                                                                     \
        if (!rank_status(self, __FILE__, __LINE__, #call, expected, call))                         \
            return;                                                                                \
    } while (0)

#define RANK_OK(self, call) RANK_STATUS(self, TAMIS_OK, call)

#define RANK_CHECK(self, condition, ...)                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            rank_fail(self, __FILE__, __LINE__, __VA_ARGS__);                                      \
            return;                                                                                \
        }                                                                                          \
    } while (0)

/** Whether a sentence holds one of the words, which are separated by '|'. */
bool has_word(const char *sentence, const char *words);

/** Another deadline for a communicator from now on: of what must come to it by waiting in vain,
 * after all that must succeed however busy the machine is. Jobs of a communicator take it,
 * transports need not. */
void test_deadline(tamis_comm *comm, uint32_t timeout_ms);

/** Monotonic milliseconds. */
uint64_t now_ms(void);

void sleep_ms(uint32_t ms);

/** Whether no more than `live` allocations are left, at once or within 20 s: a thread of a source
 * that was given up frees what it has when it comes back, and on a busy machine each may be given
 * up. */
bool test_freed(uint64_t live);

/** Of many alike cases every which one: all, or each `few`-th if TEST_FEW is in the environment
 * (tests/run.sh --quick), and under a sanitizer, which looks at how memory and threads are used,
 * and not at results. */
uint32_t test_stride(uint32_t few);

/** Whether a case of a grid, the next one, is to be run: as test_stride, for grids of several axes.
 * With a `few` that shares no factor with their lengths each value of each axis comes up. */
bool test_drawn(uint32_t few);

#endif
