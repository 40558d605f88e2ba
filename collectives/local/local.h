/* SPDX-License-Identifier: MIT
 *
 * Inside local steps: local.c creates the handle, local_handshake.c compares, round.c runs the
 * rounds, local_state.c saves and loads. Vectors are float32[n] in the order of the layout; params
 * are the caller's, by segment.
 *
 *     delay 0     IDLE --H steps, agree, begin, wait--> ARRIVED or FAILED --collect--> IDLE
 *     delay D     IDLE --H steps, begin--> UNDER_WAY --D steps, wait--> ARRIVED --agree, collect-->
 *                                                                   or  FAILED  --collect--> IDLE
 *
 * Ranks agree on the vectors and numbers that they must have in common before they apply a round. A
 * round that failed needs no handshake: what it leaves is the rank's own.
 */
#ifndef TAM_LOCAL_LOCAL_H
#define TAM_LOCAL_LOCAL_H

#include "collectives/reducer/reducer.h"
#include "lib/policy/outer.h"

#include <tamis/local.h>

enum { TAM_LOCAL_STEPS_MAX = 1 << 20 };

typedef enum tam_round {
    TAM_ROUND_IDLE,
    TAM_ROUND_UNDER_WAY,
    TAM_ROUND_ARRIVED, /* d is the mean over ranks */
    TAM_ROUND_FAILED   /* d is what the residual has not taken; if `kept`, params hold all */
} tam_round;

/** Since the last handshake. */
typedef struct tam_local_times {
    uint64_t mark_ns;   /* all before it is counted; 0: nothing is */
    uint64_t local_ns;  /* outside tamis_local_step, */
    uint64_t waited_ns; /* inside */
    uint32_t steps;
    bool whole; /* they are of a whole round */
} tam_local_times;

struct tamis_local {
    tamis_reducer *reducer;
    tamis_local_config config; /* steps: H now */
    uint64_t n;
    float *base, *momentum; /* momentum: NULL if it is 0 */
    float *d;
    float *snapshot; /* params when the exchange began; NULL without a delay */
    tam_round round;
    bool kept;            /* a failed round without a residual: it has taken nothing */
    tamis_status outcome; /* of a failed round; OK if the reducer skipped it, or it was loaded, */
    char sentence[512];   /* which says why */
    uint32_t position;    /* local steps since the last exchange began */
    uint64_t expected;    /* step of the reducer, which nobody else may step */
    tam_outer_pace pace;
    tam_local_times times;
    uint64_t compared_bytes; /* sent in handshakes */
    tamis_local_stats stats;
};

/** Compare what ranks must have in common. MISMATCH: nothing is lost.
 * @param own   this rank's failure so far, which all ranks then get; if it is not OK, l may be NULL
 * @param call  the public one */
tamis_status tam_local_handshake(tamis_comm *comm, tamis_local *l, tamis_status own,
                                 const char *call);

/** ARGUMENT if a pointer is missing. */
tamis_status tam_local_check_params(const tamis_local *l, float *const *params, const char *call);

/** Wait for the exchange under way. */
void tam_local_arrive(tamis_local *l);

#endif
