/* SPDX-License-Identifier: MIT
 *
 * --elastic: when a rank is gone, the others go on.
 *
 *     rank 0   step 7 | step 8 . . . deadline | shrink, migrate | step 8 | step 9      rank 0 of 2
 *     rank 1   step 7 | (dead)
 *     rank 2   step 7 | step 8 . . . . . lost | shrink, migrate | step 8 | step 9      rank 1 of 2
 *
 * A step in which a rank died has been made by all that are left, or by none: whoever was ahead
 * goes back. The batch of a rank stays, so a step takes fewer samples. Ranks join again when the
 * job is started anew with --load, with as many as there are then: residuals are divided anew.
 */
#ifndef TAMIS_TRAIN_ELASTIC_H
#define TAMIS_TRAIN_ELASTIC_H

#include "bench/train/saver.h"
#include "bench/train/trainer.h"

/** The next RANK@STEP of --lose. @return what follows it; NULL: it is none */
const char *elastic_next_loss(const char *at, uint64_t *rank, uint64_t *step);

/** Refuses what does not go together, and lists of --lose; ends the process. */
void elastic_check(const train_settings *settings);

/** Before the first step. Ends all ranks if the transport cannot survive. */
void elastic_open(trainer *t);

/** The drill: whether --lose names this rank and this step. */
bool elastic_dies(const trainer *t);

typedef enum elastic_end {
    ELASTIC_GOES_ON,
    ELASTIC_TOO_FEW, /* on all ranks that are left: the run ends, with its state saved */
    ELASTIC_ALONE    /* this rank makes no calls with others any more */
} elastic_end;

/** After the group was lost: go on with those that are left. What prevents it is said. */
elastic_end elastic_recover(trainer *t, saver *sets);

#endif
