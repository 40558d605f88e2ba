/* SPDX-License-Identifier: MIT
 *
 * What the command line of tamis_train says.
 */
#ifndef TAMIS_TRAIN_SETTINGS_H
#define TAMIS_TRAIN_SETTINGS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

enum { TRAIN_SGD = 0, TRAIN_MOMENTUM = 1 };
enum { TRAIN_CONSTANT = 0, TRAIN_COSINE = 1 };

#define TRAIN_OPTIMIZERS "sgd|momentum"
#define TRAIN_DECAYS "constant|cosine"

typedef struct train_settings {
    const char *data, *scheme, *json, *save, *load;
    int workload, optimizer, decay, transport;
    int device;                  /* tamis_device */
    int values, reduce, overlap; /* each with one choice so far */
    uint64_t steps, epochs, stop, batch, hidden, seed, ranks, eval_every;
    double density, momentum, lr;
    bool quiet;
    FILE *report; /* NULL: the summary goes to stdout as text */
} train_settings;

/** Parse and check; fills `report`, `transport` and `ranks`. Ends the process on wrong usage. */
void train_settings_read(int argc, char **argv, train_settings *out);

#endif
