/* SPDX-License-Identifier: MIT */
#include "tests/support/tree.h"
#include "tests/support/scratch.h"
#include <errno.h>
#include <ftw.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { TREES = 64, PATH_BYTES = 2 * SCRATCH_PATH };

static char roots[TREES][SCRATCH_PATH];
static int nroots;
static pid_t owner;

static void give_up(const char *path) {
    perror(path);
    exit(99);
}

static int remove_entry(const char *path, const struct stat *info, int type, struct FTW *walk) {
    (void)info;
    (void)type;
    (void)walk;
    return remove(path);
}

static void remove_trees(void) {
    for (int i = 0; getpid() == owner && i < nroots; i++)
        nftw(roots[i], remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

const char *tree_make(void) {
    char name[32];
    if (nroots == TREES) {
        errno = EMFILE;
        give_up("tree_make");
    }
    snprintf(name, sizeof name, "tree-%d", nroots);
    scratch_path(name, roots[nroots]);
    if (nroots == 0) { /* registered after the scratch folder's handler, so runs before it */
        owner = getpid();
        atexit(remove_trees);
    }
    if (mkdir(roots[nroots], 0755) != 0)
        give_up(roots[nroots]);
    return roots[nroots++];
}

/* All folders that lead to the last '/'. */
static void make_folders(char *path) {
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        if (mkdir(path, 0755) != 0 && errno != EEXIST)
            give_up(path);
        *slash = '/';
    }
}

void tree_folder(const char *root, const char *path) {
    char whole[PATH_BYTES];
    snprintf(whole, sizeof whole, "%s%s/", root, path);
    make_folders(whole);
}

void tree_write(const char *root, const char *path, const char *format, ...) {
    char whole[PATH_BYTES], beside[PATH_BYTES + 8];
    snprintf(whole, sizeof whole, "%s%s", root, path);
    snprintf(beside, sizeof beside, "%s.new", whole);
    make_folders(whole);
    FILE *file = fopen(beside, "w");
    if (!file)
        give_up(beside);
    va_list args;
    va_start(args, format);
    vfprintf(file, format, args);
    va_end(args);
    if (fclose(file) != 0 || rename(beside, whole) != 0)
        give_up(whole);
}

void tree_remove(const char *root, const char *path) {
    char whole[PATH_BYTES];
    snprintf(whole, sizeof whole, "%s%s", root, path);
    if (nftw(whole, remove_entry, 16, FTW_DEPTH | FTW_PHYS) != 0)
        give_up(whole);
}

static char *zone_path(char out[SCRATCH_PATH], const char *folder, const char *name) {
    snprintf(out, SCRATCH_PATH, "/sys/class/powercap/%s/%s", folder, name);
    return out;
}

void tree_energy(const char *root, const char *folder, uint64_t uj) {
    char path[SCRATCH_PATH];
    tree_write(root, zone_path(path, folder, "energy_uj"), "%llu\n", (unsigned long long)uj);
}

void tree_zone(const char *root, const char *folder, const char *name, uint64_t uj,
               uint64_t range_uj) {
    char path[SCRATCH_PATH];
    tree_write(root, zone_path(path, folder, "name"), "%s\n", name);
    tree_write(root, zone_path(path, folder, "enabled"), "1\n");
    tree_energy(root, folder, uj);
    if (range_uj > 0)
        tree_write(root, zone_path(path, folder, "max_energy_range_uj"), "%llu\n",
                   (unsigned long long)range_uj);
}
