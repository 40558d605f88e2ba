/* SPDX-License-Identifier: MIT
 *
 * A transport that records begin and end of every collective and passes it on. Jobs get it in place
 * of the communicator's own, so that a collective is counted once, whoever makes it.
 */
#ifndef TAM_TRANSPORT_RECORDED_H
#define TAM_TRANSPORT_RECORDED_H

#include "lib/base/flight.h"
#include "lib/contracts/transport.h"

typedef struct tam_recorded {
    tam_transport row; /* what jobs see; its self is this struct */
    const tam_transport *inner;
    void *self;
    tam_flight *flight;
    uint32_t number; /* of the last collective */
} tam_recorded;

/** Before each job: the communicator's transport may have been replaced. */
void tam_recorded_wrap(tam_recorded *recorded, const tam_transport *inner, void *self);

#endif
