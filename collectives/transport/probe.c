/* SPDX-License-Identifier: MIT
 *
 * After each size the ranks show what it took them, and from these numbers alone decide how to go on:
 *
 *     rank 0   | meet | sum 1 | sum 1 | show 21 |   max   | sum 4096 ...
 *     rank 1   | meet | sum 1 | sum 1 | show 25 |   25    | sum 4096 ...
 *     rank 2   | meet | sum 1 | sum 1 | show 24 |         | sum 4096 ...
 */
#include "collectives/transport/probe.h"

#include "lib/base/base.h"

enum { PASSED = 1 << 22, SUMMED = 1 << 20, GATHERED = 1 << 17, REPEATS = 31 };
#define BUDGET_S 0.08

struct tam_probe {
    tam_job job;
    const tamis_comm *comm;
    float *values;       /* [PASSED] */
    float *more;         /* [PASSED] */
    unsigned char *recv; /* [nranks * GATHERED] */
    double own, *shown;  /* [nranks] */
    tam_costs costs;
    double spent_s; /* by the slowest, the same on all ranks */
};

typedef enum what { SUM, GATHER, PASS } what;

static void pass(float *r, const float *g, size_t count) {
    for (size_t i = 0; i < count; i++)
        r[i] += 0.5f * g[i];
}

static tamis_status once(tam_probe *m, what kind, size_t size, tam_link *link) {
    const tam_transport *t = link->transport;
    if (kind == SUM)
        return t->allreduce_sum(link->self, m->values, size, &link->call);
    if (kind == GATHER)
        return t->allgather(link->self, m->values, size, m->recv, &link->call);
    pass(m->values, m->more, size);
    return TAMIS_OK;
}

/* The most that any rank has. */
static tamis_status agree(tam_probe *m, double own, tam_link *link, double *out) {
    m->own = own;
    TAM_TRY(link->transport->allgather(link->self, &m->own, sizeof m->own, m->shown, &link->call));
    *out = own;
    for (uint32_t r = 0; r < link->nranks; r++)
        *out = m->shown[r] > *out ? m->shown[r] : *out;
    return TAMIS_OK;
}

/* @param repeats  at least 1 */
static tamis_status measure(tam_probe *m, what kind, size_t size, uint32_t repeats, tam_link *link,
                            double *out) {
    double least = 0.0, ignored, took;
    uint64_t begin_ns = tam_clock_ns();
    for (uint32_t i = 0; i < repeats; i++) {
        TAM_TRY(agree(m, 0.0, link, &ignored)); /* all begin together */
        uint64_t before_ns = tam_clock_ns();
        TAM_TRY(once(m, kind, size, link));
        if (kind == PASS) /* until all are through: ranks may share a core */
            TAM_TRY(agree(m, 0.0, link, &ignored));
        took = 1e-9 * (double)(tam_clock_ns() - before_ns);
        least = i == 0 || took < least ? took : least;
    }
    TAM_TRY(agree(m, least, link, out));
    TAM_TRY(agree(m, 1e-9 * (double)(tam_clock_ns() - begin_ns), link, &took));
    m->spent_s += took;
    return TAMIS_OK;
}

/* A curve from sizes that grow by `factor`, while there is time for the next. What the shortest would
 * have taken counts as time, for a rank that was held up once says nothing of the next size.
 * @param less_s  what each size holds besides */
static tamis_status measure_curve(tam_probe *m, what kind, size_t size, size_t most, size_t factor,
                                  double left_s, double less_s, tam_link *link, tam_curve *out) {
    uint32_t repeats = REPEATS;
    while (size <= most && out->count < TAM_COST_POINTS) {
        double seconds;
        TAM_TRY(measure(m, kind, size, repeats, link, &seconds));
        tam_curve_add(out, (double)size, seconds > less_s ? seconds - less_s : 0.0);
        left_s -= repeats * seconds;
        double next_s = tam_curve_at(out, (double)(size * factor));
        if (next_s > left_s && out->count > 1)
            break;
        double fit = 0.5 * left_s / next_s; /* may be infinite */
        repeats = fit >= REPEATS ? REPEATS : fit > 1.0 ? (uint32_t)fit : 1;
        size *= factor;
    }
    return TAMIS_OK;
}

static tamis_status run(tam_job *job, tam_link *link) {
    tam_probe *m = (tam_probe *)(void *)job;
    memset(m->values, 0, PASSED * sizeof m->values[0]); /* pages are there, sums stay finite */
    memset(m->more, 0, PASSED * sizeof m->more[0]);
    double empty_s;
    TAM_TRY(measure(m, PASS, 0, REPEATS, link, &empty_s));
    tam_curve_add(&m->costs.pass, 0.0, 0.0);
    TAM_TRY(
        measure_curve(m, PASS, 1 << 14, PASSED, 16, 0.3 * BUDGET_S, empty_s, link, &m->costs.pass));
    TAM_TRY(measure_curve(m, SUM, 32, SUMMED, 32, 0.5 * BUDGET_S, 0.0, link, &m->costs.sum));
    return measure_curve(m, GATHER, 128, GATHERED, 32, 0.2 * BUDGET_S, 0.0, link, &m->costs.gather);
}

tamis_status tam_probe_open(const tamis_comm *comm, tam_probe **out) {
    tam_probe *m = tam_alloc(sizeof *m);
    *out = m;
    if (m) {
        m->job.run = run;
        m->comm = comm;
        m->values = tam_alloc_array(PASSED, sizeof m->values[0]);
        m->more = tam_alloc_array(PASSED, sizeof m->more[0]);
        m->recv = tam_alloc_array(comm->nranks, GATHERED);
        m->shown = tam_alloc_array(comm->nranks, sizeof m->shown[0]);
    }
    if (m && m->values && m->more && m->recv && m->shown)
        return TAMIS_OK;
    tam_probe_close(m);
    *out = NULL;
    return tam_fail(TAMIS_E_NOMEM, "no memory to measure a link of %u ranks", comm->nranks);
}

void tam_probe_close(tam_probe *m) {
    if (!m || atomic_load(&m->job.state) == TAM_JOB_ABANDONED)
        return;
    if (m->comm->transport->capabilities & TAM_CAP_LINGERS &&
        tamis_comm_status(m->comm) != TAMIS_OK)
        return;
    tam_free(m->shown);
    tam_free(m->recv);
    tam_free(m->more);
    tam_free(m->values);
    tam_free(m);
}

tamis_status tam_probe_run(tam_probe *m, tamis_comm *comm) {
    TAM_TRY(tam_comm_run(comm, &m->job));
    comm->costs = m->costs;
    comm->measured = true;
    const tam_curve *sum = &m->costs.sum, *work = &m->costs.pass;
    if (comm->rank == 0)
        tam_log(TAM_INFO,
                "measured in %.0f ms: a sum of %.0f floats takes %.1f us, of %.0f %.1f us; a pass "
                "over %.0f %.1f us",
                1e3 * m->spent_s, sum->size[0], 1e6 * sum->seconds[0], sum->size[sum->count - 1],
                1e6 * sum->seconds[sum->count - 1], work->size[work->count - 1],
                1e6 * work->seconds[work->count - 1]);
    return TAMIS_OK;
}
