/* SPDX-License-Identifier: MIT
 *
 * A transport made of p2p links: its collectives in the stages of a plan, and the waits between
 * them.
 */
#ifndef TAM_COLL_STAGED_H
#define TAM_COLL_STAGED_H

#include "collectives/coll/coll.h"
#include "lib/policy/calibration.h"

typedef struct tam_staged {
    tam_coll coll;
    void *self;      /* of the p2p link */
    bool measured;   /* the network was: */
    tam_net net;     /* else zeros beside ranks_per_node, as found */
    uint32_t ntried; /* plans that were timed beside the usual one; */
    tam_plan tried[TAM_CALIBRATION_OTHERS];
    double gain[TAM_CALIBRATION_OTHERS]; /* part of the time saved; below 0: it took longer */
} tam_staged;

/** Takes ownership of `self`, even on failure. More than 2 ranks find out together which of them
 * share hosts, compare what plan is wanted, and measure the network where it is "auto"
 * (calibrate.h).
 * @param  wanted       as the setting TAMIS_PLAN; if it is not a plan for this many ranks, rank 0
 *                      warns, and the usual one is taken
 * @param  deadline_ns  for all that; 0: nothing is exchanged, and "auto" is "usual". MISMATCH on
 *                      all ranks if they want different plans; without a deadline they find out in
 *                      their first collective, with PROTOCOL */
tamis_status tam_staged_open(const tam_p2p *p2p, void *self, uint32_t rank, uint32_t nranks,
                             const char *wanted, uint64_t deadline_ns, tam_staged **out);

/* Entries of a tam_transport whose `self` is a tam_staged. An empty run is no message: a run where
 * its receiver expects none is refused in their next call, as one of another call. */
tamis_status tam_staged_allgather(void *arg, const void *send, size_t bytes, void *recv,
                                  tam_call *call);
tamis_status tam_staged_sum(void *arg, float *values, size_t count, tam_call *call);
tamis_status tam_staged_alltoall(void *arg, const void *send, const size_t *send_at, void *recv,
                                 const size_t *recv_at, tam_call *call);
extern const tam_encoded_transport tam_staged_encoded;
tamis_status tam_staged_usable(const void *arg);
void tam_staged_abort(void *arg, tamis_status status, const char *cause);
bool tam_staged_silence(void *arg);
void tam_staged_close(void *arg, int clean);

#endif
