/* SPDX-License-Identifier: MIT
 *
 * A wait, from its begin until the last rank has come:
 *
 *     quiet   no rank is expected yet: long sleeps, a sixteenth of it each, but 0.2 to 5 ms
 *     eager   stay awake: most waits are short, and even 2 us of sleep cost 15 us of the processor
 *     sleep   for an eighth of the time that has passed since quiet
 *
 * The length of quiet comes from the last steps (skew.c); it is 0 if their waits differed too
 * much. If the rank comes during quiet, it is noticed at most one long sleep too late.
 */
#include "lib/transport/wait.h"

#include "lib/base/flight.h"

#include <inttypes.h>
#include <sched.h>
#include <stdio.h>

enum {
    QUIET_SLEEPS = 16,
    QUIET_MIN_NS = 200000,
    QUIET_MAX_NS = 5000000, /* an abort is noticed by then */
    SPIN_NS = 15000,        /* processor time that a sleep costs */
    SPIN_ALONE_NS = 50000,
    LATE_NS = 1000000000,
    YIELD_NS = 400000 /* the caller's sleeps end 50 us late (thread.c): an eighth of it */
};

const char *tam_wait_call_text(const tam_call *call, char text[TAM_WAIT_TEXT]) {
    char step[32] = "";
    if (call->number > 0)
        snprintf(step, sizeof step, " of step %" PRIu64, call->number - 1);
    snprintf(text, TAM_WAIT_TEXT, ", %.40s%s", call->purpose ? call->purpose : "a collective call",
             step);
    return text;
}

const char *tam_wait_time_text(const tam_call *call, char text[TAM_WAIT_TEXT]) {
    double waited_s = 1e-9 * (double)(tam_clock_ns() - call->begin_ns);
    size_t length = strlen(tam_wait_call_text(call, text));
    snprintf(text + length, TAM_WAIT_TEXT - length, ": waited %.1f s", waited_s);
    return text;
}

uint64_t tam_wait_warn_ns(const tam_call *call) {
    if (call->warned || call->begin_ns == 0 || call->deadline_ns <= call->begin_ns)
        return UINT64_MAX;
    uint64_t tenth_ns = (call->deadline_ns - call->begin_ns) / 10;
    return call->begin_ns + (tenth_ns > LATE_NS ? tenth_ns : LATE_NS);
}

void tam_wait_warn(tam_call *call, uint32_t rank, const char *missing, uint32_t first) {
    uint64_t now_ns = tam_clock_ns(), waited_ns = now_ns - call->begin_ns;
    char what[TAM_WAIT_TEXT];
    const tam_event e = {.kind = TAM_FLIGHT_LATE,
                         .step = call->number,
                         .number = call->collective,
                         .other = first,
                         .bytes = waited_ns};
    call->warned = true;
    tam_flight_record(call->flight, &e);
    tam_log(TAM_WARN, "rank %u%s: has waited %.1f s for rank(s)%s, and gives up in %.1f s", rank,
            tam_wait_call_text(call, what), 1e-9 * (double)waited_ns, missing,
            1e-9 * (double)(call->deadline_ns > now_ns ? call->deadline_ns - now_ns : 0));
}

tam_wait tam_wait_begin(tam_call *call) {
    return (tam_wait){call, tam_clock_ns()};
}

static void sleep_quietly(const tam_wait *w, uint64_t now_ns) {
    uint64_t left_ns = w->call->quiet_until_ns - now_ns;
    uint64_t length_ns = (w->call->quiet_until_ns - w->begin_ns) / QUIET_SLEEPS;
    if (length_ns < QUIET_MIN_NS)
        length_ns = QUIET_MIN_NS;
    if (length_ns > QUIET_MAX_NS)
        length_ns = QUIET_MAX_NS;
    tam_sleep(length_ns < left_ns ? length_ns : left_ns);
}

/* The library's thread has a core to itself only while the caller sleeps. It spins, for a yield may
 * cost it a time slice. @return  whether it is too early to sleep */
static bool stay_awake(const tam_call *call, uint64_t waited_ns) {
    if (call->waiting == TAMIS_WAITING_SLEEP)
        return false;
    bool alone = call->blocked && atomic_load(call->blocked) > 0;
    if (tam_thread_ours())
        return waited_ns < (alone ? SPIN_ALONE_NS : SPIN_NS);
    if (waited_ns >= YIELD_NS)
        return false;
    sched_yield();
    return true;
}

void tam_wait_pause(const tam_wait *w) {
    const tam_call *call = w->call;
    if (call->waiting == TAMIS_WAITING_SPIN)
        return;
    uint64_t now_ns = tam_clock_ns();
    if (now_ns < call->quiet_until_ns) {
        sleep_quietly(w, now_ns);
        return;
    }
    uint64_t from_ns = w->begin_ns > call->quiet_until_ns ? w->begin_ns : call->quiet_until_ns;
    if (!stay_awake(call, now_ns - from_ns))
        tam_sleep_backoff(now_ns - from_ns);
}

void tam_wait_end(const tam_wait *w) {
    w->call->quiet_until_ns = 0;
}
