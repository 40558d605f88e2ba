/* SPDX-License-Identifier: MIT
 *
 * Files of states on a file system that fails: each call that saving or loading makes, with each
 * error that it may give, or done by halves. `path` has the old state or the new one, no other file
 * is left, and a load changes nothing unless it succeeds.
 *
 * The program's own functions replace those of the C library, also for the library under test.
 */
#include "tests/support/data.h"
#include "tests/support/ranks.h"
#include "tests/support/scratch.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <tamis/state.h>
#include <unistd.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

enum { N = 300, SHORT = -1, INTERRUPTED = -2 }; /* instead of an errno */

typedef enum call { CREATE, OPEN, STAT, PWRITE, FSYNC, CLOSE, RENAME, READ, CALLS } call;

static struct {
    bool counts;
    call which;
    int error;
    long nth, count[CALLS]; /* nth from 1; 0: no fault */
    bool fired;
} disk;

/* @return whether this call is the one that fails; then errno is set */
static bool fails(call which) {
    if (!disk.counts)
        return false;
    long number = ++disk.count[which];
    if (which != disk.which || number != disk.nth)
        return false;
    disk.fired = true;
    errno = disk.error == INTERRUPTED ? EINTR : disk.error;
    return true;
}

/* The next definition, as the C library has it. */
#define REAL(type, name) ((type)(uintptr_t)dlsym(RTLD_NEXT, name))

/* A write or read that does less than it was asked: most of it, or one byte. */
static size_t half(size_t bytes) {
    return bytes > 1 ? bytes - bytes / 3 - 1 : bytes;
}

typedef ssize_t (*pwrite_type)(int, const void *, size_t, off_t);
ssize_t pwrite(int fd, const void *memory, size_t bytes, off_t at) {
    pwrite_type real = REAL(pwrite_type, "pwrite");
    if (!fails(PWRITE))
        return real(fd, memory, bytes, at);
    return disk.error == SHORT ? real(fd, memory, half(bytes), at) : -1;
}

typedef ssize_t (*read_type)(int, void *, size_t);
ssize_t read(int fd, void *memory, size_t bytes) {
    read_type real = REAL(read_type, "read");
    if (!fails(READ))
        return real(fd, memory, bytes);
    return disk.error == SHORT ? real(fd, memory, half(bytes)) : -1;
}

typedef int (*fd_type)(int);
int fsync(int fd) {
    return fails(FSYNC) ? -1 : REAL(fd_type, "fsync")(fd);
}

/* An error of close leaves the descriptor closed, as on Linux. */
int close(int fd) {
    bool fail = fails(CLOSE);
    int error = errno, done = REAL(fd_type, "close")(fd);
    errno = fail ? error : errno;
    return fail ? -1 : done;
}

typedef int (*rename_type)(const char *, const char *);
int rename(const char *from, const char *to) {
    return fails(RENAME) ? -1 : REAL(rename_type, "rename")(from, to);
}

typedef int (*mkostemp_type)(char *, int);
int mkostemp(char *path, int flags) {
    return fails(CREATE) ? -1 : REAL(mkostemp_type, "mkostemp")(path, flags);
}

typedef int (*fstat_type)(int, struct stat *);
int fstat(int fd, struct stat *out) {
    return fails(STAT) ? -1 : REAL(fstat_type, "fstat")(fd, out);
}

typedef int (*open_type)(const char *, int, ...);
int open(const char *path, int flags, ...) {
    va_list more;
    va_start(more, flags);
    int mode = flags & O_CREAT ? va_arg(more, int) : 0;
    va_end(more);
    return fails(OPEN) ? -1 : REAL(open_type, "open")(path, flags, mode);
}

static void arm(call which, int error, long nth) {
    memset(&disk, 0, sizeof disk);
    disk.which = which;
    disk.error = error;
    disk.nth = nth;
    disk.counts = true;
}

static void disarm(void) {
    disk.counts = false;
}

/* -- a reducer of one rank -------------------------------------------------------------------- */

typedef struct solo {
    tamis_comm *comm;
    tamis_reducer *reducer;
    char path[SCRATCH_PATH];
    uint32_t next;
} solo;

static solo solo_open(const char *scheme) {
    solo s = {0};
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    config.scheme = scheme;
    config.density = 0.1;
    scratch_path(scheme, s.path);
    assert_int_equal(tamis_comm_create_local(1, NULL, &s.comm), TAMIS_OK);
    assert_int_equal(data_reducer(s.comm, N, &config, &s.reducer), TAMIS_OK);
    return s;
}

static void solo_step(solo *s) {
    float gradient[N];
    tamis_step step = data_step(gradient);
    data_fill(DATA_HEAVY, 0, s->next++, N, gradient);
    assert_int_equal(tamis_reducer_start(s->reducer, &step), TAMIS_OK);
    assert_int_equal(tamis_reducer_wait(s->reducer), TAMIS_OK);
}

static void solo_close(solo *s) {
    unlink(s->path);
    tamis_reducer_destroy(s->reducer);
    tamis_comm_destroy(s->comm);
}

