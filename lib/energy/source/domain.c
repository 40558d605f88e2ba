/* SPDX-License-Identifier: MIT */
#include "lib/energy/source/domain.h"
#include "lib/base/numbers.h"

#include <stdio.h>

#define SECOND UINT64_C(1000000000)

enum { QUICK = 8 }; /* changes in a row: it ticks faster than it is read */

#define JITTER_NS UINT64_C(300000)
#define SPACING_NS UINT64_C(500000)
#define SPACING_MAX_NS UINT64_C(50000000) /* some drivers answer 0 when asked sooner */
#define PAUSE_MAX_NS (SECOND / 2)
#define RETRY_NS SECOND
#define STALE_NS (2 * SECOND)
#define GAP_NS (2 * SECOND) /* of power: nobody knows what was drawn in a longer one */

static double domain_seconds(uint64_t ns) {
    return (double)ns * 1e-9;
}

static uint64_t to_ns(double s) {
    return (uint64_t)(s * 1e9);
}

static void set_status(tam_energy_domain *d, tamis_energy_status status, const char *reason) {
    d->status = status;
    if (reason != d->reason)
        tam_energy_say(d->reason, "%s", reason);
}

void tam_domain_init(tam_energy_domain *d, const tam_energy_sensor *sensor) {
    *d = (tam_energy_domain){.sensor = *sensor, .least_ns = SPACING_NS};
    set_status(d, sensor->status, sensor->status == TAMIS_ENERGY_OK ? "" : sensor->reason);
}

/* -- ticks ------------------------------------------------------------------------------------ */

enum { TICKS = sizeof((tam_energy_domain *)NULL)->ticks / sizeof(double), TICKS_MIN = 3 };

/* The mean over all, for errors of single dates cancel in it; some have missed ticks in them. */
static void learn_tick(tam_energy_domain *d, uint64_t interval_ns) {
    d->ticks[d->nticks++ % TICKS] = domain_seconds(interval_ns);
    uint32_t known = d->nticks < TICKS ? d->nticks : TICKS;
    if (known < TICKS_MIN)
        return;
    double sorted[TICKS], sum_s = 0.0, count = 0.0;
    memcpy(sorted, d->ticks, sizeof sorted);
    double usual_s = tam_median(sorted, known);
    for (uint32_t i = 0; i < known; i++) {
        double ticks = (double)(uint64_t)(d->ticks[i] / usual_s + 0.5);
        sum_s += d->ticks[i];
        count += ticks > 1.0 ? ticks : 1.0;
    }
    d->tick_s = sum_s / count;
}

/* How far the next change may be from where it is expected. */
static uint64_t doubt_of_next(const tam_energy_domain *d) {
    return d->changed_err_ns + d->changed_err_ns / 4 + to_ns(d->tick_s / 1024.0) + JITTER_NS;
}

/* -- counters --------------------------------------------------------------------------------- */

/* A gain since `raw` was answered at read_ns, which the counter had got at changed_ns. What was
 * gained while it stood still may come at once; a range may have been gone through unseen. */
static bool follows(const tam_energy_domain *d, uint64_t raw, uint64_t read_ns, uint64_t changed_ns,
                    const tam_energy_reading *r, uint64_t *gain) {
    double margin_s = d->tick_s > 0.0 ? 0.1 + 2.0 * d->tick_s : 2.0;
    double most_uj = 1e6 * d->sensor.most_w * (domain_seconds(r->at_ns - changed_ns) + margin_s);
    double unseen_uj = 1e6 * d->sensor.most_w * domain_seconds(r->at_ns - read_ns);
    uint64_t range = d->sensor.range_uj;
    if (r->value < raw && range == 0)
        return false;
    if (range > 0 && unseen_uj >= (double)range)
        return false;
    *gain = r->value >= raw ? r->value - raw : range - raw + r->value;
    return (double)*gain <= most_uj;
}

