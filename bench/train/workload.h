/* SPDX-License-Identifier: MIT
 *
 * What is trained: a model on data, as a table of functions. The trainer and the pipeline know no
 * other form of it. A step asks for
 *
 *     take      samples into a slot, in the order of the run
 *     forward   from the samples to the scores
 *     loss      scores -> gradient of the mean loss with respect to them
 *     backward  gradient of all parameters, layer after layer, the last one first
 *
 * and a validation for take, forward, score. Parameters are one flat vector, and so is the
 * gradient; a layer is some consecutive segments of it, whose gradients are complete together:
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

/** Samples, read once by a process and shared by its ranks. */
typedef struct workload_data {
    size_t count[2]; /* of each set */
    void *content;   /* of the kind */
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
    bool *matrices;          /* [nsegments]: weights with two dimensions, which may decay */
    workload_name *names;    /* [nsegments] */
    uint32_t *layer_first;   /* [nlayers + 1]: layer l has the segments from here to the next */
    uint64_t identity;       /* of what parameters mean beside the segments; 0: nothing */
} workload;

/** The gradient of a layer, counted among those held, is complete. */
typedef void (*workload_hook)(void *context, size_t layer);

struct workload_kind {
    const char *name;        /* as --workload says it */
    const char *metric;      /* as records name it */
    const char *metric_text; /* the same for people */
    bool metric_is_loss;     /* mean of the losses; else share of the samples that are correct */
    const char *data;        /* default of --data; NULL: `load` knows one */
    uint64_t batch;          /* default of --batch */
    uint64_t steps;          /* default of --steps; 0: of --epochs */
    uint64_t eval_every;     /* default of --eval-every; 0: an epoch */

    /** Refuse what cannot be (status 2), before any rank has started; NULL: all can be. */
    void (*check)(const train_settings *settings);

    /** Read the data. On failure one sentence is left in `error`. */
    bool (*load)(const train_settings *settings, workload_data *out, char *error, size_t size);
    void (*unload)(workload_data *data);

    /** Lengths of the layers that stages of a pipeline are made of. @return how many; NULL: the
     * workload cannot be divided, and `open` gets first 0, count 1. */
    uint32_t (*layers)(const train_settings *settings, uint64_t *lengths);

    /** All memory is taken here. `out` has kind, data, batch and slots, and gets the rest. */
    void (*open)(const train_settings *settings, const workload_part *part, workload *out);
    void (*close)(workload *w);

    /** What the summary says of the model. */
    void (*describe)(const workload *w, json_t *record);

    /** The same parameters on all ranks. */
    void (*init)(const workload *w, uint64_t seed, float *params);

    /** Put `rows` samples into a slot: order[0 .. rows), or first .. first + rows - 1 if it is
     * NULL; rows that are left keep their samples. */
    void (*take)(workload *w, size_t slot, workload_set set, const uint32_t *order, size_t first,
                 size_t rows);

    void (*forward)(workload *w, const float *params, size_t slot);

    /** After forward: replace the scores by the gradient of the mean loss. @return it. */
    double (*loss)(workload *w, size_t slot);

    /**
     * Write the gradient of every layer, the last one first.
     *
     * @param add   add it to what is in `grad`
     * @param hook  called as soon as all segments of a layer are written; NULL: nobody listens
     */
    void (*backward)(workload *w, const float *params, size_t slot, bool add, float *grad,
                     workload_hook hook, void *context);

    /** After forward: add what the first `rows` samples came to. */
    void (*score)(workload *w, size_t slot, size_t rows, workload_score *sums);

    /** With `layers` only: what enters the first layer held and what leaves the last one, [batch]
     * rows of so many numbers; after backward the gradient of what entered. The last but one stage
     * expects the gradient of what left before backward. */
    float *(*input)(const workload *w, size_t slot, size_t *width);
    float *(*output)(const workload *w, size_t slot, size_t *width);
};

/** The kind that --workload names by its index in TRAIN_WORKLOADS. */
const workload_kind *workload_find(int index);

void workload_open(const workload_kind *kind, const train_settings *settings,
                   const workload_data *data, const workload_part *part, workload *out);
void workload_close(workload *w);

/* For `open` of a kind: tables with room, then the segments in their order, and after those of a
 * layer its end. They must not be more than there is room for. */
void workload_reserve(workload *w, size_t nsegments, size_t nlayers);
void workload_end_layer(workload *w);

/** @return where the segment begins in the flat vector. */
size_t workload_add(workload *w, size_t length, bool matrix, const char *name, ...)
    __attribute__((format(printf, 4, 5)));

#endif
