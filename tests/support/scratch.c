/* SPDX-License-Identifier: MIT
 *
 * A private folder for the files of a test.
 */
#include "tests/support/scratch.h"
#include <dirent.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char folder[SCRATCH_PATH / 2];
static pid_t owner;

/* Calls `visit` for every entry but . and .. */
static size_t each_entry(void (*visit)(const char *path)) {
    size_t count = 0;
    DIR *dir = opendir(folder);
    if (!dir)
        return 0;
    for (struct dirent *entry = readdir(dir); entry; entry = readdir(dir)) {
        char path[SCRATCH_PATH * 2];
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        count++;
        if (visit)
            visit(path);
    }
    closedir(dir);
    return count;
}

static void remove_entry(const char *path) {
    remove(path);
}

static void remove_folder(void) {
    if (getpid() != owner)
        return;
    each_entry(remove_entry);
    rmdir(folder);
}

static void make_folder(void) {
    const char *parent = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%s/tamis-test-XXXXXX", parent && parent[0] ? parent : "/tmp");
    if (!mkdtemp(folder)) {
        perror(folder);
        exit(99);
    }
    owner = getpid();
    atexit(remove_folder);
}

char *scratch_path(const char *name, char out[SCRATCH_PATH]) {
    static pthread_once_t once = PTHREAD_ONCE_INIT; /* ranks may be threads */
    pthread_once(&once, make_folder);
    snprintf(out, SCRATCH_PATH, "%s/%s", folder, name);
    return out;
}

size_t scratch_files(void) {
    return folder[0] ? each_entry(NULL) : 0;
}

unsigned char *scratch_read(const char *path, size_t *bytes) {
    enum { MOST = 1 << 24 };
    unsigned char *content = NULL;
    FILE *file = fopen(path, "rb");
    if (!file)
        return NULL;
    content = malloc(MOST + 1);
    if (content)
        *bytes = fread(content, 1, MOST, file);
    fclose(file);
    return content;
}

int scratch_write(const char *path, const unsigned char *content, size_t bytes) {
    FILE *file = fopen(path, "wb");
    if (!file)
        return -1;
    size_t written = fwrite(content, 1, bytes, file);
    return fclose(file) == 0 && written == bytes ? 0 : -1;
}
