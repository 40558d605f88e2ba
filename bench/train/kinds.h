/* SPDX-License-Identifier: MIT
 *
 * All workloads, for the table in workload.c.
 */
#ifndef TAMIS_TRAIN_KINDS_H
#define TAMIS_TRAIN_KINDS_H

#include "bench/train/workload.h"

/** 784 inputs, hidden layers with ReLU, 10 classes; the only one that a pipeline can divide. */
extern const workload_kind workload_mlp;

/** Two convolutions and a linear layer, on the same images. */
extern const workload_kind workload_cnn;

/** A small transformer that predicts the next character of a text. */
extern const workload_kind workload_lm;

#endif
