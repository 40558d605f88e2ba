/* SPDX-License-Identifier: MIT
 *
 * Newcomers take the control part of rank 0, whose residual stays where it is, and the mean of the
 * moments of the ranks that have them, as a state does that is loaded by another number of ranks.
 * Ranks that come from different communicators take that control part, too: what was divided among
 * more ranks, or fewer, is then divided in the same way.
 */
#include "collectives/state/migrate_join.h"

#include "collectives/transport/handshake.h"

#include <stdio.h>

static const char call[] = "tamis_reducer_migrate";

bool tam_migrate_joins(const tamis_reducer *r, const tamis_comm *other) {
    return other->came && r->comm->root != other->root;
}

typedef struct own_words {
    uint64_t early_nonfinite;
    bool begun;
} own_words;

/* -- control ---------------------------------------------------------------------------------- */

/* What ranks have done each for itself stays. */
static void keep_own(tamis_reducer *r, const tamis_stats *stats, const own_words *own) {
    for (uint32_t i = 0; i < r->nbuckets; i++) {
        r->buckets[i].view.early_nonfinite = own[i].early_nonfinite;
        r->buckets[i].begun = own[i].begun;
    }
    r->stats.rescans_total = stats->rescans_total;
    r->stats.wire_bytes_total = stats->wire_bytes_total;
}

/* @param  own  [nbuckets] scratch */
static tamis_status take_control(tamis_reducer *r, void *control, own_words *own) {
    const tamis_stats stats = r->stats;
    for (uint32_t i = 0; i < r->nbuckets; i++)
        own[i] = (own_words){r->buckets[i].view.early_nonfinite, r->buckets[i].begun};
    tam_state_readdress(r, control, true);
    TAM_TRY(tam_state_check_header(r, control, true, call));
    TAM_TRY(tam_state_check_parts(r, control, NULL, call));
    TAM_TRY(tam_state_take(r, control, NULL));
    keep_own(r, &stats, own);
    return TAMIS_OK;
}

/* A failure of this rank so far is shown to all by its NULL. */
static tamis_status join_control(tamis_reducer *r, bool takes, tamis_status before) {
    size_t bytes = tam_state_sizes_of(r).control;
    void *control = before == TAMIS_OK ? tam_alloc(bytes) : NULL;
    own_words *own = tam_alloc_array(r->nbuckets, sizeof own[0]);
    if (control && own)
        tam_state_pack(r, 0, 0, control);
    tamis_status status = tamis_comm_broadcast(r->comm, 0, own ? control : NULL, bytes);
    if (status == TAMIS_OK && takes)
        status = take_control(r, control, own);
    tam_free(own);
    tam_free(control);
    return status;
}

/* -- moments ---------------------------------------------------------------------------------- */

/* It may outlive its call. */
typedef struct sum_job {
    tam_job job;
    size_t count;
    float values[];
} sum_job;

static tamis_status sum_run(tam_job *job, tam_link *link) {
    sum_job *s = (sum_job *)(void *)job;
    return link->transport->allreduce_sum(link->self, s->values, s->count, &link->call);
}

static tamis_status join_judge(const unsigned char *records, uint32_t nranks) {
    return tam_handshake_failure(records, nranks, "join its moments");
}

/* @param  vector  [in,out]  of newcomers: zeros; the sum of all ranks */
static tamis_status sum_vector(tamis_comm *comm, float *vector, size_t count) {
    enum { PIECE = 1 << 20 };
    size_t most = count < PIECE ? count : PIECE;
    sum_job *s = tam_alloc(sizeof *s + most * sizeof s->values[0]);
    const tam_handshake_header mine = {s ? TAMIS_OK : TAMIS_E_NOMEM, "tamis_reducer_migrate"};
    tamis_status status = tam_handshake_run(comm, &mine, sizeof mine, join_judge, 0);
    for (size_t at = 0; status == TAMIS_OK && at < count; at += most) {
        s->count = count - at < most ? count - at : most;
        s->job = (tam_job){.run = sum_run, .purpose = call};
        memcpy(s->values, vector + at, s->count * sizeof s->values[0]);
        status = tam_comm_run(comm, &s->job);
        if (status == TAMIS_OK)
            memcpy(vector + at, s->values, s->count * sizeof s->values[0]);
    }
    if (s && atomic_load(&s->job.state) == TAM_JOB_IDLE && tam_comm_silence(comm))
        tam_free(s);
    return status;
}

static tamis_status join_moment(tamis_reducer *r, bool first, uint32_t nold, float *vector) {
    bool newcomer = r->comm->rank >= nold;
    size_t count = (size_t)r->residual_length;
    memset(vector, 0, count * sizeof vector[0]);
    tamis_status own =
        newcomer ? TAMIS_OK : tam_state_copy(r, first ? r->first : r->second, vector);
    for (size_t i = 0; i < count; i++)
        vector[i] /= (float)nold;
    TAM_TRY(sum_vector(r->comm, vector, count));
    if (own == TAMIS_OK && newcomer)
        own = tam_state_take_moments(r, first ? vector : NULL, first ? NULL : vector);
    return own;
}

tamis_status tam_migrate_join(tamis_reducer *r, uint32_t nold, bool mixed, tamis_status own,
                              float *vector) {
    bool newcomer = r->comm->rank >= nold;
    char cause[512];
    snprintf(cause, sizeof cause, "%s", own != TAMIS_OK ? tamis_last_error() : "");
    tamis_status status = join_control(r, newcomer || (mixed && r->comm->rank > 0), own);
    if (own != TAMIS_OK)
        return tam_pass(own, cause);
    TAM_TRY(status);
    if (nold == r->comm->nranks)
        return TAMIS_OK;
    if (r->first)
        TAM_TRY(join_moment(r, true, nold, vector));
    return r->second ? join_moment(r, false, nold, vector) : TAMIS_OK;
}
