/* SPDX-License-Identifier: MIT
 *
 * One line per event, to stderr or to the file named by TAMIS_LOG_FILE. Never to stdout.
 * Volume: one error per failed call, one warn per incident, one info per object made, one debug per
 * decision.
 */
#include "lib/base/base.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

static pthread_once_t once = PTHREAD_ONCE_INIT;
static FILE *target;

static void open_target(void) {
    const char *path = tam_setting_text(TAM_SETTING_LOG_FILE);
    target = stderr;
    if (path[0] == '\0')
        return;
    FILE *file = fopen(path, "a");
    if (file)
        target = file;
    else
        fprintf(stderr, "tamis warn: cannot append to TAMIS_LOG_FILE=%s, using stderr\n", path);
}

static bool write_line(FILE *file, tam_log_level level, const char *line) {
    static const char *const names[] = {"off", "error", "warn", "info", "debug"};
    bool written = fprintf(file, "tamis %s [%d]: %s\n", names[level], (int)getpid(), line) >= 0;
    return fflush(file) == 0 && written;
}

/* A line that cannot be written to the file, perhaps because a disk is full, goes to stderr. */
static void emit_line(tam_log_level level, const char *line) {
    static atomic_flag warned = ATOMIC_FLAG_INIT;
    if (write_line(target, level, line) || target == stderr)
        return;
    if (!atomic_flag_test_and_set(&warned))
        write_line(stderr, TAM_WARN,
                   "cannot write to TAMIS_LOG_FILE; messages it does not take are written here");
    write_line(stderr, level, line);
}

void tam_log(tam_log_level level, const char *format, ...) {
    if ((uint32_t)level > tam_setting_number(TAM_SETTING_LOG))
        return;
    pthread_once(&once, open_target);
    char line[640];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    emit_line(level, line);
}
