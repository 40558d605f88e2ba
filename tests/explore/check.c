/* SPDX-License-Identifier: MIT */
#include "tests/explore/program.h"

#include "collectives/reducer/reducer.h"
#include "tests/support/data.h"

#include <string.h>

enum { OVERDUE_MS = 1000 };

#define MS UINT64_C(1000000)

/* -- calls ------------------------------------------------------------------------------------ */

void check_begin(actor *self, const char *call) {
    self->call = call;
    self->call_begin_ns = self->world->now_ns;
    self->asleep_ns = 0;
}

static void check_failure(actor *self, const char *call, tamis_status status) {
    bool known = status == TAMIS_E_TIMEOUT || status == TAMIS_E_TRANSPORT ||
                 status == TAMIS_E_PROTOCOL || status == TAMIS_E_ABORTED;
    self->world->seen.statuses[status & 127]++;
    self->failed_ns = self->failed_ns ? self->failed_ns : self->world->now_ns;
    world_trace(self->world, "rank %u: %.40s: %s: %s", self->id, call, tamis_status_name(status),
                tamis_last_error());
    if (!known)
        world_fail(self, "%.40s gives %s: %s", call, tamis_status_name(status), tamis_last_error());
    if (tamis_last_error()[0] == '\0')
        world_fail(self, "%.40s gives %s and no sentence", call, tamis_status_name(status));
}

tamis_status check_end(actor *self, tamis_status status) {
    const char *call = self->call;
    uint64_t took_ns = self->world->now_ns - self->call_begin_ns;
    self->call = NULL;
    if (self->leaving)
        return status;
    if (took_ns > self->asleep_ns + (TIMEOUT_MS + OVERDUE_MS + QUANTUM_MS) * MS)
        world_fail(self, "%.40s took %.1f ms", call, (double)took_ns / (double)MS);
    if (status != TAMIS_OK)
        check_failure(self, call, status);
    return status;
}

/* -- steps ------------------------------------------------------------------------------------ */

void check_started(actor *self, const float *given) {
    if (self->leaving)
        return;
    for (uint32_t i = 0; i < LENGTH; i++) {
        self->acc[i] += given[i];
        self->since[i] += given[i];
    }
    memcpy(self->world->shown[self->generation][self->id][self->step], self->acc, sizeof self->acc);
}

/* What all ranks of the network have at an entry. */
static float sum_of(const actor *self, uint32_t i) {
    const world *w = self->world;
    const net *n = w->nets[self->generation];
    float sum = 0.0f;
    for (uint32_t nth = 0; nth < net_nranks(n); nth++)
        sum += w->shown[self->generation][net_rank(n, nth)][self->step][i];
    return sum;
}

static void check_values(actor *self, const float *result) {
    tamis_result sparse = TAMIS_RESULT_INIT;
    bool chosen[LENGTH] = {false};
    if (tamis_reducer_result(self->reducer, &sparse) != TAMIS_OK || !sparse.indices) {
        world_fail(self, "no indices: %s", tamis_last_error());
        return;
    }
    for (size_t i = 0; i < sparse.count; i++)
        chosen[sparse.indices[i]] = true;
    if (sparse.count == 0)
        world_fail(self, "nothing was chosen in step %llu", (unsigned long long)self->step);
    for (uint32_t i = 0; i < LENGTH; i++) {
        float due = chosen[i] ? sum_of(self, i) : 0.0f;
        if (result[i] != due)
            world_fail(self, "step %llu, entry %u is %g, not %g", (unsigned long long)self->step, i,
                       (double)result[i], (double)due);
        self->acc[i] = chosen[i] ? 0.0f : self->acc[i];
    }
}

void check_applied(actor *self, const float *result) {
    world *w = self->world;
    if (self->leaving)
        return;
    uint64_t *known = &w->hash[self->generation][self->step];
    uint64_t hash = data_hash(0, result, LENGTH * sizeof result[0]);
    if (*known != 0 && *known != hash)
        world_fail(self, "another result of step %llu", (unsigned long long)self->step);
    *known = hash;
    memcpy(self->before, self->acc, sizeof self->acc);
    memset(self->since, 0, sizeof self->since);
    if (w->set->exact)
        check_values(self, result);
    for (uint32_t i = 0; i < LENGTH; i++)
        self->params[i] += result[i];
    memcpy(self->past[++self->step], self->params, sizeof self->params);
}

void check_residual(actor *self, const char *when) {
    const float *residual = NULL;
    if (self->leaving || !self->world->set->exact)
        return;
    if (tamis_reducer_residual(self->reducer, &residual) != TAMIS_OK) {
        world_fail(self, "%s there is no residual: %s", when, tamis_last_error());
        return;
    }
    for (uint32_t i = 0; i < LENGTH; i++)
        if (residual[i] != self->acc[i])
            world_fail(self, "%s the residual has %g at entry %u, not %g", when,
                       (double)residual[i], i, (double)self->acc[i]);
}

