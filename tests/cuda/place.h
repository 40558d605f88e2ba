/* SPDX-License-Identifier: MIT
 *
 * CUDA as the place of a trial: a device per rank; the communicator is the local one, so that the
 * host drives the steps, or NCCL made over it, so that the device does.
 */
#ifndef TEST_CUDA_PLACE_H
#define TEST_CUDA_PLACE_H

#include "tests/support/trial.h"

extern const trial_place place_host_driven; /* local */
extern const trial_place place_mixed;       /* the same, beside ranks on CPUs */
extern const trial_place place_stream;      /* nccl */

#endif
