/* SPDX-License-Identifier: MIT
 *
 * What is said, and what is left, when files of the energy log cannot be opened or written.
 */
#include "tests/support/records.h"
#include "tests/support/scratch.h"

#include <dirent.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static char library_log[SCRATCH_PATH];

static size_t open_files(void) {
    size_t count = 0;
    DIR *dir = opendir("/proc/self/fd");
    assert_non_null(dir);
    while (readdir(dir))
        count++;
    closedir(dir);
    return count;
}

static void check_refused(tam_energy_log_setup *setup, const char *path, const char *words) {
    tam_energy_log *log = NULL;
    uint64_t live = tam_alloc_live();
    size_t files = open_files();
    setup->config.json = path;
    assert_int_equal(record_try_log(setup, &log), TAMIS_E_IO);
    if (!strstr(tamis_last_error(), path) || !strstr(tamis_last_error(), words))
        fail_msg("\"%s\" does not name %s and %s", tamis_last_error(), path, words);
    assert_null(log);
    assert_int_equal(tam_alloc_live(), live);
    assert_int_equal(open_files(), files);
}

static void what_cannot_be_opened_is_named(void **state) {
    (void)state;
    char path[SCRATCH_PATH];
    tam_energy_log_setup setup = record_setup();
    check_refused(&setup, scratch_path("no/such/folder", path), "No such file or directory");
    assert_int_equal(mkdir(scratch_path("folder", path), 0755), 0);
    check_refused(&setup, path, "Is a directory");
    rmdir(path);
    assert_int_equal(scratch_write(scratch_path("plain", path), (const unsigned char *)"x\n", 2),
                     0);
    strcat(path, "/log");
    check_refused(&setup, path, "Not a directory");
    setup.config.json = "/dev/full";
    tam_energy_log *log = NULL;
    assert_int_equal(record_try_log(&setup, &log), TAMIS_E_IO);
    assert_non_null(strstr(tamis_last_error(), "No space left on device"));
}

static void a_pipe_is_refused_at_once(void **state) {
    (void)state;
    char path[SCRATCH_PATH];
    tam_energy_log_setup setup = record_setup();
    assert_int_equal(mkfifo(scratch_path("pipe", path), 0644), 0);
    check_refused(&setup, path, "pipe");
}

static void limit_files(rlim_t bytes) {
    struct rlimit limit;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    limit.rlim_cur = bytes < limit.rlim_max ? bytes : limit.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

/* The limit cuts a write short and fails the next, as a disk that fills up. */
static void of_a_line_that_does_not_fit_nothing_stays(void **state) {
    (void)state;
    char path[SCRATCH_PATH];
    tam_energy_log_setup setup = record_setup();
    setup.config.json = scratch_path("full.jsonl", path);
    tam_energy_log *log = record_log(&setup);
    record_add(log, 0);
    limit_files(8000);
    for (uint64_t seq = 1; seq < 10; seq++)
        record_add(log, seq);
    size_t lines = record_lines(path);
    uint64_t lost = tam_energy_log_lost(log);
    limit_files(RLIM_INFINITY);
    assert_int_equal(lines + lost, 11);
    assert_true(lines > 1 && lost > 0);
    record_add(log, 10); /* there is room again */
    assert_int_equal(tam_energy_log_lost(log), lost);
    tam_energy_log_close(log);
    assert_int_equal(record_lines(path), lines + 1);
    assert_int_equal(
        record_count_in(library_log, "full.jsonl' could not be written: File too large"), 1);
}

/* With the i-th allocation failing, whichever it is. */
static void short_memory_loses_lines_and_nothing_else(void **state) {
    (void)state;
    char json[SCRATCH_PATH];
    tam_energy_log_setup setup = record_setup();
    uint64_t live = tam_alloc_live(), lost_before = UINT64_MAX, lost = 1;
    bool refused = false;
    setup.config.json = scratch_path("memory.jsonl", json);
    for (long budget = 0; lost > 0 && budget < 100; budget++) {
        tam_energy_log *log = NULL;
        tam_alloc_budget(budget);
        if (record_try_log(&setup, &log) == TAMIS_OK) {
            record_add(log, 0);
            lost = tam_energy_log_lost(log);
            assert_true(lost <= lost_before);
            lost_before = lost;
            tam_energy_log_close(log);
        } else
            refused = true;
        tam_alloc_budget(-1);
        assert_int_equal(tam_alloc_live(), live);
    }
    assert_true(refused && lost == 0 && lost_before == 0);
    record_lines(json);
}

int main(void) {
    signal(SIGXFSZ, SIG_IGN);
    setenv("TAMIS_LOG_FILE", scratch_path("library.log", library_log), 1);
    tam_log(TAM_WARN, "opened, so that the files that are open can be counted");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_cannot_be_opened_is_named),
        cmocka_unit_test(a_pipe_is_refused_at_once),
        cmocka_unit_test(of_a_line_that_does_not_fit_nothing_stays),
        cmocka_unit_test(short_memory_loses_lines_and_nothing_else),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
