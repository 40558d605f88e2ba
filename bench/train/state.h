/* SPDX-License-Identifier: MIT
 *
 * The state with which a rank continues, as it lies in a file:
 *
 *     | header | params | state of the optimizer | control | residual | moments | local steps |
 *                                                  `------ of the reducer ------'
 *
 * Segments that are exchanged dense have no residual; their reducer has no state to save.
 */
#ifndef TAMIS_TRAIN_STATE_H
#define TAMIS_TRAIN_STATE_H

#include "bench/train/files.h"
#include "bench/train/trainer.h"

/* The parts that follow the header, in this order. An absent part has 0 bytes. */
enum {
    STATE_PARAMS,
    STATE_OPTIMIZER,
    STATE_CONTROL = STATE_OPTIMIZER + OPTIMIZER_STATES,
    STATE_RESIDUAL,
    STATE_MOMENTS,
    STATE_LOCAL = STATE_MOMENTS + 2,
    STATE_PARTS
};

/* In the machine's byte order; a machine with the other order refuses it by `bytes`. */
typedef struct state_header {
    char magic[8];
    uint64_t bytes;   /* of this header, so that readers find what follows */
    uint64_t samples; /* of a step, all ranks together */
    uint64_t step, seed, batch, optimizer, reduce, rank, nranks;
    uint64_t workload, model;      /* XXH3 of the name; XXH3 of segments and identity */
    uint64_t passes;               /* that made the moments */
    uint64_t parts[STATE_PARTS];   /* bytes */
    tamis_energy_totals joules;    /* of all ranks so far */
    order_origin origin;           /* of the samples; together: as `samples` */
    uint64_t data;                 /* trainer_data_hash */
    char data_name[WORKLOAD_NAME]; /* for sentences */
    uint64_t checksum;             /* XXH3 of all else */
} state_header;

typedef struct state {
    state_header header;
    void *parts[STATE_PARTS];
} state;

/** The header that a state of this run would have now, without joules, passes and checksum. */
state_header state_expected(const trainer *t);

/** Why a run of `wanted` cannot continue from `found`; NULL: it can. */
const char *state_difference(const state_header *found, const state_header *wanted);

/** A state whose params and optimizer are the trainer's own, to be loaded into it. */
void state_borrow(trainer *t, const state_header *h, state *out);
void state_return(state *s);

/** A state with memory of its own. @return whether there was memory */
bool state_open(const trainer *t, state *out);
void state_close(state *s);

/** Copy what the trainer holds into a state with memory of its own, all but joules and checksum. An
 * exchange of local steps that is under way ends with this. */
void state_copy(trainer *t, state *s);

uint64_t state_checksum(const state *s);

/** The pieces of its file. */
enum { STATE_PIECES = STATE_PARTS + 1 };
void state_pieces(const state *s, files_piece out[STATE_PIECES]);

#endif
