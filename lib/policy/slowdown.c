/* SPDX-License-Identifier: MIT */
#include "lib/policy/slowdown.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define GAIN_WORTH 1.1 /* exposed time over what the least density would leave */
#define DEAD_BAND 0.1  /* changes of density below this share are not made */
#define KEPT 0.9       /* of a window's weight when the next one comes */

typedef struct line {
    double fixed, slope;
} line;

void tam_slowdown_bound(tam_slowdown *s, double most) {
    s->most = most;
    s->steps = 0;
}

void tam_slowdown_step(tam_slowdown *s, uint32_t computing_us, uint32_t exposed_us) {
    if (s->steps >= TAM_SLOWDOWN_LEARNS) {
        s->computing_us[s->steps - TAM_SLOWDOWN_LEARNS] = computing_us;
        s->exposed_us[s->steps - TAM_SLOWDOWN_LEARNS] = exposed_us;
    }
    s->steps++;
}

bool tam_slowdown_full(const tam_slowdown *s) {
    return s->steps == TAM_SLOWDOWN_LEARNS + TAM_SLOWDOWN_TIMED;
}

static int slowdown_order(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static double median_s(const uint32_t *times_us) {
    uint32_t sorted[TAM_SLOWDOWN_TIMED];
    memcpy(sorted, times_us, sizeof sorted);
    qsort(sorted, TAM_SLOWDOWN_TIMED, sizeof sorted[0], slowdown_order);
    return 1e-6 * sorted[TAM_SLOWDOWN_TIMED / 2];
}

static void slowdown_learn(tam_slowdown *s, double density, double exposed_s) {
    s->weight = KEPT * s->weight + 1.0;
    s->density = KEPT * s->density + density;
    s->exposed_s = KEPT * s->exposed_s + exposed_s;
    s->density_square = KEPT * s->density_square + density * density;
    s->product = KEPT * s->product + density * exposed_s;
}

/* Least squares; through the origin while there was one density. */
static line line_of(const tam_slowdown *s) {
    double density = s->density / s->weight, exposed_s = s->exposed_s / s->weight;
    double square = s->density_square / s->weight - density * density;
    double product = s->product / s->weight - density * exposed_s;
    double steepest = exposed_s / density, slope = steepest;
    if (square > 1e-4 * density * density)
        slope = fmin(fmax(product / square, 0.0), steepest);
    return (line){exposed_s - slope * density, slope};
}

static double slowdown_clamp(double value, double low, double high) {
    return fmin(fmax(value, low), high);
}

double tam_slowdown_decide(tam_slowdown *s, const tam_slowdown_goal *goal, double now) {
    double computing_s = median_s(s->computing_us), least = fmin(goal->least, s->most);
    s->steps = 0;
    slowdown_learn(s, now, median_s(s->exposed_us));
    line of = line_of(s);
    double least_s = of.fixed + of.slope * least;
    double goal_s = fmax(goal->asked * computing_s, GAIN_WORTH * least_s);
    double wanted = of.slope > 0.0 ? (goal_s - of.fixed) / of.slope : s->most;
    double next = slowdown_clamp(slowdown_clamp(wanted, 0.5 * now, 2.0 * now), least, s->most);
    return fabs(next - now) < DEAD_BAND * now ? now : next;
}

bool tam_slowdown_valid(const tam_slowdown *s) {
    const double sums[] = {s->weight, s->density, s->exposed_s, s->density_square, s->product};
    bool fine =
        s->most > 0.0 && s->most <= 1.0 && s->steps < TAM_SLOWDOWN_LEARNS + TAM_SLOWDOWN_TIMED;
    for (int i = 0; i < 5; i++)
        fine = fine && sums[i] >= 0.0 && sums[i] < 1e30;
    return fine;
}
