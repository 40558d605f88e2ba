/* SPDX-License-Identifier: MIT
 *
 * Time limits of tests: measures how long a piece of processor time takes on this machine.
 */
#include "tests/support/load.h"

#include <pthread.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

/* Long enough to be interrupted a few times if others want the core, too. */
enum { PIECE_NS = 20000000, SHARES = 3 };

static pthread_once_t once = PTHREAD_ONCE_INIT;
static uint32_t factor;

static uint64_t read_ns(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

/* Wall time that passes while this thread gets PIECE_NS of processor time. */
static double time_of_work(void) {
    uint64_t begin_ns = read_ns(CLOCK_MONOTONIC), used_ns = read_ns(CLOCK_THREAD_CPUTIME_ID);
    while (read_ns(CLOCK_THREAD_CPUTIME_ID) - used_ns < PIECE_NS)
        ;
    return (double)(read_ns(CLOCK_MONOTONIC) - begin_ns) / PIECE_NS;
}

/* The scheduler prefers a thread that has slept, so a piece may look as on an idle machine. So this
 * takes the load of the last minute into account, too. */
static double length_of_queue(void) {
    double load[1];
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    return cores > 0 && getloadavg(load, 1) == 1 ? load[0] / (double)cores : 0.0;
}

static uint32_t asked(void) {
    const char *text = getenv("TAMIS_TEST_SLOW");
    long value = text ? strtol(text, NULL, 10) : 1;
    return value > 1 && value <= 1000 ? (uint32_t)value : 1;
}

static void measure(void) {
    double work = time_of_work(), queue = length_of_queue();
    double times = (work > queue ? work : queue) / SHARES;
    factor = times < 1 ? 1 : times > LOAD_MOST ? LOAD_MOST : (uint32_t)(times + 0.5);
    if (factor < asked())
        factor = asked();
}

uint32_t test_load(void) {
    pthread_once(&once, measure);
    return factor;
}

void test_load_agree(uint32_t load) {
    test_load();
    factor = load;
}

uint32_t test_slowness(void) {
    return (TEST_SANITIZED ? 10 : 1) * asked();
}

uint32_t test_stretch_ms(uint32_t ms) {
    return (TEST_SANITIZED ? 3 : 1) * ms * test_load();
}

uint32_t test_short_ms(void) {
    return test_stretch_ms(1000);
}

uint32_t test_long_ms(void) {
    return 20000 * test_load();
}

uint32_t test_grace_ms(void) {
    return 10000 * test_load();
}
