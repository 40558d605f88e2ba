/* SPDX-License-Identifier: MIT
 *
 * Time limits of tests. How busy the machine is, is measured once, when a program first asks; every
 * limit grows with that, so that no test fails because others keep the machine busy.
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

/** Factor for time limits: 1 where a thread gets a third of a core at least, then in proportion, up
 * to LOAD_MOST; TAMIS_TEST_SLOW at least, if that is set. */
uint32_t test_load(void);
enum { LOAD_MOST = 12 };

/** From now on the factor is this one: processes that wait for each other need one for all. */
void test_load_agree(uint32_t load);

/** Factor for processor time: 1, or 10 under a sanitizer, times TAMIS_TEST_SLOW if that is set. */
uint32_t test_slowness(void);

/** A deadline that is to be met in vain, but long enough for all that goes before it: `ms` on an
 * idle machine; under a sanitizer three times that. */
uint32_t test_stretch_ms(uint32_t ms);

/** The usual one. */
uint32_t test_short_ms(void);

/** A deadline of what succeeds. */
uint32_t test_long_ms(void);

/** Milliseconds that a call may take beyond its deadline, or in place of no time at all: a busy
 * machine gives a thread its turn late, and who forgets a deadline does not come back at all. */
uint32_t test_grace_ms(void);

#endif
