/* SPDX-License-Identifier: MIT
 *
 * Time limits of tests. The machine's load is measured once, when a program first asks; every limit
 * grows with it, so that no test fails because others keep the machine busy.
 */
#ifndef TEST_LOAD_H
#define TEST_LOAD_H

#include <stdint.h>

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define TEST_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer) || __has_feature(address_sanitizer)
#define TEST_SANITIZED 1
#endif
#endif
#ifndef TEST_SANITIZED
#define TEST_SANITIZED 0
#endif

/** Factor for time limits: 1 if a thread gets at least a third of a core, else in proportion, up to
 * LOAD_MOST; at least TAMIS_TEST_SLOW, if that is set. */
uint32_t test_load(void);
enum { LOAD_MOST = 12 };

/** Set the factor: processes that wait for each other need a common one. */
void test_load_agree(uint32_t load);

/** Factor for processor time: 1, or 10 under a sanitizer, times TAMIS_TEST_SLOW if that is set. */
uint32_t test_slowness(void);

/** A deadline that is meant to expire, but long enough for all that must succeed before: `ms` on an
 * idle machine; under a sanitizer three times that. */
uint32_t test_stretch_ms(uint32_t ms);

/** The usual such deadline. */
uint32_t test_short_ms(void);

/** A deadline that is not meant to expire. */
uint32_t test_long_ms(void);

/** Milliseconds that a call may exceed its deadline, or take instead of no time: a busy machine
 * schedules a thread late, and a call that ignores its deadline never returns. */
uint32_t test_grace_ms(void);

#endif
