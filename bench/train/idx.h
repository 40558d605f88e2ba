/* SPDX-License-Identifier: MIT
 *
 * Labelled images in IDX files, the format of MNIST and Fashion-MNIST; plain or gzip.
 */
#ifndef TAMIS_TRAIN_IDX_H
#define TAMIS_TRAIN_IDX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { IDX_SIDE = 28, IDX_PIXELS = IDX_SIDE * IDX_SIDE, IDX_CLASSES = 10 };

typedef struct idx_set {
    size_t count;
    uint8_t *images; /* [count][IDX_PIXELS] */
    uint8_t *labels; /* [count], 0 to 9 */
} idx_set;

/**
 * Read DIR/NAME-images-idx3-ubyte and DIR/NAME-labels-idx1-ubyte, with or without .gz.
 *
 * Checks everything that the headers say. On failure `error` holds a message.
 */
bool idx_load(const char *dir, const char *name, idx_set *out, char *error, size_t error_size);

void idx_free(idx_set *set);

#endif
