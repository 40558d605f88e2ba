/* SPDX-License-Identifier: MIT
 *
 * The environment variables: one table drives reading, the info program, docs/environment.md and
 * the warning about unknown names. They are read once per process. No variable changes results;
 * only fields of the configuration do.
 */
#include "lib/base/base.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <tamis/energy.h>
#include <tamis/lists.h>

extern char **environ;

typedef enum setting_kind { CHOICE, NUMBER, TEXT } setting_kind;

typedef struct setting_row {
    const char *name;
    setting_kind kind;
    const char *values; /* CHOICE: separated by '|'; NUMBER: "low to high" */
    uint32_t low, high;
    const char *fallback;
    const char *help;
} setting_row;

#define COMMA_AND(name) ", " #name

/* In the order of tam_setting_id. */
static const setting_row rows[TAM_SETTINGS] = {
    {"TAMIS_CPU", CHOICE, "auto|portable|avx2|avx512|neon", 0, 0, "auto",
     "Instruction set of the CPU kernels; all give the same bits."},
    {"TAMIS_ENERGY", TEXT, "auto, none" TAMIS_ENERGY_SOURCES(COMMA_AND) "; several joined by ','",
     0, 0, "auto", "Energy counters that a meter reads if the configuration names none."},
    {"TAMIS_FLIGHT", TEXT, "a folder", 0, 0, "",
     "Folder in which a rank that loses its communicator leaves its last 1024 events, for "
     "tamis_info --flight (docs/flight.md); empty: none."},
    {"TAMIS_GRAPHS", CHOICE, "off|on", 0, 0, "on",
     "Whether steps that a CUDA device runs by itself are launched as one graph; must be the same "
     "on all ranks."},
    {"TAMIS_LOG", CHOICE, "off|error|warn|info|debug", 0, 0, "warn",
     "Lowest level of the messages that are written; error: the message of every failed call."},
    {"TAMIS_LOG_FILE", TEXT, "a path", 0, 0, "",
     "File to which messages are appended; empty: stderr."},
    {"TAMIS_MESSAGE_GIB", NUMBER, "1 to 65536", 1, 65536, "4",
     "GiB that one bucket's messages may take on a rank where the host drives steps; a reducer "
     "that needs more is refused."},
    {"TAMIS_NVML_PATH", TEXT, "a path", 0, 0, "",
     "Path of NVIDIA's management library; empty: libnvidia-ml.so.1 from the loader's search "
     "path."},
    {"TAMIS_PLAN", TEXT, "auto, usual, linear, or radices as 8x8x2", 0, 0, "auto",
     "Stages in which ranks exchange over messages (docs/exchange.md); auto: measured over MPI, "
     "usual over callbacks; must be the same on all ranks."},
    {"TAMIS_RENDEZVOUS", TEXT, "host:port", 0, 0, "",
     "Where rank 0 listens for ranks that make a communicator over UCX without an all-gather, and "
     "where processes join a job (tamis_comm_grow); the same on all ranks."},
    {"TAMIS_SYSFS_ROOT", TEXT, "a path", 0, 0, "",
     "Prefix of every path under /sys and /proc that a meter reads (containers, tests)."},
    {"TAMIS_THREADS", NUMBER, "1 to 256", 1, 256, "1",
     "Threads of the CPU kernels if the configuration says 0; needs a build with OpenMP."},
    {"TAMIS_TIMEOUT_MS", NUMBER, "1 to 86400000", 1, 86400000, "300000",
     "Deadline of every wait in milliseconds, if the configuration says 0."},
    {"TAMIS_TRANSPORT", CHOICE, "auto|mpi|ucx|torch|nccl|local", 0, 0, "auto",
     "Transport of the Python package's communicators if the caller names none."},
    {"TAMIS_WAIT", CHOICE, "auto|spin|sleep", 0, 0, "auto",
     "How threads wait for other ranks until tamis_comm_set_waiting changes it."},
};

typedef struct setting_value {
    char text[256];
    uint32_t number;
    bool given;
} setting_value;

static pthread_once_t once = PTHREAD_ONCE_INIT;
static setting_value values[TAM_SETTINGS];

