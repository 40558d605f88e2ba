/* SPDX-License-Identifier: MIT
 *
 * The settings of tamis_train, from its command line.
 */
#ifndef TAMIS_TRAIN_SETTINGS_H
#define TAMIS_TRAIN_SETTINGS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

enum { TRAIN_SGD = 0, TRAIN_MOMENTUM = 1, TRAIN_ADAMW = 2 };
enum { TRAIN_CONSTANT = 0, TRAIN_COSINE = 1 };
enum { TRAIN_MAX_DEPTH = 64 }; /* of mlp: hidden layers */
enum { TRAIN_GRADIENT = 0, TRAIN_UPDATE = 1 };

#define TRAIN_WORKLOADS "mlp|cnn|lm"
#define TRAIN_OPTIMIZERS "sgd|momentum|adamw"
#define TRAIN_DECAYS "constant|cosine"
#define TRAIN_REDUCED "gradient|update"
#define TRAIN_OVERLAPS "off|on"

typedef struct train_settings {
    const char *data, *scheme, *json, *trace, *save, *load, *record;
    const char *energy_log, *intensity, *decisions;
    int workload, optimizer, decay, transport;
    int device; /* tamis_device */
    int reduce;
    int overlap;            /* 1: layers are marked in the backward pass */
    const char *set;        /* further options of the reducer */
    uint64_t bucket_length; /* as in tamis_reducer_config */
    uint64_t stages, micro_batches;
    uint64_t steps, epochs, batch, seed, ranks, eval_every;
    uint64_t check_every;   /* steps between comparisons of the replicas; 0: first and last only */
    uint64_t hidden, depth; /* mlp */
    uint64_t channels;      /* cnn */
    uint64_t layers, width, heads, context; /* lm */
    double density, momentum, lr;
    double density_end;                /* 0: as `density` */
    uint64_t density_warm_up;          /* steps from DENSITY_START to density */
    double beta1, beta2, weight_decay; /* adamw */
    double update_beta1;               /* of adamw's updates: --beta1, or as advised */
    uint64_t warm_up;                  /* steps in which the rate rises */
    double lr_floor;                   /* share of lr at which a decay ends */
    uint64_t local_steps, local_delay; /* local_steps 0: every step is exchanged */
    double outer_lr, outer_momentum;
    uint64_t low_rank;                      /* 0: not used */
    uint64_t save_every;                    /* steps; 0: at the end alone */
    uint64_t record_every;                  /* with `record`: steps */
    double byte_share;                      /* 0: density */
    double budget_w, pace_max, density_min; /* budget_w 0: no budget */
    bool quiet;
    FILE *report;         /* NULL: the summary goes to stdout as text */
    FILE *trace_file;     /* of rank 0; with `trace` only */
    FILE *decisions_file; /* the same, with `decisions` */
} train_settings;

/** Parse and check; fills `report`, `trace_file`, `transport`, `ranks` and what depends on the
 * workload. Ends the process on wrong usage. */
void train_settings_read(int argc, char **argv, train_settings *out);

/** Options of a reducer that --set may not give. */
extern const char train_own_options[];

/** Whether the scheme is dense, which has no residual. */
bool train_is_dense(const train_settings *settings);

#endif
