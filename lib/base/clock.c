/* SPDX-License-Identifier: MIT */
#include "lib/base/base.h"

#include <sched.h>
#include <time.h>

uint64_t tam_clock_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

void tam_relax(unsigned tries) {
    /* Ranks often share cores. Yielding answers soon when each has one; long waits sleep, and so
     * leave the core to the rank that is waited for. */
    if (tries < 1000)
        sched_yield();
    else
        nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
}
