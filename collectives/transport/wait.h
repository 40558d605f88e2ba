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

enum { TAM_LATE_TEXT = 112 };

/** For a sentence: ", tamis_reducer_wait of step 7". @return text */
const char *tam_wait_place(const tam_call *call, char text[TAM_LATE_TEXT]);

/** For the sentence of a deadline that has passed: ", tamis_reducer_wait of step 7: waited 5.0 s".
 * @return text */
const char *tam_wait_late(const tam_call *call, char text[TAM_LATE_TEXT]);

/** The last rank has come: later waits of the call are for its messages alone. */
void tam_wait_end(const tam_wait *wait);

#endif
