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
/* MPI may yield in every poll (mpi_yield_when_idle). A thread that yields forfeits the rest of its
 * time slice; if it shares its core with threads that compute, it then waits for their slices, some
 * 10 ms a poll. With a short slice it forfeits little. Priority and share of the core are
 * unchanged. Linux 6.12 and later; older kernels ignore it. */
static void shorten_slices(void) {
    enum { SLICE_NS = 100000 }; /* the shortest allowed */
    struct sched_attr attr = {0};
    if (syscall(SYS_sched_getattr, 0, &attr, sizeof attr, 0) != 0 || attr.sched_policy != 0)
        return; /* only policy 0, that of ordinary threads, has such slices */
    attr.sched_runtime = SLICE_NS;
    syscall(SYS_sched_setattr, 0, &attr, 0);
}
#endif

/* By default the kernel may fire timers 50 us late to batch them; 1 ns of slack turns that off. */
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
