/* SPDX-License-Identifier: MIT
 *
 * How a thread waits while it polls for other ranks.
 */
#ifndef TAM_TRANSPORT_WAIT_H
#define TAM_TRANSPORT_WAIT_H

#include "lib/base/base.h"
#include "lib/contracts/transport.h"

typedef struct tam_wait {
    tam_call *call;
    uint64_t begin_ns;
} tam_wait;

tam_wait tam_wait_begin(tam_call *call);

/** Pause between two polls, as call->waiting says. */
void tam_wait_pause(const tam_wait *wait);

enum { TAM_WAIT_TEXT = 112 };

/** For error texts: ", tamis_reducer_wait of step 7". @return text */
const char *tam_wait_call_text(const tam_call *call, char text[TAM_WAIT_TEXT]);

/** For error texts after a deadline: ", tamis_reducer_wait of step 7: waited 5.0 s".
 * @return text */
const char *tam_wait_time_text(const tam_call *call, char text[TAM_WAIT_TEXT]);

/** When the call will have waited for a tenth of its time, and at least a second, which is worth a
 * warning; never, if that was given. */
uint64_t tam_wait_warn_ns(const tam_call *call);

/** Give it, at level warn, and record it.
 * @param  missing  the ranks it waits for, as " 3 5"; the first of them */
void tam_wait_warn(tam_call *call, uint32_t rank, const char *missing, uint32_t first);

/** All ranks have come: later waits of the call are only for messages in flight. */
void tam_wait_end(const tam_wait *wait);

#endif
