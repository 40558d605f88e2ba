/* SPDX-License-Identifier: MIT */
#include "lib/policy/optimizer.h"

/* By multiplications alone, so that all machines have the same bits. */
static double power(double x, uint64_t exponent) {
    double result = 1.0;
    for (; exponent > 0; exponent /= 2, x *= x) {
        if (exponent % 2 == 1)
            result *= x;
    }
    return result;
}

static float bias_correction(double beta, uint64_t pass) {
    return (float)(1.0 / (1.0 - power(beta, pass)));
}

tam_optimizer tam_optimizer_of_pass(const tamis_update *u, uint64_t pass) {
    return (tam_optimizer){
        .rule = u->rule,
        .keep1 = (float)u->beta1,
        .take1 = u->rule == TAMIS_UPDATE_ADAM ? (float)(1.0 - u->beta1) : 1.0f,
        .keep2 = (float)u->beta2,
        .take2 = (float)(1.0 - u->beta2),
        .correct1 = bias_correction(u->beta1, pass),
        .correct2 = bias_correction(u->beta2, pass),
        .epsilon = (float)u->epsilon,
    };
}
