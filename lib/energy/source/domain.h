/* SPDX-License-Identifier: MIT
 *
 * A domain: readings become joules since open. Pure: no clock, no thread, no file.
 *
 *     raw      97 98 99 |  0  1  2  |  2  2  2 ...  | 55           range 100
 *     total     0  1  2 |  3  4  5  |  5  5  5 ...  |  5
 *                        wrap          frozen         reset: implies more than most_w
 */
#ifndef TAM_ENERGY_DOMAIN_H
#define TAM_ENERGY_DOMAIN_H

#include "lib/contracts/energy_source.h"

/** What a counter gained between two of its changes, or between the ends of a gap. */
typedef struct tam_energy_gain {
    uint64_t begin_ns, end_ns; /* when the counter was seen to change */
    uint64_t uj;
} tam_energy_gain;

typedef struct tam_energy_domain {
    tam_energy_sensor sensor;
    tamis_energy_status status;
    char reason[TAMIS_ENERGY_TEXT];
    uint64_t total_uj;
    uint32_t wraps, resets;
    double tick_s;       /* mean of the last changes; 0: not yet known */
    bool has_raw;        /* the next five hold */
    uint64_t since_ns;   /* the first good answer came */
    uint64_t raw;        /* last good answer */
    uint64_t read_ns;    /* when it came */
    uint64_t changed_ns; /* when the counter got it, as far as it was seen */
    uint64_t changed_err_ns;
    uint64_t watts_uw; /* last power, for domains that answer it */
    double ticks[16];  /* last intervals between changes */
    uint32_t nticks;

    uint64_t heard_ns; /* last answer, good or not; before: when it was first asked for */
    bool moved;        /* the counter has changed since open */
    bool still;        /* the last good answer was the one before */
    uint32_t streak;   /* changes in a row that no answer without one came between */
    bool has_doubt;    /* an answer that cannot follow from raw; if the next follows from it, */
    uint64_t doubt, doubt_ns; /* it was a reset */
    uint64_t least_ns;        /* between two reads */
    uint64_t rest;            /* of integrated power: below a microjoule */
} tam_energy_domain;

/** OK until something else is read, or what the sensor says. */
void tam_domain_init(tam_energy_domain *d, const tam_energy_sensor *sensor);

/** Record an answer. @return whether the counter has gained, and *out says what */
bool tam_domain_take(tam_energy_domain *d, const tam_energy_reading *reading, tam_energy_gain *out);

/** Nothing has been heard until now: OK may become STALE. */
void tam_domain_age(tam_energy_domain *d, uint64_t now_ns);

/** When to read next so that the next change is seen closely with few reads. */
uint64_t tam_domain_next(const tam_energy_domain *d, uint64_t now_ns);

/** What a domain gained in a stretch of time. */
typedef struct tam_cover_gain {
    uint64_t uj;       /* as it was read; then what of it counts, if it counts */
    bool compared;     /* read all the time: it can be compared with those in it */
    uint64_t owed_uj;  /* by which it has been behind those in it, which counted in its place */
    uint64_t ahead_uj; /* what it counted while they stood still */
    uint64_t sum_uj;   /* of stretches; for the caller */
    uint32_t outer;    /* the narrowest compared one that contains it; n: none. For cover.c */
} tam_cover_gain;

#define TAM_COVER_BEHIND "has gained less than what it contains, which counts in its place"

/**
 * counted[i]: whether domain i is part of a sum over a stretch of time that counts nothing twice:
 * of domains that contain each other the widest that can be read and has gained at least as much as
 * those in it. One that broke down on the way stays in, with what it has counted.
 *
 * @param  gains    [in,out]  [n]
 * @param  missing  [out]     [TAMIS_ENERGY_TEXT] what is not in it and why; "" if nothing
 */
void tam_domain_cover(const tam_energy_domain *domains, uint32_t n, tam_cover_gain *gains,
                      bool *counted, char *missing);

/** Whether one of the domains of a host contains another, readable or not. */
bool tam_domain_contains(const tam_energy_domain *domains, uint32_t n, uint32_t outer,
                         uint32_t inner);

#endif
