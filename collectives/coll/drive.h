/* SPDX-License-Identifier: MIT */
#ifndef TAM_COLL_DRIVE_H
#define TAM_COLL_DRIVE_H

#include "collectives/coll/coll.h"

/** Wait until the collective that was begun is done. call->wire_bytes grows by what was sent. */
tamis_status tam_coll_run(tam_coll *coll, tam_call *call);

#endif