/* Not tam_log: the log level itself may be the bad setting. */
static void warn(const char *name, const char *value, const char *what) {
    fprintf(stderr, "tamis warn: %s=%s %s\n", name, value, what);
}

static bool parse_choice(const setting_row *row, const char *text, uint32_t *out) {
    uint32_t index = 0;
    const char *at = row->values;
    for (;; index++) {
        size_t length = strcspn(at, "|");
        if (strlen(text) == length && strncmp(at, text, length) == 0) {
            *out = index;
            return true;
        }
        if (at[length] == '\0')
            return false;
        at += length + 1;
    }
}

static bool parse_number(const setting_row *row, const char *text, uint32_t *out) {
    char *end;
    errno = 0;
    unsigned long long number = strtoull(text, &end, 10);
    if (text[0] < '0' || text[0] > '9' || *end || errno || number < row->low || number > row->high)
        return false;
    *out = (uint32_t)number;
    return true;
}

static bool settings_parse(const setting_row *row, const char *text, setting_value *out) {
    if (strlen(text) >= sizeof out->text)
        return false;
    if (row->kind == CHOICE && !parse_choice(row, text, &out->number))
        return false;
    if (row->kind == NUMBER && !parse_number(row, text, &out->number))
        return false;
    strcpy(out->text, text);
    return true;
}

static size_t common_prefix(const char *a, const char *b) {
    size_t i = 0;
    while (a[i] && a[i] == b[i])
        i++;
    return i;
}

/* `name` begins with TAMIS_ and is none of ours. */
static void warn_unknown(const char *name, size_t length) {
    char copy[128], hint[192];
    snprintf(copy, sizeof copy, "%.*s", (int)length, name);
    const setting_row *nearest = &rows[0];
    for (size_t i = 0; i < TAM_SETTINGS; i++) {
        if (common_prefix(copy, rows[i].name) > common_prefix(copy, nearest->name))
            nearest = &rows[i];
    }
    bool near = common_prefix(copy, nearest->name) > strlen("TAMIS_");
    snprintf(hint, sizeof hint, "is not a setting of this version%s%s%s",
             near ? "; did you mean " : "", near ? nearest->name : "", near ? "?" : "");
    warn(copy, strchr(name, '=') + 1, hint);
}

static void check_for_unknown(void) {
    for (char **entry = environ; entry && *entry; entry++) {
        const char *equals = strchr(*entry, '=');
        if (!equals || strncmp(*entry, "TAMIS_", 6) != 0)
            continue;
        size_t length = (size_t)(equals - *entry), i = 0;
        while (i < TAM_SETTINGS &&
               (strlen(rows[i].name) != length || strncmp(rows[i].name, *entry, length) != 0))
            i++;
        if (i == TAM_SETTINGS)
            warn_unknown(*entry, length);
    }
}

static void read_environment(void) {
    for (size_t i = 0; i < TAM_SETTINGS; i++) {
        const setting_row *row = &rows[i];
        const char *text = getenv(row->name);
        settings_parse(row, row->fallback, &values[i]);
        if (!text || text[0] == '\0')
            continue;
        values[i].given = settings_parse(row, text, &values[i]);
        if (!values[i].given) {
            char what[256];
            snprintf(what, sizeof what, "is not %s%s; using %s",
                     row->kind == CHOICE ? "one of " : "", row->values, row->fallback);
            warn(row->name, text, what);
        }
    }
    check_for_unknown();
}

static const setting_value *settings_get(size_t id) {
    pthread_once(&once, read_environment);
    return &values[id];
}

const char *tam_setting_text(tam_setting_id id) {
    return settings_get(id)->text;
}

uint32_t tam_setting_number(tam_setting_id id) {
    return settings_get(id)->number;
}

bool tam_setting_at(size_t index, tamis_setting *out) {
    if (index >= TAM_SETTINGS)
        return false;
    const setting_row *row = &rows[index];
    *out = (tamis_setting){
        .size = sizeof *out,
        .name = row->name,
        .values = row->values,
        .fallback = row->fallback,
        .help = row->help,
        .value = settings_get(index)->text,
        .origin = settings_get(index)->given ? "environment" : "default",
    };
    return true;
}
