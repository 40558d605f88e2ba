/* SPDX-License-Identifier: MIT */
#include "bench/train/density.h"

#include <math.h>

bool density_moves(const train_settings *s) {
    return s->density_warm_up > 0 || s->density_end > 0.0;
}

/* Geometric interpolation from `first` to `last` in `steps` steps. The ends are exact. */
static double between(double first, double last, uint64_t step, uint64_t steps) {
    if (step >= steps)
        return last;
    return step == 0 ? first : first * pow(last / first, (double)step / (double)steps);
}

double density_at(const train_settings *s, uint64_t step, uint64_t steps) {
    if (step < s->density_warm_up)
        return between(DENSITY_START, s->density, step, s->density_warm_up);
    if (s->density_end <= 0.0)
        return s->density;
    if (steps <= s->density_warm_up)
        return s->density_end;
    return between(s->density, s->density_end, step - s->density_warm_up,
                   steps - s->density_warm_up);
}

double density_most(const train_settings *s) {
    double most = s->density_warm_up > 0 ? fmax(s->density, DENSITY_START) : s->density;
    return fmax(most, s->density_end);
}
