/* SPDX-License-Identifier: MIT
 *
 * Data of the workloads that classify images: Fashion-MNIST's training and test images, in IDX
 * files (the format of MNIST), DIR/train-images-idx3-ubyte and so on, plain or with .gz.
 */
#ifndef TAMIS_TRAIN_IMAGES_H
#define TAMIS_TRAIN_IMAGES_H

#include "bench/train/workload.h"

#define IMAGES_DATA "/usr/share/datasets/fashion-mnist"

enum { IDX_SIDE = 28, IDX_PIXELS = IDX_SIDE * IDX_SIDE, IDX_CLASSES = 10 };

typedef struct idx_set {
    size_t count;
    uint8_t *images; /* [count][IDX_PIXELS] */
    uint8_t *labels; /* [count], 0 to 9 */
} idx_set;

/** As workload_kind.load and .unload. Loading checks everything that the headers say. */
bool images_load(const train_settings *settings, workload_data *out, char *error, size_t size);
void images_unload(workload_data *data);
uint64_t images_hash(const workload_data *data);

const idx_set *images_set(const workload_data *data, workload_set set);

/** Scores of the classes, [rows][IDX_CLASSES]: as workload_kind.score, and as .loss. */
void images_score(const float *scores, const uint8_t *labels, size_t rows, workload_score *sums);
double images_loss(float *scores, const uint8_t *labels, size_t rows);

/** Pixels of one image -> float[IDX_PIXELS], scaled so that Fashion-MNIST's training images have
 * mean 0 and deviation 1. Unscaled they have 0.2860 and 0.3530, in units of 255. */
static inline void images_row(const uint8_t *pixels, float *row) {
    const float mean = 0.2860f, deviation = 0.3530f;
    const float factor = 1.0f / (255.0f * deviation), offset = mean / deviation;
    for (size_t i = 0; i < IDX_PIXELS; i++)
        row[i] = (float)pixels[i] * factor - offset;
}

#endif
