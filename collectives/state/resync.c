/* SPDX-License-Identifier: MIT
 *
 * After loading: ranks whose states are a step apart return to a step that all can continue from.
 * A rank whose last exchange failed has not applied a step that the others have:
 *
 *     rank 0   ... 6 applied   7 applied          state: step 8   goes back to 7
 *     rank 1   ... 6 applied   7 failed           state: step 7   stays
 *     rank 2   ... 6 applied   7 applied   8 ...  state: step 8   goes back to 7
 */
#include "collectives/state/resync.h"
#include "lib/base/fenv.h"

#include <tamis/elastic.h>

_Static_assert(sizeof(tam_standing) <= TAM_RECORD_BYTES, "a standing fits the records");

static const char *const why_not[] = {
    [TAM_ROLLBACK_NONE] =
        "it holds no record of that step: a device ran it, or its control or residual "
        "was loaded alone",
    [TAM_ROLLBACK_POSSIBLE] = "",
    [TAM_ROLLBACK_TOO_LONG] = "that step sent more entries than a record has room for",
    [TAM_ROLLBACK_DROPPED] = "that step dropped sums that were not finite",
    [TAM_ROLLBACK_DONE] = "it went back already",
};

static const tam_standing *standing_of(const unsigned char *records, uint32_t rank) {
    return tam_handshake_record(records, rank);
}

static tamis_status check_same_reducer(const unsigned char *records, uint32_t nranks) {
    for (uint32_t r = 1; r < nranks; r++) {
        if (standing_of(records, r)->who != standing_of(records, 0)->who)
            return tam_fail(TAMIS_E_MISMATCH,
                            "%s: rank %u calls it for another reducer than rank 0",
                            standing_of(records, 0)->header.call, r);
    }
    return TAMIS_OK;
}

/* The first rank at the least or the largest step. */
static uint32_t resync_find(const unsigned char *records, uint32_t nranks, bool least) {
    uint32_t found = 0;
    for (uint32_t r = 1; r < nranks; r++) {
        uint64_t one = standing_of(records, r)->step, best = standing_of(records, found)->step;
        found = (least ? one < best : one > best) ? r : found;
    }
    return found;
}

tamis_status tam_resync_judge(const unsigned char *records, uint32_t nranks) {
    const char *call = standing_of(records, 0)->header.call;
    TAM_TRY(check_same_reducer(records, nranks));
    uint32_t low = resync_find(records, nranks, true), high = resync_find(records, nranks, false);
    uint64_t least = standing_of(records, low)->step, most = standing_of(records, high)->step;
    if (most - least > 1)
        return tam_fail(TAMIS_E_MISMATCH,
                        "%s: rank %u is at step %llu and rank %u at step %llu, more than one "
                        "apart; load states that were saved together",
                        call, low, (unsigned long long)least, high, (unsigned long long)most);
    for (uint32_t r = 0; r < nranks; r++) {
        if (standing_of(records, r)->step > least &&
            standing_of(records, r)->rollback != TAM_ROLLBACK_POSSIBLE)
            return tam_fail(
                TAMIS_E_UNSUPPORTED,
                "%s: rank %u is at step %llu, but rank %u at step %llu cannot go back one step: "
                "%s; load older states",
                call, low, (unsigned long long)least, r,
                (unsigned long long)standing_of(records, r)->step,
                standing_of(records, r)->rollback < TAM_ROLLBACK_STATES
                    ? why_not[standing_of(records, r)->rollback]
                    : "");
    }
    return TAMIS_OK;
}

static tamis_status resync_judge(const unsigned char *records, uint32_t nranks) {
    TAM_TRY(tam_handshake_failure(records, nranks, "resync its reducer"));
    return tam_resync_judge(records, nranks);
}

uint64_t tam_resync_step(const unsigned char *records, uint32_t nranks) {
    return standing_of(records, resync_find(records, nranks, true))->step;
}

tamis_status tam_resync_roll_back(tamis_reducer *r, uint64_t least, float *scratch) {
    if (r->step == least)
        return TAMIS_OK;
    tam_log(TAM_WARN,
            "rank %u goes back from step %llu to step %llu, which another rank has not applied",
            r->comm->rank, (unsigned long long)r->step, (unsigned long long)least);
    return tam_rollback_run(r, scratch);
}

static tamis_status resync_prepare(tamis_reducer *r, const uint64_t *step, float **scratch) {
    if (!step)
        return tam_fail(TAMIS_E_ARGUMENT, "tamis_reducer_resync: step is NULL");
    TAM_TRY(tam_state_quiesce_to_load(r, "tamis_reducer_resync"));
    *scratch = tam_alloc_array(tam_rollback_capacity(r), sizeof **scratch);
    if (!*scratch)
        return tam_fail(TAMIS_E_NOMEM, "tamis_reducer_resync: no memory for %zu entries",
                        tam_rollback_capacity(r));
    return TAMIS_OK;
}

static tamis_status resync_agree_on_step(tamis_reducer *r, tamis_status own, float *scratch) {
    tamis_comm *comm = r->comm;
    const tam_standing mine = {.header = {(uint64_t)own, "tamis_reducer_resync"},
                               .who = r->buckets[0].view.config_hash, /* unique to a reducer */
                               .step = r->step,
                               .rollback = tam_rollback_state_of(r)};
    TAM_TRY(tam_handshake_run(comm, &mine, sizeof mine, resync_judge,
                              tam_clock_ns() + comm->timeout_ns));
    return tam_resync_roll_back(r, tam_resync_step(comm->records, comm->nranks), scratch);
}

tamis_status tamis_reducer_resync(tamis_reducer *r, uint64_t *step) {
    TAM_FENV_HELD();
    if (!r)
        return tam_fail(TAMIS_E_ARGUMENT, "tamis_reducer_resync: reducer is NULL");
    TAM_TRY(tam_comm_check(r->comm));
    float *scratch = NULL;
    tamis_status status = resync_prepare(r, step, &scratch);
    status = resync_agree_on_step(r, status, scratch);
    tam_free(scratch);
    if (status == TAMIS_OK)
        *step = r->step;
    return status;
}
