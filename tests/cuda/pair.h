/* SPDX-License-Identifier: MIT
 *
 * One rank with two reducers of the same configuration, on the CPU over the local communicator and
 * on a device over NCCL. Both are given the same gradients, in the same buckets; whatever can be
 * seen of them afterwards must be the same.
 */
#ifndef TEST_CUDA_PAIR_H
#define TEST_CUDA_PAIR_H

#include "tests/cuda/rank.h"
#include "tests/support/data.h"
#include <cuda_runtime_api.h>

enum { PAIR_N = 2100 };

typedef struct pair_order {
    const char *scheme;
    double density, density_max, capacity;
    uint64_t bucket_length; /* 0: one bucket */
    uint32_t ranks_per_node;
    tamis_value_codec value_codec;
    tamis_bucket_budget bucket_budget;
    tamis_output output;
    tamis_nonfinite nonfinite;
    tamis_dtype type;
    const tamis_update *update; /* NULL: gradients */
    const uint64_t *rows;       /* [nsegments] row lengths; NULL: none has rows */
    uint32_t rows_capacity;
    tamis_index_codec index_codec;
    bool by_segment; /* a pointer per segment: into two halves that do not follow each other */
    bool real;       /* data_fill_real; else whole numbers */
    bool by_host;    /* the host drives the device's steps, too */
    uint32_t timeout_ms;
    /* Changes a gradient; NULL: as it is. */
    void (*touch)(uint32_t rank, uint32_t number, float *grad);
    void (*on_phase)(void *context, const tamis_phase_event *event); /* of the device's reducer */
} pair_order;

typedef struct pair {
    test_rank *self;
    const pair_order *order;
    tamis_comm *comm;
    tamis_segment segments[DATA_SEGMENTS_MOST];
    size_t nsegments, bytes; /* of a whole gradient */
    tamis_reducer *cpu, *cuda;
    cudaStream_t stream;
    void *host, *given; /* gradient on the host; what is sent to the device, pinned */
    void *grad;         /* device memory */
    void *host_pieces[DATA_SEGMENTS_MOST], *pieces[DATA_SEGMENTS_MOST];
    uint64_t random; /* in which order segments are ready: of this rank */
} pair;

/** How the segments of a step become ready. */
typedef enum pair_ready { PAIR_START, PAIR_READY, PAIR_SOME_READY, PAIR_WAYS } pair_ready;

/** tamis, density 0.1, five buckets, real numbers. */
pair_order pair_usual(void);

/** @return false: it failed, and the sentence is there */
bool pair_open(test_rank *self, const pair_order *order, pair *out);
void pair_close(pair *p);

/** The configuration that both have, but for the device. */
tamis_reducer_config pair_config(const pair_order *order);

/** A reducer of its segments. */
tamis_status pair_reducer(const pair *p, tamis_comm *comm, const tamis_reducer_config *config,
                          tamis_reducer **out);

/** The gradient of this rank with that number, into host and, enqueued, into device memory. */
void pair_fill(pair *p, uint32_t number);

/** Begin a step on both, as `pair_fill` left the gradients. */
void pair_begin(pair *p, pair_ready how);

/** A step from its gradient to the comparison. @param expected  of wait, on both */
void pair_step(pair *p, uint32_t number, pair_ready how, tamis_status expected);

/** A micro-batch. */
void pair_accumulate(pair *p, uint32_t number);

/** `count` steps on the CPU alone, of gradients `given`, which must become `got`. */
void pair_follow(pair *p, const float *given, const float *got, uint32_t count);

/** Gradients and residuals: both equal. */
void pair_compare_vectors(pair *p);

/** These, results, figures, targets of buckets. */
void pair_compare(pair *p);

/** The targets alone, also where there is no result. */
void pair_compare_buckets(pair *p);

#endif
