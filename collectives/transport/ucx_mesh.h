/* SPDX-License-Identifier: MIT
 *
 * A worker of UCX with endpoints to other processes, its members. A communicator has two:
 *
 *     data       of its own: over shared memory, too. A process that is killed while it writes into
 *                another's shared memory may leave a queue there that never moves again, so nothing
 *                that comes after a death relies on it
 *     control    shared with the communicators that are made of it when ranks are gone: over
 *                networks alone, whose connections end with their process
 *
 * A member of `data` is a rank, a member of `control` what was a rank of the first communicator.
 */
#ifndef TAM_TRANSPORT_UCX_MESH_H
#define TAM_TRANSPORT_UCX_MESH_H

#include "collectives/transport/ucx_library.h"
#include "collectives/transport/ucx_watch.h"
#include "lib/contracts/p2p.h"

#include <pthread.h>
#include <stdatomic.h>
#include <tamis/callback.h>

/** What a message is, in its tag. */
typedef enum tam_ucx_kind {
    TAM_UCX_DATA,    /* of collectives */
    TAM_UCX_ALARM,   /* the sender gives up */
    TAM_UCX_GOODBYE, /* the sender leaves, and owes nothing */
    TAM_UCX_JOIN,    /* ucx_decide.h, over control */
    TAM_UCX_DECIDE
} tam_ucx_kind;

static inline ucp_tag_t tam_ucx_tag(tam_ucx_kind kind, uint32_t member, uint32_t channel) {
    return (uint64_t)kind << 56 | (uint64_t)member << 8 | channel;
}

enum { TAM_UCX_MEMBERS = 1 << 20, TAM_UCX_OPERATIONS = 3 * TAM_P2P_TICKETS };
#define TAM_UCX_EXACTLY UINT64_MAX
#define TAM_UCX_ANY_MEMBER (UINT64_C(0xff) << 56) /* of one kind */

/** Whether a member is still among the users of a mesh, as it says itself. */
typedef enum tam_ucx_parting {
    TAM_UCX_STAYS,
    TAM_UCX_LEAVES, /* it owes nothing, and takes nothing */
    TAM_UCX_GOES_ON /* with a communicator that was made of this one: over control it lives */
} tam_ucx_parting;

typedef struct tam_ucx_member {
    struct tam_ucx_mesh *mesh;
    void *address;     /* of an endpoint that is made when it is needed; NULL: it is made */
    ucp_ep_h endpoint; /* NULL: of this process, or not made, or closed */
    ucs_status_t gone; /* UCS_OK: it lives, as far as is known */
    tam_ucx_parting parting;
} tam_ucx_member;

/** A message under way. */
typedef struct tam_ucx_operation {
    struct tam_ucx *owner; /* NULL: nobody waits for it */
    uint32_t ticket, peer;
    bool sends;
    bool begins; /* its call has not returned */
    bool ended;  /* meanwhile, with */
    ucs_status_t status;
    size_t bytes;
    void *request; /* NULL: it was complete at once */
    struct tam_ucx_operation *next;
    struct tam_ucx_mesh *mesh;
} tam_ucx_operation;

typedef struct tam_ucx_mesh {
    pthread_mutex_t lock; /* of all that follows, and of calls to the worker */
    const tam_ucx_library *ucx;
    ucp_context_h context;
    ucp_worker_h worker;
    uint32_t self, nmembers;
    tam_ucx_member **members; /* [nmembers], which only grow, each at its place */
    int *watches;             /* [nmembers] of processes of this host; -1: none */
    bool *ended;              /* [nmembers] scratch */
    uint64_t looked_ns;       /* at them */
    tam_identity identity;    /* of this process */
    uint32_t ngone;           /* members */
    atomic_uint under_way;    /* messages; to be read without the lock, too */
    tam_ucx_operation operations[TAM_UCX_OPERATIONS], *free;

    /* of control */
    uint32_t users;                  /* communicators, and who makes one */
    uint32_t attempts;               /* of this rank to go on with the ranks that are left */
    bool left_behind;                /* others have gone on without this rank */
    struct tam_newcomers *newcomers; /* that come to this rank; NULL: it does not listen */
    uint64_t newcomers_at;           /* a hash of the address */
    bool listened;                   /* some rank did */
    bool unheard;                    /* none can any more */
} tam_ucx_mesh;

/** A worker without members. UNSUPPORTED: no UCX. */
tamis_status tam_ucx_mesh_open(bool control, tam_ucx_mesh **out);

/** Room for that many members. NOMEM: those from before stay. With the lock held, if others use it.
 */
tamis_status tam_ucx_mesh_extend(tam_ucx_mesh *mesh, uint32_t nmembers);

/** The address of the worker, and whose it is, a copy. NULL: no memory. */
void *tam_ucx_mesh_address(tam_ucx_mesh *mesh, size_t *bytes);

/** Without endpoints. */
void tam_ucx_mesh_free(tam_ucx_mesh *mesh);

/** Close all endpoints. Nobody else makes calls with the worker; nothing is sent any more.
 * @return  whether all messages have ended */
bool tam_ucx_mesh_end(tam_ucx_mesh *mesh, tam_ucx_parting parting, bool waits);

/** End and free it. Nobody else uses it.
 * @param  parting  what to tell all members; STAYS: nothing
 * @param  waits    for what they say, for a moment
 * @return  false: it does not end, so messages may use their memory until the process ends */
bool tam_ucx_mesh_close(tam_ucx_mesh *mesh, tam_ucx_parting parting, bool waits);

/** One user less of a mesh for control: the last one closes it. */
void tam_ucx_mesh_release(tam_ucx_mesh *control);

/* -- with the lock held ----------------------------------------------------------------------- */

/** Make an endpoint. */
tamis_status tam_ucx_mesh_reach(tam_ucx_mesh *mesh, uint32_t member, const void *address);

/** Progress, until there is nothing to do for now or something has come to its end. */
void tam_ucx_mesh_progress(tam_ucx_mesh *mesh);

/** NULL: there is none left. */
tam_ucx_operation *tam_ucx_operation_take(tam_ucx_mesh *mesh);
void tam_ucx_operation_give(tam_ucx_operation *operation);

/** Notice the end of a member whose address is known from now on. Connects to another host alone:
 * UCX 1.13 may end a process where two connect to each other at once. */
void tam_ucx_mesh_watch(tam_ucx_mesh *mesh, uint32_t member);

/** Make the endpoint of a member whose address is known. */
void tam_ucx_mesh_connect(tam_ucx_mesh *mesh, uint32_t member);

/** What a member has said. */
tam_ucx_parting tam_ucx_member_parting(tam_ucx_mesh *mesh, uint32_t member);

/** Close the endpoints of members that are gone: what is under way with them ends. */
void tam_ucx_mesh_forget(tam_ucx_mesh *mesh);

/** Send bytes that are copied, and nobody waits for. Nothing if the member is gone. */
void tam_ucx_mesh_notify(tam_ucx_mesh *mesh, uint32_t member, ucp_tag_t tag, const void *bytes,
                         size_t length);

/** Take a message that has come, in memory of its own (free).
 * @return NULL: there is none */
void *tam_ucx_mesh_poll(tam_ucx_mesh *mesh, ucp_tag_t tag, ucp_tag_t mask, size_t *length,
                        uint32_t *member);

#endif
