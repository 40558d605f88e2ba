/* SPDX-License-Identifier: MIT */
#include "collectives/coll/staged.h"

#include "collectives/coll/measure.h"

#include "lib/base/host.h"
#include "lib/base/wait.h"

#include <stdio.h>

/* Tests make it small. */
#ifndef TAM_STAGED_CHUNK
#define TAM_STAGED_CHUNK TAM_COLL_CHUNK
#endif

enum { HOP_NS = 50000000 };

/* Tell the others, as long as there is time, and take for a moment what they still send; messages
 * to ranks that do not take them any more never leave. The sentence stays that of the failure. */
static tamis_status part(tam_coll *coll, tamis_status status, const tam_call *call) {
    enum { LEAST_NS = 2000000, MOST_NS = 300000000 };
    char sentence[512];
    snprintf(sentence, sizeof sentence, "%s", tamis_last_error());
    uint64_t now_ns = tam_clock_ns(), until_ns = now_ns + LEAST_NS;
    until_ns = until_ns > call->deadline_ns ? until_ns : call->deadline_ns;
    until_ns = until_ns < now_ns + MOST_NS ? until_ns : now_ns + MOST_NS;
    bool hushed = tam_hush(true), moved, done = false;
    for (unsigned tries = 0; tam_clock_ns() < until_ns; tries++) {
        bool before = done;
        if (tam_coll_advance(coll, &moved, &done) != TAMIS_OK)
            break;
        if (done && !before && until_ns > tam_clock_ns() + HOP_NS)
            until_ns = tam_clock_ns() + HOP_NS;
        tam_relax(tries);
    }
    tam_hush(hushed);
    tam_coll_cancel(coll);
    return tam_pass(status, sentence);
}

static tamis_status give_up(tam_coll *coll, tamis_status status, const char *why,
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
    return part(coll, status, call);
}

/* The earlier the step, the earlier its deadline: who waits for a dead rank itself gives up first,
 * and the others hear from it in time which rank that is. */
static uint64_t deadline_of(const tam_coll *coll, const tam_call *call) {
    if (coll->step >= coll->nsteps || call->deadline_ns <= call->begin_ns)
        return call->deadline_ns;
    uint64_t share_ns = (call->deadline_ns - call->begin_ns) / (4u * coll->nsteps);
    uint64_t hop_ns = share_ns < HOP_NS ? share_ns : HOP_NS;
    return call->deadline_ns - hop_ns * (coll->nsteps - 1 - coll->step);
}

static void tell_late(tam_coll *coll, tam_call *call) {
    char missing[128];
    uint32_t first = tam_coll_missing(coll, missing, sizeof missing);
    if (missing[0] == '\0') {
        first = tam_coll_untaken(coll);
        snprintf(missing, sizeof missing, " %u to take its messages", first);
    }
    tam_wait_tell_late(call, coll->rank, missing, first);
}

static tamis_status wait_for(tam_coll *coll, tam_call *call) {
    tam_wait wait = tam_wait_begin(call);
    char late[TAM_LATE_TEXT];
    bool moved, done;
    for (unsigned tries = 0;; tries++) {
        tamis_status status = tam_coll_advance(coll, &moved, &done);
        if (status != TAMIS_OK)
            return part(coll, status, call);
        if (done)
            break;
        status = (tamis_status)atomic_load(call->poison);
        if (status != TAMIS_OK)
            return give_up(coll, status, " stopped waiting", call);
        uint64_t now_ns = tries % 16 == 15 ? tam_clock_ns() : 0;
        if (now_ns > tam_wait_late_ns(call))
            tell_late(coll, call);
        if (now_ns > deadline_of(coll, call))
            return give_up(coll, TAMIS_E_TIMEOUT, tam_wait_late(call, late), call);
        if (moved)
            wait = tam_wait_begin(call);
        else
            tam_wait_pause(&wait);
    }
    tam_wait_end(&wait);
    return TAMIS_OK;
}

tamis_status tam_staged_run(tam_coll *coll, tam_call *call) {
    uint64_t before = coll->wire_bytes;
    tamis_status status = wait_for(coll, call);
    call->wire_bytes += coll->wire_bytes - before;
    return status;
}

