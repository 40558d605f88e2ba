/* SPDX-License-Identifier: MIT
 *
 * Sets of states in a folder. A set is the state of every rank at one step, and a manifest that was
 * written when all of them were on disk; without it the set is not complete:
 *
 *     step000000000120.rank0.state    as in state.h
 *     step000000000120.rank1.state
 *     step000000000120.set            the manifest: bytes and hash of each, its own checksum
 */
#ifndef TAMIS_TRAIN_SETS_H
#define TAMIS_TRAIN_SETS_H

#include "bench/common/group.h"
#include "bench/train/files.h"

enum { SETS_PATH = 1024 };

#define SETS_NONE UINT64_MAX /* no step */

/** What a manifest says of the file of a rank. */
typedef struct sets_entry {
    uint64_t bytes, hash;
} sets_entry;

typedef struct sets_manifest {
    uint64_t step, nranks, data_hash;
    sets_entry *entries; /* [nranks] */
} sets_manifest;

/** What the files of a set begin with, and the file of a rank. @return false: too long */
bool sets_prefix(const char *folder, uint64_t step, char out[SETS_PATH]);
bool sets_file(const char *folder, uint64_t step, uint32_t rank, char out[SETS_PATH]);

bool sets_write_manifest(const char *folder, const sets_manifest *m, files_why *why);

/** The entries are to be freed. */
bool sets_read_manifest(const char *folder, uint64_t step, sets_manifest *out, files_why *why);

/** A set of which there is any file. */
typedef struct sets_found {
    uint64_t step;
    bool manifest;
} sets_found;

/** The newest first. To be freed; NULL: none. */
sets_found *sets_list(const char *folder, size_t *count);

/** Remove what belongs to sets of earlier steps, manifests first. What cannot be removed stays. */
void sets_remove_before(const char *folder, uint64_t step);

/**
 * Find the newest set that is complete and undamaged, and tell of each newer one why it is skipped.
 * Each rank reads its share of the files. Collective; the folder must be the same for all ranks.
 *
 * @return its step, or SETS_NONE
 */
uint64_t sets_choose(bench_group *group, const char *folder);

/** The step of the newest manifest, whatever it is worth, or SETS_NONE. Not collective. */
uint64_t sets_newest(const char *folder);

#endif
