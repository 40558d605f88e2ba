/* SPDX-License-Identifier: MIT
 *
 * When the ranks arrive at an exchange. Each rank counts from the end of the previous exchange,
 * which all ranks pass at about the same time. The headers carry the counts to all ranks, so no
 * common clock is needed and all ranks know the same times:
 *
 *     rank 0   | began      arrive        | exchange |           slack 0 = max - own = 5 - 2
 *     rank 1   |                   began  | exchange |           slack 1 = 0
 *              0     2                  5
 *
 * "About": the last messages of an exchange arrive with some skew, and a rank may be in a nap just
 * then, of 0.2 ms at most.
 */
#include "collectives/reducer/reducer.h"

uint32_t tam_arrive_us(uint64_t since_ns, uint64_t at_ns) {
    uint64_t us = since_ns > 0 ? (at_ns - since_ns) / 1000 + 1 : 0;
    return us < UINT32_MAX ? (uint32_t)us : UINT32_MAX;
}

void tam_arrive_met(tam_bucket *b, uint64_t now_ns) {
    tamis_reducer *r = b->reducer;
    r->met_ns = now_ns;
    if (b == tam_last_bucket(r))
        r->ended_ns = now_ns;
}

void tam_arrive_forget(tamis_reducer *r) {
    r->met_ns = r->ended_ns = 0;
    for (uint32_t i = 0; i < r->nbuckets; i++)
        r->buckets[i].nslack = 0;
}

/* By the least wait of the last steps. A rank that was late in all of them is likely to be late
 * again; if it is not, it is noticed a little later (lib/base/wait.c). If lateness comes and goes,
 * the least wait is 0. */
uint64_t tam_arrive_expected_ns(const tam_bucket *b, uint64_t begin_ns) {
    enum { EARLY_US = 100, WORTH_US = 500 }; /* to be awake again by then; to be worth it */
    uint32_t least = b->nslack < TAM_SLACK_STEPS ? 0 : UINT32_MAX;
    for (uint32_t i = 0; i < TAM_SLACK_STEPS && least > 0; i++)
        least = b->slack_us[i] < least ? b->slack_us[i] : least;
    return least < WORTH_US ? 0 : begin_ns + (uint64_t)(least - EARLY_US) * 1000;
}

/* How much later than here the last rank began. @return false: unknown */
static bool find_slack(const tam_headers *headers, uint64_t *out_ns) {
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

void tam_arrive_tell(tam_bucket *b, uint64_t begin_ns, uint64_t end_ns) {
    const tamis_reducer *r = b->reducer;
    uint64_t slack_ns = 0, arrived_ns = begin_ns;
    if (find_slack(&b->view.out.headers, &slack_ns)) {
        b->slack_us[b->nslack++ % TAM_SLACK_STEPS] = (uint32_t)(slack_ns / 1000);
        arrived_ns = slack_ns < end_ns - begin_ns ? begin_ns + slack_ns : end_ns;
        tam_phase_record(r, TAMIS_PHASE_ARRIVE, b->view.index, begin_ns, arrived_ns,
                         &b->now.arrive_s);
    }
    tam_phase_record(r, TAMIS_PHASE_EXCHANGE, b->view.index, arrived_ns, end_ns,
                     &b->now.exchange_s);
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

void tam_arrive_record(tamis_reducer *r) {
    const tam_headers *headers = &tam_last_bucket(r)->view.out.headers;
    uint32_t slowest;
    if (!find_straggler(headers, &slowest))
        return;
    r->now.straggler = slowest;
    r->now.slack_s = 1e-6 * (tam_header_at(headers, slowest)->busy_us -
                             tam_header_at(headers, headers->own)->busy_us);
}
