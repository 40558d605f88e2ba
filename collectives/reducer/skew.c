/* SPDX-License-Identifier: MIT
 *
 * The skew of the ranks at an exchange: who begins it late, and how long the others wait for their
 * peers. Each rank counts from the end of the previous exchange, which all ranks pass at about the
 * same time. The headers carry the counts to all ranks, so no common clock is needed and all ranks
 * know the same times:
 *
 *     rank 0   | began      wait          | exchange |           skew 0 = max - own = 5 - 2
 *     rank 1   |                   began  | exchange |           skew 1 = 0
 *              0     2                  5
 *
 * "About": the last messages of an exchange do not come at the same time on all ranks, and a rank
 * may be asleep just then, for 0.2 ms at most.
 */
#include "collectives/reducer/reducer.h"

uint32_t tam_skew_us(uint64_t since_ns, uint64_t at_ns) {
    uint64_t us = since_ns > 0 ? (at_ns - since_ns) / 1000 + 1 : 0;
    return us < UINT32_MAX ? (uint32_t)us : UINT32_MAX;
}

void tam_skew_synced(tam_bucket *b, uint64_t now_ns) {
    tamis_reducer *r = b->reducer;
    r->synced_ns = now_ns;
    if (b == tam_last_bucket(r))
        r->ended_ns = now_ns;
}

void tam_skew_forget(tamis_reducer *r) {
    r->synced_ns = r->ended_ns = 0;
    for (uint32_t i = 0; i < r->nbuckets; i++)
        r->buckets[i].nskew = 0;
}

/* By the least wait of the last steps. A rank that was late in all of them is likely to be late
 * again; if it is not, it is noticed a little later (lib/transport/wait.c). If a rank is late only
 * sometimes, the minimum is 0. */
uint64_t tam_skew_expected_ns(const tam_bucket *b, uint64_t begin_ns) {
    enum { EARLY_US = 100, WORTH_US = 500 }; /* to be awake again by then; to be worth it */
    uint32_t least = b->nskew < TAM_SKEW_STEPS ? 0 : UINT32_MAX;
    for (uint32_t i = 0; i < TAM_SKEW_STEPS && least > 0; i++)
        least = b->skew_us[i] < least ? b->skew_us[i] : least;
    return least < WORTH_US ? 0 : begin_ns + (uint64_t)(least - EARLY_US) * 1000;
}

/* How much later than here the last rank began. @return false: unknown */
static bool find_skew(const tam_headers *headers, uint64_t *out_ns) {
    uint32_t own = tam_header_at(headers, headers->own)->began_us, latest = own;
    for (uint32_t i = 0; i < headers->nranks; i++) {
        uint32_t began = tam_header_at(headers, i)->began_us;
        if (began == 0)
            return false;
        latest = began > latest ? began : latest;
    }
    *out_ns = (uint64_t)(latest - own) * 1000;
    return true;
}

void tam_skew_report(tam_bucket *b, uint64_t begin_ns, uint64_t end_ns) {
    const tamis_reducer *r = b->reducer;
    uint64_t skew_ns = 0, waited_ns = begin_ns;
    if (find_skew(&b->view.out.headers, &skew_ns)) {
        b->skew_us[b->nskew++ % TAM_SKEW_STEPS] = (uint32_t)(skew_ns / 1000);
        waited_ns = skew_ns < end_ns - begin_ns ? begin_ns + skew_ns : end_ns;
        tam_phase_record(r, TAMIS_PHASE_SKEW, b->view.index, begin_ns, waited_ns, &b->now.skew_s);
    }
    tam_phase_record(r, TAMIS_PHASE_EXCHANGE, b->view.index, waited_ns, end_ns, &b->now.exchange_s);
}

/* The rank that took longest until its last gradient was ready. @return false: unknown */
static bool find_straggler(const tam_headers *headers, uint32_t *out) {
    *out = 0;
    for (uint32_t i = 0; i < headers->nranks; i++) {
        uint32_t busy = tam_header_at(headers, i)->busy_us;
        if (busy == 0)
            return false;
        if (busy > tam_header_at(headers, *out)->busy_us)
            *out = i;
    }
    return true;
}

void tam_skew_straggler(tamis_reducer *r) {
    const tam_headers *headers = &tam_last_bucket(r)->view.out.headers;
    uint32_t slowest;
    if (!find_straggler(headers, &slowest))
        return;
    r->now.straggler = slowest;
    r->now.lag_s = 1e-6 * (tam_header_at(headers, slowest)->busy_us -
                           tam_header_at(headers, headers->own)->busy_us);
}
