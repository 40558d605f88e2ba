/* SPDX-License-Identifier: MIT
 *
 * Joules of a stretch among its phases. What the watts say is moved to what was measured, each
 * phase by its variance and by at most 3 standard deviations. What was measured beyond that is left
 * unattributed; if less was measured, all shares shrink by the same factor: no more is given than
 * there is.
 */
#include "lib/energy/attribute/fit.h"

#include <math.h>

static const double most_sd = 3.0, interval_sd = 1.96;

typedef struct division {
    uint32_t count;
    uint32_t phase[TAMIS_ENERGY_PHASES];
    double uj[TAMIS_ENERGY_PHASES];
    double sd_uj[TAMIS_ENERGY_PHASES];  /* of it */
    double weight[TAMIS_ENERGY_PHASES]; /* its part in what the counter has more or less */
} division;

static double divide_clean(double seconds) {
    return seconds > 0.0 && seconds < 1e12 ? seconds : 0.0; /* NaN too */
}

static double total(const division *d) {
    double sum = 0.0;
    for (uint32_t i = 0; i < d->count; i++)
        sum += d->uj[i];
    return sum;
}

/* The counter errs too: by noise, by what its sensor does not see, and at both ends of the stretch
 * by parts of a tick. */
static double counter_variance(const tam_fit *fit, double seconds) {
    const tam_watts *s = &fit->watts;
    double tick_uj = 1e6 * s->mean_w * fit->tick_s;
    return (s->variance + fit->unseen) * 1e12 * seconds / fit->tick_s + tick_uj * tick_uj / 6.0;
}

/* An error of the counter falls on all phases equally. */
static void divide_weigh(const tam_fit *fit, division *d) {
    double sum = total(d), seconds = sum * 1e-6 / fit->watts.mean_w;
    double counter = counter_variance(fit, seconds);
    for (uint32_t i = 0; i < d->count && sum > 0.0; i++) {
        double part = d->uj[i] / sum, own = d->sd_uj[i] * d->sd_uj[i];
        d->weight[i] = own + part * counter;
        d->sd_uj[i] = sqrt(own + part * part * counter);
    }
}

/* Move the shares by `rest` altogether, none below 0. @return what could not be moved */
static double adjust(division *d, double rest) {
    double weights = 0.0, left = rest;
    for (uint32_t i = 0; i < d->count; i++)
        weights += d->weight[i];
    for (uint32_t i = 0; i < d->count && weights > 0.0; i++) {
        double most = most_sd * d->sd_uj[i], wish = rest * (d->weight[i] / weights);
        double move = fmin(fmax(wish, -fmin(most, d->uj[i])), most);
        d->uj[i] += move;
        left -= move;
    }
    return left;
}

/* Whole microjoules that add up to `uj`: what is cut off goes to the largest remainders, and what
 * doubles cannot tell of sums above 2^53 to the largest share. The last is the unattributed one. */
static void make_whole(const double *parts, uint32_t count, int64_t uj, int64_t *whole) {
    double rests[TAMIS_ENERGY_PHASES + 1];
    int64_t left = uj;
    for (uint32_t i = 0; i < count; i++) {
        double floored = floor(fmin(fmax(parts[i], 0.0), 9.2e18));
        whole[i] = (int64_t)floored < left ? (int64_t)floored : left;
        rests[i] = parts[i] - floored;
        left -= whole[i];
    }
    uint32_t most = 0;
    for (uint32_t given = 0; given < count && left > 0; given++, left--) {
        uint32_t best = 0;
        for (uint32_t i = 0; i < count; i++)
            best = rests[i] > rests[best] ? i : best;
        whole[best]++;
        rests[best] = -1.0;
    }
    for (uint32_t i = 0; i < count; i++)
        most = whole[i] > whole[most] ? i : most;
    whole[most] += left;
}

static int64_t divide_clip(double value, int64_t low, int64_t high) {
    return value <= (double)low ? low : value >= (double)high ? high : (int64_t)value;
}

