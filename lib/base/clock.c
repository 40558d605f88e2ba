/* SPDX-License-Identifier: MIT */
#include "lib/base/base.h"

#include <sched.h>
#include <time.h>

uint64_t tam_clock_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* A thread of the library may share its core with threads that compute. There a yield costs a time
 * slice of milliseconds; a sleep costs only its length, since its timer wakes the thread. Sleeps of
 * an eighth of the time waited so far make a wait at most an eighth longer. */
void tam_sleep_backoff(uint64_t waited_ns) {
    enum { MIN_NS = 2000, MAX_NS = 200000 };
    uint64_t length_ns = waited_ns / 8;
    tam_sleep(length_ns < MIN_NS ? MIN_NS : length_ns > MAX_NS ? MAX_NS : length_ns);
}

void tam_sleep(uint64_t ns) {
    struct timespec length = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
    nanosleep(&length, NULL);
}

static void back_off_asleep(unsigned tries) {
    static _Thread_local uint64_t begin_ns;
    uint64_t now_ns = tam_clock_ns();
    if (tries == 0)
        begin_ns = now_ns;
    tam_sleep_backoff(now_ns - begin_ns);
}

void tam_back_off(unsigned tries) {
    /* Ranks often share cores. A yield reacts fast if each rank has its own core; long waits sleep
     * and leave the core to the rank that is being waited for. */
    if (tam_thread_ours())
        back_off_asleep(tries);
    else if (tries < 1000)
        sched_yield();
    else
        tam_sleep(20000);
}
