/* SPDX-License-Identifier: MIT
 *
 * The transport's row, and communicators of processes that have not met before.
 */
#include "collectives/transport/newcomers.h"
#include "collectives/transport/ucx_comm.h"

#include "lib/base/fenv.h"

#include <tamis/ucx.h>

static const tam_transport transport = {
    .name = "ucx",
    .capabilities = TAM_CAP_IN_FLIGHT | TAM_CAP_THREADED | TAM_CAP_ALARMS,
    .usable = tam_staged_usable,
    .allgather = tam_staged_allgather,
    .allreduce_sum = tam_staged_sum,
    .alltoall = tam_staged_alltoall,
    .encoded = &tam_staged_encoded,
    .shrink = tam_ucx_shrink,
    .grow = tam_ucx_grow,
    .abort = tam_staged_abort,
    .silence = tam_staged_silence,
    .close = tam_staged_close,
};

static tamis_status check_rendezvous(const tamis_callbacks *rendezvous) {
    if (!rendezvous->allgather)
        return tam_fail(TAMIS_E_ARGUMENT, "tamis_comm_create_ucx: rendezvous.allgather is NULL");
    if (rendezvous->post || rendezvous->test || rendezvous->cancel)
        return tam_fail(TAMIS_E_ARGUMENT,
                        "tamis_comm_create_ucx: of a rendezvous only rank, nranks, "
                        "allgather and context are used");
    if (rendezvous->nranks == 0 || rendezvous->nranks > TAM_UCX_MEMBERS ||
        rendezvous->rank >= rendezvous->nranks)
        return tam_fail(TAMIS_E_ARGUMENT, "tamis_comm_create_ucx: rank %u of %u ranks",
                        rendezvous->rank, rendezvous->nranks);
    return TAMIS_OK;
}

static tamis_status create(const tamis_callbacks *rendezvous, uint64_t deadline_ns,
                           const tamis_comm_config *config, tamis_comm **out) {
    tam_ucx_mesh *control = NULL;
    tamis_status status = tam_ucx_control_open(rendezvous->rank, rendezvous->nranks, &control);
    status = tam_ucx_create_over(&transport, rendezvous, control, status, deadline_ns, config, out);
    if (control)
        tam_ucx_mesh_release(control);
    return status;
}

/* Without an all-gather: over TCP, by the environment. */
static tamis_status create_by_star(uint64_t deadline_ns, const tamis_comm_config *config,
                                   tamis_comm **out) {
    tamis_callbacks rendezvous = TAMIS_CALLBACKS_INIT;
    const char *address = tam_setting_text(TAM_SETTING_RENDEZVOUS);
    tam_star star;
    TAM_TRY(tam_star_place(&rendezvous.rank, &rendezvous.nranks));
    if (address[0] == '\0' && rendezvous.nranks > 1)
        return tam_fail(TAMIS_E_ARGUMENT, "tamis_comm_create_ucx: rendezvous is NULL, and "
                                          "TAMIS_RENDEZVOUS=host:port is not set");
    TAM_TRY(tam_star_open(address, rendezvous.rank, rendezvous.nranks, deadline_ns, &star));
    rendezvous.allgather = tam_star_gather;
    rendezvous.context = &star;
    tamis_status status = create(&rendezvous, deadline_ns, config, out);
    tam_star_close(&star);
    return status;
}

tamis_status tamis_comm_create_ucx(const tamis_callbacks *rendezvous,
                                   const tamis_comm_config *config, tamis_comm **out) {
    TAM_FENV_HELD();
    tamis_callbacks own = TAMIS_CALLBACKS_INIT;
    uint64_t timeout_ns;
    if (!out)
        return tam_fail(TAMIS_E_ARGUMENT, "tamis_comm_create_ucx: out is NULL");
    TAM_TRY(tam_comm_timeout(config, &timeout_ns));
    uint64_t deadline_ns = tam_clock_ns() + timeout_ns;
    if (!rendezvous)
        return create_by_star(deadline_ns, config, out);
    TAM_TRY(tam_struct_copy("tamis_callbacks", &own, sizeof own, sizeof own, rendezvous));
    TAM_TRY(check_rendezvous(&own));
    return create(&own, deadline_ns, config, out);
}

/* -- a newcomer ------------------------------------------------------------------------------- */

static tamis_status join_once(tam_star *star, const tam_offer *offer, uint64_t timeout_ns,
                              tamis_comm **out) {
    tam_ucx_mesh *control = NULL;
    tamis_callbacks rendezvous = TAMIS_CALLBACKS_INIT;
    tamis_comm_config config = TAMIS_COMM_CONFIG_INIT;
    const tam_growth how = {.deadline_ns = star->deadline_ns, .config = &config};
    config.timeout_ms = (uint32_t)(timeout_ns / 1000000u);
    rendezvous.rank = star->rank;
    rendezvous.nranks = star->nranks;
    rendezvous.allgather = tam_star_gather;
    rendezvous.context = star;
    tamis_status own = tam_ucx_control_open(offer->member, offer->nmembers, &control);
    tamis_status status = tam_ucx_grow_together(&transport, &rendezvous, control, &how, own,
                                                offer->nranks - offer->nold, out);
    if (control)
        tam_ucx_mesh_release(control);
    return status;
}

static tamis_status join_try(const char *address, uint64_t timeout_ns, uint64_t deadline_ns,
                             tamis_comm **made) {
    tam_offer offer;
    tam_star star;
    TAM_TRY(tam_newcomer_come(address, deadline_ns, &offer, &star));
    tamis_status status = join_once(&star, &offer, timeout_ns, made);
    tam_star_close(&star);
    return status;
}

/* After what others may have caused. */
static bool may_try_again(tamis_status status) {
    return status == TAMIS_E_TRANSPORT || status == TAMIS_E_PROTOCOL || status == TAMIS_E_ABORTED;
}

tamis_status tamis_comm_join_ucx(const char *address, const tamis_comm_config *config,
                                 tamis_comm **out) {
    TAM_FENV_HELD();
    enum { TRIES = 3 };
    const tam_ucx_library *ucx;
    uint64_t timeout_ns;
    tamis_comm *made = NULL;
    if (!out)
        return tam_fail(TAMIS_E_ARGUMENT, "tamis_comm_join_ucx: out is NULL");
    TAM_TRY(tam_comm_timeout(config, &timeout_ns));
    address = address ? address : tam_setting_text(TAM_SETTING_RENDEZVOUS);
    if (address[0] == '\0')
        return tam_fail(TAMIS_E_ARGUMENT, "tamis_comm_join_ucx: address is NULL, and "
                                          "TAMIS_RENDEZVOUS=host:port is not set");
    uint64_t deadline_ns = tam_clock_ns() + timeout_ns;
    TAM_TRY(tam_ucx_load(&ucx));
    tamis_status status = join_try(address, timeout_ns, deadline_ns, &made);
    for (int i = 1; i < TRIES && may_try_again(status) && tam_clock_ns() < deadline_ns; i++)
        status = join_try(address, timeout_ns, deadline_ns, &made);
    if (made)
        made->came = true;
    *out = made;
    return status;
}
