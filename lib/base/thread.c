/* SPDX-License-Identifier: MIT */
#include "lib/base/base.h"

#ifdef __linux__
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

static _Thread_local bool ours;

#ifdef __linux__
/* struct sched_attr as the first kernel that knew it had it: the C library gives none. */
typedef struct scheduling {
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t slice_ns, deadline_ns, period_ns; /* slice: of ordinary threads since Linux 6.12 */
} scheduling;

/* A thread that works in bursts of microseconds, beside others that compute: a short slice lets it
 * run as soon as it wakes, and timers must not be late by the 50 us that the kernel allows itself.
 * Neither needs a privilege, nor does a refusal matter. */
static void ask_for_promptness(void) {
    scheduling s = {.size = sizeof s};
    if (syscall(SYS_sched_getattr, 0, &s, sizeof s, 0) == 0 && s.policy == 0) {
        s.slice_ns = 100000; /* the least there is */
        syscall(SYS_sched_setattr, 0, &s, 0);
    }
    prctl(PR_SET_TIMERSLACK, 1ul, 0ul, 0ul, 0ul);
}
#else
static void ask_for_promptness(void) {
}
#endif

void tam_thread_claim(void) {
    ours = true;
    ask_for_promptness();
}

bool tam_thread_ours(void) {
    return ours;
}
