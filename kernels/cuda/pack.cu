/* SPDX-License-Identifier: MIT
 *
 * Lists that travel packed, by the index codec of a step: from elements to positions in a part to
 * codes, and back. A row of TAMIS_INDEX_CODECS without device functions does not compile:
 * kernels/codecs/index_codecs.cuh says which.
 */
#include "kernels/codecs/index_bitmap.cuh"
#include "kernels/codecs/index_block16.cuh"
#include "kernels/codecs/index_gap8.cuh"
#include "kernels/codecs/index_rice.cuh"

/* u32: the list itself travels. */
static int tam_pack_u32(const tam_cuda_exchange *, void *) {
    return 0;
}

static int tam_unpack_u32(const tam_cuda_exchange *, void *) {
    return 0;
}

/** AUTO stands for u32 here. */
#define TAM_OF_INDEX_CODEC(job, CASE)                                                              \
    switch ((tamis_index_codec)(job)->packets.packed.index_codec) {                                \
        TAMIS_INDEX_CODECS(CASE)                                                                   \
    case TAMIS_INDEX_AUTO:                                                                         \
    case TAMIS_INDEX_END:                                                                          \
        break;                                                                                     \
    }

extern "C" int tam_launch_pack(const tam_cuda_exchange *job, void *stream) {
#define PACK(NAME, name, number)                                                                   \
    case TAMIS_INDEX_##NAME:                                                                       \
        return tam_pack_##name(job, stream);
    TAM_OF_INDEX_CODEC(job, PACK)
    return 0;
}

extern "C" int tam_launch_unpack(const tam_cuda_exchange *job, void *stream) {
#define UNPACK(NAME, name, number)                                                                 \
    case TAMIS_INDEX_##NAME:                                                                       \
        return tam_unpack_##name(job, stream);
    TAM_OF_INDEX_CODEC(job, UNPACK)
    return 0;
}
