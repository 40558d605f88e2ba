/* SPDX-License-Identifier: MIT
 *
 * Which kind of step a sparse scheme has.
 */
#include "kernels/cuda/step.h"

#include "lib/base/base.h"

tamis_status tam_cuda_step_open(void *device, const tam_cuda_plan *plan, float *acc,
                                tam_cuda_step **out) {
    tam_cuda_step *s;
    TAM_TRY(tam_cuda_sparse_new(device, plan, acc, &s));
    tamis_status status = plan->node ? tam_cuda_node_join(s) : TAMIS_OK;
    if (status == TAMIS_OK)
        return tam_cuda_step_make(s, out);
    tam_cuda_step_free(s);
    return status;
}
