/* SPDX-License-Identifier: MIT
 *
 * After each repetition the ranks exchange how long the previous one took them, and all of it so
 * far. From these numbers alone they decide what to measure next:
 *
 *     rank 0   | sum 32 | show  - |       | gather 128 | show 34 |       | pass 0 | show 24 |
 *     rank 1   | sum 32 | show  - |  max  | gather 128 | show 35 |  max  | pass 0 | show 22 |  max
 *     rank 2   | sum 32 | show  - |       | gather 128 | show 34 |  35   | pass 0 | show 29 |  29
 *
 * A repetition includes that exchange, so it lasts until all ranks are done, for ranks may share a
 * core.
 */
#include "collectives/transport/calibrate_costs.h"

#include "lib/base/numbers.h"
#include "lib/transport/tag.h"

#include "lib/base/base.h"

#include <stdio.h>
#include <xxhash.h>

enum {
    TRUSTED = 3
}; /* least repetitions of the first size: with fewer, noise of the machine hides the link */
enum { LARGEST = 1 << 22, ROUNDS = 5, TURNS = 7, REPEATS = ROUNDS * TURNS };
#define BUDGET_S 0.08

typedef enum what { SUM, GATHER, PASS } what;

/* In a round, small sizes take several turns, large ones only the last. No size follows itself. So
 * a disturbance of some milliseconds hits one repetition of each size, not all of one, and small
 * sizes find the caches as large ones leave them. */
typedef struct point {
    what kind;
    size_t size;    /* of a gather: which of tam_calibrate_costs_gathers */
    uint32_t turns; /* in a round */
} point;

static const point usual_points[] = {
    {PASS, 0, 7},      {SUM, 32, 7},       {GATHER, 0, 7},    {SUM, 1 << 10, 7},
    {GATHER, 1, 7},    {PASS, 1 << 14, 5}, {SUM, 1 << 13, 5}, {PASS, 1 << 16, 4},
    {SUM, 1 << 15, 4}, {GATHER, 2, 4},     {SUM, 1 << 17, 3}, {PASS, 1 << 18, 3},
    {SUM, 1 << 20, 2}, {PASS, 1 << 20, 2}, {SUM, LARGEST, 1}, {PASS, LARGEST, 1},
};
enum { POINTS = sizeof usual_points / sizeof usual_points[0] };

/* The slowest rank's time of each repetition. */
typedef struct samples {
    uint32_t count;
    double seconds[REPEATS]; /* [count] ascending */
} samples;

/* Checksummed, for damage could let ranks decide differently and so call different collectives. */
typedef struct shown {
    double took_s, spent_s;
    uint64_t check; /* of both and of how many were shown before */
} shown;

struct tam_cost_calibration {
    tam_job job;
    const tamis_comm *comm;
    point points[POINTS];
    size_t gathers[TAM_COST_GATHERS];
    float *grad, *acc;   /* [LARGEST] */
    unsigned char *recv; /* [nranks * the largest gather] */
    shown own, *all;     /* [nranks] */
    uint64_t begin_ns, nshown;
    double spent_s; /* since then, on the slowest rank; like the samples, the same on all ranks */
    size_t last;    /* point that was measured last; POINTS: none */
    double took_s;  /* how long that took this rank */
    samples samples[POINTS];
    tam_costs costs;
    bool rate_unknown; /* costs assume one */
};

void tam_calibrate_costs_gathers(uint32_t nranks, size_t sizes[TAM_COST_GATHERS]) {
    sizes[2] = tam_min(1 << 17, TAM_COST_GATHERED_MOST / nranks);
    sizes[1] = tam_min(1 << 12, sizes[2] / 4);
    sizes[0] = tam_min(1 << 7, sizes[1] / 4);
}

static void set_points(tam_cost_calibration *m) {
    tam_calibrate_costs_gathers(m->comm->nranks, m->gathers);
    for (size_t p = 0; p < POINTS; p++) {
        m->points[p] = usual_points[p];
        if (m->points[p].kind == GATHER)
            m->points[p].size = m->gathers[usual_points[p].size];
    }
}

