/* SPDX-License-Identifier: MIT
 *
 * Ranks of a communicator over UCX take in processes that wait. All of them, old and new, connect
 * as at the begin of a job (ucx_rendezvous.c): old ranks gather over the communicator that they
 * have, newcomers through the rank to which they came:
 *
 *     newcomer --- TCP --- rank 0 ===== rank 1 ===== rank 2          the old communicator
 *     newcomer --- TCP ----------------/
 *
 * At the end all show each other what became of it, in the same way: the new communicator counts
 * where all have it, else it is given up and the old one goes on. If an old rank dies while they
 * show it, some may go on with the new one and others not. All of them shrink then, over control,
 * which they share, and newcomers that not all know are left behind (ucx_decide.h).
 */
#include "collectives/transport/handshake.h"
#include "collectives/transport/newcomers.h"
#include "collectives/transport/ucx_comm.h"

#include "lib/base/fenv.h"
#include "lib/base/hash.h"

#include <stdio.h>

static const char call[] = "tamis_comm_grow";

#define ATTEMPT_NS UINT64_C(30000000000) /* the most that newcomers may keep a job waiting */

/* What a rank shows before an attempt. */
typedef struct look {
    tam_handshake_header header;
    uint64_t address;  /* a hash */
    uint64_t count;    /* newcomers that wait at this rank */
    uint64_t nmembers; /* of its control */
    uint64_t listens;
    uint64_t unused;
    char cause[240]; /* why it cannot */
} look;

_Static_assert(sizeof(look) <= TAM_RECORD_BYTES, "a look fits the records");

/* What a rank, old or new, shows after it. */
typedef struct outcome {
    uint64_t magic, status;
    uint64_t group, generation; /* of the new flight recorder; of the old communicator */
    uint64_t timeout_ns;        /* of the old communicator; 0: of a newcomer */
    char cause[216];
} outcome;

#define OUTCOME_MAGIC UINT64_C(0x7563786f75746331)

/* One attempt, of an old rank. */
typedef struct growth {
    const tam_growth *how;
    tam_newcomers *newcomers; /* NULL: this rank does not listen */
    uint32_t *first;          /* [nranks + 1] newcomers before those of a rank */
    uint32_t most;            /* of one rank */
    uint64_t until_ns;
} growth;

/* -- all, at the end -------------------------------------------------------------------------- */

/* Newcomers first: they are the likelier cause. */
static tamis_status judge_outcomes(const outcome *all, uint32_t nranks) {
    for (uint32_t r = nranks; r-- > 0;) {
        const outcome *one = &all[r];
        bool whole = one->magic == OUTCOME_MAGIC && one->cause[sizeof one->cause - 1] == '\0' &&
                     one->status <= TAMIS_E_DEVICE;
        if (!whole)
            return tam_fail(TAMIS_E_TRANSPORT, "who was to be rank %u has gone, or did not answer",
                            r);
        if (one->status != TAMIS_OK)
            return tam_fail((tamis_status)one->status, "%s", one->cause);
    }
    return TAMIS_OK;
}

/* All have it: what new communicators count goes on from the largest. */
static void adopt_counts(tamis_comm *made, const outcome *all, uint32_t njoined) {
    uint64_t group = 0, generation = 0;
    for (uint32_t r = 0; r < made->nranks; r++) {
        group = all[r].group > group ? all[r].group : group;
        generation = all[r].generation > generation ? all[r].generation : generation;
    }
    tam_flight_join(made->recorded.flight, (uint32_t)group);
    made->generation = (uint32_t)generation + 1;
    made->timeout_ns = all[0].timeout_ns;
    made->joined = njoined;
}

/* @param  made  NULL where `own` is a failure */
static tamis_status show_outcome(const tamis_callbacks *rendezvous, tamis_status own,
                                 const tamis_comm *old, tamis_comm *made, outcome *all) {
    outcome mine = {.magic = OUTCOME_MAGIC,
                    .status = (uint64_t)own,
                    .group = made ? made->recorded.flight->group : 0,
                    .generation = old ? old->generation : 0,
                    .timeout_ns = old ? old->timeout_ns : 0};
    if (own != TAMIS_OK)
        snprintf(mine.cause, sizeof mine.cause, "%.200s", tamis_last_error());
    tamis_status status = rendezvous->allgather(rendezvous->context, &mine, all, sizeof mine);
    if (own != TAMIS_OK)
        return tam_pass(own, mine.cause);
    return status != TAMIS_OK ? status : judge_outcomes(all, rendezvous->nranks);
}

tamis_status tam_ucx_grow_together(const tam_transport *row, const tamis_callbacks *rendezvous,
                                   tam_ucx_mesh *control, const tam_growth *how, tamis_status own,
                                   uint32_t njoined, tamis_comm **out) {
    tamis_comm *made = NULL;
    outcome *all = tam_alloc_array(rendezvous->nranks, sizeof all[0]);
    if (!all && own == TAMIS_OK)
        own = tam_fail(TAMIS_E_NOMEM, "%s: no memory", call);
    tamis_status status =
        tam_ucx_create_over(row, rendezvous, control, own, how->deadline_ns, how->config, &made);
    if (all || how->comm) /* a newcomer is missed */
        status = show_outcome(rendezvous, status, how->comm, status == TAMIS_OK ? made : NULL, all);
    if (status == TAMIS_OK)
        adopt_counts(made, all, njoined);
    else if (made) {
        tamis_comm_abort(made); /* without goodbyes */
        tamis_comm_destroy(made);
    }
    tam_free(all);
    *out = status == TAMIS_OK ? made : NULL;
    return status;
}

