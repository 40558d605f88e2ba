/* SPDX-License-Identifier: MIT
 *
 * Data of the workload that predicts characters. A sample is a window of T = context characters and
 * the one behind it. The first nine tenths of the text are for training, in windows that follow
 * each other and share one character, the one to predict last and the first of the next window; of
 * the rest PASSAGES_VALIDATE windows are looked at, evenly spread, or as many as there are. T = 4:
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

/** The tokens of a window, context + 1. */
static inline const uint8_t *passages_window(const passages *p, workload_set set, size_t sample) {
    return p->text.tokens + p->begin[set] + sample * p->stride[set];
}

#endif
