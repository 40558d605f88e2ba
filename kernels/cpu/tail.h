/* SPDX-License-Identifier: MIT
 *
 * The tile kernel for the last entries of a tile, one by one: what is left of blocks.
 */
#ifndef TAM_CPU_TAIL_H
#define TAM_CPU_TAIL_H

#include "kernels/cpu/tile.h"
#include "lib/base/base.h"
#include "lib/base/half.h"
#include "lib/policy/update_rule.h"

static inline void tam_tail_append(float x, uint32_t index, uint32_t threshold, tam_tile_out *out) {
    uint32_t m = tam_magnitude(x);
    if (m < threshold || threshold >= TAM_INFINITE_BITS)
        return;
    out->index[out->count] = index;
    out->magnitude[out->count] = m;
    out->count++;
}

/** All but the sum of squares. @param  rule  [in]  NULL: the gradient is added as it is */
static inline void tam_tail_accumulate(const tam_tile_job *job, const tam_optimizer *rule,
                                       uint32_t at, tam_tile_out *out) {
    for (; at < job->length; at++) {
        float moved = job->before ? job->before[at] - job->grad[at] : job->grad[at];
        float g = job->scale * moved, kept = job->decay * job->acc[at];
        float s = kept + (rule ? tam_optimizer_take(rule, at, g) : g);
        bool finite = tam_magnitude(s) < TAM_INFINITE_BITS;
        job->acc[at] = finite ? s : kept;
        out->nonfinite += !finite;
        if (job->clear || job->before)
            job->grad[at] = job->before ? job->before[at] : 0.0f;
        tam_tail_append(job->acc[at], job->base + at, job->threshold, out);
    }
}

static inline void tam_tail_search(const tam_tile_job *job, uint32_t at, tam_tile_out *out) {
    for (; at < job->length; at++)
        tam_tail_append(job->acc[at], job->base + at, job->threshold, out);
}

#endif
