/* SPDX-License-Identifier: MIT
 *
 * A communicator of the ranks that are left. How they find each other is the transport's.
 */
#include "collectives/transport/shrink.h"

#include "collectives/transport/handshake.h"
#include "lib/base/fenv.h"
#include "lib/base/hash.h"

#include <stdio.h>
#include <tamis/elastic.h>

static const char call[] = "tamis_comm_shrink";

/* -- what transports share -------------------------------------------------------------------- */

tamis_status tam_shrink_refuse(void *self, const tam_left *left, tamis_comm **out) {
    (void)self, (void)out;
    return tam_fail(
        TAMIS_E_UNSUPPORTED,
        "%s: transport %s cannot go on with fewer ranks; save the state of the reducers "
        "and start again with the ranks that are left (tamis_reducer_load_memory)",
        call, tamis_comm_transport(left->comm));
}

tamis_status tam_comm_record_before(tamis_comm **comm, const uint32_t *ranks) {
    tamis_comm *c = *comm;
    uint32_t nranks = c->nranks;
    c->before = tam_alloc_array(nranks, sizeof ranks[0]);
    if (!c->before) {
        tamis_comm_destroy(c);
        return tam_fail(TAMIS_E_NOMEM, "%s: no memory to list %u ranks", call, nranks);
    }
    memcpy(c->before, ranks, nranks * sizeof ranks[0]);
    return TAMIS_OK;
}

typedef struct standing {
    tam_handshake_header header;
    uint64_t rank, nranks, list; /* of the old communicator; a hash of who is left */
    uint64_t group;              /* of the new flight recorder */
    uint64_t generation;         /* of the old communicator */
} standing;

_Static_assert(sizeof(standing) <= TAM_RECORD_BYTES, "a standing fits the records");

static const tam_handshake_field same[] = {
    {"the number of ranks before", offsetof(standing, nranks), TAM_SHOWS_NUMBER},
    {"the list of ranks that are left", offsetof(standing, list), TAM_SHOWS_HASH},
};

/* Ranks of equal lists may still have the wrong ranks in the new network. */
static tamis_status shrink_judge(const unsigned char *records, uint32_t nranks) {
    TAM_TRY(tam_handshake_failure(records, nranks, "go on with the ranks that are left"));
    TAM_TRY(tam_handshake_same(records, nranks, same, sizeof same / sizeof same[0]));
    for (uint32_t r = 1; r < nranks; r++) {
        const standing *one = tam_handshake_record(records, r - 1);
        const standing *next = tam_handshake_record(records, r);
        if (one->rank >= next->rank)
            return tam_fail(TAMIS_E_MISMATCH,
                            "%s: rank %u of the new network was rank %llu and rank %u was rank "
                            "%llu; ranks must keep their order",
                            call, r - 1, (unsigned long long)one->rank, r,
                            (unsigned long long)next->rank);
    }
    return TAMIS_OK;
}

/* A rank that has tried it more often has counted more communicators. */
static void join_counts(tamis_comm *comm) {
    uint64_t group = 0, generation = 0;
    for (uint32_t r = 0; r < comm->nranks; r++) {
        const standing *one = tam_handshake_record(comm->records, r);
        group = one->group > group ? one->group : group;
        generation = one->generation > generation ? one->generation : generation;
    }
    tam_flight_join(comm->recorded.flight, (uint32_t)group);
    comm->generation = (uint32_t)generation + 1;
}

tamis_status tam_shrink_compare(tamis_comm *comm, const tam_left *left, tamis_status own) {
    size_t bytes = left->nranks * sizeof left->ranks[0];
    const standing mine = {.header = {(uint64_t)own, "tamis_comm_shrink"},
                           .rank = left->rank,
                           .nranks = left->nranks_before,
                           .list = left->ranks ? tam_hash(left->ranks, bytes) : 0,
                           .group = comm->recorded.flight->group,
                           .generation = left->comm->generation};
    TAM_TRY(tam_handshake_run(comm, &mine, sizeof mine, shrink_judge, left->deadline_ns));
    join_counts(comm);
    return TAMIS_OK;
}

