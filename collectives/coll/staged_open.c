/* SPDX-License-Identifier: MIT
 *
 * How a transport made of p2p links is opened: which ranks share hosts, what plan is wanted, what
 * the network measures.
 */
#include "collectives/coll/calibrate.h"
#include "collectives/coll/staged.h"

#include "lib/base/host.h"

#include <stdio.h>

/* Tests make it small. */
#ifndef TAM_STAGED_CHUNK
#define TAM_STAGED_CHUNK TAM_COLL_CHUNK
#endif

/* What a rank sends the others. Texts of plans are shorter. */
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

static tam_plan staged_open_plan_of(const char *wanted, uint32_t rank, uint32_t nranks,
                                    uint32_t ranks_per_node) {
    tam_plan plan = tam_plan_usual(nranks, ranks_per_node);
    char text[64];
    if (strcmp(wanted, "auto") != 0 && !tam_plan_parse(wanted, nranks, ranks_per_node, &plan) &&
        rank == 0)
        tam_log(TAM_WARN,
                "TAMIS_PLAN=%.55s is no plan of %u ranks: it needs auto, usual, linear, or radices "
                "(powers of two, as 8x8x2) whose product is %u, and radix 128 at most in stages "
                "after the first where that is not %u; the usual plan %s is taken",
                wanted, nranks, tam_plan_nvranks(nranks), nranks,
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

/* Nodes are the same on all ranks, as they follow from what was gathered. */
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
        tam_log(TAM_WARN, "ranks that share a host are not consecutive: exchanges "
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
        *has_time = *has_time && all[r].left_ns >= TAM_CALIBRATE_LEFT_NS;
    tam_free(all);
    return status;
}

static tamis_status staged_open_settle(tam_staged *s, const char *wanted, uint64_t deadline_ns) {
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
    tam_plan plan = staged_open_plan_of(wanted, rank, nranks, s->net.ranks_per_node);
    TAM_TRY(reopen(s, &plan));
    if (has_time && strcmp(wanted, "auto") == 0) {
        TAM_TRY(tam_calibrate(s, &call, &plan));
        TAM_TRY(reopen(s, &plan));
    }
    return TAMIS_OK;
}

tamis_status tam_staged_open(const tam_p2p *p2p, void *self, uint32_t rank, uint32_t nranks,
                             const char *wanted, uint64_t deadline_ns, tam_staged **out) {
    tam_plan plan = tam_plan_usual(nranks, 1);
    tam_staged *s = tam_alloc(sizeof *s);
    bool clean = true;
    if (!s) {
        p2p->close(self, 1);
        return tam_fail(TAMIS_E_NOMEM, "no memory for a communicator");
    }
    s->self = self;
    s->net.ranks_per_node = 1;
    tamis_status status = tam_coll_open(&s->coll, p2p, self, rank, &plan, TAM_STAGED_CHUNK);
    if (status == TAMIS_OK) {
        status = staged_open_settle(s, wanted, deadline_ns);
        clean = tamis_status_loss(status) != TAMIS_LOST_COMM;
    }
    if (status != TAMIS_OK) {
        tam_staged_close(s, clean);
        return status;
    }
    *out = s;
    return TAMIS_OK;
}
