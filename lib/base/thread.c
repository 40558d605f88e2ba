/* SPDX-License-Identifier: MIT */
#include "lib/base/base.h"

#ifdef __linux__
#include <linux/sched/types.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

static _Thread_local bool ours;

#ifdef __linux__
/* MPI may yield in every poll (mpi_yield_when_idle). Who yields forfeits the rest of its time
 * slice, and beside threads that compute, on their core, then waits for theirs: some 10 ms a poll.
 * Of a short slice little is lost. Priority and share of the core stay as they are. Linux 6.12 and
 * later; others take no note of it. */
static void shorten_slices(void) {
    enum { SLICE_NS = 100000 }; /* the least there is */
    struct sched_attr attr = {0};
    if (syscall(SYS_sched_getattr, 0, &attr, sizeof attr, 0) != 0 || attr.sched_policy != 0)
        return; /* 0: the policy of ordinary threads, which alone has such slices */
    attr.sched_runtime = SLICE_NS;
    syscall(SYS_sched_setattr, 0, &attr, 0);
}
#endif

/* Timers of the kernel may be late by 50 us, so that several end together; not ours. */
void tam_thread_claim(void) {
    ours = true;
#ifdef __linux__
    prctl(PR_SET_TIMERSLACK, 1ul, 0ul, 0ul, 0ul);
    shorten_slices();
#endif
}

bool tam_thread_ours(void) {
    return ours;
}