/* -- old ranks gather for newcomers ----------------------------------------------------------- */

static uint32_t grow_count(const growth *g, uint32_t rank) {
    return g->first[rank + 1] - g->first[rank];
}

/* @param  blocks  [nranks][1 + most][bytes] of each old rank and of those who came to it
 * @param  recv    [out]  in the order of ranks */
static void sort_blocks(const growth *g, const char *blocks, size_t bytes, char *recv) {
    uint32_t nranks = g->how->comm->nranks;
    size_t stride = (1 + (size_t)g->most) * bytes;
    for (uint32_t r = 0; r < nranks; r++) {
        memcpy(recv + r * bytes, blocks + r * stride, bytes);
        memcpy(recv + (nranks + (size_t)g->first[r]) * bytes, blocks + r * stride + bytes,
               grow_count(g, r) * bytes);
    }
}

static tamis_status gather_for_newcomers(void *context, const void *send, void *recv,
                                         size_t bytes) {
    const growth *g = context;
    tamis_comm *comm = g->how->comm;
    size_t stride = (1 + (size_t)g->most) * bytes;
    char *own = tam_alloc(stride), *blocks = tam_alloc_array(comm->nranks, stride);
    if (own) {
        memcpy(own, send, bytes);
        if (g->newcomers)
            tam_newcomers_take(g->newcomers, own + bytes, bytes, g->until_ns);
    }
    tamis_status status = tamis_comm_allgather(comm, blocks && recv ? own : NULL, stride, blocks);
    if (status == TAMIS_OK) {
        sort_blocks(g, blocks, bytes, recv);
        uint32_t all = comm->nranks + g->first[comm->nranks];
        if (g->newcomers)
            tam_newcomers_give(g->newcomers, recv, all * bytes, g->until_ns);
    } else if (g->newcomers) {
        tam_newcomers_dismiss(g->newcomers); /* they wait for what nobody will give */
    }
    tam_free(own);
    tam_free(blocks);
    return status;
}

/* -- an attempt ------------------------------------------------------------------------------- */

static void grow_offer(const growth *g, uint32_t base) {
    const tamis_comm *comm = g->how->comm;
    uint32_t first = g->first[comm->rank], all = g->first[comm->nranks];
    uint64_t now_ns = tam_clock_ns();
    if (g->newcomers)
        tam_newcomers_offer(g->newcomers,
                            (tam_offer){.left_ns = g->until_ns > now_ns ? g->until_ns - now_ns : 0,
                                        .rank = comm->nranks + first,
                                        .nranks = comm->nranks + all,
                                        .nold = comm->nranks,
                                        .member = base + first,
                                        .nmembers = base + all});
}

/* @param  base  the member of control that the first newcomer becomes */
static tamis_status grow_once(growth *g, tam_ucx *self, uint32_t base, tamis_comm **out) {
    tamis_comm *comm = g->how->comm;
    uint32_t njoined = g->first[comm->nranks];
    tamis_callbacks rendezvous = TAMIS_CALLBACKS_INIT;
    rendezvous.rank = comm->rank;
    rendezvous.nranks = comm->nranks + njoined;
    rendezvous.allgather = gather_for_newcomers;
    rendezvous.context = g;
    tam_growth how = *g->how;
    how.deadline_ns = g->until_ns;
    pthread_mutex_lock(&self->control->lock);
    tamis_status own = tam_ucx_mesh_extend(self->control, base + njoined);
    pthread_mutex_unlock(&self->control->lock);
    grow_offer(g, base);
    tamis_status status =
        tam_ucx_grow_together(comm->transport, &rendezvous, self->control, &how, own, njoined, out);
    if (g->newcomers)
        tam_newcomers_dismiss(g->newcomers);
    return status;
}

/* What befell newcomers is no failure of this communicator, as long as it lives. */
static tamis_status grow_try(growth *g, tam_ucx *self, uint32_t base, tamis_comm **out) {
    tamis_comm *comm = g->how->comm;
    bool was_quiet = tam_errors_quiet(true);
    tamis_status status = grow_once(g, self, base, out);
    tam_errors_quiet(was_quiet);
    if (status == TAMIS_OK) {
        tam_ucx_went_on(self);
        return TAMIS_OK;
    }
    TAM_TRY(tam_comm_check(comm));
    tam_log(comm->rank == 0 ? TAM_WARN : TAM_INFO, "rank %u of %u: newcomers were not taken in: %s",
            comm->rank, comm->nranks, tamis_last_error());
    return TAMIS_OK;
}

/* -- who waits -------------------------------------------------------------------------------- */

