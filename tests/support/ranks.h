/* SPDX-License-Identifier: MIT
 *
 * Ranks as threads. A body runs once per rank; a watchdog ends the process with a message if they
 * do not return. cmocka's asserts work on the main thread only, so a rank that finds an error
 * leaves a message, and the test fails with it when all ranks have returned.
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

/** Run ranks over communicators that the caller made and destroys. */
void ranks_run_on(tamis_comm *const *comms, uint32_t nranks, rank_body body, void *shared);

/** Set what is being tried: it begins every failure message, and the watchdog's. Main thread. */
void test_context(const char *format, ...) __attribute__((format(printf, 1, 2)));
const char *test_context_text(void);

/** Wait for all ranks, outside the library. @return false if a rank has left its body. */
bool rank_barrier(test_rank *self);

/** Leave a message and abandon the communicator, so that the other ranks do not wait. */
void rank_fail(test_rank *self, const char *file, int line, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/** As rank_fail if `got` is not `expected`. @return whether it is. */
bool rank_status(test_rank *self, const char *file, int line, const char *call,
                 tamis_status expected, tamis_status got);

/* In a body: record the place, check, leave the body if the check fails. */
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

/** Whether a message holds one of the words, which are separated by '|'. */
bool has_word(const char *sentence, const char *words);

/** Set another deadline for a communicator. Use it once everything that must succeed on a busy
 * machine is done, for calls that are meant to run into it. A communicator's jobs obey it;
 * transports may not. */
void test_deadline(tamis_comm *comm, uint32_t timeout_ms);

/** Monotonic milliseconds. */
uint64_t now_ms(void);

void sleep_ms(uint32_t ms);

/** Whether at most `live` allocations are left, now or within 20 s: the thread of an abandoned
 * source frees its memory when it returns, and on a busy machine any source may be abandoned. */
bool test_freed(uint64_t live);

/** Stride over many similar cases: 1, or `few` if TEST_FEW is set (tests/run.sh) or under a
 * sanitizer, which checks the use of memory and threads, not results. */
uint32_t test_stride(uint32_t few);

/** Whether to run the next case of a grid: like test_stride, for several axes. If `few` shares no
 * factor with their lengths, each value of each axis occurs. TEST_DRAW, a number, is how many cases
 * came before the first: another one draws others. */
bool test_drawn(uint32_t few);

#endif
