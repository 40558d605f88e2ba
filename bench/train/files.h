/* SPDX-License-Identifier: MIT
 *
 * Files that are there whole or not at all.
 */
#ifndef TAMIS_TRAIN_FILES_H
#define TAMIS_TRAIN_FILES_H

#include <stdbool.h>
#include <stddef.h>

typedef struct files_piece {
    const void *data;
    size_t bytes;
} files_piece;

typedef struct files_why {
    char text[1400]; /* a path, and what the system said */
} files_why;

/**
 * Write a new file beside `path` (PATH.part, for the owner alone), flush it, let it replace `path`,
 * and flush the folder. On failure what was at `path` is as before, and PATH.part is gone.
 */
bool files_write(const char *path, const files_piece *pieces, size_t count, files_why *why);

/** Whether that could be done now; writes nothing. */
bool files_try(const char *path, files_why *why);

#endif
