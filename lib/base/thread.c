/* SPDX-License-Identifier: MIT */
#include "lib/base/base.h"

static _Thread_local bool ours;

void tam_thread_claim(void) {
    ours = true;
}

bool tam_thread_ours(void) {
    return ours;
}
