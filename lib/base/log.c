/* SPDX-License-Identifier: MIT
 *
 * One line per event, to stderr or to the file named by TAMIS_LOG_FILE. Never to stdout.
 * Volume: error by call that fails, warn by incident, info by object made, debug by decision.
 */
#include "lib/base/base.h"

#include <pthread.h>
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

void tam_log(tam_log_level level, const char *format, ...) {
    static const char *const names[] = {"off", "error", "warn", "info", "debug"};
    if ((uint32_t)level > tam_setting_number(TAM_SETTING_LOG))
        return;
    pthread_once(&once, open_target);
    char line[640];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    fprintf(target, "tamis %s [%d]: %s\n", names[level], (int)getpid(), line);
    fflush(target);
}
