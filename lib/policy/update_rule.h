/* SPDX-License-Identifier: MIT
 *
 * Update mode adds to the residual the step u of the rank's own optimizer, not the gradient. These
 * functions compute one entry; host and accelerator both compile them. g is scale * gradient.
 *
 *     adam        m = keep1 m + take1 g          v = keep2 v + (take2 g) g
 *                 u = (m correct1) / (sqrt(v correct2) + epsilon)
 *     momentum    m = keep1 m + g                u = m
 *
 * take = 1 - beta, correct = 1 / (1 - beta^t) in pass t = 1, 2, ... All in binary32, every
 * operation rounded. Without a first moment (beta1 = 0) m is g, so that rule momentum is then no
 * optimizer at all. If anything is not finite, m and v stay as they are and u is NaN, so that the
 * pass drops and counts the entry.
 *
 * Sources: Adam with bias correction, Kingma and Ba, arXiv 1412.6980; momentum that is accumulated
 * in place of the gradient, Deep Gradient Compression, arXiv 1712.01887.
 */
#ifndef TAM_POLICY_UPDATE_RULE_H
#define TAM_POLICY_UPDATE_RULE_H

#include "lib/contracts/device.h"
#include "lib/base/numbers.h"

#include <math.h>
#include <stdbool.h>

/* All ones where both are finite, else 0. */
TAM_SHARED uint32_t tam_optimizer_sound(float x, float y) {
    uint32_t a = tam_bits(x) & 0x7fffffffu, b = tam_bits(y) & 0x7fffffffu;
    return 0u - (uint32_t)((a > b ? a : b) < TAM_INFINITE_BITS);
}

/* By bits: compilers turn anything else into a store behind a branch. */
TAM_SHARED float tam_optimizer_choose(uint32_t sound, float x, float otherwise) {
    return tam_float((tam_bits(x) & sound) | (tam_bits(otherwise) & ~sound));
}

/** @param m  [in,out]  NULL: no first moment; @param v  [in,out]. @return u */
TAM_SHARED float tam_optimizer_adam(const tam_optimizer *p, float g, float *m, float *v) {
    float first = m ? p->keep1 * *m + p->take1 * g : g;
    float second = p->keep2 * *v + (p->take2 * g) * g;
    float spread = second * p->correct2;
    float u = (first * p->correct1) / (sqrtf(spread) + p->epsilon);
    uint32_t sound = tam_optimizer_sound(spread, u);
    if (m)
        *m = tam_optimizer_choose(sound, first, *m);
    *v = tam_optimizer_choose(sound, second, *v);
    return tam_float(tam_bits(u) | (~sound & 0x7fffffffu));
}

/** @return u */
TAM_SHARED float tam_optimizer_momentum(const tam_optimizer *p, float g, float *m) {
    float first = p->keep1 * *m + g;
    uint32_t sound = tam_optimizer_sound(first, first);
    *m = tam_optimizer_choose(sound, first, *m);
    return tam_float(tam_bits(first) | (~sound & 0x7fffffffu));
}

/** Update the moments of element i of the vector. @return u */
TAM_SHARED float tam_optimizer_take(const tam_optimizer *p, size_t i, float g) {
    float *m = p->first ? &p->first[i] : NULL;
    return p->second ? tam_optimizer_adam(p, g, m, &p->second[i]) : tam_optimizer_momentum(p, g, m);
}

#endif
