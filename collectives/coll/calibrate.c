/* SPDX-License-Identifier: MIT */
#include "collectives/coll/calibrate.h"

#include "collectives/coll/drive.h"

enum {
    EXCHANGES_NS = 5000000,           /* of all rounds after the first two */
    LEFT = TAM_CALIBRATION_EXCHANGES, /* column of the table */
    WIDTH = TAM_CALIBRATION_PLANS * TAM_CALIBRATION_STEPS
};

_Static_assert((int)LEFT < (int)WIDTH, "a rank's numbers have room");

typedef struct calibration {
    tam_staged *s;
    tam_call *call;
    uint32_t rank, nranks;
    unsigned char *send, *recv;
    size_t *send_at, *recv_at; /* [nranks + 1] */
    uint64_t *table;           /* [nranks * WIDTH] of all ranks */
} calibration;

/* Times of one kind, one a round. */
typedef struct times {
    double ns[TAM_CALIBRATION_ROUNDS];
    uint32_t count;
} times;

static void calibrate_record(times *t, uint64_t begin_ns) {
    uint64_t end_ns = tam_clock_ns();
    if (t->count < TAM_CALIBRATION_ROUNDS)
        t->ns[t->count++] = end_ns > begin_ns ? (double)(end_ns - begin_ns) : 1.0;
}

static uint64_t least_of(const times *t) {
    double least = t->count > 0 ? t->ns[0] : 0.0;
    for (uint32_t i = 1; i < t->count; i++)
        least = t->ns[i] < least ? t->ns[i] : least;
    return (uint64_t)least;
}

static uint64_t median_of(times t) {
    return t.count > 0 ? (uint64_t)tam_median(t.ns, t.count) : 0;
}

/* Each rank's numbers, and of each the median over ranks. In place. */
static tamis_status calibrate_agree(calibration *m, uint64_t ns[WIDTH]) {
    tam_coll *coll = &m->s->coll;
    tam_coll_begin_gather(coll, ns, WIDTH * sizeof ns[0], m->table);
    TAM_TRY(tam_coll_run(coll, m->call));
    for (uint32_t i = 0; i < WIDTH; i++)
        ns[i] = tam_calibration_median(m->table, m->nranks, WIDTH, i);
    return TAMIS_OK;
}

/* -- exchanges -------------------------------------------------------------------------------- */

/* Ranks first, first + stride, ...: each sends to those 1 to npeers times `shift` behind it. */
typedef struct ring {
    uint32_t first, size, stride, shift, npeers;
    size_t bytes;
} ring;

static ring calibrate_ring_of(const calibration *m, tam_calibration_exchange kind) {
    uint32_t inside = m->s->net.ranks_per_node, nodes = m->nranks / inside, others = m->nranks - 1;
    uint32_t npeers = others < TAM_CALIBRATION_PEERS ? others : TAM_CALIBRATION_PEERS;
    size_t bytes = kind == TAM_CALIBRATION_NEAR_LONG || kind == TAM_CALIBRATION_FAR_LONG
                       ? TAM_CALIBRATION_LONG
                       : TAM_CALIBRATION_SHORT;
    if (kind == TAM_CALIBRATION_FAN)
        return (ring){0, m->nranks, 1, 1, npeers, bytes};
    if (kind == TAM_CALIBRATION_NEAR || kind == TAM_CALIBRATION_NEAR_LONG)
        return (ring){m->rank - m->rank % inside, inside, 1, inside / 2, 1, bytes};
    return (ring){m->rank % inside, nodes, inside, nodes / 2, 1, bytes};
}

static void calibrate_lay_out(const calibration *m, const ring *of, bool sends, size_t *at) {
    uint32_t own = (m->rank - of->first) / of->stride;
    memset(at, 0, (m->nranks + (size_t)1) * sizeof at[0]);
    for (uint32_t j = 1; j <= of->npeers; j++) {
        uint32_t by = of->shift * j % of->size;
        uint32_t peer = (own + (sends ? by : of->size - by)) % of->size;
        at[of->first + peer * of->stride + 1] = of->bytes;
    }
    for (uint32_t r = 0; r < m->nranks; r++)
        at[r + 1] += at[r];
}

