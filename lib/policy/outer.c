/* SPDX-License-Identifier: MIT */
#include "lib/policy/outer.h"

#include "lib/base/numbers.h"

#include <math.h>

#define WEIGHT 0.25 /* of the last round in the running mean */
#define WORTH 0.2   /* the least change, relative */

tam_outer_seen tam_outer_difference(const float *base, const float *params, uint64_t n, float *d) {
    tam_outer_seen seen = {0};
    for (uint64_t i = 0; i < n; i++) {
        d[i] = base[i] - params[i];
        seen.square += (double)d[i] * d[i];
    }
    return seen;
}

tam_outer_seen tam_outer_step(tam_outer how, const float *mean, uint64_t n, float *m, float *base) {
    tam_outer_seen seen = {0};
    for (uint64_t i = 0; i < n; i++) {
        float moment = m ? how.momentum * m[i] + mean[i] : mean[i];
        float ahead = m ? mean[i] + how.momentum * moment : mean[i];
        float change = how.lr * ahead, next = base[i] - change;
        if (!isfinite(moment) || !isfinite(next)) {
            seen.bad++;
            continue;
        }
        if (m)
            m[i] = moment;
        base[i] = next;
        seen.square += (double)change * change;
    }
    return seen;
}

void tam_outer_follow(const float *base, const float *since, uint64_t n, float *params) {
    for (uint64_t i = 0; i < n; i++) {
        float own = since ? base[i] + (params[i] - since[i]) : base[i];
        params[i] = isfinite(own) ? own : base[i];
    }
}

void tam_outer_return(const float *base, const float *left, const float *since, uint64_t n,
                      float *params) {
    for (uint64_t i = 0; i < n; i++) {
        float moved = since ? params[i] - since[i] : 0.0f;
        float back = base[i] - left[i] + moved;
        params[i] = isfinite(back) ? back : base[i];
    }
}

uint32_t tam_outer_steps(tam_outer_pace *pace, double exchange_s, double step_s, double share,
                         uint32_t steps, uint32_t least, uint32_t most) {
    if (!(step_s > 0.0) || !(exchange_s >= 0.0))
        return steps;
    double ratio = exchange_s / step_s;
    pace->ratio = pace->ratio > 0.0 ? pace->ratio + WEIGHT * (ratio - pace->ratio) : ratio;
    double wanted = ceil(pace->ratio * (1.0 - share) / share);
    wanted = fmin(fmax(wanted, least), most);
    return fabs(wanted - steps) > WORTH * steps ? (uint32_t)wanted : steps;
}
