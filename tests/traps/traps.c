/* SPDX-License-Identifier: MIT
 *
 * With TEST_TRAPS set a test program and all its threads are stopped by SIGFPE at the first
 * floating-point operation that is invalid, divides by zero or overflows, as in programs that debug
 * their numbers. Linked into programs of tests; runs before main.
 */
#include <fenv.h>
#include <stdio.h>
#include <stdlib.h>

static __attribute__((constructor)) void enable_traps(void) {
    if (!getenv("TEST_TRAPS"))
        return;
#ifdef __GLIBC__
    if (feenableexcept(FE_INVALID | FE_DIVBYZERO | FE_OVERFLOW) != -1)
        return;
#endif
    fprintf(stderr, "traps: this processor or C library has none; the test runs without\n");
}
