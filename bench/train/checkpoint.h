/* SPDX-License-Identifier: MIT
 *
 * States of all ranks, a file each, with which a run goes on bit for bit:
 *
 *     PREFIX.rank0.state            --save PREFIX: after the last step
 *     PREFIX.step500.rank0.state    --save-every 500: the same after step 500, 1000 ...
 *
 *     | header | params | state of the optimizer | control | residual | moments | local steps |
 *                                                  `------ of the reducer ------'
 *
 * A file is there whole or not at all. What a crash between two ranks leaves is a step of which
 * some have no file, never files of two steps under one name.
 */
#ifndef TAMIS_TRAIN_CHECKPOINT_H
#define TAMIS_TRAIN_CHECKPOINT_H

#include "bench/train/trainer.h"

/** End all ranks if --save could not be written. Before the first step. */
void checkpoint_check(trainer *t);

/** After a step: save if --save-every says so. After the last one: save. */
void checkpoint_step(trainer *t);
void checkpoint_end(trainer *t);

/** Go on from the files of --load, if it is given; collective. Ends all ranks if they are of
 * another run or damaged. */
void checkpoint_load(trainer *t);

#endif
