/* SPDX-License-Identifier: MIT
 *
 * config.slowdown: steps are timed in windows, and the density of the next window follows
 * (lib/policy/slowdown.h). The first bucket's headers show what each rank knows of its step before,
 * so all ranks learn the same, and a rank that did not apply a step did not learn from it, either:
 *
 *     rank 0     | computing    | waits   |      the slowest: what it waits, the exchange takes
 *     rank 1     | computing |   waits    |
 *
 * The state holds what was learned, so ranks that roll back and ranks that come have it.
 */
#include "collectives/reducer/reducer.h"

#include <math.h>

bool tam_slowdown_on(const tamis_reducer *r) {
    return r->config.slowdown > 0.0 && r->layout->ordinary > 0;
}

void tam_slowdown_waited(tamis_reducer *r, uint64_t launched_ns, bool applied) {
    uint64_t now_ns = tam_clock_ns();
    tam_step_times known = {now_ns, tam_skew_us(r->times.ended_ns, launched_ns),
                            tam_skew_us(launched_ns, now_ns)};
    r->times = applied ? known : (tam_step_times){0};
}

/* @return false: a rank does not know its times */
static bool find_times(const tam_headers *headers, uint32_t *computing_us, uint32_t *exposed_us) {
    *computing_us = 0;
    *exposed_us = UINT32_MAX;
    for (uint32_t rank = 0; rank < headers->nranks; rank++) {
        const uint32_t *times = tam_header_words(headers, rank);
        if (times[0] == 0 || times[1] == 0)
            return false;
        *computing_us = times[0] > *computing_us ? times[0] : *computing_us;
        *exposed_us = times[1] < *exposed_us ? times[1] : *exposed_us;
    }
    return true;
}

void tam_slowdown_observe(tamis_reducer *r) {
    uint32_t computing_us, exposed_us;
    if (tam_slowdown_on(r) && r->comm->nranks > 1 &&
        find_times(&r->buckets[0].view.out.headers, &computing_us, &exposed_us))
        tam_slowdown_step(&r->slowdown, computing_us, exposed_us);
}

/* Each bucket needs an entry. */
static double least_density(const tamis_reducer *r) {
    uint64_t length = r->layout->ordinary, buckets = tam_ordinary_buckets(r);
    double least = (double)buckets / (double)length;
    while (tam_reducer_entries(least, length) < buckets) /* rounding */
        least = nextafter(least, 1.0);
    return least;
}

void tam_slowdown_follow(tamis_reducer *r) {
    if (!tam_slowdown_full(&r->slowdown))
        return;
    const tam_slowdown_goal goal = {r->config.slowdown, r->slowdown_least};
    double density = fmax(tam_slowdown_decide(&r->slowdown, &goal, r->density), least_density(r));
    if (density == r->density)
        return;
    tam_log(r->comm->rank == 0 ? TAM_INFO : TAM_DEBUG, "step %llu: density %.4g -> %.4g",
            (unsigned long long)r->step, r->density, density);
    tam_reducer_take_density(r, density);
    tam_buckets_budget(r);
}