static tamis_status exchange(calibration *m, tam_calibration_exchange kind, times *t) {
    tam_coll *coll = &m->s->coll;
    const ring of = calibrate_ring_of(m, kind);
    if (of.size < 2)
        return TAMIS_OK;
    calibrate_lay_out(m, &of, true, m->send_at);
    calibrate_lay_out(m, &of, false, m->recv_at);
    uint64_t begin_ns = tam_clock_ns();
    tam_coll_begin_runs(coll, m->send, m->send_at, m->recv, m->recv_at);
    TAM_TRY(tam_coll_run(coll, m->call));
    calibrate_record(t, begin_ns);
    return TAMIS_OK;
}

static tamis_status exchange_all(calibration *m, uint32_t rounds,
                                 times of[TAM_CALIBRATION_EXCHANGES]) {
    for (uint32_t i = 0; i < TAM_CALIBRATION_EXCHANGES; i++)
        for (uint32_t n = 0; n < rounds; n++)
            TAM_TRY(exchange(m, (tam_calibration_exchange)i, &of[i]));
    return TAMIS_OK;
}

static tamis_status agree_on_exchanges(calibration *m, const times of[TAM_CALIBRATION_EXCHANGES],
                                       uint64_t ns[WIDTH]) {
    memset(ns, 0, WIDTH * sizeof ns[0]);
    for (uint32_t i = 0; i < TAM_CALIBRATION_EXCHANGES; i++)
        ns[i] = median_of(of[i]);
    uint64_t now_ns = tam_clock_ns();
    ns[LEFT] = m->call->deadline_ns > now_ns ? m->call->deadline_ns - now_ns : 0;
    return calibrate_agree(m, ns);
}

/* The least time that a rank has left: the same on all. */
static uint64_t least_left_ns(const calibration *m) {
    uint64_t least = m->table[LEFT];
    for (uint32_t r = 1; r < m->nranks; r++) {
        uint64_t left = m->table[(size_t)r * WIDTH + LEFT];
        least = left < least ? left : least;
    }
    return least;
}

static bool has_time(const calibration *m) {
    return least_left_ns(m) >= TAM_CALIBRATE_LEFT_NS;
}

/* By a model that may be wrong, so in half of the time. */
static bool has_time_to_try(const calibration *m) {
    const tam_net *net = &m->s->net;
    uint32_t floats = tam_calibration_floats(net, m->nranks);
    return has_time(m) &&
           2e9 * tam_calibration_trial_s(net, m->nranks, floats, TAM_CALIBRATION_PLANS) <
               (double)least_left_ns(m);
}

/* The first round makes connections; the second tells for how many more there is time. */
static tamis_status measure_net(calibration *m) {
    times first[TAM_CALIBRATION_EXCHANGES] = {{{0}, 0}},
          more[TAM_CALIBRATION_EXCHANGES] = {{{0}, 0}};
    uint64_t ns[WIDTH], round_ns = 1;
    TAM_TRY(exchange_all(m, 1, first));
    TAM_TRY(exchange_all(m, 1, more));
    TAM_TRY(agree_on_exchanges(m, more, ns));
    for (uint32_t i = 0; i < TAM_CALIBRATION_EXCHANGES; i++)
        round_ns += ns[i];
    uint64_t rounds = has_time(m) ? EXCHANGES_NS / round_ns : 0;
    if (rounds > 0) {
        rounds = rounds < TAM_CALIBRATION_ROUNDS ? rounds : TAM_CALIBRATION_ROUNDS - 1;
        TAM_TRY(exchange_all(m, (uint32_t)rounds, more));
        TAM_TRY(agree_on_exchanges(m, more, ns));
    }
    m->s->net = tam_calibration_net(ns, m->nranks, m->s->net.ranks_per_node);
    m->s->measured = true;
    return TAMIS_OK;
}

/* -- trial ------------------------------------------------------------------------------------ */

