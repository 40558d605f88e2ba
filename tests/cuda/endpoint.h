/* SPDX-License-Identifier: MIT
 *
 * What one rank needs for steps that its device runs by itself: a communicator of NCCL, a reducer,
 * gradients of many steps in pinned memory, and the same steps on the CPU to compare with.
 */
#ifndef TEST_CUDA_ENDPOINT_H
#define TEST_CUDA_ENDPOINT_H

#include "tests/cuda/rank.h"
#include "tests/support/scratch.h"
#include <cuda_runtime_api.h>

#if defined(__SANITIZE_THREAD__) /* which sees the threads of a kernel, and takes its time */
enum { ENDPOINT_STEPS = 12 };
#else
enum { ENDPOINT_STEPS = 24 };
#endif
enum { ENDPOINT_N = 2100, ENDPOINT_BYTES = ENDPOINT_N * sizeof(float) };

typedef struct endpoint {
    tamis_comm *comm;
    tamis_reducer *reducer;
    cudaStream_t stream;
    float *grad;        /* device: [ENDPOINT_N] */
    float *given, *got; /* pinned: [ENDPOINT_STEPS * ENDPOINT_N] what goes in, what comes out */
} endpoint;

/* What makes an endpoint other than usual. */
typedef struct endpoint_order {
    const char *scheme;  /* NULL: tamis */
    uint32_t timeout_ms; /* of the communicator; 0: the usual */
    tamis_nonfinite nonfinite;
} endpoint_order;

/** Every rank on a device of its own. @param order  NULL: as usual; @return false: it failed */
bool endpoint_open(test_rank *self, const endpoint_order *order, endpoint *out);
void endpoint_close(endpoint *s);

/** The configuration of an endpoint's reducer. @param scheme  NULL: tamis */
tamis_reducer_config endpoint_config(tamis_device device, const char *scheme);

/** A communicator alone, on the device of this rank. */
void endpoint_connect(test_rank *self, uint32_t timeout_ms, tamis_comm **out);

tamis_step endpoint_step(const endpoint *s);

/** Enqueue: the gradient of a step to the device; the device's to `got`. */
void endpoint_put(test_rank *self, const endpoint *s, uint32_t number);
void endpoint_fetch(test_rank *self, const endpoint *s, uint32_t number);

/** Steps first to end - 1: joined, all in stream order; or each waited for. They stop
 * at a failure. */
void endpoint_join(test_rank *self, const endpoint *s, uint32_t first, uint32_t end);
void endpoint_wait(test_rank *self, const endpoint *s, uint32_t first, uint32_t end);

/** Start and wait. @return the status of what failed */
tamis_status endpoint_try(const endpoint *s);

/** Make the steps with a reducer on the CPU. @param out  [ENDPOINT_STEPS * ENDPOINT_N] */
void endpoint_compute(test_rank *self, uint32_t first, uint32_t end, tamis_reducer *cpu,
                      float *out);

/** Whether steps first to end - 1 gave the bits of the CPU, which makes them from step 0 on over
 * the rank's local communicator. @param scheme  NULL: tamis */
void endpoint_compare(test_rank *self, const char *scheme, uint32_t first, uint32_t end,
                      const float *got);

/** A file of this rank's own in the scratch folder, which scratch_path has made. */
void endpoint_path(const test_rank *self, const char *name, char out[SCRATCH_PATH]);

#endif
