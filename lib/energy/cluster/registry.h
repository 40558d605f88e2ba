/* SPDX-License-Identifier: MIT
 *
 * Joules of a cluster: every rank shows what the domains that it sees have gained since the last
 * report, and of each domain the lowest rank that can read it is believed.
 *
 *     report           1        2        3        4
 *     rank 0, node A   10 J     12 J     denied   -          package-0 of A: 10 + 12 + 9 + 11 J
 *     rank 1, node A   10 J     12 J      9 J     11 J
 *     rank 2, node A   -        -        15 J     11 J       new at 3: from there on
 *
 * A domain is the same if host (boot id) and id are. Each rank keeps where its own counts were at
 * the last report, whoever was believed in it: so the next rank goes on without a gap, and because
 * all of a host have read one counter, exactly from where the last one was believed. Sums are kept
 * by all ranks, and are the same because all add the same whole microjoules.
 *
 * A gain overlaps if it may reach over a time in which its domain, or one that contains it or is
 * contained by it, was counted by another: the rank was not in the last report, or could not read
 * then. Such a gain is left out and told as a gap. Nothing is ever counted twice. A gain that is
 * less than that of the domains in it is left out for theirs (cover.c).
 *
 * A report that fails on one rank may have been completed by others. So a rank also keeps what it
 * showed in the last attempt: if that turns out to have been a report, it goes on from there.
 */
#ifndef TAM_ENERGY_REGISTRY_H
#define TAM_ENERGY_REGISTRY_H

#include "lib/energy/source/domain.h"

/** The rank was not in the last report, or has never read the domain before. */
#define TAM_OWED_UNKNOWN UINT64_MAX

/** A domain as one rank sees it. Plain bytes without gaps: it travels. */
typedef struct tam_energy_entry {
    char id[64], inside[64];
    char reason[TAMIS_ENERGY_TEXT];
    uint64_t host; /* hash of the boot id */
    uint32_t kind, status, resets;
    uint32_t overlaps;         /* as it travels: its gain must not be added */
    uint64_t raw_uj, range_uj; /* of the counter; range 0: it does not wrap */
    uint32_t has_raw;          /* these hold; not of power, which each meter integrates */
    uint32_t most_w;           /* it cannot draw more */
    uint64_t uj;         /* since the meter was opened; as it travels: since the last report */
    uint64_t owed_uj;    /* tam_cover_gain, after the last report; TAM_OWED_UNKNOWN */
    uint64_t new_resets; /* as it travels: since the last report */
    int64_t phases_uj[TAMIS_ENERGY_PHASES]; /* of uj, as far as it is attributed */
    uint8_t methods[TAMIS_ENERGY_PHASES];   /* tamis_energy_method of each */
} tam_energy_entry;

/** What a rank has done since its meter was opened. Plain bytes without gaps. */
typedef struct tam_energy_run {
    uint64_t time_ns, steps, wire_bytes;
    uint64_t exposure_ns[TAMIS_ENERGY_PHASES];
} tam_energy_run;

/** What all reports so far have come to. Plain bytes without gaps. */
typedef struct tam_energy_sums {
    uint64_t name; /* of the last report, another for each; 0: there was none */
    uint32_t reports, gaps;
    uint32_t known, ndomains; /* ndomains: of the last report */
    int64_t uj;
    int64_t phases_uj[TAMIS_ENERGY_PHASES];
    uint8_t methods[TAMIS_ENERGY_PHASES];
} tam_energy_sums;

/** Where a domain's count was. */
typedef struct tam_registry_base {
    uint64_t uj;
    int64_t phases_uj[TAMIS_ENERGY_PHASES];
    uint64_t owed_uj; /* the same on all ranks that see it */
    uint32_t resets;
    bool unread;   /* it could never be read */
    bool overlaps; /* since then the domain or its kin was counted by another */
} tam_registry_base;

typedef struct tam_registry {
    tam_energy_sums sums;
    tam_energy_run run;              /* of the last report: longest time, most steps, sums */
    char missing[TAMIS_ENERGY_TEXT]; /* of the last report */

    uint32_t n;               /* domains of this rank */
    tam_energy_entry *shown;  /* [n] as they are now */
    tam_registry_base *bases; /* [n] at the last report */
    tam_registry_base *tried; /* [n] at the last attempt, */
    uint64_t tried_name;      /* which would be the report of this name */

    bool late;            /* in the report being made: this rank was not in the last one */
    bool owes;            /* and it completed it: what its domains owe is known */
    tam_energy_sums next; /* and what the sums will be */

    void *messages; /* for what travels */
    size_t messages_bytes;
} tam_registry;

/* -- what a meter provides (entries.c) -------------------------------------------------------- */

/** The domains of a meter as they are now. @param out  [tam_registry.n] */
void tam_meter_entries(tamis_energy *energy, tam_energy_entry *out);

void tam_meter_run(tamis_energy *energy, tam_energy_run *out);

/** Opened and closed with the meter. */
tam_registry *tam_meter_registry(const tamis_energy *energy);

/** STATE in a child that was forked. */
tamis_status tam_meter_present(const tamis_energy *energy, const char *call);

/** Totals of the cluster get what the meter knows: grams, and the earlier parts of the run. */
void tam_meter_complete(tamis_energy *energy, tamis_energy_totals *cluster);

/* -- registry.c ------------------------------------------------------------------------------- */

/** For a rank that sees n domains, which it puts into registry->shown before each report. */
tamis_status tam_registry_open(uint32_t n, tam_registry **out);
void tam_registry_close(tam_registry *registry);

/** At least `bytes` of registry->messages; what lay there is gone. */
tamis_status tam_registry_reserve(tam_registry *registry, size_t bytes);

/** Forget the messages without freeing them: a transport may still write there. */
void tam_registry_abandon(tam_registry *registry);

/**
 * Begin a report: go on from the sums of the rank that took part in the most.
 *
 * @param  name  [in]   of this report, the same on all ranks and never used before; not 0
 * @param  out   [out]  tam_energy_entry[registry->n] for the other ranks
 */
void tam_registry_offer(tam_registry *registry, const tam_energy_sums *latest, uint64_t name,
                        tam_energy_entry *out);

/** Bytes of scratch memory that a report of n entries takes. */
size_t tam_registry_scratch(size_t n);

/**
 * Complete it. Until then the registry counts as before.
 *
 * @param  entries  [in,out]  what all ranks offer, lowest rank first
 * @param  run      [in]      of all ranks together
 * @param  scratch  [out]     tam_registry_scratch(n), aligned as any memory
 */
void tam_registry_take(tam_registry *registry, tam_energy_entry *entries, uint32_t n,
                       const tam_energy_run *run, void *scratch);

/** Sums of the cluster since its first report. */
void tam_registry_totals(const tam_registry *registry, tamis_energy_totals *out);

#endif
