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
    /* Ranks often share cores: spinning would take the core from the rank that is waited for. */
    if (tries < 20000) {
        sched_yield();
        return;
    }
    nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
}
