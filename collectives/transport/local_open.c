/* SPDX-License-Identifier: MIT
 *
 * How local communicators are created.
 */
#include "lib/base/base.h"
#include "collectives/transport/local_hub.h"
#include "collectives/transport/shrink.h"

enum { RANKS_MAX = 4096 };

static const tam_transport transport = {
    .name = "local",
    .allgather = tam_local_allgather,
    .allreduce_sum = tam_local_allreduce_sum,
    .alltoall = tam_local_alltoall,
    .shrink = tam_local_shrink,
    .grow = tam_grow_refuse,
    .abort = tam_local_abort,
    .close = tam_local_close,
};

tamis_status tamis_comm_create_local(uint32_t nranks, const tamis_comm_config *config,
                                     tamis_comm **comms) {
    uint64_t timeout_ns;
    if (!comms)
        return tam_fail(TAMIS_E_ARGUMENT, "tamis_comm_create_local: comms is NULL");
    if (nranks == 0 || nranks > RANKS_MAX)
        return tam_fail(TAMIS_E_ARGUMENT, "tamis_comm_create_local: %u ranks, not 1 to %d", nranks,
                        RANKS_MAX);
    TAM_TRY(tam_comm_timeout(config, &timeout_ns));

    tamis_comm **made = tam_alloc_array(nranks, sizeof made[0]);
    tam_hub *h = NULL;
    if (!made)
        return tam_fail(TAMIS_E_NOMEM, "no memory for %u ranks", nranks);
    tamis_status status =
        tam_hub_open(&transport, nranks, nranks + 1, &h); /* the ranks and this function */
    if (status != TAMIS_OK)
        goto out_free;
    uint32_t count = 0, tried = 0;
    while (tried < nranks && status == TAMIS_OK) {
        status = tam_hub_open_rank(h, tried++, config, &made[count]);
        count += status == TAMIS_OK;
    }
    if (status == TAMIS_OK)
        memcpy(comms, made, nranks * sizeof made[0]);
    for (uint32_t r = 0; status != TAMIS_OK && r < count; r++)
        tamis_comm_destroy(made[r]);
    for (uint32_t r = tried; r < nranks; r++) /* was never opened */
        tam_hub_leave(h);
    tam_hub_leave(h);
out_free:
    tam_free(made);
    return status;
}
