/* SPDX-License-Identifier: MIT
 *
 * A text as numbers: the bytes that occur in it, in the order of their codes, are 0, 1, 2, ...
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
#ifndef TAMIS_TRAIN_TEXT_H
#define TAMIS_TRAIN_TEXT_H

#include "bench/train/workload.h"

enum { TEXT_BYTES = 256, PASSAGES_VALIDATE = 384 };

typedef struct text {
    size_t length;
    uint8_t *tokens;                /* [length], each less than `vocabulary` */
    size_t vocabulary;              /* bytes that occur */
    uint8_t characters[TEXT_BYTES]; /* [vocabulary]: token -> byte */
} text;

/**
 * Read a file of any bytes; NULL: the King James Bible, as the program `bible` of Debian's package
 * bible-kjv prints it (4,404,412 bytes, 73 characters).
 *
 * On failure `error` holds a message.
 */
bool text_load(const char *path, text *out, char *error, size_t error_size);

void text_free(text *t);

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
