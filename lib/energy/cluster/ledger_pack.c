/* SPDX-License-Identifier: MIT
 *
 * A ledger as bytes: for ranks that missed a report, or that are new.
 */
#include "lib/energy/cluster/ledger.h"

#include <xxhash.h>

/* They travel and are hashed: no bytes between the fields. */
_Static_assert(sizeof(tam_energy_entry) == 320 + 16 + 16 + 48 + 8 * 32 + 32, "no padding");
_Static_assert(sizeof(tam_energy_run) == 24 + 8 * 32, "no padding");
_Static_assert(sizeof(tam_ledger_view) == 64 + 40 + 8 * 32, "no padding");
_Static_assert(sizeof(tam_ledger_domain) ==
                   320 + 8 + 24 + 24 + 16 + 8 * 32 + 32 + 24 + 24 + 8 * 32 + 8,
               "no padding");

typedef struct head {
    uint64_t reports, digest, refused, ndomains, nviews;
    tam_energy_run run;
} head;

static uint64_t hash(const void *memory, size_t count, size_t size) {
    return count ? XXH3_64bits(memory, count * size) : 0;
}

static uint64_t digest(const head *h, const void *domains, const void *views) {
    uint64_t parts[] = {h->reports, h->refused, hash(&h->run, 1, sizeof h->run),
                        hash(domains, h->ndomains, sizeof(tam_ledger_domain)),
                        hash(views, h->nviews, sizeof(tam_ledger_view))};
    return hash(parts, 1, sizeof parts);
}

static head head_of(const tam_ledger *ledger) {
    return (head){ledger->reports,  ledger->digest, ledger->refused,
                  ledger->ndomains, ledger->nviews, ledger->run};
}

uint64_t tam_ledger_digest(const tam_ledger *ledger) {
    head h = head_of(ledger);
    return digest(&h, ledger->domains, ledger->views);
}

size_t tam_ledger_packed_bytes(uint64_t ndomains, uint64_t nviews) {
    return sizeof(head) + ndomains * sizeof(tam_ledger_domain) + nviews * sizeof(tam_ledger_view);
}

void tam_ledger_pack(const tam_ledger *ledger, void *out) {
    unsigned char *at = out;
    head h = head_of(ledger);
    size_t domains = ledger->ndomains * sizeof ledger->domains[0];
    memcpy(at, &h, sizeof h);
    if (ledger->ndomains)
        memcpy(at + sizeof h, ledger->domains, domains);
    if (ledger->nviews)
        memcpy(at + sizeof h + domains, ledger->views, ledger->nviews * sizeof ledger->views[0]);
}

static void take_parts(tam_ledger *ledger, const head *h, const unsigned char *parts) {
    size_t domains = h->ndomains * sizeof ledger->domains[0];
    if (h->ndomains)
        memcpy(ledger->domains, parts, domains);
    if (h->nviews)
        memcpy(ledger->views, parts + domains, h->nviews * sizeof ledger->views[0]);
    ledger->reports = h->reports;
    ledger->refused = h->refused;
    ledger->run = h->run;
    ledger->ndomains = (uint32_t)h->ndomains;
    ledger->nviews = (uint32_t)h->nviews;
    ledger->digest = h->digest;
}

tamis_status tam_ledger_unpack(tam_ledger *ledger, const void *packed, size_t bytes) {
    const unsigned char *parts = (const unsigned char *)packed + sizeof(head);
    head h;
    if (bytes < sizeof h)
        return tam_fail(TAMIS_E_FORMAT, "a ledger of energy of %zu bytes", bytes);
    memcpy(&h, packed, sizeof h);
    if (h.ndomains >= TAM_NOBODY || h.nviews >= TAM_NOBODY ||
        bytes != tam_ledger_packed_bytes(h.ndomains, h.nviews) ||
        (h.reports &&
         digest(&h, parts, parts + h.ndomains * sizeof(tam_ledger_domain)) != h.digest))
        return tam_fail(TAMIS_E_FORMAT, "a ledger of energy of %zu bytes is damaged", bytes);
    TAM_TRY(tam_ledger_room(ledger, h.ndomains, h.nviews));
    take_parts(ledger, &h, parts);
    return TAMIS_OK;
}
