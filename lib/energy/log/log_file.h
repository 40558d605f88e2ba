/* SPDX-License-Identifier: MIT
 *
 * A file to which whole lines are appended, each by one write, so that a process that is killed
 * leaves at most its last line incomplete. One writer a path.
 */
#ifndef TAM_ENERGY_LOG_FILE_H
#define TAM_ENERGY_LOG_FILE_H

#include "lib/energy/log/log_json.h"

typedef struct tam_line_file {
    char *path;
    int fd;         /* -1: not open */
    uint64_t bytes; /* in the file */
    uint64_t lost;  /* lines that could not be written */
    bool torn;      /* it may end with part of a line */
} tam_line_file;

/** Create the file, or append to it; a partial last line is ended. IO names the path. Begin with
 * {.fd = -1}; close it also after a failure. */
tamis_status tam_line_file_open(const char *path, tam_line_file *out);

/** Append a line, '\n' included, whole or not at all. @return whether it did; if not it is counted,
 * the first time said, and errno says why */
bool tam_line_file_add(tam_line_file *file, const tam_text *line);

/** Rename the file to PATH.1, over what bears that name, and begin anew. @return whether it did;
 * if not, the file goes on as it was, and errno says why */
bool tam_line_file_rotate(tam_line_file *file);

void tam_line_file_close(tam_line_file *file);

#endif