/* A phase of a group has anything between nothing and all that the group has. */
static void give_interval(const tam_fit *fit, const division *d, uint32_t i, int64_t uj,
                          tamis_energy_share *shares) {
    tamis_energy_share *share = &shares[d->phase[i]];
    double low = (double)share->uj - interval_sd * d->sd_uj[i];
    double high = (double)share->uj + interval_sd * d->sd_uj[i];
    share->group = fit->watts.group[d->phase[i]];
    for (uint32_t j = 0; j < d->count && share->group; j++) {
        bool mate = j != i && share->group >> d->phase[j] & 1;
        high += mate ? (double)shares[d->phase[j]].uj : 0.0;
        low = 0.0;
    }
    share->low_uj = divide_clip(low, 0, share->uj);
    share->high_uj = divide_clip(high, share->uj, uj);
}

static void divide_scale(division *d, double factor) {
    for (uint32_t i = 0; i < d->count; i++)
        d->uj[i] *= factor;
}

/* By watts; @return what is left unattributed */
static double fit_to(const tam_fit *fit, division *d, int64_t uj) {
    divide_weigh(fit, d);
    double rest = adjust(d, (double)uj - total(d)), sum = total(d);
    if (sum > (double)uj)
        divide_scale(d, (double)uj / sum);
    return fmax(rest, 0.0);
}

static void share_by_time(division *d, int64_t uj, const tamis_energy_share *shares) {
    for (uint32_t i = 0; i < d->count; i++)
        d->uj[i] = shares[d->phase[i]].seconds;
    divide_scale(d, (double)uj / total(d));
}

static void divide(const tam_fit *fit, division *d, int64_t uj, tamis_energy_share *shares,
                   int64_t *unattributed_uj) {
    int64_t whole[TAMIS_ENERGY_PHASES + 1] = {0};
    double parts[TAMIS_ENERGY_PHASES + 1];
    tamis_energy_method method = d->count == 1      ? TAMIS_ENERGY_COUNTER
                                 : fit->watts.valid ? TAMIS_ENERGY_REGRESSED
                                                    : TAMIS_ENERGY_TIME_SHARE;
    double rest = method == TAMIS_ENERGY_REGRESSED ? fit_to(fit, d, uj) : 0.0;
    if (method != TAMIS_ENERGY_REGRESSED)
        share_by_time(d, uj, shares);
    memcpy(parts, d->uj, sizeof d->uj);
    parts[d->count] = rest;
    make_whole(parts, d->count + (rest > 0.0), uj, whole);
    *unattributed_uj = rest > 0.0 ? whole[d->count] : 0;
    for (uint32_t i = 0; i < d->count; i++) {
        tamis_energy_share *share = &shares[d->phase[i]];
        share->uj = share->low_uj = share->high_uj = whole[i];
        share->method = method;
    }
    for (uint32_t i = 0; i < d->count && method == TAMIS_ENERGY_REGRESSED; i++)
        give_interval(fit, d, i, uj, shares);
}

/* What the watts say of phases that were under way so long; their seconds go into `shares`. */
static void expect_all(const tam_fit *fit, const double seconds[TAMIS_ENERGY_PHASES],
                       tamis_energy_share *shares, division *d) {
    d->count = 0;
    for (uint32_t phase = 0; phase < TAMIS_ENERGY_PHASES; phase++) {
        double under_way_s = divide_clean(seconds[phase]);
        shares[phase] = (tamis_energy_share){.seconds = under_way_s};
        if (under_way_s == 0.0)
            continue;
        d->phase[d->count] = phase;
        d->uj[d->count] = under_way_s * 1e6 * fit->watts.w[phase];
        d->sd_uj[d->count++] = under_way_s * 1e6 * fit->watts.sd_w[phase];
    }
}

double tam_fit_expect(const tam_fit *fit, const double seconds[TAMIS_ENERGY_PHASES]) {
    tamis_energy_share shares[TAMIS_ENERGY_PHASES];
    division d;
    if (!fit->watts.valid)
        return 0.0;
    expect_all(fit, seconds, shares, &d);
    return total(&d);
}

void tam_fit_divide(const tam_fit *fit, const double seconds[TAMIS_ENERGY_PHASES], int64_t uj,
                    tamis_energy_share shares[TAMIS_ENERGY_PHASES], int64_t *unattributed_uj) {
    division d;
    expect_all(fit, seconds, shares, &d);
    *unattributed_uj = uj;
    if (d.count > 0 && uj >= 0)
        divide(fit, &d, uj, shares, unattributed_uj);
}