/* The usual plan, and others. Messages of all go over the same p2p links, one collective at a time:
 * none has messages in flight before it begins or after it is done. */
typedef struct trial {
    uint32_t nplans;
    tam_coll *colls[TAM_CALIBRATION_PLANS], others[TAM_CALIBRATION_OTHERS];
    times of[TAM_CALIBRATION_PLANS][2]; /* few values, many */
    uint32_t floats[2];
    unsigned char *gathered; /* [nranks * packet_bytes of many] */
    float *values;           /* [many] */
} trial;

static size_t packet_bytes(const calibration *m, uint32_t floats) {
    return TAM_CALIBRATION_PACKET + floats / m->nranks * sizeof(float);
}

static tamis_status time_step(calibration *m, trial *t, uint32_t plan, uint32_t which) {
    tam_coll *coll = t->colls[plan];
    uint64_t begin_ns = tam_clock_ns();
    tam_coll_begin_gather(coll, t->values, packet_bytes(m, t->floats[which]), t->gathered);
    TAM_TRY(tam_coll_run(coll, m->call));
    tam_coll_begin_sum(coll, t->values, t->floats[which], NULL);
    TAM_TRY(tam_coll_run(coll, m->call));
    calibrate_record(&t->of[plan][which], begin_ns);
    return TAMIS_OK;
}

/* In turn, each time from another plan on, and the usual one last in the first round: whoever is
 * first pays for what no plan has used yet. Steps before make connections; long messages may need
 * more of them, and are sent too where there is time. */
static tamis_status time_rounds(calibration *m, trial *t, uint32_t rounds) {
    for (uint32_t which = 0; which < (rounds > 1 ? 2 : 1); which++)
        for (uint32_t plan = 0; plan < t->nplans; plan++)
            TAM_TRY(time_step(m, t, plan, which));
    memset(t->of, 0, sizeof t->of);
    for (uint32_t n = 1; n <= rounds; n++)
        for (uint32_t which = 0; which < 2; which++)
            for (uint32_t i = 0; i < t->nplans; i++)
                TAM_TRY(time_step(m, t, (i + n) % t->nplans, which));
    return TAMIS_OK;
}

static void log_times(const trial *t, const uint64_t *ns) {
    char text[64];
    for (uint32_t plan = 0; plan < t->nplans; plan++) {
        const uint64_t *own = ns + (size_t)plan * TAM_CALIBRATION_STEPS;
        tam_log(TAM_DEBUG,
                "stages %s: steps of %u and %u values took %.0f and %.0f us, at least "
                "%.0f and %.0f",
                tam_plan_text(&t->colls[plan]->plan, text, sizeof text), t->floats[0], t->floats[1],
                1e-3 * (double)own[TAM_CALIBRATION_STEP_FEW],
                1e-3 * (double)own[TAM_CALIBRATION_STEP_MANY],
                1e-3 * (double)own[TAM_CALIBRATION_LEAST_FEW],
                1e-3 * (double)own[TAM_CALIBRATION_LEAST_MANY]);
    }
}

static tamis_status time_plans(calibration *m, trial *t, tam_plan *best) {
    uint32_t rounds = tam_calibration_rounds(&m->s->net, m->nranks, t->floats[1], t->nplans);
    uint64_t ns[WIDTH] = {0};
    double gain[TAM_CALIBRATION_PLANS];
    TAM_TRY(time_rounds(m, t, rounds));
    for (uint32_t plan = 0; plan < t->nplans; plan++)
        for (uint32_t which = 0; which < 2; which++) {
            uint64_t *own = ns + (size_t)plan * TAM_CALIBRATION_STEPS;
            own[TAM_CALIBRATION_STEP_FEW + which] = median_of(t->of[plan][which]);
            own[TAM_CALIBRATION_LEAST_FEW + which] = least_of(&t->of[plan][which]);
        }
    TAM_TRY(calibrate_agree(m, ns));
    if (m->rank == 0)
        log_times(t, ns);
    *best = t->colls[tam_calibration_choose(ns, t->nplans, gain)]->plan;
    memcpy(m->s->gain, gain + 1, sizeof m->s->gain);
    return TAMIS_OK;
}