/* The hash of all that a state holds. */
static uint64_t state_hash(const solo *s) {
    size_t bytes = 0;
    const float *residual = NULL;
    assert_int_equal(tamis_reducer_control_bytes(s->reducer, &bytes), TAMIS_OK);
    void *control = calloc(1, bytes);
    assert_int_equal(tamis_reducer_save_control(s->reducer, control, bytes), TAMIS_OK);
    assert_int_equal(tamis_reducer_residual(s->reducer, &residual), TAMIS_OK);
    uint64_t hash = data_hash(0, control, bytes);
    free(control);
    return residual ? data_hash(hash, residual, N * sizeof *residual) : hash;
}

static uint64_t file_hash(const char *path) {
    size_t bytes = 0;
    unsigned char *content = scratch_read(path, &bytes);
    assert_non_null(content);
    uint64_t hash = data_hash(0, content, bytes);
    free(content);
    return hash;
}

/* -- each call -------------------------------------------------------------------------------- */

static const char *const names[CALLS] = {"mkostemp", "open",  "fstat",  "pwrite",
                                         "fsync",    "close", "rename", "read"};
static const int errors[] = {ENOSPC, EIO, EROFS, EACCES, EDQUOT, EMFILE, SHORT, INTERRUPTED};

/* Only reading and writing can be interrupted or done by halves: then they go on. */
static bool makes_sense(call which, int error) {
    return error > 0 || which == PWRITE || which == READ;
}

/* The second close of a save is that of the folder, after it was flushed. */
static bool passes(call which, int error, long nth) {
    return error < 0 || (which == CLOSE && nth == 2);
}

static void check_save(solo *s, call which, int error, long nth) {
    uint64_t old = file_hash(s->path), own = state_hash(s);
    size_t files = scratch_files();
    arm(which, error, nth);
    tamis_status status = tamis_reducer_save(s->reducer, s->path);
    disarm();
    assert_true(disk.fired);
    if (status != (passes(which, error, nth) ? TAMIS_OK : TAMIS_E_IO))
        fail_msg("%s %ld gives %d: %s, \"%s\"", names[which], nth, error, tamis_status_name(status),
                 tamis_last_error());
    if (status != TAMIS_OK && !strstr(tamis_last_error(), strerror(error)))
        fail_msg("%s: \"%s\"", strerror(error), tamis_last_error());
    assert_int_equal(scratch_files(), files);
    assert_true(state_hash(s) == own);
    if (file_hash(s->path) == old) {
        assert_int_not_equal(status, TAMIS_OK);
        return;
    }
    solo_step(s); /* the new file is whole, also where only flushing its folder has failed */
    assert_int_equal(tamis_reducer_load(s->reducer, s->path), TAMIS_OK);
    assert_true(state_hash(s) == own);
}

static void check_load(solo *s, call which, int error, long nth) {
    uint64_t own = state_hash(s), file = file_hash(s->path);
    arm(which, error, nth);
    tamis_status status = tamis_reducer_load(s->reducer, s->path);
    disarm();
    assert_true(disk.fired);
    bool fine = error < 0 || which == CLOSE; /* what was read is in memory */
    bool known = status == TAMIS_E_IO || (which == STAT && status == TAMIS_E_FORMAT);
    if (fine ? status != TAMIS_OK : !known)
        fail_msg("%s %ld gives %d: %s", names[which], nth, error, tamis_status_name(status));
    if (!fine)
        assert_true(state_hash(s) == own);
    assert_true(file_hash(s->path) == file);
}

static void count_calls(solo *s, bool saves, long count[CALLS]) {
    arm(CREATE, 0, 0);
    tamis_status status =
        saves ? tamis_reducer_save(s->reducer, s->path) : tamis_reducer_load(s->reducer, s->path);
    disarm();
    assert_int_equal(status, TAMIS_OK);
    memcpy(count, disk.count, sizeof disk.count);
}

static void try_all(const char *scheme, bool saves) {
    solo s = solo_open(scheme);
    long count[CALLS], tried = 0;
    solo_step(&s);
    assert_int_equal(tamis_reducer_save(s.reducer, s.path), TAMIS_OK);
    count_calls(&s, saves, count);
    for (int which = 0; which < CALLS; which++) {
        for (size_t e = 0; e < sizeof errors / sizeof errors[0]; e++) {
            for (long nth = 1; nth <= count[which]; nth++) {
                if (!makes_sense((call)which, errors[e]))
                    continue;
                solo_step(&s); /* the file is now an older one */
                (saves ? check_save : check_load)(&s, (call)which, errors[e], nth);
                tried++;
            }
        }
    }
    assert_true(tried > 20);
    print_message("%s, %s: %ld faults\n", scheme, saves ? "save" : "load", tried);
    solo_close(&s);
}

static void a_save_that_fails_leaves_the_old_file_or_the_new_one(void **state) {
    (void)state;
    try_all("tamis", true);
    try_all("dense", true);
    try_all("oktopk", true);
}

static void a_load_that_fails_changes_nothing(void **state) {
    (void)state;
    try_all("tamis", false);
    try_all("dense", false);
    try_all("oktopk", false);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_save_that_fails_leaves_the_old_file_or_the_new_one),
        cmocka_unit_test(a_load_that_fails_changes_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
