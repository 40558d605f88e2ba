/* SPDX-License-Identifier: MIT
 *
 * The files of the energy log: whole lines whatever happens.
 *
 * test: tsan
 */
#include "lib/energy/log/log.h"
#include "tests/support/records.h"
#include "tests/support/scratch.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

/* In place of the C library's: counts the calls of this program. */
static unsigned long writes;

ssize_t write(int fd, const void *bytes, size_t length) {
    writes++;
    return syscall(SYS_write, fd, bytes, length);
}

/* -- lines ------------------------------------------------------------------------------------ */

static void a_line_is_one_write(void **state) {
    (void)state;
    char path[SCRATCH_PATH];
    tam_energy_log_setup setup = record_setup();
    setup.config.json = scratch_path("writes.jsonl", path);
    unsigned long before = writes;
    tam_energy_log *log = record_log(&setup);
    for (uint64_t seq = 0; seq < 10; seq++)
        record_add(log, seq);
    assert_int_equal(writes - before, 11);
    tam_energy_log_close(log);
    assert_int_equal(record_lines(path), 11);
}

static void write_forever(const tam_energy_log_setup *setup) {
    tam_energy_log *log = NULL;
    if (record_try_log(setup, &log) != TAMIS_OK)
        _exit(1);
    for (uint64_t seq = 0;; seq++)
        record_add(log, seq);
}

/* Wait until the file has so many bytes. */
static void await_bytes(const char *path, off_t bytes) {
    struct stat about = {0};
    for (int i = 0; i < 20000 && about.st_size < bytes; i++) {
        usleep(1000);
        if (stat(path, &about) != 0)
            about.st_size = 0;
    }
    assert_true(about.st_size >= bytes);
}

static void a_killed_process_leaves_whole_lines(void **state) {
    (void)state;
    for (int round = 0; round < 10; round++) {
        char path[SCRATCH_PATH], name[32];
        size_t bytes = 0;
        int status;
        snprintf(name, sizeof name, "killed%d.jsonl", round);
        tam_energy_log_setup setup = record_setup();
        setup.config.json = scratch_path(name, path);
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0)
            write_forever(&setup);
        await_bytes(path, 20000 + 1000 * round);
        assert_int_equal(kill(child, SIGKILL), 0);
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFSIGNALED(status));
        unsigned char *text = scratch_read(path, &bytes);
        while (bytes > 0 && text[bytes - 1] != '\n')
            bytes--;
        assert_int_equal(scratch_write(path, text, bytes), 0);
        free(text);
        assert_true(record_lines(path) > 3);
    }
}

static void a_partial_last_line_is_ended_before_others_follow(void **state) {
    (void)state;
    char path[SCRATCH_PATH];
    tam_energy_log_setup setup = record_setup();
    setup.config.json = scratch_path("partial.jsonl", path);
    assert_int_equal(scratch_write(path, (const unsigned char *)"{\"type\":\"win", 12), 0);
    for (int run = 0; run < 2; run++)
        tam_energy_log_close(record_log(&setup));
    assert_int_equal(record_count_in(path, "{\"type\":\"win\n{\"type\":\"header\""), 1);
    assert_int_equal(record_count_in(path, "}\n{\"type\":\"header\""), 1);
}

/* As logrotate's copytruncate does it. */
static void a_file_that_is_emptied_goes_on_at_its_begin(void **state) {
    (void)state;
    char path[SCRATCH_PATH];
    tam_energy_log_setup setup = record_setup();
    setup.config.json = scratch_path("emptied.jsonl", path);
    tam_energy_log *log = record_log(&setup);
    record_add(log, 0);
    assert_int_equal(truncate(path, 0), 0);
    for (uint64_t seq = 1; seq < 3; seq++)
        record_add(log, seq);
    assert_int_equal(tam_energy_log_lost(log), 0);
    tam_energy_log_close(log);
    assert_int_equal(record_count_in(path, "{\"type\":\"window\",\"seq\":1,"), 1);
    assert_int_equal(record_count_in(path, "}\n"), 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_line_is_one_write),
        cmocka_unit_test(a_killed_process_leaves_whole_lines),
        cmocka_unit_test(a_partial_last_line_is_ended_before_others_follow),
        cmocka_unit_test(a_file_that_is_emptied_goes_on_at_its_begin),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
