/* SPDX-License-Identifier: MIT
 *
 * After each repetition the ranks show what it took them and how long all has taken, and from these
 * numbers alone decide what comes next. What is shown is also where they meet before the next:
 *
 *     rank 0   | sum 32 | show 21 |        | gather 128 | show 14 |        | sum 32 ...
 *     rank 1   | sum 32 | show 25 |  max   | gather 128 | show 12 |  max   | sum 32 ...
 *     rank 2   | sum 32 | show 24 |  25    | gather 128 | show 19 |  19    | sum 32 ...
 */
#include "collectives/transport/probe.h"

#include "lib/base/base.h"

enum { PASSED = 1 << 22, SUMMED = 1 << 22, GATHERED = 1 << 17, REPEATS = 31 };
#define BUDGET_S 0.08

typedef enum what { SUM, GATHER, PASS } what;

/* In the order of a round, in which none follows itself but for small ones: what disturbs the machine
 * for some milliseconds hits one repetition of each, not all of one, and what the large leave in the
 * caches is what a step finds there. */
static const struct point {
    what kind;
    size_t size;
    uint32_t times; /* in a round */
} points[] = {
    {PASS, 0, 3},       {SUM, 32, 3},       {GATHER, 128, 3},  {SUM, 1024, 3},
    {GATHER, 4096, 3},  {PASS, 1 << 14, 3}, {SUM, 1 << 15, 2}, {GATHER, GATHERED, 2},
    {PASS, 1 << 18, 2}, {SUM, 1 << 18, 1},  {PASS, PASSED, 1}, {SUM, 1 << 20, 1},
    {SUM, SUMMED, 1},
};
enum { POINTS = sizeof points / sizeof points[0] };

typedef struct samples {
    uint32_t count;
    double seconds[REPEATS]; /* ascending; of each repetition what it took the slowest rank */
} samples;

typedef struct shown {
    double took_s, spent_s;
} shown;

struct tam_probe {
    tam_job job;
    const tamis_comm *comm;
    float *values;       /* [PASSED] */
    float *more;         /* [PASSED] */
    unsigned char *recv; /* [nranks * GATHERED] */
    shown own, *all;     /* [nranks] */
    uint64_t begin_ns;
    double spent_s; /* since then, on the slowest: the same on all ranks, as the samples are */
    samples samples[POINTS];
    tam_costs costs;
};

static void pass(float *r, const float *g, size_t count) {
    for (size_t i = 0; i < count; i++)
        r[i] += 0.5f * g[i];
}

/* All meet, and learn the most that any has. */
static tamis_status show(tam_probe *m, double took_s, tam_link *link, double *out_s) {
    m->own = (shown){took_s, 1e-9 * (double)(tam_clock_ns() - m->begin_ns)};
    TAM_TRY(link->transport->allgather(link->self, &m->own, sizeof m->own, m->all, &link->call));
    *out_s = took_s;
    for (uint32_t r = 0; r < link->nranks; r++) {
        *out_s = m->all[r].took_s > *out_s ? m->all[r].took_s : *out_s;
        m->spent_s = m->all[r].spent_s > m->spent_s ? m->all[r].spent_s : m->spent_s;
    }
    return TAMIS_OK;
}

static void keep(samples *s, double seconds) {
    uint32_t at = s->count++;
    for (; at > 0 && s->seconds[at - 1] > seconds; at--)
        s->seconds[at] = s->seconds[at - 1];
    s->seconds[at] = seconds;
}

static double median(const samples *s) {
    return s->seconds[(s->count - 1) / 2];
}

static tamis_status measure(tam_probe *m, size_t p, tam_link *link) {
    const tam_transport *t = link->transport;
    size_t size = points[p].size;
    double took_s;
    uint64_t begin_ns = tam_clock_ns();
    if (points[p].kind == SUM) {
        TAM_TRY(t->allreduce_sum(link->self, m->values, size, &link->call));
    } else if (points[p].kind == GATHER) {
        TAM_TRY(t->allgather(link->self, m->values, size, m->recv, &link->call));
    } else {
        pass(m->values, m->more, size);
        TAM_TRY(show(m, 0.0, link, &took_s)); /* until all are through: ranks may share a core */
    }
    TAM_TRY(show(m, 1e-9 * (double)(tam_clock_ns() - begin_ns), link, &took_s));
    keep(&m->samples[p], took_s);
    return TAMIS_OK;
}

/* What is known so far. A pass is what takes longer than an empty one. */
static void draw(const tam_probe *m, what kind, tam_curve *out) {
    double empty_s = kind == PASS && m->samples[0].count > 0 ? median(&m->samples[0]) : 0.0;
    *out = (tam_curve){0};
    for (size_t p = 0; p < POINTS; p++) {
        if (points[p].kind != kind || m->samples[p].count == 0)
            continue;
        double seconds = median(&m->samples[p]) - empty_s;
        tam_curve_add(out, (double)points[p].size, seconds > 0.0 ? seconds : 0.0);
    }
}

/* What was never measured must leave time for more: its time is only guessed, from smaller sizes. Two
 * sizes of each kind are measured at any rate. */
static bool affordable(const tam_probe *m, size_t p) {
    double left_s = BUDGET_S - m->spent_s;
    tam_curve curve;
    if (m->samples[p].count > 0)
        return m->samples[p].count < REPEATS && median(&m->samples[p]) <= left_s;
    draw(m, points[p].kind, &curve);
    return curve.count < 2 || tam_curve_at(&curve, (double)points[p].size) <= 0.25 * left_s;
}

static tamis_status run(tam_job *job, tam_link *link) {
    tam_probe *m = (tam_probe *)(void *)job;
    double ignored;
    m->begin_ns = tam_clock_ns();
    memset(m->values, 0, PASSED * sizeof m->values[0]); /* pages are there, sums stay finite */
    memset(m->more, 0, PASSED * sizeof m->more[0]);
    TAM_TRY(show(m, 0.0, link, &ignored));
    for (uint32_t round = 0; round < REPEATS && (round == 0 || m->spent_s < BUDGET_S); round++)
        for (size_t p = 0; p < POINTS; p++)
            for (uint32_t i = 0; i < points[p].times && affordable(m, p); i++)
                TAM_TRY(measure(m, p, link));
    draw(m, PASS, &m->costs.pass);
    draw(m, SUM, &m->costs.sum);
    draw(m, GATHER, &m->costs.gather);
    return TAMIS_OK;
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
        m->all = tam_alloc_array(comm->nranks, sizeof m->all[0]);
    }
    if (m && m->values && m->more && m->recv && m->all)
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
    tam_free(m->all);
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