/* A pass as in a step: add the gradient to the residual, and clear it. */
static void pass(float *restrict acc, float *restrict grad, size_t count) {
    for (size_t i = 0; i < count; i++) {
        acc[i] += 0.5f * grad[i];
        grad[i] = 0.0f;
    }
}

static uint64_t calibrate_costs_check_of(const shown *s, uint64_t number) {
    return XXH3_64bits_withSeed(s, offsetof(shown, check), number);
}

static void insert_sample(samples *s, double seconds) {
    uint32_t at = s->count++;
    for (; at > 0 && s->seconds[at - 1] > seconds; at--)
        s->seconds[at] = s->seconds[at - 1];
    s->seconds[at] = seconds;
}

static double median(const samples *s) {
    return s->seconds[(s->count - 1) / 2];
}

/* Exchange times; all ranks learn the largest. */
static tamis_status exchange_times(tam_cost_calibration *m, tam_link *link) {
    double took_s = 0.0;
    m->own = (shown){m->took_s, 1e-9 * (double)(tam_clock_ns() - m->begin_ns), 0};
    m->own.check = calibrate_costs_check_of(&m->own, ++m->nshown);
    TAM_TRY(link->transport->allgather(link->self, &m->own, sizeof m->own, m->all, &link->call));
    for (uint32_t r = 0; r < link->nranks; r++) {
        const shown *theirs = &m->all[r];
        if (theirs->check != calibrate_costs_check_of(theirs, m->nshown))
            return tam_fail(TAMIS_E_PROTOCOL,
                            "rank %u: the link measurements of rank %u arrived damaged", link->rank,
                            r);
        took_s = theirs->took_s > took_s ? theirs->took_s : took_s;
        m->spent_s = theirs->spent_s > m->spent_s ? theirs->spent_s : m->spent_s;
    }
    if (m->last < POINTS)
        insert_sample(&m->samples[m->last], took_s);
    m->last = POINTS;
    return TAMIS_OK;
}

/* With a tag, as for a bucket that is summed whole. */
static tamis_status calibrate_costs_sum(tam_cost_calibration *m, const point *p, tam_link *link) {
    tam_tag tag = {.rank = link->rank, .count = p->size};
    tam_tag_seal(&tag);
    link->call.tag = &tag;
    tamis_status status = link->transport->allreduce_sum(link->self, m->grad, p->size, &link->call);
    link->call.tag = NULL;
    return status;
}

static tamis_status run_once(tam_cost_calibration *m, const point *p, tam_link *link) {
    const tam_transport *t = link->transport;
    if (p->kind == SUM)
        return calibrate_costs_sum(m, p, link);
    if (p->kind == GATHER)
        return t->allgather(link->self, m->grad, p->size, m->recv, &link->call);
    pass(m->acc, m->grad, p->size);
    return TAMIS_OK;
}

/* The gradient has just been written, as when a step begins. */
static tamis_status calibrate_costs_measure(tam_cost_calibration *m, size_t p, tam_link *link) {
    const point *now = &m->points[p];
    memset(m->grad, 0, now->kind == GATHER ? now->size : now->size * sizeof(float));
    uint64_t begin_ns = tam_clock_ns();
    TAM_TRY(run_once(m, now, link));
    TAM_TRY(exchange_times(m, link));
    m->took_s = 1e-9 * (double)(tam_clock_ns() - begin_ns);
    m->last = p;
    return TAMIS_OK;
}

/* The curve known so far: how much longer each size takes than an empty pass. */
static void draw(const tam_cost_calibration *m, what kind, tam_curve *out) {
    double empty_s = m->samples[0].count > 0 ? median(&m->samples[0]) : 0.0;
    *out = (tam_curve){0};
    for (size_t p = 0; p < POINTS; p++) {
        if (m->points[p].kind != kind || m->samples[p].count == 0)
            continue;
        double seconds = median(&m->samples[p]) - empty_s;
        tam_curve_add(out, (double)m->points[p].size, seconds > 0.0 ? seconds : 0.0);
    }
}

