/* SPDX-License-Identifier: MIT
 *
 * Inside local communicators: what their ranks share. local_hub.c has its life, local.c the
 * operations, local_shrink.c the rendezvous of the ranks that are left; local_open.c creates.
 */
#ifndef TAM_TRANSPORT_LOCAL_HUB_H
#define TAM_TRANSPORT_LOCAL_HUB_H

#include "collectives/transport/comm.h"
#include "lib/transport/tag.h"

/** What a rank posts for an operation. */
typedef struct tam_posting {
    const char *call;   /* its name; the same pointer on all ranks */
    const void *memory; /* for the others to read, */
    size_t bytes;       /* the same on all ranks; all-to-all: 0 */
    const size_t *at;   /* all-to-all: where its runs begin */
    bool tagged;
    tam_tag tag;
} tam_posting;

typedef struct tam_hub tam_hub;

/** The rendezvous of the ranks that are left. An attempt ends with the same result for all its
 * ranks; after one that failed there may be another, after one that succeeded none. */
typedef struct tam_rendezvous {
    uint32_t failed;      /* attempts, so far */
    tamis_status verdict; /* of the last of them */
    char cause[320];
    uint32_t ncame;    /* to the present attempt; the first of them says */
    uint32_t first;    /* who it is, */
    bool listed;       /* whether there is a list, */
    bool *left;        /* [nranks] what is in it, */
    uint64_t until_ns; /* how long the others have, */
    uint64_t brief_ns; /* and those that have already let a deadline pass */
    bool *came;        /* [nranks] */
    bool agreed;       /* came is who is left, in */
    tam_hub *next;     /* which none of the others may touch: it may be gone */
} tam_rendezvous;

struct tam_hub {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    const tam_transport *transport; /* local_open.c */
    uint32_t nranks, users;
    uint32_t arrived;
    uint32_t reading;    /* ranks that still read what others have posted */
    uint64_t generation; /* barriers passed */
    tamis_status broken;
    char cause[256];
    tam_posting *posted; /* [nranks] */
    bool *here;          /* [nranks] arrived at the current barrier */
    bool *gone;          /* [nranks] has destroyed its communicator */
    bool *missed;        /* [nranks] had not come by the deadline that broke the hub */
    bool grouped;        /* flight recorders of all ranks have one number: */
    uint32_t group;
    tam_rendezvous rendezvous;
};

typedef struct tam_local {
    tam_hub *hub;
    uint32_t rank;
    bool reading;
    uint32_t failed; /* attempts to shrink, as far as this rank knows */
} tam_local;

/** With the lock held: all calls fail from here on. */
void tam_hub_break(tam_hub *h, tamis_status status, const char *cause);

/** For sentences: the ranks whose mark is `wanted`, " 1 3 and 12 more": as many as there is room
 * for. @return text */
const char *tam_hub_list(const tam_hub *h, const bool *marks, bool wanted, char *text, size_t size);

/** @param users  of it, from the beginning on */
tamis_status tam_hub_open(const tam_transport *transport, uint32_t nranks, uint32_t users,
                          tam_hub **out);

/** One user less; the last one frees it. */
void tam_hub_leave(tam_hub *h);

/** One rank's end of the hub, as one of its users, also on failure: until closed. */
tamis_status tam_hub_open_rank(tam_hub *h, uint32_t rank, const tamis_comm_config *config,
                               tamis_comm **out);

/* Entries of the row. */
tamis_status tam_local_allgather(void *arg, const void *send, size_t bytes, void *recv,
                                 tam_call *call);
tamis_status tam_local_allreduce_sum(void *arg, float *values, size_t count, tam_call *call);
tamis_status tam_local_alltoall(void *arg, const void *send, const size_t *send_at, void *recv,
                                const size_t *recv_at, tam_call *call);
void tam_local_abort(void *arg, tamis_status status, const char *cause);
void tam_local_close(void *arg, int clean);
tamis_status tam_local_shrink(void *arg, const tam_left *left, tamis_comm **out);

#endif
