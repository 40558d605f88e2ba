/* SPDX-License-Identifier: MIT */
#include "collectives/coll/envelope.h"

#include "lib/base/hash.h"

_Static_assert(sizeof(tam_envelope) == 56, "the envelope is wire format");

static uint64_t envelope_hash_of(const tam_envelope *e, size_t bytes) {
    enum { SKIP = offsetof(tam_envelope, streams) };
    return tam_hash((const char *)e + SKIP, sizeof *e - SKIP + bytes) + e->number;
}

void tam_envelope_seal(tam_envelope *e, size_t bytes) {
    e->magic = TAM_ENVELOPE_MAGIC;
    e->bytes = (uint32_t)bytes;
    e->check = envelope_hash_of(e, bytes);
}

static const char damaged[] = "its checksum is wrong, so it was damaged on the way";

static tamis_status envelope_refuse(uint32_t from, uint32_t self, const char *why) {
    return tam_fail(TAMIS_E_PROTOCOL, "a message from rank %u to rank %u was refused: %s", from,
                    self, why);
}

tamis_status tam_envelope_open(const tam_envelope *e, size_t received, uint32_t from,
                               uint32_t self) {
    if (received < sizeof *e || e->magic != TAM_ENVELOPE_MAGIC)
        return envelope_refuse(from, self, "it does not begin as one of this version");
    if (e->bytes != received - sizeof *e)
        return envelope_refuse(from, self,
                               "it was cut short, or its header was damaged on the way");
    if (e->check != envelope_hash_of(e, e->bytes))
        return envelope_refuse(from, self, damaged);
    return e->rank == from ? TAMIS_OK : envelope_refuse(from, self, "it names another sender");
}

tamis_status tam_envelope_compare(const tam_envelope *e, const tam_envelope_due *due,
                                  uint32_t self) {
    if (e->number != due->number || e->call != due->call)
        return envelope_refuse(
            due->rank, self,
            "it belongs to another call: all ranks must make the same calls with the same "
            "options and TAMIS_PLAN, and use the reducers of a communicator in the same order");
    if (e->step != due->step || e->chunk != due->chunk)
        return envelope_refuse(due->rank, self, "it belongs to another stage");
    if (e->bytes != due->bytes || (due->extra_known && e->extra != due->extra))
        return envelope_refuse(due->rank, self, "it is longer or shorter than announced");
    return TAMIS_OK;
}

tamis_status tam_envelope_check(const tam_envelope *e, uint64_t streams, uint32_t self) {
    return e->streams == streams ? TAMIS_OK : envelope_refuse(e->rank, self, damaged);
}
