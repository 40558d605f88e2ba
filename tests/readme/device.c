/* SPDX-License-Identifier: MIT
 *
 * Compiled only: tests/gpu.sh runs such steps where there is a GPU.
 */
#include "step.head"

#include <tamis/nccl.h>

void device(tamis_comm *world, const tamis_layout *layout, void *grads, void *stream);

void device(tamis_comm *world, const tamis_layout *layout, void *grads, void *stream) {
    tamis_comm *comm;
    tamis_reducer *red;
    tamis_step step = TAMIS_STEP_INIT;
    tamis_reducer_config cfg = TAMIS_REDUCER_CONFIG_INIT;
    step.grad = grads;
#include "device.open"
#include "device.cfg"
    check(tamis_reducer_create(comm, layout, &cfg, &red));
#include "device.body"
}
