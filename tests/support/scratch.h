/* SPDX-License-Identifier: MIT
 *
 * A private folder for the files of a test, removed when the process ends.
 */
#ifndef TEST_SCRATCH_H
#define TEST_SCRATCH_H

#include <stddef.h>

enum { SCRATCH_PATH = 512 };

/** Path of `name` in the folder, written into `out`. @return out. Call once
 * before threads start. */
char *scratch_path(const char *name, char out[SCRATCH_PATH]);

/** Number of files in the folder. */
size_t scratch_files(void);

/** The whole file with room for one byte more, to be freed; NULL if there is none. */
unsigned char *scratch_read(const char *path, size_t *bytes);

/** Replace a file. @return 0 on success. */
int scratch_write(const char *path, const unsigned char *content, size_t bytes);

#endif
