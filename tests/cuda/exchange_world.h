/* SPDX-License-Identifier: MIT
 *
 * Ranks that exchange on the device, without reducer and transport: every rank is a thread with a
 * fake device and a tam_cuda_step; collectives copy between their buffers in stream order and can
 * be spoiled. Beside each works a reducer on the CPU, which is given the same gradients.
 *
 *     host    exchange_step ------------------------------------------> report   exchange_follow
 *     stream  begin  [packets] union [values]  add  [sums]  apply       control   (CPU, compare)
 *                       \________________|____________/
 *                         barrier, copy, damage, barrier: exchange_comm.c
 */
#ifndef TEST_CUDA_EXCHANGE_WORLD_H
#define TEST_CUDA_EXCHANGE_WORLD_H

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/exchange.h"
#include "lib/policy/grid.h"
#include "tests/support/data.h"
#include "tests/support/ranks.h"
#include <cuda_runtime_api.h>
#include <pthread.h>

enum { EXCHANGE_CONFIG = 0x1234567, EXCHANGE_NO_STEP = UINT32_MAX };

typedef enum exchange_phase { PHASE_PACKETS, PHASE_VALUES, PHASE_SUMS, PHASES } exchange_phase;

typedef struct exchange_endpoint exchange_endpoint;

typedef struct exchange_trial {
    const char *scheme; /* of those with an exact count */
    uint32_t nranks;
    size_t n;
    double density;
    uint32_t row_length, rows_capacity; /* the vector is a segment with rows; 0: it is not */
    tamis_index_codec index_codec;      /* AUTO: u32 */
    tamis_value_codec value_codec;      /* AUTO: float32 */
    bool real; /* data_fill_real; else whole numbers, whose sums are exact */
    tamis_output output;
    tamis_nonfinite policy;
    bool by_segment;
    bool direct; /* no graph: kernels are launched one by one */
    /* Changes a gradient; NULL: as it is. */
    void (*touch)(uint32_t rank, uint32_t step, size_t n, float *grad);

    /* What goes wrong, once: in this step, phase, and on these ranks (bits). `damage` spoils what
     * came from the last rank; NULL: the collective is given up, and nothing comes. */
    uint32_t fault_step;
    exchange_phase phase;
    uint32_t victims;
    void (*damage)(exchange_endpoint *at);
} exchange_trial;

typedef struct exchange_group exchange_group;

struct exchange_endpoint {
    test_rank *self;
    exchange_group *group;
    const exchange_trial *trial;

    tamis_layout *layout;
    tamis_segment segments[DATA_SEGMENTS_MOST];
    size_t nsegments;
    tamis_reducer *cpu;
    tam_scheme scheme;
    tam_division division;
    tam_control control;
    tam_cuda_span spans[RANKS_MOST];
    tam_strided parts[RANKS_MOST];

    void *device;
    float *acc;
    tam_cuda_step *step;
    const tam_cuda_comm_buffers *buffers;
    struct exchange_ticket {
        exchange_endpoint *endpoint;
        exchange_phase phase;
    } tickets[PHASES];
    uint32_t round;         /* runs of the phase that is to fail */
    unsigned char *earlier; /* packets of the step before */

    cudaStream_t stream;
    float *grads[2]; /* device: two places for the gradient */
    void *pointers[DATA_SEGMENTS_MOST];
    cudaGraphExec_t graph;      /* a step on grads[0], captured as a caller does; NULL: not yet */
    float *given;               /* pinned: gradient of the step */
    float *owed;                /* gradients that the CPU was not given yet, added */
    float *before;              /* acc before the step */
    uint32_t made;              /* calls of exchange_step */
    uint64_t number;            /* of the step that comes; a step that is refused has none */
    uint64_t serial, by_caller; /* reports that were made */

    float *grad; /* of the last step, and its report */
    tam_cuda_report report;
};

struct exchange_group {
    exchange_trial trial;
    void (*work)(exchange_endpoint *endpoint);
    exchange_endpoint endpoints[RANKS_MOST];
    uint64_t last_result; /* of rank 0 */

    pthread_mutex_t lock; /* barrier of the streams */
    pthread_cond_t changed;
    uint32_t waiting;
    uint64_t generation;
    bool gone; /* a rank has left: nobody waits any more */
};

/* -- exchange_comm.c -------------------------------------------------------------------------- */

/** What a reducer would enqueue. @param context  the endpoint */
tamis_status exchange_enqueue(void *context, tam_cuda_step *step);

/** No rank waits for this one from here on. */
void exchange_leave(exchange_group *group);

/* Parts of a packet in the buffers of an endpoint. */
tam_header *exchange_header(const exchange_endpoint *endpoint, uint32_t rank);
uint32_t *exchange_list(const exchange_endpoint *endpoint, uint32_t rank);
float *exchange_counters(const exchange_endpoint *endpoint, uint32_t rank);

/** Most indices in a packet. */
uint32_t exchange_capacity(const exchange_endpoint *endpoint);

/** Correct the checksum after a change: what a rank would send that is wrong, not what was damaged
 * on its way. */
void exchange_reseal(const exchange_endpoint *endpoint, uint32_t rank);

/** The first two entries of a rank's list change places, and its checksum is right. */
void exchange_swap_first(const exchange_endpoint *endpoint, uint32_t rank);

/* -- exchange_world.c ------------------------------------------------------------------------- */

/** Three ranks, tamis, a short vector of whole numbers; nothing goes wrong. */
exchange_trial exchange_usual(void);

/** Run `work` on every rank; fails the test if a rank failed or something stayed behind. */
void exchange_run(const exchange_trial *trial, void (*work)(exchange_endpoint *endpoint));

/* In `work`. Whoever finds something wrong leaves a sentence in endpoint->self->failure. */

/** A step on the device to its end. @param place  which of `grads` */
void exchange_step(exchange_endpoint *endpoint, int place);

/** A step by launching a graph of the caller, on place 0. */
void exchange_step_by_graph(exchange_endpoint *endpoint);

/** The step on the CPU, with all that it is owed; compared, if asked, in every bit and figure. */
void exchange_follow(exchange_endpoint *endpoint, bool compared);

/** Steps on place 0 that are in good health, compared. */
void exchange_go_on(exchange_endpoint *endpoint, uint32_t steps);

/** The step was refused: nothing was applied, acc is what it was plus the gradient. */
void exchange_check_kept(exchange_endpoint *endpoint, uint32_t refused, uint32_t rank,
                         const char *words);

/** Bring the state to the host and start from it again, the result of rank 0 taken as right. */
void exchange_reload(exchange_endpoint *endpoint, uint64_t config);

static inline bool exchange_failed(const exchange_endpoint *endpoint) {
    return endpoint->self->failure[0] != '\0';
}

#endif
