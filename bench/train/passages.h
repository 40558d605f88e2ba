/* SPDX-License-Identifier: MIT
 *
 * Data of the workload that predicts characters. A sample is a window of T = context characters and
 * the one that follows. The first nine tenths of the text are for training. Their windows follow
 * each other: the last character to predict is the first of the next window. Validation takes
 * PASSAGES_VALIDATE windows of the rest, evenly spread, or as many as there are. T = 4:
 *
 *     I n   t h e   b e g i n n i n g         window 0: I n _ t h
 *     |_______|                               window 1:         h e _ b e
 *             |_______|
 */
#ifndef TAMIS_TRAIN_PASSAGES_H
#define TAMIS_TRAIN_PASSAGES_H

#include "bench/train/text.h"
#include "bench/train/workload.h"

enum { PASSAGES_VALIDATE = 384 };

typedef struct passages {
    text text;
    size_t context;
    size_t begin[2], stride[2]; /* of the windows of each set, in characters */
} passages;

/** As workload_kind.load and .unload. */
bool passages_load(const train_settings *settings, workload_data *out, char *error, size_t size);
void passages_unload(workload_data *data);
uint64_t passages_hash(const workload_data *data);

/** The tokens of a window, context + 1. */
static inline const uint8_t *passages_window(const passages *p, workload_set set, size_t sample) {
    return p->text.tokens + p->begin[set] + sample * p->stride[set];
}

#endif
