/* SPDX-License-Identifier: MIT */
#include "collectives/coll/envelope.h"

#include "lib/base/hash.h"

_Static_assert(sizeof(tam_envelope) == 56, "the envelope is wire format");

static uint64_t hash_of(const tam_envelope *e, size_t bytes, uint64_t also) {
    enum { SKIP = offsetof(tam_envelope, call) };
    return tam_hash((const char *)e + SKIP, sizeof *e - SKIP + bytes) ^ also;
}

void tam_envelope_seal(tam_envelope *e, size_t bytes, uint64_t also) {
    e->magic = TAM_ENVELOPE_MAGIC;
    e->bytes = (uint32_t)bytes;
    e->check = hash_of(e, bytes, also);
}

static tamis_status refuse(uint32_t from, uint32_t self, const char *why) {
    return tam_fail(TAMIS_E_PROTOCOL, "a message from rank %u to rank %u was refused: %s", from,
                    self, why);
}

tamis_status tam_envelope_open(const tam_envelope *e, size_t came, uint64_t also, uint32_t from,
                               uint32_t self) {
    if (came < sizeof *e || e->magic != TAM_ENVELOPE_MAGIC)
        return refuse(from, self, "it does not begin as one of this version");
    if (e->bytes != came - sizeof *e)
        return refuse(from, self, "it was cut short, or its head was damaged on the way");
    if (e->check != hash_of(e, e->bytes, also))
        return refuse(from, self, "its checksum is wrong, so it was damaged on the way");
    return e->rank == from ? TAMIS_OK : refuse(from, self, "it names another sender");
}

tamis_status tam_envelope_compare(const tam_envelope *e, const tam_envelope_due *due,
                                  uint32_t self) {
    if (e->number != due->number || e->call != due->call)
        return refuse(due->rank, self,
                      "it belongs to another collective; all ranks must use the same options, and "
                      "the reducers of a communicator in the same order");
    if (e->step != due->step || e->chunk != due->chunk)
        return refuse(due->rank, self, "it belongs to another stage");
    if (e->bytes != due->bytes)
        return refuse(due->rank, self, "it is longer or shorter than announced");
    return TAMIS_OK;
}
