/* SPDX-License-Identifier: MIT
 *
 * Calibrates a communicator that is being created: measures its network, and finds its plan
 * (lib/policy/calibration.h has the reasons and the rules).
 *
 *     1. exchanges of one to seven messages a rank, timed;   gathered: numbers of the network
 *     2. the model proposes a plan; the usual one: the end
 *     3. steps by both plans in turn, timed;                 gathered: which is taken
 *
 * Every rank gives its own times, and all decide by the medians over ranks. Two ranks exchange at
 * most 128 KiB at a time, and how often follows from the first times: a few ms for few ranks on one
 * host, a few round trips where those are long. Nothing is measured, or no more, where there is
 * less than a second until the deadline of any rank; and nothing tried that by the model takes more
 * than half of that time.
 */
#ifndef TAM_COLL_CALIBRATE_H
#define TAM_COLL_CALIBRATE_H

#include "collectives/coll/staged.h"

enum { TAM_CALIBRATE_LEFT_NS = 1000000000 };

/** At least 3 ranks, which work by the usual plan. Fills s->net, measured and gain. After a failure
 * the communicator is lost; memory that the p2p link may still use stays allocated.
 * @param  plan  [out]  that all ranks shall take */
tamis_status tam_calibrate(tam_staged *s, tam_call *call, tam_plan *plan);

#endif
