/* SPDX-License-Identifier: MIT
 *
 * What one domain gained since the last report, told by one of the ranks that can read it.
 *
 * A reading that its watts cannot have brought about in the time is not believed and leaves no
 * trace: the next rank tells, and whoever tells the truth again is measured from its last truth.
 */
#include "lib/energy/cluster/ledger.h"

#include <stdio.h>

#define SLACK_NS UINT64_C(5000000000) /* ticks of slow counters, readings of one moment */
#define WATTS_MOST UINT64_C(10000000)
#define GAIN_MOST (UINT64_C(1) << 53) /* 9 GJ */
#define COUNT_MOST (INT64_C(1) << 62)

/* Where a meter's reading lies on the domain's count, and whether it can be. */
typedef enum verdict {
    SURE,
    GAP,  /* a part that cannot be known is left out */
    BACK, /* it counts backwards */
    LEAP  /* more than its watts allow */
} verdict;

typedef struct reckoning {
    int64_t at;
    verdict verdict;
} reckoning;

int tam_ledger_order(uint64_t host_a, const char *id_a, uint64_t host_b, const char *id_b) {
    return host_a != host_b ? (host_a < host_b ? -1 : 1) : strcmp(id_a, id_b);
}

/* What was never read has no time: no counter, no library, no right. */
static bool claims_reading(const tam_energy_entry *e) {
    return e->status == TAMIS_ENERGY_OK || e->status == TAMIS_ENERGY_RESET;
}

static const char *find_fault(const tam_energy_entry *e) {
    if (e->kind >= TAMIS_ENERGY_KINDS)
        return "a kind that there is not";
    if (e->status >= TAMIS_ENERGY_STATUSES)
        return "a status that there is not";
    if (e->has_raw && e->range_uj && e->raw_uj > e->range_uj)
        return "a counter beyond its range";
    if (claims_reading(e) && e->read_ns < e->since_ns)
        return "a reading from before its meter was opened";
    return NULL;
}

static bool readable(const tam_energy_entry *e) {
    return claims_reading(e) && !find_fault(e);
}

static uint64_t apart(uint64_t a, uint64_t b) {
    return a > b ? a - b : b - a;
}

/* What the domain can gain in so long. */
static uint64_t most_gain(const tam_energy_entry *e, uint64_t ns) {
    uint64_t watts = e->most_w && e->most_w < WATTS_MOST ? e->most_w : WATTS_MOST;
    unsigned __int128 uj = (unsigned __int128)watts * ((unsigned __int128)ns + SLACK_NS) / 1000;
    return uj < GAIN_MOST ? (uint64_t)uj : GAIN_MOST;
}

/* By how much the counter has moved on from the ledger's reading to this one: forward if it is the
 * later one, but for readings of about the same time. @return false: it cannot be known */
static bool relate(const tam_ledger_domain *d, const tam_energy_entry *e, int64_t *out) {
    if (!d->told_at || !d->has_raw || !e->has_raw || d->range_uj != e->range_uj)
        return false;
    bool later = e->read_ns >= d->read_ns;
    uint64_t most = most_gain(e, apart(e->read_ns, d->read_ns)), little = most_gain(e, 0);
    uint64_t up = e->raw_uj - d->raw_uj, down = d->raw_uj - e->raw_uj;
    if (e->range_uj) {
        if (most + little >= e->range_uj)
            return false;
        up = e->raw_uj >= d->raw_uj ? up : e->range_uj - down;
        down = e->range_uj - up;
    }
    if (up <= (later ? most : little))
        *out = (int64_t)up;
    else if (down <= (later ? little : most))
        *out = -(int64_t)down;
    else
        return false;
    return true;
}

/* A meter that was not in the last report, of a domain that was. */
static reckoning reckon_newcomer(const tam_ledger_domain *d, const tam_energy_entry *e) {
    int64_t moved;
    if (relate(d, e, &moved))
        return (reckoning){(int64_t)d->total_uj + moved, SURE};
    bool apart_in_time = e->since_ns >= d->read_ns; /* what both have seen would count twice */
    uint64_t own = apart_in_time ? e->total_uj : 0;
    if (own > most_gain(e, e->read_ns - e->since_ns))
        return (reckoning){(int64_t)d->total_uj, LEAP};
    return (reckoning){(int64_t)(d->total_uj + own), GAP};
}

