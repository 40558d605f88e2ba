/* SPDX-License-Identifier: MIT
 *
 * Inside a communicator over UCX: ucx.c has the p2p contract, ucx_create.c makes one of processes
 * that ucx_rendezvous.c connects, ucx_shrink.c one of the ranks that are left, ucx_grow.c one with
 * newcomers, ucx_open.c all of them.
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
    bool goes_on;                 /* a communicator was made of this one */
    bool silenced, silent;        /* it was tried to end all messages, and they have ended */
    bool opening;                 /* others may have opened it, and given it up again */
    bool revoked;                 /* another has told this one */
    tam_ucx_alarm alarm;          /* what */
    tam_ucx_operation *listening; /* receives it */
} tam_ucx;

/** ucx_rendezvous.c: the ranks of a network that can gather become the members of data, which has
 * none; each says which member of control it is, and who is not known there yet becomes known.
 * Collective, also where opening failed: `own` is what became of this rank so far, and all return a
 * failure if one does.
 * @param  data, control  NULL after a failure; control has room for all members
 * @param  members        [out]  [rendezvous->nranks] of control */
tamis_status tam_ucx_connect(tam_ucx_mesh *data, tam_ucx_mesh *control, tamis_status own,
                             const tamis_callbacks *rendezvous, uint32_t *members);

/** ucx_open.c: a communicator on connected meshes. It owns data, even on failure, and is a user of
 * control. Collective: may measure the network.
 * @param  members  [ranks of data] of control, ascending; copied */
tamis_status tam_ucx_open(const tam_transport *row, tam_ucx_mesh *data, tam_ucx_mesh *control,
                          const uint32_t *members, uint64_t deadline_ns,
                          const tamis_comm_config *config, tamis_comm **out);

/** ucx_open.c: another communicator goes on in its place. */
void tam_ucx_went_on(tam_ucx *self);

/** ucx_open.c: a mesh for control, with this call as its user (tam_ucx_mesh_release).
 * @param  out  [out]  may be made after a failure, too; else NULL */
tamis_status tam_ucx_control_open(uint32_t self, uint32_t nmembers, tam_ucx_mesh **out);

/** ucx_open.c: connect and open, by any rendezvous. Collective.
 * @param  control  has room for all members, of which this process is control->self
 * @param  own      what became of this rank so far */
tamis_status tam_ucx_create_over(const tam_transport *row, const tamis_callbacks *rendezvous,
                                 tam_ucx_mesh *control, tamis_status own, uint64_t deadline_ns,
                                 const tamis_comm_config *config, tamis_comm **out);

/** ucx_grow.c: the same, of old ranks and newcomers, who settle at the end that all have it.
 * @param  how  comm is NULL on newcomers
 * @param  out  [out]  NULL after a failure */
tamis_status tam_ucx_grow_together(const tam_transport *row, const tamis_callbacks *rendezvous,
                                   tam_ucx_mesh *control, const tam_growth *how, tamis_status own,
                                   uint32_t njoined, tamis_comm **out);

tamis_status tam_ucx_shrink(void *arg, const tam_left *left, tamis_comm **out);
tamis_status tam_ucx_grow(void *arg, const tam_growth *how, tamis_comm **out);

/** Post the receive of alarms. With the lock of the mesh held. */
bool tam_ucx_listen(tam_ucx *self);

extern const tam_p2p tam_ucx_p2p;

#endif