/* A size not measured yet must leave time for more, as its time is only extrapolated from smaller
 * sizes. Two sizes of each kind are always measured. */
static bool affordable(const tam_cost_calibration *m, size_t p) {
    double left_s = BUDGET_S - m->spent_s;
    tam_curve curve;
    if (m->samples[p].count > 0)
        return median(&m->samples[p]) <= left_s;
    draw(m, m->points[p].kind, &curve);
    return curve.count < 2 || tam_curve_at(&curve, (double)m->points[p].size) <= 0.25 * left_s;
}

static tamis_status run_turn(tam_cost_calibration *m, uint32_t turn, tam_link *link) {
    for (size_t p = 0; p < POINTS; p++)
        if (turn <= m->points[p].turns && affordable(m, p))
            TAM_TRY(calibrate_costs_measure(m, p, link));
    return TAMIS_OK;
}

/* -- curves of a link, where measured ones do not serve --------------------------------------- */

/* The smallest and the largest size of a kind; two of each were measured. To show each other times
 * is a part of each repetition. It is an all-gather itself, of little, so the rest is at least half
 * of the smallest: one disturbance of the empty repetition leaves no time too short. */
static tam_timing timing_of(const tam_cost_calibration *m, what kind) {
    tam_timing timing = {.sums = kind == SUM};
    double shown_s = median(&m->samples[0]);
    size_t count = 0;
    for (size_t p = 0; p < POINTS; p++) {
        if (m->points[p].kind != kind || m->samples[p].count == 0)
            continue;
        double seconds = median(&m->samples[p]);
        shown_s = count == 0 && shown_s > 0.5 * seconds ? 0.5 * seconds : shown_s;
        timing.bytes[count > 0] = (double)m->points[p].size * (kind == SUM ? sizeof(float) : 1.0);
        timing.seconds[count > 0] = seconds - shown_s;
        count++;
    }
    return timing;
}

static tam_costs calibrate_costs_of(const tam_cost_calibration *m, const tam_link_model *link) {
    const tamis_comm *comm = m->comm;
    tam_net net = tam_net_of_link(link, comm->nranks, comm->ranks_per_node);
    tam_costs costs;
    tam_costs_of_net(&net, &comm->stages, &costs);
    return costs;
}

/* Sums and gathers have a link each, because a transport may make one of several of the other.
 * Where the rate of one is not known it is that of the other. */
static tam_costs fit_costs(tam_cost_calibration *m) {
    const tamis_comm *comm = m->comm;
    tam_timing of_sum = timing_of(m, SUM), of_gather = timing_of(m, GATHER);
    tam_link_model sums, gathers;
    tam_link_model usual = tam_link_usual(comm->ranks_per_node >= comm->nranks);
    bool one = tam_link_fit(&of_sum, &comm->stages, comm->ranks_per_node, &sums);
    bool other = tam_link_fit(&of_gather, &comm->stages, comm->ranks_per_node, &gathers);
    m->rate_unknown = !one && !other && comm->nranks > 1;
    if (!one)
        sums.seconds_per_byte = other ? gathers.seconds_per_byte : usual.seconds_per_byte;
    if (!other)
        gathers.seconds_per_byte = sums.seconds_per_byte;
    tam_costs costs = calibrate_costs_of(m, &gathers);
    costs.sum = calibrate_costs_of(m, &sums).sum;
    return costs;
}

