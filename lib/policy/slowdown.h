/* SPDX-License-Identifier: MIT
 *
 * A density that hides the exchange (config.slowdown). Steps are timed in windows of one density
 * each, and what of them the ranks wait for the exchange is taken for a line:
 *
 *     exposed
 *        |            o   windows: the older, the lighter
 *        |     o  .  o
 *        |    .  o                        exposed = fixed + slope * density
 *        | .
 *        +-----|-----------|-------> density
 *            least       most
 *
 * `fixed`, latency and passes, goes away at no density: where even the least density does not hide
 * the exchange, nothing is given up for the last tenth of what it would save. A window counts by
 * its medians, so a pause for a checkpoint changes nothing.
 */
#ifndef TAM_POLICY_SLOWDOWN_H
#define TAM_POLICY_SLOWDOWN_H

#include <stdbool.h>
#include <stdint.h>

enum {
    TAM_SLOWDOWN_LEARNS = 8, /* first steps of a density, whose thresholds are learned: not timed */
    TAM_SLOWDOWN_TIMED = 32
};

typedef struct tam_slowdown_goal {
    double asked; /* exposed, at most, in units of computing */
    double least; /* density */
} tam_slowdown_goal;

/** What is known of times, and the window under way: part of a state. */
typedef struct tam_slowdown {
    double most;                                                /* density */
    double weight, density, exposed_s, density_square, product; /* sums over windows */
    uint64_t steps;                                             /* of the window */
    uint32_t computing_us[TAM_SLOWDOWN_TIMED], exposed_us[TAM_SLOWDOWN_TIMED];
} tam_slowdown;

/** Another density is the most, from now on; a window begins. */
void tam_slowdown_bound(tam_slowdown *s, double most);

/** A step has ended.
 * @param  computing_us  of the slowest rank, until it waits
 * @param  exposed_us    what that rank waits */
void tam_slowdown_step(tam_slowdown *s, uint32_t computing_us, uint32_t exposed_us);

/** Whether the window has ended. */
bool tam_slowdown_full(const tam_slowdown *s);

/** At its end; the next one begins.
 * @param  now  its density
 * @return      the density of the next one: that of this one, or from half to twice as much, and at
 *              least a tenth more or less */
double tam_slowdown_decide(tam_slowdown *s, const tam_slowdown_goal *goal, double now);

/** Whether what a state holds can be. */
bool tam_slowdown_valid(const tam_slowdown *s);

#endif
