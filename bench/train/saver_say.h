/* SPDX-License-Identifier: MIT
 *
 * What a user is told of the sets of a run.
 */
#ifndef TAMIS_TRAIN_SAVER_SAY_H
#define TAMIS_TRAIN_SAVER_SAY_H

#include "bench/train/saver.h"

/** Prepare what a signal's handler says: which set is the newest. */
void saver_say_newest(const saver *s);

/** A set was not saved: the first ones in a row, then fewer and fewer. */
void saver_say_failure(const saver *s);

/** At the end: what was not saved, which signal came. */
void saver_say_end(const saver *s);

/** From here on bench_fail says which set to resume from. */
void saver_say_watch(saver *s);
void saver_say_unwatch(saver *s);

#endif
