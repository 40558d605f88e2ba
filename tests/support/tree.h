/* SPDX-License-Identifier: MIT
 *
 * Folder trees in the form of sysfs (TAMIS_SYSFS_ROOT), in the scratch folder, removed when the
 * process ends. Any failure to make one ends the process.
 */
#ifndef TEST_TREE_H
#define TEST_TREE_H

#include <stdint.h>

/** A new empty folder. @return its path, valid until the process ends */
const char *tree_make(void);

/** Replace a file atomically, as the kernel does; makes its folders. */
void tree_write(const char *root, const char *path, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

void tree_folder(const char *root, const char *path);

/** Remove a file or a whole folder. */
void tree_remove(const char *root, const char *path);

/** A powercap zone: "intel-rapl:0", "package-0"; range 0: without the range's file. */
void tree_zone(const char *root, const char *folder, const char *name, uint64_t uj,
               uint64_t range_uj);

/** Set the counter of a zone. */
void tree_energy(const char *root, const char *folder, uint64_t uj);

#endif