static tamis_status grow_judge(const unsigned char *records, uint32_t nranks) {
    static const tam_handshake_field same[] = {
        {"the address of newcomers", offsetof(look, address), TAM_SHOWS_HASH}};
    TAM_TRY(tam_handshake_failure(records, nranks, "look for newcomers"));
    return tam_handshake_same(records, nranks, same, 1);
}

/* NULL: this rank does not listen there. */
static tam_newcomers *newcomers_at(const tam_ucx_mesh *control, const char *address) {
    bool there = control->newcomers_at == tam_hash(address, strlen(address));
    return there ? control->newcomers : NULL;
}

/* @param  mine  with the status and the cause of this rank so far */
static tamis_status look_once(tam_ucx_mesh *control, const tam_growth *how, look mine,
                              bool *listens) {
    memcpy(mine.header.call, call, sizeof call);
    mine.address = tam_hash(how->address, strlen(how->address));
    mine.nmembers = control->nmembers;
    tam_newcomers *newcomers = newcomers_at(control, how->address);
    mine.listens = newcomers != NULL;
    mine.count = newcomers ? tam_newcomers_look(newcomers) : 0;
    TAM_TRY(tam_handshake_run(how->comm, &mine, sizeof mine, grow_judge, how->deadline_ns));
    *listens = false;
    for (uint32_t r = 0; r < how->comm->nranks; r++)
        *listens = *listens || ((const look *)tam_handshake_record(how->comm->records, r))->listens;
    return TAMIS_OK;
}

/* Where nobody does, all try; one of each host can. */
static void grow_listen(tam_ucx_mesh *control, const char *address, char *cause, size_t size) {
    bool was_quiet = tam_errors_quiet(true);
    tam_newcomers_close(control->newcomers);
    control->newcomers = NULL;
    if (tam_newcomers_open(address, &control->newcomers) == TAMIS_OK)
        control->newcomers_at = tam_hash(address, strlen(address));
    else
        snprintf(cause, size, "%.230s", tamis_last_error());
    tam_errors_quiet(was_quiet);
}

/* At the first call an error. Later ranks were lost: the job goes on, and nobody can join. */
static tamis_status grow_unheard(tam_ucx_mesh *control, const tamis_comm *comm) {
    const look *first = tam_handshake_record(comm->records, 0);
    if (!control->listened)
        return tam_fail(TAMIS_E_ARGUMENT, "%s: no rank can listen for newcomers: rank 0 %s", call,
                        first->cause);
    if (!control->unheard && comm->rank == 0)
        tam_log(TAM_WARN, "no rank can listen for newcomers any more: rank 0 %s", first->cause);
    control->unheard = true;
    return TAMIS_OK;
}

static tamis_status look_together(tam_ucx_mesh *control, const tam_growth *how) {
    look mine = {.unused = 0};
    bool listens;
    if (how->address[0] == '\0')
        mine.header.status = (uint64_t)tam_fail(
            TAMIS_E_ARGUMENT, "%s: address is NULL, and TAMIS_RENDEZVOUS=host:port is not set",
            call);
    TAM_TRY(look_once(control, how, mine, &listens));
    if (!listens) {
        grow_listen(control, how->address, mine.cause, sizeof mine.cause);
        TAM_TRY(look_once(control, how, mine, &listens));
    }
    if (!listens)
        return grow_unheard(control, how->comm);
    control->listened = true;
    control->unheard = false;
    return TAMIS_OK;
}

/* @param  base  [out]  members of control, on the rank that has most */
static void count_newcomers(growth *g, uint32_t *base) {
    const tamis_comm *comm = g->how->comm;
    *base = 0;
    for (uint32_t r = 0; r < comm->nranks; r++) {
        const look *one = tam_handshake_record(comm->records, r);
        uint32_t count = one->count < TAM_NEWCOMERS ? (uint32_t)one->count : TAM_NEWCOMERS;
        g->first[r + 1] = g->first[r] + count;
        g->most = count > g->most ? count : g->most;
        *base = one->nmembers > *base ? (uint32_t)one->nmembers : *base;
    }
}

tamis_status tam_ucx_grow(void *arg, const tam_growth *how, tamis_comm **out) {
    const tam_staged *staged = arg;
    tam_ucx *self = staged->self;
    uint64_t now_ns = tam_clock_ns(), quarter_ns = (how->deadline_ns - now_ns) / 4;
    uint32_t base;
    TAM_TRY(look_together(self->control, how));
    growth g = {.how = how,
                .newcomers = newcomers_at(self->control, how->address),
                .first = tam_alloc_array((size_t)how->comm->nranks + 1, sizeof g.first[0]),
                .until_ns = now_ns + (quarter_ns < ATTEMPT_NS ? quarter_ns : ATTEMPT_NS)};
    if (!g.first)
        return tam_fail(TAMIS_E_NOMEM, "%s: no memory", call);
    count_newcomers(&g, &base);
    tamis_status status = TAMIS_OK;
    if (g.first[how->comm->nranks] > 0)
        status = grow_try(&g, self, base, out);
    tam_free(g.first);
    return status;
}