static reckoning reckon(const tam_ledger_domain *d, const tam_energy_entry *e,
                        const tam_ledger_view *v) {
    uint64_t before = v ? v->total_uj : 0;
    uint64_t since_ns = v ? v->read_ns : e->since_ns;
    int64_t from = v ? v->at_uj : 0;
    if (!v && d->told_at)
        return reckon_newcomer(d, e);
    if (e->total_uj < before)
        return (reckoning){from, BACK};
    if (e->total_uj - before > most_gain(e, apart(e->read_ns, since_ns)))
        return (reckoning){from, LEAP};
    return (reckoning){from + (int64_t)(e->total_uj - before), SURE};
}

/* Also against the reading that the count was last told by, which may be another meter's. */
static reckoning reckon_gain(const tam_ledger_domain *d, const tam_energy_entry *e,
                             const tam_ledger_view *v) {
    reckoning r = reckon(d, e, v);
    int64_t gain = r.at - (int64_t)d->total_uj;
    if (r.verdict == SURE && d->told_at && gain > 0 &&
        (uint64_t)gain > most_gain(e, apart(e->read_ns, d->read_ns)))
        r.verdict = LEAP;
    if (r.at > COUNT_MOST)
        r.verdict = LEAP;
    return r;
}

static const tam_ledger_view *find_view(const tam_ledger_view *old, uint32_t nold, uint64_t meter) {
    for (uint32_t i = 0; i < nold; i++) {
        if (old[i].meter == meter)
            return &old[i];
    }
    return NULL;
}

/* -- phases ----------------------------------------------------------------------------------- */

/* What was attributed since, or nothing if it cannot be true: then it stays unattributed. */
static void gain_phases(tam_ledger_domain *d, const tam_energy_entry *e, const tam_ledger_view *v,
                        bool overlaps) {
    uint64_t most = most_gain(e, apart(e->read_ns, v ? v->read_ns : e->since_ns)), sum = 0;
    bool fine = !overlaps;
    for (uint32_t k = 0; k < TAMIS_ENERGY_PHASES; k++) {
        int64_t before = v ? v->phases_uj[k] : 0;
        fine = fine && e->phases_uj[k] >= before && before >= 0;
        uint64_t gain = fine ? (uint64_t)(e->phases_uj[k] - before) : 0;
        fine = fine && gain <= most && (sum += gain) <= most;
        d->phase_gains[k] = (int64_t)gain;
    }
    if (!fine)
        memset(d->phase_gains, 0, sizeof d->phase_gains);
    for (uint32_t k = 0; k < TAMIS_ENERGY_PHASES; k++) { /* the least certain of those that count */
        if (d->phase_gains[k] && e->methods[k] > d->methods[k] &&
            e->methods[k] < TAMIS_ENERGY_METHODS)
            d->methods[k] = e->methods[k];
    }
}

/* -- who tells -------------------------------------------------------------------------------- */

static void note_reading(tam_ledger_domain *d, const tam_energy_entry *e) {
    d->has_raw = e->has_raw;
    d->raw_uj = e->raw_uj;
    d->range_uj = e->range_uj;
    d->read_ns = e->read_ns;
}

static void take_over(tam_ledger_domain *d, uint64_t report, const tam_energy_entry *e,
                      const tam_ledger_view *v, reckoning r) {
    gain_phases(d, e, v, !v && d->told_at && e->since_ns < d->read_ns);
    d->owner = d->by = e->rank;
    d->kind = e->kind;
    d->status = e->status;
    memcpy(d->reason, e->reason, sizeof d->reason);
    if (r.verdict == GAP) {
        d->refused++;
        snprintf(d->reason, sizeof d->reason,
                 "rank %u took it over; what it gained before could not be recovered", e->rank);
    }
    if (r.at >= (int64_t)d->total_uj) { /* else it lags by a tick, and will catch up */
        d->gain_uj = (uint64_t)r.at - d->total_uj;
        d->total_uj = (uint64_t)r.at;
        note_reading(d, e);
    }
    d->told_at = report;
}

static void refuse(tam_ledger_domain *d, const tam_energy_entry *e, verdict v) {
    d->by = e->rank;
    d->status = TAMIS_ENERGY_RESET;
    snprintf(d->reason, sizeof d->reason,
             "rank %u: its count %s, and is not believed until it agrees with what was before",
             e->rank, v == BACK ? "went back" : "grew by more than it can draw");
}

