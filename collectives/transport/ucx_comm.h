/* SPDX-License-Identifier: MIT
 *
 * Inside a communicator over UCX: ucx.c has the p2p contract, ucx_create.c makes one, of ranks that
 * ucx_rendezvous.c connects, ucx_shrink.c one of the ranks that are left, ucx_open.c either.
 */
#ifndef TAM_TRANSPORT_UCX_COMM_H
#define TAM_TRANSPORT_UCX_COMM_H

#include "collectives/coll/staged.h"
#include "collectives/transport/comm.h"
#include "collectives/transport/ucx_mesh.h"

/** What a rank that gives up tells the others. */
typedef struct tam_ucx_alarm {
    uint32_t rank, status;
    char cause[248];
} tam_ucx_alarm;

typedef struct tam_ucx {
    tam_ucx_mesh *mesh, *control;
    uint32_t rank, nranks;
    uint32_t *members;                              /* [nranks] of control */
    tam_ucx_operation *operations[TAM_P2P_TICKETS]; /* under way; NULL: none */
    tam_done done[TAM_P2P_TICKETS];                 /* since the last test */
    uint32_t ndone;
    ucs_status_t error; /* of a message from or to rank `with`; UCS_OK: none */
    uint32_t with;
    atomic_bool told;             /* this rank has told the others that it gives up */
    bool opening;                 /* others may have opened it, and given it up again */
    bool revoked;                 /* another has told this one */
    tam_ucx_alarm alarm;          /* what */
    tam_ucx_operation *listening; /* receives it */
} tam_ucx;

/** ucx_rendezvous.c: members of both, which are sized here, are all ranks of a network that can
 * gather. Collective, also where opening failed: `own` is what became of this rank so far, and all
 * return a failure if one does.
 * @param  data, control  NULL after a failure */
tamis_status tam_ucx_connect(tam_ucx_mesh *data, tam_ucx_mesh *control, tamis_status own,
                             const tamis_callbacks *rendezvous);

/** ucx_open.c: a communicator on connected meshes. It owns data, even on failure, and is a user of
 * control. Collective: may measure the network.
 * @param  members  [ranks of data] of control; copied */
tamis_status tam_ucx_open(const tam_transport *row, tam_ucx_mesh *data, tam_ucx_mesh *control,
                          const uint32_t *members, uint64_t deadline_ns,
                          const tamis_comm_config *config, tamis_comm **out);

tamis_status tam_ucx_shrink(void *arg, const tam_left *left, tamis_comm **out);

/** Post the receive of alarms. With the lock of the mesh held. */
bool tam_ucx_listen(tam_ucx *self);

extern const tam_p2p tam_ucx_p2p;

#endif
