/* SPDX-License-Identifier: MIT
 *
 * The job of a bucket: everything between the gradient and the end of the step, with the bucket's
 * exchange. Straight-line code. Nothing that the caller sees changes here, except the gradient of a
 * bucket that is summed whole.
 *
 *     collect, accumulate   in the job if a library thread accumulates, or collect comes first
 *     plan, select          this rank's entries
 *     run                   send them to all ranks, and sum
 *
 * The job of the last bucket ends the step for all (finish.c).
 */
#include "collectives/reducer/rollback.h"

static bool has(const tam_bucket *b, uint32_t trait) {
    return b->exchange->traits & trait;
}

/* -- the gradient ----------------------------------------------------------------------------- */

tamis_status tam_step_accumulate(tam_bucket *b) {
    tamis_reducer *r = b->reducer;
    uint64_t begin_ns = tam_clock_ns();
    TAM_TRY(tam_exchange_do(b->exchange->accumulate, b->exchanged));
    tam_nonfinite_record(b, &b->view.accumulated);
    tam_rollback_pass(b, b->view.target.decay);
    if (r->config.update)
        r->passes = b->pass; /* the same for all buckets of a step */
    tam_phase_end(r, TAMIS_PHASE_ACCUMULATE, b->view.index, begin_ns, &b->now.accumulate_s);
    return TAMIS_OK;
}

/* On the communicator's thread: it writes gradient and residual, so waiters must wait for it. */
static tamis_status accumulate_committed(tam_bucket *b) {
    TAM_TRY(tam_step_commit(b->reducer, &b->job));
    tamis_status status = tam_step_accumulate(b);
    tam_job_release(&b->job);
    return status;
}

static tamis_status job_collect(tam_bucket *b, tam_link *link) {
    uint64_t begin_ns = tam_clock_ns();
    TAM_TRY(tam_exchange_send(b->exchange->collect, b->exchanged, link));
    tam_phase_end(b->reducer, TAMIS_PHASE_EXCHANGE, b->view.index, begin_ns, &b->now.exchange_s);
    return TAMIS_OK;
}

static tamis_status take_in(tam_bucket *b, tam_link *link) {
    if (has(b, TAM_TRAIT_COLLECTS))
        TAM_TRY(job_collect(b, link));
    return tam_bucket_waits(b) ? accumulate_committed(b) : TAMIS_OK;
}

/* -- selection -------------------------------------------------------------------------------- */

/* For a bucket whose ranks select. Ranks wait for each other, and see which is late, at their first
 * message: to plan, or after selecting. */
typedef struct first_wait {
    bool early; /* to plan */
    uint64_t begin_ns, planned_ns, selected_ns;
} first_wait;

static tamis_status job_select_entries(tam_bucket *b, tam_link *link, first_wait *m) {
    const tamis_reducer *r = b->reducer;
    m->early = b->scheme.ownership == TAM_OWN_BINS;
    m->begin_ns = m->planned_ns = tam_clock_ns();
    if (m->early)
        link->call.quiet_until_ns = tam_skew_expected_ns(b, m->begin_ns);
    TAM_TRY(tam_exchange_send(b->exchange->plan, b->exchanged, link));
    if (m->early)
        m->planned_ns = tam_clock_ns();
    TAM_TRY(tam_exchange_do(b->exchange->select, b->exchanged));
    m->selected_ns =
        tam_phase_end(r, TAMIS_PHASE_SELECT, b->view.index, m->planned_ns, &b->now.select_s);
    return TAMIS_OK;
}

static tamis_status exchange_selected(tam_bucket *b, tam_link *link) {
    const tamis_reducer *r = b->reducer;
    first_wait m;
    TAM_TRY(take_in(b, link));
    TAM_TRY(job_select_entries(b, link, &m));
    uint64_t wait_ns = m.early ? m.begin_ns : m.selected_ns;
    b->view.began_us = tam_skew_us(r->synced_ns, wait_ns);
    if (!m.early)
        link->call.quiet_until_ns = tam_skew_expected_ns(b, wait_ns);
    TAM_TRY(b->exchange->run(b->exchanged, link));
    uint64_t end_ns = tam_clock_ns();
    tam_skew_report(b, wait_ns, m.early ? m.planned_ns : end_ns);
    if (m.early)
        tam_phase_record(r, TAMIS_PHASE_EXCHANGE, b->view.index, m.selected_ns, end_ns,
                         &b->now.exchange_s);
    tam_skew_synced(b, end_ns);
    return TAMIS_OK;
}

/* -- all of it -------------------------------------------------------------------------------- */

static tamis_status exchange_whole(tam_bucket *b, tam_link *link) {
    const tamis_reducer *r = b->reducer;
    uint64_t begin_ns = tam_clock_ns();
    TAM_TRY(b->exchange->run(b->exchanged, link));
    uint64_t end_ns =
        tam_phase_end(r, TAMIS_PHASE_EXCHANGE, b->view.index, begin_ns, &b->now.exchange_s);
    tam_skew_synced(b, end_ns);
    return TAMIS_OK;
}

/* All ranks know when a step will be skipped, and its later buckets then need no result. */
tamis_status tam_step_exchange(tam_job *job, tam_link *link) {
    tam_bucket *b = (tam_bucket *)(void *)job;
    tamis_reducer *r = b->reducer;
    link->call.bucket = b->view.index + 1;
    b->view.skipped = r->now.skipped;
    TAM_TRY(has(b, TAM_TRAIT_SELECTS) ? exchange_selected(b, link) : exchange_whole(b, link));
    r->now.skipped = b->view.skipped;
    return b == tam_last_bucket(r) ? tam_step_finish(r, job) : TAMIS_OK;
}