/* Nobody can read it: the status nearest to readable, of the lowest rank. */
static void explain(tam_ledger_domain *d, const tam_energy_entry *entries, const uint32_t *group,
                    uint32_t n) {
    d->status = TAMIS_ENERGY_STATUSES;
    for (uint32_t i = 0; i < n; i++) {
        const tam_energy_entry *e = &entries[group[i]];
        const char *fault = find_fault(e);
        uint32_t status = fault ? TAMIS_ENERGY_GARBLED : e->status;
        if (status >= d->status)
            continue;
        d->status = status;
        d->by = e->rank;
        if (e->kind < TAMIS_ENERGY_KINDS && !d->told_at)
            d->kind = e->kind;
        if (fault)
            snprintf(d->reason, sizeof d->reason, "rank %u shows %s", e->rank, fault);
        else
            memcpy(d->reason, e->reason, sizeof d->reason);
    }
}

/* Of the lowest ranks, those first whose reading before this one is known.
 * @return TAM_NOBODY: no reading can be believed; *wrong then is the first, if there is any */
static uint32_t choose(tam_ledger_domain *d, const tam_energy_entry *entries, const uint32_t *group,
                       uint32_t n, const tam_ledger_view *old, uint32_t nold, uint32_t *wrong,
                       reckoning *out) {
    *wrong = TAM_NOBODY;
    for (int known = 1; known >= 0; known--) {
        for (uint32_t i = 0; i < n; i++) {
            const tam_energy_entry *e = &entries[group[i]];
            const tam_ledger_view *v = find_view(old, nold, e->meter);
            if (!readable(e) || (v != NULL) != (known == 1))
                continue;
            reckoning r = reckon_gain(d, e, v);
            if (r.verdict == SURE || r.verdict == GAP) {
                *out = r;
                return i;
            }
            d->refused++;
            if (*wrong == TAM_NOBODY) {
                *wrong = i;
                *out = r;
            }
        }
    }
    return TAM_NOBODY;
}

/* -- views ------------------------------------------------------------------------------------ */

/* @return false: nothing is known of this meter */
static bool draw_view(const tam_ledger_domain *d, const tam_energy_entry *e,
                      const tam_ledger_view *v, tam_ledger_view *out) {
    int64_t moved;
    reckoning r = reckon_gain(d, e, v);
    bool believed = readable(e) && d->told_at && (r.verdict == SURE || r.verdict == GAP);
    if (!believed) {
        if (v)
            *out = *v;
        return v != NULL;
    }
    *out = (tam_ledger_view){.host = e->host,
                             .meter = e->meter,
                             .total_uj = e->total_uj,
                             .read_ns = e->read_ns,
                             .at_uj = r.verdict == GAP ? (int64_t)d->total_uj : r.at};
    if (relate(d, e, &moved))
        out->at_uj = (int64_t)d->total_uj + moved;
    memcpy(out->id, e->id, sizeof out->id);
    memcpy(out->phases_uj, e->phases_uj, sizeof out->phases_uj);
    return true;
}

uint32_t tam_ledger_tell(tam_ledger_domain *d, uint64_t report, const tam_energy_entry *entries,
                         const uint32_t *group, uint32_t n, const tam_ledger_view *old,
                         uint32_t nold, tam_ledger_view *views) {
    uint32_t wrong, nviews = 0;
    reckoning r;
    d->told_before = d->told_at;
    d->gain_uj = 0;
    d->owner = d->by = TAM_NOBODY;
    memset(d->phase_gains, 0, sizeof d->phase_gains);
    uint32_t teller = choose(d, entries, group, n, old, nold, &wrong, &r);
    if (teller != TAM_NOBODY) {
        const tam_energy_entry *e = &entries[group[teller]];
        take_over(d, report, e, find_view(old, nold, e->meter), r);
    } else if (wrong != TAM_NOBODY) {
        refuse(d, &entries[group[wrong]], r.verdict);
    } else {
        explain(d, entries, group, n);
    }
    for (uint32_t i = 0; i < n; i++) {
        const tam_energy_entry *e = &entries[group[i]];
        tam_ledger_view *view = &views[nviews];
        nviews += draw_view(d, e, find_view(old, nold, e->meter), view);
        if (i == teller)
            view->at_uj = r.at;
    }
    return nviews;
}
