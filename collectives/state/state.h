/* SPDX-License-Identifier: MIT
 *
 * The state of a rank between steps, in files and in memory.
 *
 *     control                             residual
 *     | header, 64-bit words | now | undo | | float[n] | moments
 *
 *     now    a snapshot (collectives/reducer/snapshot.h)
 *     undo   the same as it was before the last step, and what that step changed (undo.h)
 *
 * Moments are there in update mode alone: the first, the second or both, float[n] each.
 *
 * The header holds what the state belongs to (the agreement, rank, ranks) and
 * checksums of the parts; its own comes last. Taking a state over changes the reducer only when all
 * is well.
 */
#ifndef TAM_STATE_STATE_H
#define TAM_STATE_STATE_H

#include "collectives/reducer/snapshot.h"
#include "collectives/reducer/undo.h"

enum { TAM_STATE_PIECE = 1 << 22 }; /* bytes of the residual that are moved and hashed at a time */

typedef struct tam_state_header {
    uint64_t magic, byte_order;
    uint64_t control_bytes, residual_bytes, moments_bytes;
    uint64_t undo_bytes;         /* of the control part */
    uint64_t status;             /* 0 */
    uint64_t fields[TAM_FIELDS]; /* of the agreement */
    uint64_t rank, nranks, nbuckets, ngroups;
    uint64_t passes;     /* of update mode */
    uint64_t parts_hash; /* of all behind the header */
    uint64_t residual_hash;
    uint64_t moments_hash; /* 0 in memory, where moments go their own way */
    uint64_t header_hash;  /* last */
} tam_state_header;

typedef struct tam_state_sizes {
    uint64_t ngroups;
    size_t snapshot, undo;             /* bytes: of `now`, of `undo`, */
    size_t control, residual, moments; /* of both with the header, of the vectors */
} tam_state_sizes;

/** Scheme dense has neither levels nor residual. */
tam_state_sizes tam_state_sizes_of(const tamis_reducer *r);

/** The reducer is between steps, and those that were joined have ended. */
tamis_status tam_state_settle(tamis_reducer *r, const char *call);

/** The same before a state is taken over. */
tamis_status tam_state_settle_to_load(tamis_reducer *r, const char *call);

/** What to do with a piece of the residual, which starts at byte `at`. */
typedef tamis_status (*tam_state_sink)(void *arg, size_t at, const void *piece, size_t bytes);

/** Hand a vector over piece by piece, through host memory. @param vector  float[n] of the device */
tamis_status tam_state_vector(const tamis_reducer *r, const float *vector, tam_state_sink sink,
                              void *arg, uint64_t *out_hash);

/** A vector into host memory. */
tamis_status tam_state_copy(const tamis_reducer *r, const float *vector, float *out);

/** @param control  [out]  sizes.control bytes, 8-byte aligned */
void tam_state_pack(const tamis_reducer *r, uint64_t residual_hash, uint64_t moments_hash,
                    void *control);

/** The hash of moments in one piece of host memory, first before second. */
uint64_t tam_state_hash_moments(const tamis_reducer *r, const float *moments);

/** The same from the hashes of each; of one that is not there: 0. */
uint64_t tam_state_join_hashes(uint64_t first, uint64_t second);

/** FORMAT: "where: why". */
tamis_status tam_state_refuse(const char *where, const char *why);

/** Is it a header, undamaged, and of a state of this reducer? @param alone  the control part is all
 * that is taken, and may be of another number of ranks */
tamis_status tam_state_check_header(const tamis_reducer *r, const tam_state_header *h, bool alone,
                                    const char *where);

/** Are the parts behind a checked header undamaged? @param residual  NULL: not looked at */
tamis_status tam_state_check_parts(const tamis_reducer *r, const void *control,
                                   const float *residual, const char *where);

/** Moments that are sound, NULL for what the rule has not. DEVICE. */
tamis_status tam_state_take_moments(tamis_reducer *r, const float *first, const float *second);

/** Both are sound. @param control, residual  NULL: this part stays as it is */
tamis_status tam_state_take(tamis_reducer *r, const void *control, const float *residual);

#endif
