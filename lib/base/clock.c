/* SPDX-License-Identifier: MIT */
#include "lib/base/base.h"

#include <sched.h>
#include <time.h>

uint64_t tam_clock_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Since the wait began that has come to its try number `tries`. */
static uint64_t waited_ns(unsigned tries) {
    static _Thread_local uint64_t begin_ns;
    uint64_t now_ns = tam_clock_ns();
    if (tries == 0)
        begin_ns = now_ns;
    return now_ns - begin_ns;
}

/* A thread of the library waits beside threads that compute, perhaps on their core. There a yield
 * costs a time slice of milliseconds, a nap only itself: its timer brings the thread back. Naps of an
 * eighth of the time waited so far make a wait an eighth longer at most. */
static void nap(uint64_t waited_ns) {
    enum { LEAST_NS = 2000, MOST_NS = 200000 };
    uint64_t length_ns = waited_ns / 8;
    length_ns = length_ns < LEAST_NS ? LEAST_NS : length_ns > MOST_NS ? MOST_NS : length_ns;
    nanosleep(&(struct timespec){.tv_nsec = (long)length_ns}, NULL);
}

void tam_relax(unsigned tries) {
    /* Ranks often share cores. Yielding answers soon when each has one; long waits sleep, and so
     * leave the core to the rank that is waited for. */
    if (tam_thread_ours())
        nap(waited_ns(tries));
    else if (tries < 1000)
        sched_yield();
    else
        nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
}

/* Naps on threads of the caller end some 50 us late (see thread.c): after so many yields that is
 * an eighth of the wait, too. */
void tam_relax_for(tamis_waiting waiting, unsigned tries) {
    enum { YIELDS_NS = 400000 };
    if (waiting == TAMIS_WAITING_SPIN)
        return;
    uint64_t so_far_ns = waited_ns(tries);
    if (waiting == TAMIS_WAITING_AUTO && !tam_thread_ours() && so_far_ns < YIELDS_NS)
        sched_yield();
    else
        nap(so_far_ns);
}
