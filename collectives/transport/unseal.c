/* SPDX-License-Identifier: MIT */
#include "collectives/transport/unseal.h"

tamis_status tam_unseal(uint32_t rank, uint32_t nranks, size_t bytes, const char *what,
                        void *received) {
    for (uint32_t r = 0; r < nranks; r++) {
        const char *from = (const char *)received + r * (bytes + TAM_SEAL);
        if (!tam_seal_holds(from, bytes))
            return tam_fail(TAMIS_E_PROTOCOL,
                            "rank %u: what %s brought from rank %u was damaged on the way "
                            "(checksum)",
                            rank, what, r);
        memmove((char *)received + r * bytes, from, bytes);
    }
    return TAMIS_OK;
}
