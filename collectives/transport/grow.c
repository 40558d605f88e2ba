/* SPDX-License-Identifier: MIT
 *
 * A communicator that takes in processes from outside. How they come together is the transport's.
 */
#include "collectives/transport/shrink.h"

#include "lib/base/fenv.h"

#include <tamis/elastic.h>

static const char call[] = "tamis_comm_grow";

tamis_status tam_grow_refuse(void *self, const tam_growth *how, tamis_comm **out) {
    (void)self, (void)out;
    return tam_fail(TAMIS_E_UNSUPPORTED,
                    "%s: transport %s cannot take ranks in; over ucx it can "
                    "(tamis_comm_create_ucx)",
                    call, tamis_comm_transport(how->comm));
}

static tamis_status grow_take_in(tamis_comm *comm, const char *address, tamis_comm **made) {
    tamis_comm_config config = TAMIS_COMM_CONFIG_INIT;
    config.timeout_ms = (uint32_t)(comm->timeout_ns / 1000000u);
    const tam_growth how = {.comm = comm,
                            .address = address,
                            .deadline_ns = tam_comm_deadline(comm),
                            .config = &config};
    return comm->transport->grow(comm->self, &how, made);
}

tamis_status tamis_comm_grow(tamis_comm *comm, const char *address, tamis_comm **larger) {
    TAM_FENV_HELD();
    tamis_comm *made = NULL;
    if (!comm || !larger)
        return tam_fail(TAMIS_E_ARGUMENT, "%s: %s is NULL", call, comm ? "larger" : "comm");
    TAM_TRY(tam_comm_check(comm));
    address = address ? address : tam_setting_text(TAM_SETTING_RENDEZVOUS);
    TAM_TRY(grow_take_in(comm, address, &made));
    if (made) {
        made->root = comm->root;
        made->came = comm->came;
        atomic_store(&made->waiting, atomic_load(&comm->waiting));
        tam_log(comm->rank == 0 ? TAM_WARN : TAM_INFO,
                "communicator: rank %u of %u goes on as rank %u of %u; %u have joined", comm->rank,
                comm->nranks, made->rank, made->nranks, made->joined);
    }
    *larger = made;
    return TAMIS_OK;
}

uint32_t tamis_comm_joined(const tamis_comm *comm) {
    return comm ? comm->joined : 0;
}