static tamis_status open_trial(calibration *m, trial *t) {
    tam_staged *s = m->s;
    uint32_t many = tam_calibration_floats(&s->net, m->nranks);
    *t = (trial){.nplans = 1, .colls = {&s->coll}, .floats = {TAM_CALIBRATION_FEW, many}};
    for (uint32_t i = 0; i < s->ntried; i++) {
        t->colls[t->nplans++] = &t->others[i];
        TAM_TRY(tam_coll_open_beside(&t->others[i], &s->coll, &s->tried[i]));
    }
    t->values = tam_alloc_array(many, sizeof t->values[0]);
    t->gathered = tam_alloc_array(m->nranks, packet_bytes(m, many));
    if (!t->values || !t->gathered)
        return tam_fail(TAMIS_E_NOMEM, "no memory to try the plans of %u ranks", m->nranks);
    return TAMIS_OK;
}

/* Also an abort message that is still to be sent lies in the trial. */
static void close_trial(trial *t, bool frees) {
    for (uint32_t i = 0; i < TAM_CALIBRATION_OTHERS; i++)
        tam_coll_close(&t->others[i], true);
    if (frees) {
        tam_free(t->values);
        tam_free(t->gathered);
        tam_free(t);
    }
}

/* A p2p link whose buffers stay in flight may still use memory of a collective that failed. */
static bool may_free(const calibration *m, tamis_status status) {
    return tamis_status_loss(status) != TAMIS_LOST_COMM || !m->s->coll.p2p->stays_in_flight;
}

static tamis_status try_plans(calibration *m, tam_plan *best) {
    trial *t = tam_alloc(sizeof *t);
    if (!t)
        return tam_fail(TAMIS_E_NOMEM, "no memory to try the plans of %u ranks", m->nranks);
    tamis_status status = open_trial(m, t);
    if (status == TAMIS_OK)
        status = time_plans(m, t, best);
    close_trial(t, may_free(m, status));
    return status;
}

/* -- all -------------------------------------------------------------------------------------- */

static tamis_status open_calibration(tam_staged *s, tam_call *call, calibration *m) {
    uint32_t nranks = s->coll.plan.nranks;
    *m = (calibration){.s = s, .call = call, .rank = s->coll.rank, .nranks = nranks};
    m->send = tam_alloc(TAM_CALIBRATION_LONG);
    m->recv = tam_alloc(TAM_CALIBRATION_LONG);
    m->send_at = tam_alloc_array(nranks + (size_t)1, sizeof m->send_at[0]);
    m->recv_at = tam_alloc_array(nranks + (size_t)1, sizeof m->recv_at[0]);
    m->table = tam_alloc_array(nranks, WIDTH * sizeof m->table[0]);
    if (!m->send || !m->recv || !m->send_at || !m->recv_at || !m->table)
        return tam_fail(TAMIS_E_NOMEM, "no memory to measure the network of %u ranks", nranks);
    return TAMIS_OK;
}

static void close_calibration(calibration *m, bool frees) {
    tam_free(m->send_at);
    tam_free(m->recv_at);
    if (!frees)
        return;
    tam_free(m->send);
    tam_free(m->recv);
    tam_free(m->table);
}

tamis_status tam_calibrate(tam_staged *s, tam_call *call, tam_plan *plan) {
    calibration m;
    *plan = s->coll.plan;
    tamis_status status = open_calibration(s, call, &m);
    if (status == TAMIS_OK)
        status = measure_net(&m);
    if (status == TAMIS_OK && has_time_to_try(&m))
        s->ntried = tam_calibration_propose(&s->net, m.nranks, s->tried);
    if (status == TAMIS_OK && s->ntried > 0)
        status = try_plans(&m, plan);
    close_calibration(&m, may_free(&m, status));
    if (status == TAMIS_OK)
        plan->fused_bytes = tam_plan_fused(&s->net, plan);
    return status;
}