/* -- public ----------------------------------------------------------------------------------- */

static tamis_status shrink_check_list(const tamis_comm *comm, const tamis_shrink *how) {
    bool own = false;
    if (!how->ranks != (how->nranks == 0))
        return tam_fail(TAMIS_E_ARGUMENT, "tamis_shrink: ranks is %sNULL, but nranks is %u",
                        how->ranks ? "not " : "", how->nranks);
    if (how->nranks > comm->nranks)
        return tam_fail(TAMIS_E_ARGUMENT,
                        "tamis_shrink.nranks is %u, but the communicator has %u ranks", how->nranks,
                        comm->nranks);
    for (uint32_t i = 0; i < how->nranks; i++) {
        uint32_t r = how->ranks[i];
        if (r >= comm->nranks || (i > 0 && how->ranks[i - 1] >= r))
            return tam_fail(TAMIS_E_ARGUMENT,
                            "tamis_shrink.ranks[%u] is %u: the list must ascend, below the %u "
                            "ranks of the communicator",
                            i, r, comm->nranks);
        own = own || r == comm->rank;
    }
    if (how->ranks && !own)
        return tam_fail(TAMIS_E_ARGUMENT,
                        "tamis_shrink.ranks does not name rank %u, which makes the call",
                        comm->rank);
    return TAMIS_OK;
}

static void shrink_log_ranks(const tamis_comm *old, const tamis_comm *comm) {
    enum { REST = 24 };
    char gone[128];
    size_t used = 0;
    uint32_t next = 0, more = 0;
    gone[0] = '\0';
    for (uint32_t r = 0; r < old->nranks; r++) {
        if (next < comm->nranks && comm->before[next] == r)
            next++;
        else if (used + REST < sizeof gone)
            used += (size_t)snprintf(gone + used, sizeof gone - used, " %u", r);
        else
            more++;
    }
    if (more > 0)
        snprintf(gone + used, sizeof gone - used, " and %u more", more);
    tam_log(comm->rank == 0 ? TAM_WARN : TAM_INFO,
            "communicator: rank %u of %u goes on as rank %u of %u; gone:%s", old->rank, old->nranks,
            comm->rank, comm->nranks, used > 0 ? gone : " none");
}

tamis_status tamis_comm_shrink(tamis_comm *comm, const tamis_shrink *how, tamis_comm **smaller) {
    TAM_FENV_HELD();
    tamis_shrink own = TAMIS_SHRINK_INIT;
    tamis_comm *made = NULL;
    if (!comm || !smaller)
        return tam_fail(TAMIS_E_ARGUMENT, "%s: %s is NULL", call, comm ? "smaller" : "comm");
    TAM_TRY(tam_comm_usable(comm));
    if (how)
        TAM_TRY(tam_struct_copy("tamis_shrink", &own, sizeof own, sizeof own, how));
    TAM_TRY(shrink_check_list(comm, &own));
    tamis_comm_config config = TAMIS_COMM_CONFIG_INIT;
    config.timeout_ms = (uint32_t)(comm->timeout_ns / 1000000u);
    const tam_left left = {.comm = comm,
                           .rank = comm->rank,
                           .nranks_before = comm->nranks,
                           .ranks = own.ranks,
                           .nranks = own.nranks,
                           .callbacks = own.callbacks,
                           .deadline_ns = tam_comm_deadline(comm),
                           .config = &config};
    TAM_TRY(comm->transport->shrink(comm->self, &left, &made));
    made->root = comm->root;
    made->came = comm->came;
    if (made->generation == 0) /* they all come from one communicator, and were not compared */
        made->generation = comm->generation + 1;
    atomic_store(&made->waiting, atomic_load(&comm->waiting));
    shrink_log_ranks(comm, made);
    *smaller = made;
    return TAMIS_OK;
}