tamis_status tam_staged_allgather(void *arg, const void *send, size_t bytes, void *recv,
                                  tam_call *call) {
    tam_staged *s = arg;
    tam_coll_begin_gather(&s->coll, send, bytes, recv);
    return tam_staged_run(&s->coll, call);
}

tamis_status tam_staged_sum(void *arg, float *values, size_t count, tam_call *call) {
    tam_staged *s = arg;
    tam_coll_begin_sum(&s->coll, values, count, call->tag);
    TAM_TRY(tam_staged_run(&s->coll, call));
    call->notes += s->coll.note;
    return TAMIS_OK;
}

tamis_status tam_staged_alltoall(void *arg, const void *send, const size_t *send_at, void *recv,
                                 const size_t *recv_at, tam_call *call) {
    tam_staged *s = arg;
    tam_coll_begin_runs(&s->coll, send, send_at, recv, recv_at);
    return tam_staged_run(&s->coll, call);
}

static tamis_status scatter(void *arg, const tam_wire_type *type, const void *list, float *values,
                            size_t count, tam_call *call) {
    tam_staged *s = arg;
    tam_coll_begin_scatter(&s->coll, type, list, values, count, call->tag);
    TAM_TRY(tam_staged_run(&s->coll, call));
    call->notes += s->coll.note;
    return TAMIS_OK;
}

static tamis_status spread(void *arg, const tam_wire_type *type, void *list, size_t count,
                           tam_call *call) {
    tam_staged *s = arg;
    tam_coll_begin_spread(&s->coll, type, list, count);
    return tam_staged_run(&s->coll, call);
}

const tam_list_transport tam_staged_lists = {scatter, spread};

void tam_staged_abort(void *arg) {
    tam_staged *s = arg;
    s->coll.wire->abort(s->self);
}

void tam_staged_close(void *arg, int clean) {
    tam_staged *s = arg;
    bool lingers = !clean && s->coll.wire->lingers;
    if (!lingers)
        tam_coll_cancel(&s->coll);
    s->coll.wire->close(s->self, clean);
    tam_coll_close(&s->coll, lingers);
    if (!lingers) /* else the wire may still send the farewell that lies in it */
        tam_free(s);
}

/* -- creation --------------------------------------------------------------------------------- */

/* What a rank tells the others. Texts of plans are shorter. */
typedef struct greeting {
    uint64_t host, left_ns; /* until its deadline */
    char wanted[56];
} greeting;

static tamis_status reopen(tam_staged *s, const tam_plan *plan) {
    tam_coll made;
    if (memcmp(plan, &s->coll.plan, sizeof *plan) == 0)
        return TAMIS_OK;
    tamis_status status = tam_coll_open_beside(&made, &s->coll, plan);
    tam_coll_close(status == TAMIS_OK ? &s->coll : &made, true);
    if (status == TAMIS_OK)
        s->coll = made;
    return status;
}

static tam_plan plan_of(const char *wanted, uint32_t rank, uint32_t nranks,
                        uint32_t ranks_per_node) {
    tam_plan plan = tam_plan_usual(nranks, ranks_per_node);
    char text[64];
    if (strcmp(wanted, "auto") != 0 && !tam_plan_parse(wanted, nranks, ranks_per_node, &plan) &&
        rank == 0)
        tam_log(TAM_WARN,
                "TAMIS_PLAN=%.55s is no plan of %u ranks: it needs auto, usual, linear, or radices "
                "(powers of two, as 8x8x2) whose product is %u, and radix 128 at most in stages "
                "after the first where that is not %u; the usual plan %s is taken",
                wanted, nranks, tam_plan_places(nranks), nranks,
                tam_plan_text(&plan, text, sizeof text));
    return plan;
}

static tamis_status compare_wanted(const greeting *all, uint32_t nranks) {
    for (uint32_t r = 1; r < nranks; r++) {
        if (memcmp(all[r].wanted, all[0].wanted, sizeof all[0].wanted) != 0)
            return tam_fail(TAMIS_E_MISMATCH,
                            "TAMIS_PLAN differs: rank 0 has \"%.55s\", rank %u has \"%.55s\"; give "
                            "all ranks the same",
                            all[0].wanted, r, all[r].wanted);
    }
    return TAMIS_OK;
}

