/* SPDX-License-Identifier: MIT
 *
 * The state of a rank between steps, in files and in memory.
 *
 *     control                             residual
 *     | header, 64-bit words | now | rollback | | float[n] | moments
 *
 *     now    a snapshot (collectives/reducer/snapshot.h)
 *     rollback  the snapshot before the last step, and what that step changed (rollback.h)
 *
 * Moments exist only in update mode: the first, the second or both, float[n] each.
 *
 * The header holds what the state belongs to (the handshake, rank, ranks) and checksums of the
 * parts; its own comes last. A state is checked completely before it changes the reducer.
 */
#ifndef TAM_STATE_STATE_H
#define TAM_STATE_STATE_H

#include "collectives/reducer/snapshot.h"
#include "collectives/reducer/rollback.h"

enum { TAM_STATE_PIECE = 1 << 22 }; /* bytes of the residual that are moved and hashed at a time */

typedef struct tam_state_header {
    uint64_t magic, byte_order;
    uint64_t control_bytes, residual_bytes, moments_bytes;
    uint64_t rollback_bytes;     /* of the control part */
    uint64_t status;             /* always 0 */
    uint64_t fields[TAM_FIELDS]; /* of the handshake */
    uint64_t rank, nranks, nbuckets, ngroups;
    uint64_t borders; /* hash of where buckets begin: lists of groups are in their order */
    double link_latency_us, link_gbit; /* that they were planned for; to be logged */
    uint64_t passes;                   /* of update mode */
    uint64_t parts_hash;               /* of the control part after the header */
    uint64_t residual_hash;
    uint64_t moments_hash; /* 0 in memory, where moments are saved separately */
    uint64_t header_hash;  /* last */
} tam_state_header;

typedef struct tam_state_sizes {
    uint64_t ngroups;
    size_t snapshot, rollback;         /* bytes: of `now`, of `rollback`, */
    size_t control, residual, moments; /* of both with the header, of the vectors */
} tam_state_sizes;

/** Scheme dense has neither levels nor residual. */
tam_state_sizes tam_state_sizes_of(const tamis_reducer *r);

/** Check that the reducer is between steps, and wait until joined steps have ended. */
tamis_status tam_state_quiesce(tamis_reducer *r, const char *call);

/** Quiesce before a state is loaded. STATE: an exchange never ended. */
tamis_status tam_state_quiesce_to_load(tamis_reducer *r, const char *call);

/** What to do with a piece of a vector, which starts at byte `at`. */
typedef tamis_status (*tam_state_sink)(void *arg, size_t at, const void *piece, size_t bytes);

/** Pass a vector to `sink` piece by piece, through host memory. @param vector  float[n] of the
 * device */
tamis_status tam_state_vector(const tamis_reducer *r, const float *vector, tam_state_sink sink,
                              void *arg, uint64_t *out_hash);

/** Copy a vector to host memory. */
tamis_status tam_state_copy(const tamis_reducer *r, const float *vector, float *out);

/** To be called where a state is saved. */
void tam_state_warn_unused(const tamis_reducer *r);

/** @param control  [out]  sizes.control bytes, 8-byte aligned */
void tam_state_pack(const tamis_reducer *r, uint64_t residual_hash, uint64_t moments_hash,
                    void *control);

/** Make a packed state of another rank, or of this one over another communicator, one of this rank.
 * A damaged one stays as it is.
 * @param  same  of as many ranks, all of which keep what was divided among them; else that is
 *               divided anew, as in a state of another number of ranks */
void tam_state_readdress(const tamis_reducer *r, void *control, bool same);

/** The hash of moments that are contiguous in host memory, first before second. */
uint64_t tam_state_hash_moments(const tamis_reducer *r, const float *moments);

/** The hash of moments from the hash of each; 0 for a moment that the rule does not have. */
uint64_t tam_state_join_hashes(uint64_t first, uint64_t second);

/** FORMAT: "where: why". */
tamis_status tam_state_refuse(const char *where, const char *why);

/** Check that a header is undamaged and belongs to a state of this reducer. @param alone  only the
 * control part is loaded, and may come from another number of ranks */
tamis_status tam_state_check_header(const tamis_reducer *r, const tam_state_header *h, bool alone,
                                    const char *where);

/** Check that the parts after a checked header are undamaged. @param residual  NULL: not checked */
tamis_status tam_state_check_parts(const tamis_reducer *r, const void *control,
                                   const float *residual, const char *where);

/** Load checked moments, NULL for one that the rule does not have. DEVICE. */
tamis_status tam_state_take_moments(tamis_reducer *r, const float *first, const float *second);

/** Load checked parts. @param control, residual  NULL: this part stays as it is. DEVICE. */
tamis_status tam_state_take(tamis_reducer *r, const void *control, const float *residual);

#endif
