/* SPDX-License-Identifier: MIT
 *
 * A workload: a model and its data, as a table of functions. The trainer and the pipeline use
 * nothing else. A step calls
 *
 *     take      samples into a slot, in the order of the run
 *     forward   from the samples to the scores
 *     loss      scores -> gradient of the mean loss with respect to them
 *     backward  gradient of all parameters, layer after layer, the last one first
 *
 * and a validation calls take, forward, score. Parameters are one flat vector, and so is the
 * gradient; a layer is a run of consecutive segments whose gradients are complete together:
 *
 *     vector     | segment 0 | segment 1 | segment 2 | segment 3 | ...
 *     layers     |        layer 0        |        layer 1        | ...     layer_first 0, 2, 4, ...
 */
#ifndef TAMIS_TRAIN_WORKLOAD_H
#define TAMIS_TRAIN_WORKLOAD_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <tamis/tamis.h>

#include "bench/train/settings.h"

typedef struct workload_kind workload_kind;

typedef enum workload_set { WORKLOAD_TRAIN = 0, WORKLOAD_VALIDATE = 1 } workload_set;

enum { WORKLOAD_NAME = 48 };

/** Samples; a process reads them once, and its ranks share them. */
typedef struct workload_data {
    size_t count[2];          /* of each set */
    uint64_t hash;            /* of all samples */
    char name[WORKLOAD_NAME]; /* the last of --data's path, for sentences */
    void *content;            /* depends on the kind */
} workload_data;

/** Layers first .. first + count - 1, and what a rank needs to work on them. */
typedef struct workload_part {
    size_t first, count;
    size_t batch, slots;
} workload_part;

/** Sums over samples. */
typedef struct workload_score {
    double loss;
    double correct; /* 0 where the metric is the loss */
} workload_score;

typedef char workload_name[40]; /* of a segment */

typedef struct workload {
    const workload_kind *kind;
    const workload_data *data;
    void *model;
    size_t batch, slots;
    size_t length; /* of the flat vector */
    size_t nsegments, nlayers;
    tamis_segment *segments; /* [nsegments] */
    size_t *columns;         /* [nsegments]: of a matrix, which may decay; 0: a vector */
    workload_name *names;    /* [nsegments] */
    uint32_t *layer_first;   /* [nlayers + 1]: layer l has segments [l] to [l + 1] - 1 */
    uint64_t identity;       /* hash of what else gives parameters their meaning; 0: nothing */
} workload;

/** Called when the gradient of a layer, counted among those held, is complete. */
typedef void (*workload_hook)(void *context, size_t layer);

struct workload_kind {
    const char *name;        /* for --workload */
    const char *metric;      /* name in records */
    const char *metric_text; /* the same for people */
    bool metric_is_loss;     /* mean of the losses; else share of correct samples */
    const char *data;        /* default of --data; NULL: `load` has one */
    uint64_t batch;          /* default of --batch */
    uint64_t steps;          /* default of --steps; 0: by --epochs */
    uint64_t eval_every;     /* default of --eval-every; 0: an epoch */

    /** Refuse impossible settings (status 2) before any rank starts; NULL: all are possible. */
    void (*check)(const train_settings *settings);

    /** Read the data. On failure `error` holds a message. */
    bool (*load)(const train_settings *settings, workload_data *out, char *error, size_t size);
    void (*unload)(workload_data *data);

    /** XXH3 of all samples, of both sets. */
    uint64_t (*hash)(const workload_data *data);

    /** Lengths of the layers that a pipeline can divide among stages. @return how many. NULL: the
     * workload cannot be divided, and `open` gets first 0, count 1. */
    uint32_t (*layers)(const train_settings *settings, uint64_t *lengths);

    /** Allocate all memory. `out` has kind, data, batch and slots; fill in the rest. */
    void (*open)(const train_settings *settings, const workload_part *part, workload *out);
    void (*close)(workload *w);

    /** Add the model to the summary. */
    void (*describe)(const workload *w, json_t *record);

    /** Set the parameters, the same on all ranks. */
    void (*init)(const workload *w, uint64_t seed, float *params);

    /** Put `rows` samples into a slot: order[0 .. rows), or first .. first + rows - 1 if it is
     * NULL; the remaining rows keep their samples. */
    void (*take)(workload *w, size_t slot, workload_set set, const uint32_t *order, size_t first,
                 size_t rows);

    void (*forward)(workload *w, const float *params, size_t slot);

    /** After forward: replace the scores by the gradient of the mean loss. @return that loss. */
    double (*loss)(workload *w, size_t slot);

    /**
     * Write the gradient of every layer, the last one first.
     *
     * @param add   add to `grad` instead of overwriting it
     * @param hook  called as soon as all segments of a layer are written; or NULL
     */
    void (*backward)(workload *w, const float *params, size_t slot, bool add, float *grad,
                     workload_hook hook, void *context);

    /** After forward: add the scores of the first `rows` samples. */
    void (*score)(workload *w, size_t slot, size_t rows, workload_score *sums);

    /** With `layers` only: input of the first layer held and output of the last one, [batch] rows
     * of *width numbers. After backward `input` holds the input's gradient. Before backward every
     * stage but the last expects the output's gradient in `output`. */
    float *(*input)(const workload *w, size_t slot, size_t *width);
    float *(*output)(const workload *w, size_t slot, size_t *width);
};

/** 784 inputs, hidden layers with ReLU, 10 classes; the only one that a pipeline can divide. */
extern const workload_kind workload_mlp;

/** Two convolutions and a linear layer, on the same images. */
extern const workload_kind workload_cnn;

/** A small transformer that predicts the next character of a text. */
extern const workload_kind workload_lm;

/** The kind that --workload names by its index in TRAIN_WORKLOADS. */
static inline const workload_kind *workload_find(int index) {
    const workload_kind *const kinds[] = {&workload_mlp, &workload_cnn, &workload_lm};
    return kinds[index];
}

/** Read the data, hash and name them. On failure `error` holds a message. */
bool workload_load(const workload_kind *kind, const train_settings *settings, workload_data *out,
                   char *error, size_t size);

void workload_open(const workload_kind *kind, const train_settings *settings,
                   const workload_data *data, const workload_part *part, workload *out);
void workload_close(workload *w);

/* For a kind's `open`: reserve tables, then add the segments in order, and end each layer after its
 * segments. There must not be more than were reserved. */
void workload_reserve(workload *w, size_t nsegments, size_t nlayers);
void workload_end_layer(workload *w);

/** Add a segment; `columns` of a matrix, whose rows are contiguous, or 0 of a vector.
 * @return where it begins in the flat vector */
size_t workload_add(workload *w, size_t length, size_t columns, const char *name, ...)
    __attribute__((format(printf, 4, 5)));

#endif
