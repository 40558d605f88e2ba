/* SPDX-License-Identifier: MIT
 *
 * The waits between the steps of a collective: deadlines, poison, and the abort messages of ranks
 * that fail.
 */
#include "collectives/coll/drive.h"

#include "lib/transport/wait.h"

#include <stdio.h>

enum { HOP_NS = 50000000 };

/* Send abort messages, as long as there is time, and take for a moment what the others still send;
 * messages to ranks that do not take them any more never leave. The sentence stays that of the
 * failure. */
static tamis_status drive_part(tam_coll *coll, tamis_status status, const tam_call *call) {
    enum { LEAST_NS = 2000000, MOST_NS = 300000000 };
    char sentence[512];
    snprintf(sentence, sizeof sentence, "%s", tamis_last_error());
    uint64_t now_ns = tam_clock_ns(), until_ns = now_ns + LEAST_NS;
    until_ns = until_ns > call->deadline_ns ? until_ns : call->deadline_ns;
    until_ns = until_ns < now_ns + MOST_NS ? until_ns : now_ns + MOST_NS;
    bool was_quiet = tam_errors_quiet(true), moved, done = false;
    for (unsigned tries = 0; tam_clock_ns() < until_ns; tries++) {
        bool before = done;
        if (tam_coll_advance(coll, &moved, &done) != TAMIS_OK)
            break;
        if (done && !before && until_ns > tam_clock_ns() + HOP_NS)
            until_ns = tam_clock_ns() + HOP_NS;
        tam_back_off(tries);
    }
    tam_errors_quiet(was_quiet);
    tam_coll_cancel(coll);
    return tam_pass(status, sentence);
}

static tamis_status drive_give_up(tam_coll *coll, tamis_status status, const char *why,
                                  const tam_call *call) {
    char missing[128];
    uint32_t first = tam_coll_missing(coll, missing, sizeof missing);
    if (missing[0] == '\0') {
        first = tam_coll_untaken(coll);
        tam_fail(status, "rank %u%s for rank(s) %u to take its messages", coll->rank, why, first);
    } else {
        tam_fail(status, "rank %u%s for rank(s)%s", coll->rank, why, missing);
    }
    tam_coll_fail(coll, status, status == TAMIS_E_TIMEOUT ? first : coll->rank);
    return drive_part(coll, status, call);
}

/* The earlier the step, the earlier its deadline: who waits for a dead rank itself gives up first,
 * and its abort messages say in time which rank that is. */
static uint64_t deadline_of(const tam_coll *coll, const tam_call *call) {
    if (coll->step >= coll->nsteps || call->deadline_ns <= call->begin_ns)
        return call->deadline_ns;
    uint64_t share_ns = (call->deadline_ns - call->begin_ns) / (4u * coll->nsteps);
    uint64_t hop_ns = share_ns < HOP_NS ? share_ns : HOP_NS;
    return call->deadline_ns - hop_ns * (coll->nsteps - 1 - coll->step);
}

static void drive_warn_late(tam_coll *coll, tam_call *call) {
    char missing[128];
    uint32_t first = tam_coll_missing(coll, missing, sizeof missing);
    if (missing[0] == '\0') {
        first = tam_coll_untaken(coll);
        snprintf(missing, sizeof missing, " %u to take its messages", first);
    }
    tam_wait_warn(call, coll->rank, missing, first);
}

static tamis_status drive_wait_for(tam_coll *coll, tam_call *call) {
    tam_wait wait = tam_wait_begin(call);
    char waited[TAM_WAIT_TEXT];
    bool moved, done;
    for (unsigned tries = 0;; tries++) {
        tamis_status status = tam_coll_advance(coll, &moved, &done);
        if (status != TAMIS_OK)
            return drive_part(coll, status, call);
        if (done)
            break;
        status = (tamis_status)atomic_load(call->poison);
        if (status != TAMIS_OK)
            return drive_give_up(coll, status, " stopped waiting", call);
        uint64_t now_ns = tries % 16 == 15 ? tam_clock_ns() : 0;
        if (now_ns > tam_wait_warn_ns(call))
            drive_warn_late(coll, call);
        if (now_ns > deadline_of(coll, call))
            return drive_give_up(coll, TAMIS_E_TIMEOUT, tam_wait_time_text(call, waited), call);
        if (moved)
            wait = tam_wait_begin(call);
        else
            tam_wait_pause(&wait);
    }
    tam_wait_end(&wait);
    return TAMIS_OK;
}

tamis_status tam_coll_run(tam_coll *coll, tam_call *call) {
    uint64_t before = coll->wire_bytes;
    tamis_status status = drive_wait_for(coll, call);
    call->wire_bytes += coll->wire_bytes - before;
    return status;
}
