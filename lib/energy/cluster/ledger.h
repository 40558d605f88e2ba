/* SPDX-License-Identifier: MIT
 *
 * Joules of a cluster: every rank shows the domains that it can see, each is counted once.
 *
 *     rank 0   node A   package-0 denied    gpu-0 ok
 *     rank 1   node A   package-0 ok        gpu-0 ok        package-0 of A is owned by rank 1,
 *     rank 2   node B   package-0 ok                        gpu-0 by rank 0, package-0 of B by 2
 *
 * A domain is the same if host (boot id) and id are; its owner is the lowest rank that can read it.
 * Ranks hold the same entries and so come to the same ledger; whole microjoules make the sums
 * exact.
 *
 * A domain's count goes on whoever reads it. For every meter the ledger knows where on that count
 * its last reading lies, from the raw values, which all of them read from one counter:
 *
 *     raw, range 100        97    99     2     8                 report n: A owns, 99 is count 40
 *     meter A, since open   38    40                             B showed 97, so that was count 38
 *     meter B, since open    7           12    18    A is gone   report n+1: B has gained 11,
 *                            '--- 38 ----------'---> 49          so the count is 38 + 11 = 49
 *
 * Sums over nested domains take, at each report, what the widest readable ones gained since the
 * last. What has been added stays, so a change of cover adds the gains of the new one from there
 * on. A domain whose gain reaches back over a time in which one that it contains, or that contains
 * it, was counted is left out until the next report.
 */
#ifndef TAM_ENERGY_LEDGER_H
#define TAM_ENERGY_LEDGER_H

#include "lib/base/base.h"

#include <tamis/energy.h>

#define TAM_NOBODY UINT32_MAX

/** A domain as one rank sees it. Plain bytes: it travels. */
typedef struct tam_energy_entry {
    char id[64], inside[64];
    char reason[TAMIS_ENERGY_TEXT];
    uint64_t host;  /* hash of the boot id */
    uint64_t meter; /* tam_ledger.self of who shows it: ranks change with the communicator */
    uint32_t rank, kind, status;
    uint32_t has_raw;                       /* raw_uj holds: it has been read */
    uint64_t raw_uj, range_uj;              /* of the counter; range 0: it does not wrap */
    uint64_t total_uj;                      /* since this rank's meter was opened */
    uint64_t since_ns;                      /* when total_uj was 0, on the host's monotonic clock */
    uint64_t read_ns;                       /* of the reading behind raw_uj and total_uj */
    uint64_t most_w;                        /* it cannot draw more; 0: unknown */
    int64_t phases_uj[TAMIS_ENERGY_PHASES]; /* of total_uj, attributed so far by this rank */
    uint8_t methods[TAMIS_ENERGY_PHASES];   /* tamis_energy_method of each */
} tam_energy_entry;

/** What a rank has done since its meter was opened. Plain bytes. */
typedef struct tam_energy_run {
    uint64_t time_ns, steps, wire_bytes;
    uint64_t exposure_ns[TAMIS_ENERGY_PHASES];
} tam_energy_run;

/** A domain of the cluster. Plain bytes, the same on all ranks. */
typedef struct tam_ledger_domain {
    char id[64], inside[64];
    char reason[TAMIS_ENERGY_TEXT];
    uint64_t host;
    uint32_t kind, status;
    uint32_t owner, by; /* ranks of the last report: who counts it, whose are status and reason */
    uint32_t has_raw, counted;              /* counted: part of the sum of the last report */
    uint64_t raw_uj, range_uj, read_ns;     /* where total_uj was */
    uint64_t total_uj;                      /* its count */
    uint64_t counted_uj;                    /* of it, part of the sum */
    int64_t phases_uj[TAMIS_ENERGY_PHASES]; /* of counted_uj */
    uint8_t methods[TAMIS_ENERGY_PHASES];
    uint64_t told_at, counted_at; /* the last reports that told its count, that added it up */
    uint64_t refused;             /* readings that could not be true */

    /* Of the report being taken. */
    uint64_t told_before, kin_at;
    uint64_t gain_uj;
    int64_t phase_gains[TAMIS_ENERGY_PHASES];
    uint32_t outer, inner_counted; /* index of the domain around it */
} tam_ledger_domain;

/** Where a meter's last reading lies on the count of a domain. Plain bytes. */
typedef struct tam_ledger_view {
    char id[64];
    uint64_t host, meter;
    uint64_t total_uj, read_ns; /* its own */
    int64_t at_uj;              /* on the domain's count */
    int64_t phases_uj[TAMIS_ENERGY_PHASES];
} tam_ledger_view;

