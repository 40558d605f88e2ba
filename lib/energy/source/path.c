/* SPDX-License-Identifier: MIT */
#include "lib/energy/source/path.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

bool tam_path_print(char out[TAM_PATH_BYTES], const char *format, ...) {
    va_list args;
    va_start(args, format);
    int length = vsnprintf(out, TAM_PATH_BYTES, format, args);
    va_end(args);
    return length >= 0 && length < TAM_PATH_BYTES;
}

bool tam_path_under(const tamis_energy_config *config, const char *path, char out[TAM_PATH_BYTES]) {
    bool moved = strncmp(path, "/sys/", 5) == 0 || strncmp(path, "/proc/", 6) == 0;
    return tam_path_print(out, "%s%s", moved && config->sysfs_root ? config->sysfs_root : "", path);
}

tamis_energy_status tam_path_failed(int error, const char *path, char reason[TAMIS_ENERGY_TEXT]) {
    switch (error) {
    case ENOENT:
    case ENOTDIR:
    case ENODEV:
    case ENXIO:
        tam_energy_say(reason, "there is no %s", path);
        return TAMIS_ENERGY_ABSENT;
    case EACCES:
    case EPERM:
        tam_energy_say(reason, "permission denied: run as root, or chmod a+r %s", path);
        return TAMIS_ENERGY_DENIED;
    case ENODATA:
    case EOPNOTSUPP:
        tam_energy_say(reason, "it is disabled (file `enabled` in its folder): %s", path);
        return TAMIS_ENERGY_UNSUPPORTED;
    default:
        tam_energy_say(reason, "cannot be read (error %d, %s): %s", error, strerror(error), path);
        return TAMIS_ENERGY_FAILED;
    }
}

/* O_NONBLOCK: a pipe in place of a file must not hold us up. */
tamis_energy_status tam_path_read(const char *path, char text[TAM_PATH_TEXT],
                                  char reason[TAMIS_ENERGY_TEXT]) {
    int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file < 0)
        return tam_path_failed(errno, path, reason);
    ssize_t bytes = read(file, text, TAM_PATH_TEXT - 1);
    int error = errno;
    close(file);
    if (bytes < 0)
        return tam_path_failed(error, path, reason);
    while (bytes > 0 && isspace((unsigned char)text[bytes - 1]))
        bytes--;
    text[bytes] = '\0';
    if (bytes > 0)
        return TAMIS_ENERGY_OK;
    tam_energy_say(reason, "it is empty: %s", path);
    return TAMIS_ENERGY_GARBLED;
}

tamis_energy_status tam_path_number(const char *path, uint64_t *out,
                                    char reason[TAMIS_ENERGY_TEXT]) {
    char text[TAM_PATH_TEXT];
    tamis_energy_status status = tam_path_read(path, text, reason);
    if (status != TAMIS_ENERGY_OK)
        return status;
    const char *rest = tam_path_decimal(text, 1, out);
    if (rest && *rest == '\0' && !strchr(text, '.'))
        return TAMIS_ENERGY_OK;
    tam_energy_say(reason, "\"%.24s\" is no number: %s", text, path);
    return TAMIS_ENERGY_GARBLED;
}

static bool push_digit(uint64_t *number, char digit) {
    return !__builtin_mul_overflow(*number, 10u, number) &&
           !__builtin_add_overflow(*number, (uint64_t)(digit - '0'), number);
}

const char *tam_path_decimal(const char *text, uint64_t scale, uint64_t *out) {
    uint64_t number = 0;
    if (!isdigit((unsigned char)*text))
        return NULL;
    for (; isdigit((unsigned char)*text); text++) {
        if (!push_digit(&number, *text))
            return NULL;
    }
    bool point = *text == '.' && isdigit((unsigned char)text[1]);
    for (text += point; point && isdigit((unsigned char)*text); text++) {
        if (scale == 1)
            continue;
        if (!push_digit(&number, *text))
            return NULL;
        scale /= 10;
    }
    return __builtin_mul_overflow(number, scale, out) ? NULL : text;
}