/* The same on all ranks, as it follows from what was gathered. */
static tamis_status find_nodes(tam_staged *s, const greeting *all) {
    uint32_t nranks = s->coll.plan.nranks;
    bool scattered;
    uint64_t *hosts = tam_alloc_array(nranks, sizeof hosts[0]);
    if (!hosts)
        return tam_fail(TAMIS_E_NOMEM, "no memory for the hosts of %u ranks", nranks);
    for (uint32_t r = 0; r < nranks; r++)
        hosts[r] = all[r].host;
    s->net.ranks_per_node = tam_plan_nodes(hosts, nranks, &scattered);
    tam_free(hosts);
    if (scattered && s->coll.rank == 0)
        tam_log(TAM_WARN, "ranks that share a host are not numbered one after the other: exchanges "
                          "inside hosts first are not possible; map ranks by slot, not by node");
    return TAMIS_OK;
}

/* @param  has_time  [out]  to measure: the same on all ranks */
static tamis_status greet(tam_staged *s, const char *wanted, tam_call *call, bool *has_time) {
    uint32_t nranks = s->coll.plan.nranks;
    uint64_t now_ns = tam_clock_ns();
    greeting own = {.host = tam_host_id()}, *all = tam_alloc_array(nranks, sizeof *all);
    if (!all)
        return tam_fail(TAMIS_E_NOMEM, "no memory for the hosts of %u ranks", nranks);
    own.left_ns = call->deadline_ns > now_ns ? call->deadline_ns - now_ns : 0;
    snprintf(own.wanted, sizeof own.wanted, "%s", wanted);
    tamis_status status = tam_staged_allgather(s, &own, sizeof own, all, call);
    if (status == TAMIS_OK)
        status = compare_wanted(all, nranks);
    if (status == TAMIS_OK)
        status = find_nodes(s, all);
    *has_time = true;
    for (uint32_t r = 0; r < nranks; r++)
        *has_time = *has_time && all[r].left_ns >= TAM_MEASURE_LEFT_NS;
    tam_free(all);
    return status;
}

static tamis_status settle(tam_staged *s, const char *wanted, uint64_t deadline_ns) {
    uint32_t rank = s->coll.rank, nranks = s->coll.plan.nranks;
    atomic_int calm = 0;
    tam_call call = {.deadline_ns = deadline_ns,
                     .begin_ns = tam_clock_ns(),
                     .poison = &calm,
                     .purpose = "the creation of a communicator",
                     .waiting = (tamis_waiting)tam_setting_number(TAM_SETTING_WAIT)};
    bool has_time = false;
    if (nranks > 2 && deadline_ns > 0)
        TAM_TRY(greet(s, wanted, &call, &has_time));
    tam_plan plan = plan_of(wanted, rank, nranks, s->net.ranks_per_node);
    TAM_TRY(reopen(s, &plan));
    if (has_time && strcmp(wanted, "auto") == 0) {
        TAM_TRY(tam_measure(s, &call, &plan));
        TAM_TRY(reopen(s, &plan));
    }
    return TAMIS_OK;
}

tamis_status tam_staged_open(const tam_wire *wire, void *self, uint32_t rank, uint32_t nranks,
                             const char *wanted, uint64_t deadline_ns, tam_staged **out) {
    tam_plan plan = tam_plan_usual(nranks, 1);
    tam_staged *s = tam_alloc(sizeof *s);
    bool clean = true;
    if (!s) {
        wire->close(self, 1);
        return tam_fail(TAMIS_E_NOMEM, "no memory for a communicator");
    }
    s->self = self;
    s->net.ranks_per_node = 1;
    tamis_status status = tam_coll_open(&s->coll, wire, self, rank, &plan, TAM_STAGED_CHUNK);
    if (status == TAMIS_OK) {
        status = settle(s, wanted, deadline_ns);
        clean = tamis_status_loss(status) != TAMIS_LOST_COMM;
    }
    if (status != TAMIS_OK) {
        tam_staged_close(s, clean);
        return status;
    }
    *out = s;
    return TAMIS_OK;
}
