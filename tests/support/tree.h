/* SPDX-License-Identifier: MIT
 *
 * Folder trees in the form of sysfs (TAMIS_SYSFS_ROOT), in the scratch folder; they go when the
 * process ends. What cannot be made ends the process.
 */
#ifndef TEST_TREE_H
#define TEST_TREE_H

#include <stdint.h>

/** A new empty folder. @return its path, which stays */
const char *tree_make(void);

/** Replace a file at once, as the kernel does; makes the folders that lead there. */
void tree_write(const char *root, const char *path, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

void tree_folder(const char *root, const char *path);

/** Remove a file or a whole folder. */
void tree_remove(const char *root, const char *path);

/** A powercap zone: "intel-rapl:0", "package-0"; range 0: without the file that says it. */
void tree_zone(const char *root, const char *folder, const char *name, uint64_t uj,
               uint64_t range_uj);

/** The counter of a zone from now on. */
void tree_energy(const char *root, const char *folder, uint64_t uj);

#endif
