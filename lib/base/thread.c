/* SPDX-License-Identifier: MIT */
#include "lib/base/base.h"

#ifdef __linux__
#include <sys/prctl.h>
#endif

static _Thread_local bool ours;

/* Timers of the kernel may be late by 50 us, so that several end together; not ours. */
void tam_thread_claim(void) {
    ours = true;
#ifdef __linux__
    prctl(PR_SET_TIMERSLACK, 1ul, 0ul, 0ul, 0ul);
#endif
}

bool tam_thread_ours(void) {
    return ours;
}