/* Polled too fast, some counters answer 0; others answer one wrong number. */
static void doubt(tam_energy_domain *d, const tam_energy_reading *r) {
    d->has_doubt = true;
    d->doubt = r->value;
    d->doubt_ns = r->at_ns;
    d->least_ns = tam_min(SPACING_MAX_NS, 2 * d->least_ns);
    d->status = TAMIS_ENERGY_GARBLED;
    tam_energy_say(d->reason, "reads %llu after %llu uJ: read too often, or reset",
                   (unsigned long long)r->value, (unsigned long long)d->raw);
}

/* When the counter changed: between the last two answers, and about a tick after the last change.
 * If it changes in every read, it is only known that it ticks faster than it is read: then its
 * last tick was shortly before. */
static uint64_t date_change(const tam_energy_domain *d, const tam_energy_reading *r,
                            uint64_t *err_ns) {
    uint64_t low_ns = d->read_ns, high_ns = r->at_ns;
    *err_ns = r->err_ns;
    if (!d->still && (d->tick_s == 0.0 || d->streak >= QUICK)) {
        *err_ns += (high_ns - low_ns) / 8;
        return high_ns;
    }
    if (d->tick_s > 0.0) {
        double ticks =
            (double)(uint64_t)(domain_seconds(high_ns - d->changed_ns) / d->tick_s + 0.5);
        uint64_t expected_ns = d->changed_ns + to_ns(d->tick_s * (ticks > 1.0 ? ticks : 1.0));
        uint64_t doubt_ns = doubt_of_next(d);
        if (expected_ns - doubt_ns < high_ns && expected_ns + doubt_ns > low_ns) {
            low_ns = tam_max(low_ns, expected_ns - doubt_ns);
            high_ns = tam_min(high_ns, expected_ns + doubt_ns);
        }
    }
    *err_ns += (high_ns - low_ns) / 2;
    return low_ns + (high_ns - low_ns) / 2;
}

static void domain_accept(tam_energy_domain *d, const tam_energy_reading *r, uint64_t uj,
                          tam_energy_gain *out) {
    uint64_t err_ns, when_ns = date_change(d, r, &err_ns);
    *out = (tam_energy_gain){d->changed_ns, when_ns, uj};
    if (d->moved) /* else the first tick began before it was looked at */
        learn_tick(d, when_ns - d->changed_ns);
    d->wraps += r->value < d->raw;
    d->total_uj += uj;
    d->streak = d->still ? 0 : d->streak + 1;
    d->moved = true;
    d->still = d->has_doubt = false;
    d->raw = r->value;
    d->read_ns = r->at_ns;
    d->changed_ns = when_ns;
    d->changed_err_ns = err_ns;
    set_status(d, TAMIS_ENERGY_OK, "");
}

/* What was doubted was true, for the next answer follows from it: go on from there. */
static bool restart(tam_energy_domain *d, const tam_energy_reading *r, uint64_t uj,
                    tam_energy_gain *out) {
    unsigned long long from = d->raw, to = d->doubt;
    double within_s = domain_seconds(d->doubt_ns - d->read_ns);
    d->resets++;
    d->raw = d->doubt;
    d->read_ns = d->changed_ns = d->doubt_ns;
    d->changed_err_ns = 0;
    d->has_doubt = d->still = d->moved = false;
    if (uj > 0)
        domain_accept(d, r, uj, out);
    d->status = TAMIS_ENERGY_RESET;
    tam_energy_say(d->reason,
                   "went from %llu to %llu uJ in %.1f s: reset (driver reloaded?), or wrapped "
                   "around unseen; what it lost is not counted%s%s",
                   from, to, within_s, d->sensor.reason[0] ? "; " : "", d->sensor.reason);
    return uj > 0;
}

