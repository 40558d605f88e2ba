/* SPDX-License-Identifier: MIT
 *
 * Data of the workloads that classify images: Fashion-MNIST's training and test images.
 */
#ifndef TAMIS_TRAIN_IMAGES_H
#define TAMIS_TRAIN_IMAGES_H

#include "bench/train/idx.h"
#include "bench/train/workload.h"

#define IMAGES_DATA "/usr/share/datasets/fashion-mnist"

/** As workload_kind.load and .unload. */
bool images_load(const train_settings *settings, workload_data *out, char *error, size_t size);
void images_unload(workload_data *data);
uint64_t images_hash(const workload_data *data);

const idx_set *images_set(const workload_data *data, workload_set set);

/** Pixels of one image -> float[IDX_PIXELS], scaled so that Fashion-MNIST's training images have
 * mean 0 and deviation 1. Unscaled they have 0.2860 and 0.3530, in units of 255. */
static inline void images_row(const uint8_t *pixels, float *row) {
    const float mean = 0.2860f, deviation = 0.3530f;
    const float factor = 1.0f / (255.0f * deviation), offset = mean / deviation;
    for (size_t i = 0; i < IDX_PIXELS; i++)
        row[i] = (float)pixels[i] * factor - offset;
}

#endif