/* Few repetitions were a few milliseconds each on a slow network, or on a busy machine. */
static void calibrate_costs_conclude(tam_cost_calibration *m) {
    const tam_curve *sum = &m->costs.sum, *gather = &m->costs.gather;
    if (m->samples[0].count >= TRUSTED) {
        draw(m, PASS, &m->costs.pass);
        draw(m, SUM, &m->costs.sum);
        draw(m, GATHER, &m->costs.gather);
    }
    tam_costs usual = fit_costs(m);
    m->rate_unknown = m->rate_unknown && !(tam_curve_grows(sum) && tam_curve_grows(gather));
    tam_costs_complete(&m->costs, &usual);
}

static tamis_status calibrate_costs_run(tam_job *job, tam_link *link) {
    tam_cost_calibration *m = (tam_cost_calibration *)(void *)job;
    m->begin_ns = tam_clock_ns();
    m->last = POINTS;
    memset(m->grad, 0, LARGEST * sizeof m->grad[0]); /* pages are there, sums stay finite */
    memset(m->acc, 0, LARGEST * sizeof m->acc[0]);
    TAM_TRY(exchange_times(m, link));
    for (uint32_t round = 0; round < ROUNDS && (round == 0 || m->spent_s < BUDGET_S); round++)
        for (uint32_t turn = TURNS; turn > 0; turn--)
            TAM_TRY(run_turn(m, turn, link));
    TAM_TRY(exchange_times(m, link)); /* the time of the last repetition */
    calibrate_costs_conclude(m);
    return TAMIS_OK;
}

tamis_status tam_calibrate_costs_open(const tamis_comm *comm, tam_cost_calibration **out) {
    tam_cost_calibration *m = tam_alloc(sizeof *m);
    *out = m;
    if (m) {
        m->job.run = calibrate_costs_run;
        m->job.purpose = "tamis_reducer_create";
        m->comm = comm;
        set_points(m);
        m->grad = tam_alloc_array(LARGEST, sizeof m->grad[0]);
        m->acc = tam_alloc_array(LARGEST, sizeof m->acc[0]);
        m->recv = tam_alloc_array(comm->nranks, m->gathers[TAM_COST_GATHERS - 1]);
        m->all = tam_alloc_array(comm->nranks, sizeof m->all[0]);
    }
    if (m && m->grad && m->acc && m->recv && m->all)
        return TAMIS_OK;
    tam_calibrate_costs_close(m);
    *out = NULL;
    return tam_fail(TAMIS_E_NOMEM, "no memory to measure a link of %u ranks", comm->nranks);
}

void tam_calibrate_costs_close(tam_cost_calibration *m) {
    if (!m || atomic_load(&m->job.state) == TAM_JOB_ABANDONED || !tam_comm_silence(m->comm))
        return;
    tam_free(m->all);
    tam_free(m->recv);
    tam_free(m->acc);
    tam_free(m->grad);
    tam_free(m);
}

static void log_curve(const char *name, const tam_curve *c) {
    char text[256] = "";
    size_t used = 0;
    for (uint32_t i = 0; i < c->count && used < sizeof text; i++)
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%.0f: %.1f", i ? ", " : "",
                                 c->size[i], 1e6 * c->seconds[i]);
    tam_log(TAM_INFO, "measured, in us: %s: %s", name, text);
}

tamis_status tam_calibrate_costs_run(tam_cost_calibration *m, tamis_comm *comm) {
    TAM_TRY(tam_comm_run(comm, &m->job));
    comm->costs = m->costs;
    comm->measured = true;
    if (comm->rank > 0)
        return TAMIS_OK;
    tam_log(TAM_INFO, "measured a link of %u ranks in %.0f ms", comm->nranks, 1e3 * m->spent_s);
    if (m->rate_unknown)
        tam_log(TAM_WARN,
                "the rate of a link of %u ranks could not be measured in %.0f ms, and exchange "
                "auto assumes one: give it the link, link_latency_us and link_gbit",
                comm->nranks, 1e3 * m->spent_s);
    log_curve("sum of floats", &m->costs.sum);
    log_curve("all-gather of bytes", &m->costs.gather);
    log_curve("pass over elements", &m->costs.pass);
    return TAMIS_OK;
}
