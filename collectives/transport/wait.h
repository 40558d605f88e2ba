/* SPDX-License-Identifier: MIT
 *
 * How a thread waits that polls for other ranks.
 */
#ifndef TAM_TRANSPORT_WAIT_H
#define TAM_TRANSPORT_WAIT_H

#include "lib/base/base.h"
#include "lib/base/transport.h"

typedef struct tam_wait {
    tam_call *call;
    uint64_t begin_ns;
} tam_wait;

tam_wait tam_wait_begin(tam_call *call);

/** Between two looks at what is waited for: as call->waiting says. */
void tam_wait_pause(const tam_wait *wait);

/** The last rank has come: later waits of the call are for its messages alone. */
void tam_wait_end(const tam_wait *wait);

#endif
