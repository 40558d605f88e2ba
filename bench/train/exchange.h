/* SPDX-License-Identifier: MIT
 *
 * Reduces the gradient of all ranks: by one reducer, by low_rank.h in its place, or by two reducers
 * of the same communicator. The second then has scheme dense and takes the segments that
 * --dense-segments names:
 *
 *     gradient          W1    b1   W2    b2   W3    b3
 *     reducer           0          1          2
 *     apart (dense)           0          1          2          segment numbers in each
 *
 * The steps of both begin and end together, in the same order on all ranks.
 */
#ifndef TAMIS_TRAIN_EXCHANGE_H
#define TAMIS_TRAIN_EXCHANGE_H

#include "bench/common/group.h"
#include "bench/train/low_rank.h"
#include "bench/train/settings.h"
#include "bench/train/workload.h"

typedef struct exchange {
    bench_group *group;
    tamis_reducer *reducer; /* of all segments, or of those that are not apart */
    tamis_reducer *apart;   /* NULL: no segment is apart */
    size_t length;          /* elements of `reducer` */
    const bool *is_apart;   /* [nsegments]; NULL if `apart` is */
    uint32_t *number;       /* [nsegments]: number of a segment in its reducer */
    void **grads[2];        /* gradients of the segments of `reducer` and of `apart` */
    low_rank low_rank;      /* if used, the reducers rest */
} exchange;

/**
 * Find the segments that are apart. Ends all ranks if a name fits none, or if all are named.
 *
 * @return bool[nsegments], to be freed; NULL: none
 */
bool *exchange_choose(bench_group *group, const train_settings *settings, const workload *work);

/**
 * @param config   for the segments that are not apart
 * @param is_apart must outlive the exchange
 * @param grad     float[work->length], holds the gradient of every step
 */
void exchange_open(bench_group *group, const train_settings *settings, const workload *work,
                   const bool *is_apart, const tamis_reducer_config *config, float *grad,
                   exchange *out);
void exchange_close(exchange *x);

/** As tamis_reducer_ready, tamis_reducer_start and _wait, tamis_reducer_stats, for both reducers
 * together. `step` gives all but the address of the gradients. */
void exchange_ready(exchange *x, uint32_t segment, const tamis_step *step);
void exchange_start(exchange *x, const tamis_step *step);
void exchange_wait(exchange *x);
void exchange_stats(exchange *x, tamis_stats *out);

uint32_t exchange_nbuckets(const exchange *x);

#endif