static void take_unchanged(tam_energy_domain *d, const tam_energy_reading *r) {
    uint64_t latest_ns = d->changed_ns + d->changed_err_ns; /* the read may have hung */
    uint64_t still_ns = r->at_ns > latest_ns ? r->at_ns - latest_ns : 0;
    double limit_s = d->moved ? 2.0 : 10.0; /* who never moved may be slow */
    double ticks_s = 20.0 * (d->tick_s > 0.0 ? d->tick_s : d->sensor.period_s);
    d->still = true;
    d->has_doubt = false;
    d->streak = 0;
    d->read_ns = r->at_ns;
    if (domain_seconds(still_ns) > (limit_s > ticks_s ? limit_s : ticks_s)) {
        d->status = TAMIS_ENERGY_FROZEN;
        tam_energy_say(d->reason, "has been stuck at %llu uJ for %.0f s: asleep, off or broken%s%s",
                       (unsigned long long)d->raw, domain_seconds(still_ns),
                       d->sensor.reason[0] ? "; " : "", d->sensor.reason);
    } else if (d->status != TAMIS_ENERGY_RESET) {
        set_status(d, TAMIS_ENERGY_OK, "");
    }
}

static void domain_begin(tam_energy_domain *d, const tam_energy_reading *r) {
    d->since_ns = d->has_raw ? d->since_ns : r->at_ns;
    d->has_raw = true;
    d->raw = r->value;
    d->watts_uw = d->sensor.power ? r->value : 0;
    d->read_ns = d->changed_ns = r->at_ns;
    set_status(d, TAMIS_ENERGY_OK, "");
}

static bool take_counter(tam_energy_domain *d, const tam_energy_reading *r, tam_energy_gain *out) {
    uint64_t uj;
    if (d->sensor.range_uj > 0 && r->value > d->sensor.range_uj) {
        d->status = TAMIS_ENERGY_GARBLED;
        tam_energy_say(d->reason, "%llu uJ exceeds its range of %llu uJ",
                       (unsigned long long)r->value, (unsigned long long)d->sensor.range_uj);
        return false;
    }
    if (!d->has_raw) {
        domain_begin(d, r);
        return false;
    }
    if (r->value == d->raw) {
        take_unchanged(d, r);
        return false;
    }
    if (follows(d, d->raw, d->read_ns, d->changed_ns, r, &uj)) {
        domain_accept(d, r, uj, out);
        return true;
    }
    if (d->has_doubt && follows(d, d->doubt, d->doubt_ns, d->doubt_ns, r, &uj))
        return restart(d, r, uj, out);
    doubt(d, r);
    return false;
}

/* -- power ------------------------------------------------------------------------------------ */

static bool is_power(tam_energy_domain *d, const tam_energy_reading *r) {
    bool device = d->sensor.kind == TAMIS_ENERGY_GPU || d->sensor.kind == TAMIS_ENERGY_MODULE;
    if ((double)r->value <= 1e6 * d->sensor.most_w && (r->value > 0 || !device))
        return true;
    d->least_ns = tam_min(SPACING_MAX_NS, 2 * d->least_ns);
    d->status = TAMIS_ENERGY_GARBLED;
    tam_energy_say(d->reason, "%llu uW is not a plausible power of such a device",
                   (unsigned long long)r->value);
    return false;
}

/* Trapezoids, to the microjoule: what is left over is kept for the next. */
static uint64_t integrate(tam_energy_domain *d, uint64_t uw, uint64_t ns) {
    const uint64_t unit = 2 * SECOND;
    __uint128_t sum = (__uint128_t)(d->watts_uw + uw) * ns + d->rest;
    d->rest = (uint64_t)(sum % unit);
    return (uint64_t)(sum / unit);
}

