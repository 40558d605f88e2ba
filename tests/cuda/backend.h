/* SPDX-License-Identifier: MIT
 *
 * CUDA as the backend of a trial: a device per rank; the communicator is the local one, so that the
 * host drives the steps, or NCCL made over it, so that the device does.
 */
#ifndef TEST_CUDA_BACKEND_H
#define TEST_CUDA_BACKEND_H

#include "tests/support/trial.h"

extern const trial_backend backend_host_driven; /* local */
extern const trial_backend backend_mixed;       /* the same, beside ranks on CPUs */
extern const trial_backend backend_stream;      /* nccl */

#endif
