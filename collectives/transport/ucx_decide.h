/* SPDX-License-Identifier: MIT
 *
 * Who is left of a communicator over UCX. The first that lives collects the addresses of the others
 * and decides who goes on:
 *
 *     member 0   (dead)
 *     member 1   collects . . . . . . decides {1 2} --+-> rank 0
 *     member 2   joins 1 . . . . . . . . . . . . . <--+-> rank 1
 *     member 3   (dead)
 *
 * Who lives and is not among them learns it, and never decides for itself: it would go on as a job
 * of its own. Some may have gone on with newcomers (ucx_grow.c) when others had not: newcomers that
 * not all know are left behind. They are the last members.
 */
#ifndef TAM_TRANSPORT_UCX_DECIDE_H
#define TAM_TRANSPORT_UCX_DECIDE_H

#include "collectives/transport/shrink.h"
#include "collectives/transport/ucx_comm.h"

/* The address of its data follows. */
typedef struct tam_ucx_join {
    uint64_t hash;    /* of the rest */
    uint64_t left_ns; /* until the deadline of this rank; its receiver: on its own clock */
    uint32_t nonce;   /* of this attempt */
    uint32_t bytes;   /* of the address */
    uint32_t top;     /* the last member of its communicator */
    uint32_t unused;
} tam_ucx_join;

/* Members follow, and their addresses. */
typedef struct tam_ucx_decision {
    uint64_t hash;
    uint32_t nonce; /* of the attempt that it answers */
    uint32_t nmembers, stride, unused;
    uint32_t members[];
} tam_ucx_decision;

/* One attempt of this rank. */
typedef struct tam_ucx_attempt {
    tam_ucx *self;
    const tam_left *left;
    uint64_t begin_ns;
    tam_ucx_mesh *data;
    tam_ucx_join *own;
    tam_ucx_join **joined;      /* [members of control] the last of each; NULL: none */
    uint32_t top;               /* the last member that all know */
    tam_ucx_decision *decision; /* NULL: not yet */
    bool refused;               /* by the rank that it joined */
} tam_ucx_attempt;

/** Find the decision, by the deadline. NOMEM; TIMEOUT: also where the others went on without this
 * rank. */
tamis_status tam_ucx_find_left(tam_ucx_attempt *a);

#endif