static bool take_power(tam_energy_domain *d, const tam_energy_reading *r, tam_energy_gain *out) {
    if (!is_power(d, r))
        return false;
    uint64_t gap_ns = r->at_ns - d->read_ns;
    bool first = !d->has_raw;
    if (first || gap_ns > tam_max(GAP_NS, to_ns(20.0 * d->sensor.period_s))) {
        domain_begin(d, r);
        if (first)
            return false;
        d->resets++;
        d->status = TAMIS_ENERGY_RESET;
        tam_energy_say(d->reason,
                       "no power was read for %.1f s; the energy of that time is not counted",
                       domain_seconds(gap_ns));
        return false;
    }
    *out = (tam_energy_gain){d->read_ns, r->at_ns, integrate(d, r->value, gap_ns)};
    learn_tick(d, gap_ns);
    d->total_uj += out->uj;
    d->moved = true;
    domain_begin(d, r);
    return out->uj > 0;
}

/* -- answers ---------------------------------------------------------------------------------- */

static void domain_fail(tam_energy_domain *d, const tam_energy_reading *r) {
    bool gone = r->status == TAMIS_ENERGY_ABSENT && d->has_raw;
    if (r->status == TAMIS_ENERGY_GARBLED || r->status == TAMIS_ENERGY_UNSUPPORTED)
        d->least_ns = tam_min(SPACING_MAX_NS, 2 * d->least_ns);
    set_status(d, gone ? TAMIS_ENERGY_LOST : r->status, r->reason);
}

bool tam_domain_take(tam_energy_domain *d, const tam_energy_reading *reading,
                     tam_energy_gain *out) {
    tam_energy_reading r = *reading;
    r.at_ns = tam_max(r.at_ns, d->read_ns); /* time stamps may be late */
    d->heard_ns = tam_max(r.at_ns, d->heard_ns);
    if (r.inside)
        snprintf(d->sensor.inside, sizeof d->sensor.inside, "%s", r.inside);
    if (r.status != TAMIS_ENERGY_OK) {
        domain_fail(d, &r);
        return false;
    }
    return d->sensor.power ? take_power(d, &r, out) : take_counter(d, &r, out);
}

void tam_domain_age(tam_energy_domain *d, uint64_t now_ns) {
    bool well = d->status <= TAMIS_ENERGY_RESET; /* it answers, or did */
    if (d->heard_ns == 0)
        d->heard_ns = now_ns;
    if (!well || now_ns < d->heard_ns + STALE_NS)
        return;
    d->status = TAMIS_ENERGY_STALE;
    tam_energy_say(d->reason, "no answer for %.1f s: its driver hangs, or the machine is too busy",
                   domain_seconds(now_ns - d->heard_ns));
}

/* -- when to read ----------------------------------------------------------------------------- */

/* In the middle of where the change may be, at the end of it, and then less and less often: each
 * change narrows it by half, down to the jitter. */
static uint64_t read_time_near_change(const tam_energy_domain *d, uint64_t period_ns) {
    uint64_t at_ns = d->changed_ns + to_ns(d->tick_s);
    for (uint64_t step_ns = doubt_of_next(d); at_ns <= d->heard_ns; step_ns *= 2) {
        if (step_ns > period_ns)
            return d->heard_ns + period_ns;
        at_ns += step_ns;
    }
    return at_ns;
}

uint64_t tam_domain_next(const tam_energy_domain *d, uint64_t now_ns) {
    uint64_t period_ns = to_ns(d->sensor.period_s), at_ns = d->heard_ns + period_ns;
    if (d->sensor.status != TAMIS_ENERGY_OK)
        return UINT64_MAX;
    if (!d->has_raw && d->status == TAMIS_ENERGY_OK)
        return now_ns;
    if (d->status >= TAMIS_ENERGY_LOST && d->status <= TAMIS_ENERGY_FAILED)
        return tam_max(now_ns, d->heard_ns + RETRY_NS);
    if (d->status == TAMIS_ENERGY_FROZEN)
        at_ns = d->heard_ns + PAUSE_MAX_NS;
    else if (!d->sensor.power && d->tick_s > 0.0 && d->streak < QUICK)
        at_ns = read_time_near_change(d, period_ns);
    at_ns = tam_min(tam_max(at_ns, d->heard_ns + d->least_ns), d->heard_ns + PAUSE_MAX_NS);
    return tam_max(now_ns, at_ns);
}
