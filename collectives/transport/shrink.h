/* SPDX-License-Identifier: MIT
 *
 * What transports share when they go on with the ranks that are left, or with more.
 */
#ifndef TAM_TRANSPORT_SHRINK_H
#define TAM_TRANSPORT_SHRINK_H

#include "collectives/transport/comm.h"

/** Record which old ranks those of a new communicator are. Destroys it on failure.
 * @param  ranks  [in]  [comm->nranks], ascending */
tamis_status tam_comm_record_before(tamis_comm **comm, const uint32_t *ranks);

/** Over the new network all ranks compare what their callers call left. Collective; MISMATCH on
 * all, and the failure of one rank. @param own  status of this rank so far, with its sentence */
tamis_status tam_shrink_compare(tamis_comm *comm, const tam_left *left, tamis_status own);

/** An entry of transports that cannot: UNSUPPORTED, and the way by a restart. */
tamis_status tam_shrink_refuse(void *self, const tam_left *left, tamis_comm **out);
tamis_status tam_grow_refuse(void *self, const tam_growth *how, tamis_comm **out);

#endif
