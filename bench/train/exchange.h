/* SPDX-License-Identifier: MIT
 *
 * How the gradient of a rank becomes that of all: by one reducer; or by two of the same
 * communicator, one of scheme dense for the segments that --dense-segments names, one for the
 * others:
 *
 *     gradient          W1    b1   W2    b2   W3    b3
 *     reducer           0          1          2
 *     apart (dense)           0          1          2          numbers in each
 *
 * Both steps begin and end together, on all ranks in the same order.
 */
#ifndef TAMIS_TRAIN_EXCHANGE_H
#define TAMIS_TRAIN_EXCHANGE_H

#include "bench/common/group.h"
#include "bench/train/settings.h"
#include "bench/train/workload.h"

typedef struct exchange {
    bench_group *group;
    tamis_reducer *reducer; /* of all segments, or of those that are not apart */
    tamis_reducer *apart;   /* NULL: none is */
    size_t length;          /* elements of `reducer` */
    const bool *is_apart;   /* [nsegments]; NULL with `apart` */
    uint32_t *number;       /* [nsegments]: of a segment in its reducer */
    void **grads[2];        /* where those of `reducer` and of `apart` lie */
} exchange;

/**
 * Which segments are apart. Ends all ranks if a name fits none, or all segments are named.
 *
 * @return bool[nsegments], to be freed; NULL: none
 */
bool *exchange_choose(bench_group *group, const train_settings *settings, const workload *work);

/**
 * @param config   of the segments that are not apart
 * @param is_apart must stay where it is
 * @param grad     float[work->length], where every step has its gradient
 */
void exchange_open(bench_group *group, const workload *work, const bool *is_apart,
                   const tamis_reducer_config *config, float *grad, exchange *out);
void exchange_close(exchange *x);

/** As tamis_reducer_ready, tamis_reducer_start and _wait, tamis_reducer_stats; what both reducers
 * came to. `step` gives all but where the gradients are. */
void exchange_ready(exchange *x, uint32_t segment, const tamis_step *step);
void exchange_start(exchange *x, const tamis_step *step);
void exchange_wait(exchange *x);
void exchange_stats(exchange *x, tamis_stats *out);

uint32_t exchange_nbuckets(const exchange *x);

#endif