/* -- after a failure -------------------------------------------------------------------------- */

void check_back(actor *self) {
    uint64_t step = self->reducer->step;
    if (self->leaving || step == self->step)
        return;
    if (step + 1 != self->step) {
        world_fail(self, "from step %llu to step %llu", (unsigned long long)self->step,
                   (unsigned long long)step);
        return;
    }
    world_trace(self->world, "rank %u went back to step %llu", self->id, (unsigned long long)step);
    self->world->seen.went_back++;
    self->step = step;
    memcpy(self->params, self->past[step], sizeof self->params);
    for (uint32_t i = 0; i < LENGTH; i++)
        self->acc[i] = self->before[i] + self->since[i];
    check_residual(self, "after a step back");
}

void check_returned(actor *self, uint64_t step) {
    if (self->leaving)
        return;
    if (step != self->outcome.least || step != self->reducer->step)
        world_fail(self, "to go on from step %llu, not %llu", (unsigned long long)step,
                   (unsigned long long)self->outcome.least);
    check_back(self);
    check_residual(self, "after going on");
}

/* -- rendezvous ------------------------------------------------------------------------------- */

static actor *alive(world *w, uint32_t nth) {
    return &w->ranks[w->outcome.alive[nth]];
}

static void list_alive(world *w) {
    for (uint32_t r = 0; r < RANKS; r++)
        if (w->ranks[r].state == AT_RENDEZVOUS)
            w->outcome.alive[w->outcome.nalive++] = r;
}

/* Replicas are the same when all went well. */
static void check_replicas(world *w) {
    const actor *first = alive(w, 0);
    for (uint32_t i = 1; i < w->outcome.nalive; i++) {
        actor *r = alive(w, i);
        if (r->step != first->step || memcmp(r->params, first->params, sizeof r->params) != 0)
            world_fail(r, "other parameters than rank %u: at step %llu and %llu", first->id,
                       (unsigned long long)r->step, (unsigned long long)first->step);
    }
}

/* A rank that gives up tells the others, who would else wait for it until their own deadlines; who
 * computes hears it afterwards. Ranks that sleep or have no network any more, and messages that are
 * late, tell nothing. */
static void check_told(world *w) {
    bool tells = w->seen.faults[CRASH] + w->seen.faults[LOST] > 0 && !w->cut;
    uint64_t least = UINT64_MAX, most = 0;
    for (uint32_t i = 0; i < w->outcome.nalive; i++) {
        uint64_t failed_ns = alive(w, i)->failed_ns;
        least = failed_ns > 0 && failed_ns < least ? failed_ns : least;
        most = failed_ns > most ? failed_ns : most;
    }
    if (tells && most > least + (COMPUTES_MS + 1) * MS)
        world_fail(alive(w, 0), "ranks fail %.1f ms one after another",
                   (double)(most - least) / (double)MS);
}

static bool all_have_comm(world *w, uint32_t generation) {
    bool all = true;
    for (uint32_t i = 0; i < w->outcome.nalive; i++)
        all = all && alive(w, i)->comms[generation];
    return all;
}

/* The network on which those that live go on. */
static void open_network(world *w) {
    rendezvous *m = &w->outcome;
    if (w->generations == GENERATIONS) {
        world_fail(alive(w, 0), "%d networks, and no end", GENERATIONS);
        return;
    }
    for (m->base = w->generations - 1; m->base > 0 && !all_have_comm(w, m->base);)
        m->base--;
    m->generation = w->generations++;
    w->nets[m->generation] = net_create(w, m->generation, m->alive, m->nalive);
    w->seen.recovered++;
}

static void weigh(world *w) {
    rendezvous *m = &w->outcome;
    m->fine = true;
    m->least = UINT64_MAX;
    for (uint32_t i = 0; i < m->nalive; i++) {
        const actor *r = alive(w, i);
        uint32_t nranks = net_nranks(w->nets[r->generation]);
        bool saved = w->set->resyncs && m->nalive == RANKS && r->control;
        m->fine = m->fine && r->fine;
        m->hopeless = m->hopeless || (!r->reducer && !saved);
        m->least = r->step < m->least ? r->step : m->least;
        m->before = nranks > m->before ? nranks : m->before;
    }
    world_trace(w, "rendezvous of %u ranks%s%s", m->nalive, m->fine ? ": all is well" : "",
                m->hopeless ? ": one has no reducer" : "");
}

void check_rendezvous(world *w) {
    w->outcome = (rendezvous){0};
    list_alive(w);
    weigh(w);
    w->seen.hopeless += w->outcome.hopeless;
    if (w->outcome.fine)
        check_replicas(w);
    else if (w->nchoices == 1)
        check_told(w);
    if (!w->outcome.fine && !w->outcome.hopeless)
        open_network(w);
    for (uint32_t i = 0; i < w->outcome.nalive; i++)
        alive(w, i)->outcome = w->outcome;
}
