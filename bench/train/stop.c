/* SPDX-License-Identifier: MIT */
#define _DEFAULT_SOURCE
#include "bench/train/stop.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tamis/stats.h>
#include <time.h>
#include <unistd.h>

enum { MESSAGE_BYTES = 1400 };
static const int64_t again_ns = 500000000;

/* A handler may use no locks, and nothing that another thread may be changing. Messages are used in
 * turn, so the one that the handler reads was complete before it was current. */
static atomic_int arrived;
static _Atomic int64_t arrived_ns;
static char messages[4][MESSAGE_BYTES];
static atomic_uint current;
static bool speaks;

static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static void say(void) {
    const char *message = messages[atomic_load(&current)];
    ssize_t written = speaks ? write(STDERR_FILENO, message, strlen(message)) : 0;
    (void)written; /* nobody could be told that this failed */
}

static void handle(int number) {
    int none = 0, kept = errno;
    int64_t now = now_ns();
    if (atomic_compare_exchange_strong(&arrived, &none, number)) {
        atomic_store(&arrived_ns, now);
        say();
    } else if (now - atomic_load(&arrived_ns) > again_ns) {
        signal(number, SIG_DFL); /* arrives when this returns */
        raise(number);
    }
    errno = kept;
}

/* -- flight recorders ------------------------------------------------------------------------- */

enum { WATCHED = 4096 };
static const tamis_comm *_Atomic watched[WATCHED];

static void write_flights(int number) {
    int kept = errno;
    (void)number;
    for (uint32_t r = 0; r < WATCHED; r++) {
        const tamis_comm *comm = atomic_load(&watched[r]);
        if (comm)
            tamis_comm_write_flight(comm, NULL);
    }
    errno = kept;
}

void stop_watch(uint32_t rank, const tamis_comm *comm) {
    struct sigaction action = {.sa_handler = write_flights, .sa_flags = SA_RESTART};
    const char *folder = getenv("TAMIS_FLIGHT");
    if (!folder || !folder[0] || rank >= WATCHED)
        return;
    atomic_store(&watched[rank], comm);
    sigemptyset(&action.sa_mask);
    sigaction(SIGUSR2, &action, NULL);
}

/* -- the end of a run ------------------------------------------------------------------------- */

void stop_install(bool speak) {
    static const int numbers[] = {SIGTERM, SIGINT, SIGUSR1};
    struct sigaction action = {.sa_handler = handle, .sa_flags = SA_RESTART};
    speaks = speak;
    sigemptyset(&action.sa_mask);
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        sigaction(numbers[i], &action, NULL);
    signal(SIGXFSZ, SIG_IGN); /* a file too large is then an error of write, and said */
}

int stop_signal(void) {
    return atomic_load(&arrived);
}

void stop_set_message(const char *text) {
    unsigned next = (atomic_load(&current) + 1) % 4;
    snprintf(messages[next], MESSAGE_BYTES, "%s\n", text);
    atomic_store(&current, next);
}