typedef struct tam_ledger {
    uint64_t self;            /* tells this meter from all others */
    uint64_t reports, digest; /* of all that follows */
    uint64_t refused;         /* entries without a usable id, or shown twice */
    tam_energy_run run;       /* of the last report: longest time, most steps, sums of the others */
    tam_ledger_domain *domains; /* [ndomains] by host and id */
    tam_ledger_view *views;     /* [nviews] by host and id; of who showed it last */
    uint32_t ndomains, nviews;

    uint32_t domains_room, views_room;
    tam_ledger_view *next_views; /* [views_room] */
    uint32_t *order;             /* [views_room] scratch */
    void *desk;                  /* for what travels */
    size_t desk_bytes;
    tam_energy_entry *shelf; /* [shelf_room] what this rank shows */
    uint32_t shelf_room;
} tam_ledger;

/* -- what a meter provides (entries.c) ----------------------------------------------------------- */

/**
 * The domains of a meter as they are now, without rank and meter. @param out  [most], or NULL
 * @return how many there are
 */
uint32_t tam_meter_entries(tamis_energy *energy, tam_energy_entry *out, uint32_t most);

void tam_meter_run(tamis_energy *energy, tam_energy_run *out);

/** Opened and closed with the meter. */
tam_ledger *tam_meter_ledger(const tamis_energy *energy);

/** STATE in a child that was forked. */
tamis_status tam_meter_present(const tamis_energy *energy, const char *call);

/** Totals of the cluster get what the meter knows: grams, and the earlier parts of the run. */
void tam_meter_complete(tamis_energy *energy, tamis_energy_totals *cluster);

/* -- ledger.c ----------------------------------------------------------------------------------- */

tamis_status tam_ledger_open(tam_ledger **out);
void tam_ledger_close(tam_ledger *ledger);

/** Room for so many domains and views: a report of n entries needs n more than there are of each.
 * NOMEM: the ledger counts as before. */
tamis_status tam_ledger_room(tam_ledger *ledger, uint64_t ndomains, uint64_t nviews);

/** At least `bytes` of ledger->desk; what lay there is gone. */
tamis_status tam_ledger_desk(tam_ledger *ledger, size_t bytes);

/** Memory for n entries of this rank, until the next call. */
tamis_status tam_ledger_shelf(tam_ledger *ledger, uint32_t n, tam_energy_entry **out);

/** Forget the desk without freeing it: a transport may still write there. */
void tam_ledger_leave_desk(tam_ledger *ledger);

/**
 * Take a report: the entries of all ranks, in any order, and what they have done.
 *
 * @param  run  [in]  of all ranks together; NULL: as it was
 * @return            NOMEM: nothing was taken
 */
tamis_status tam_ledger_take(tam_ledger *ledger, const tam_energy_entry *entries, uint32_t n,
                             const tam_energy_run *run);

/* -- ledger_pack.c: as bytes -------------------------------------------------------------------- */

uint64_t tam_ledger_digest(const tam_ledger *ledger);

/** Everything but `self` and the rooms, for ranks whose ledger is another. */
size_t tam_ledger_packed_bytes(uint64_t ndomains, uint64_t nviews);
void tam_ledger_pack(const tam_ledger *ledger, void *out);

/** FORMAT: it is damaged; NOMEM. The ledger is then as it was. */
tamis_status tam_ledger_unpack(tam_ledger *ledger, const void *packed, size_t bytes);

/* -- ledger_gain.c: what one domain gained ------------------------------------------------------ */

/** Order of host and id. */
int tam_ledger_order(uint64_t host_a, const char *id_a, uint64_t host_b, const char *id_b);

/**
 * The entries of one domain: its count, owner and status, and the views of the next report.
 *
 * @param  group  [in]   by rank, no meter twice, ids and texts end with 0
 * @param  old    [in]   tam_ledger_view[nold] of this domain
 * @param  views  [out]  tam_ledger_view[n]
 * @return               views written
 */
uint32_t tam_ledger_tell(tam_ledger_domain *d, uint64_t report, const tam_energy_entry *entries,
                         const uint32_t *group, uint32_t n, const tam_ledger_view *old,
                         uint32_t nold, tam_ledger_view *views);

/* -- ledger_sum.c: which domains make a sum, and what it is ------------------------------------- */

/** Choose the cover of this report and add up its gains. */
void tam_ledger_add_up(tam_ledger *ledger);

/** Sums of the cluster since its first report; seconds and steps of the rank that ran longest. */
void tam_ledger_totals(const tam_ledger *ledger, tamis_energy_totals *out);

#endif
