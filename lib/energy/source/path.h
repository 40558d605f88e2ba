/* SPDX-License-Identifier: MIT
 *
 * Small files of numbers, as the kernel shows them: one sentence for every way to fail.
 */
#ifndef TAM_ENERGY_PATH_H
#define TAM_ENERGY_PATH_H

#include "lib/contracts/energy_source.h"

enum {
    TAM_PATH_BYTES = 512,
    TAM_PATH_TEXT = 256 /* of a file that is read; more is no number */
};

/** A path by a format. @return whether it fits */
bool tam_path_print(char out[TAM_PATH_BYTES], const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/** `path`, behind sysfs_root if it lies under /sys or /proc. @return whether it fits */
bool tam_path_under(const tamis_energy_config *config, const char *path, char out[TAM_PATH_BYTES]);

/** What open or read said. @return ABSENT, DENIED, UNSUPPORTED or FAILED, and why */
tamis_energy_status tam_path_failed(int error, const char *path, char reason[TAMIS_ENERGY_TEXT]);

/** Text of a file without the white space at its end. */
tamis_energy_status tam_path_read(const char *path, char text[TAM_PATH_TEXT],
                                  char reason[TAMIS_ENERGY_TEXT]);

/** A whole number and nothing else. */
tamis_energy_status tam_path_number(const char *path, uint64_t *out,
                                    char reason[TAMIS_ENERGY_TEXT]);

/** "12.5" times a power of ten, exactly; digits beyond it are left out.
 * @return what follows the number; NULL: there is none, it is negative or too large */
const char *tam_path_decimal(const char *text, uint64_t scale, uint64_t *out);

#endif
