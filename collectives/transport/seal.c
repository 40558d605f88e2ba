/* SPDX-License-Identifier: MIT */
#include "collectives/transport/seal.h"

#include "lib/base/hash.h"

void tam_seal(const void *memory, size_t bytes, void *out) {
    uint64_t hash = tam_hash(memory, bytes);
    memcpy(out, memory, bytes);
    memcpy((char *)out + bytes, &hash, sizeof hash);
}

tamis_status tam_unseal(uint32_t rank, uint32_t nranks, size_t bytes, const char *what,
                        void *received) {
    for (uint32_t r = 0; r < nranks; r++) {
        const char *from = (const char *)received + r * (bytes + TAM_SEAL);
        uint64_t hash = tam_hash(from, bytes);
        if (memcmp(from + bytes, &hash, sizeof hash) != 0)
            return tam_fail(TAMIS_E_PROTOCOL,
                            "rank %u: what %s brought from rank %u was damaged on the way "
                            "(checksum)",
                            rank, what, r);
        memmove((char *)received + r * bytes, from, bytes);
    }
    return TAMIS_OK;
}
