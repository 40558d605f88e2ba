/* SPDX-License-Identifier: MIT
 *
 * State files: a run that is saved and loaded continues bit for bit; a damaged or foreign file is
 * refused and changes nothing; a failed save leaves the previous file.
 *
 * test: waits tsan
 */
#include "tests/support/data.h"
#include "tests/support/ranks.h"
#include "tests/support/schemes.h"
#include "tests/support/scratch.h"
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <tamis/state.h>
#include <tamis/stats.h>
#include <unistd.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

enum { N = 700, STEPS = 10, SAVED_AFTER = 4, SMALL = 12 };

static tamis_reducer_config usual_config(const char *scheme) {
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    config.scheme = scheme;
    config.density = 0.05;
    config.block = 32;       /* so that parts have blocks that can move, */
    config.threshold = 60.0; /* by counts that differ */
    return config;
}

static tamis_status make(tamis_comm *comm, const char *scheme, size_t n, tamis_reducer **out) {
    tamis_reducer_config config = usual_config(scheme);
    tamis_layout *layout = data_layout(n);
    tamis_status status = tamis_reducer_create(comm, layout, &config, out);
    tamis_layout_destroy(layout);
    return status;
}

/* One step; hash of the result and of the residual. */
static tamis_status step_once(tamis_reducer *reducer, uint32_t rank, uint32_t number, size_t n,
                              uint64_t *out_hash) {
    float gradient[N];
    const float *residual = NULL;
    tamis_step step = TAMIS_STEP_INIT;
    data_fill(DATA_HEAVY, rank, number, n, gradient);
    step.grad = gradient;
    tamis_status status = tamis_reducer_start(reducer, &step);
    if (status == TAMIS_OK)
        status = tamis_reducer_wait(reducer);
    if (status == TAMIS_OK)
        status = tamis_reducer_residual(reducer, &residual);
    *out_hash = data_hash(0, gradient, n * sizeof(float));
    if (residual)
        *out_hash = data_hash(*out_hash, residual, n * sizeof(float));
    return status;
}

/* -- resume ----------------------------------------------------------------------------------- */

static void run_and_resume(test_rank *self) {
    const char *scheme = self->shared;
    char name[32], path[SCRATCH_PATH];
    uint64_t expected[STEPS], got;
    tamis_reducer *whole = NULL, *resumed = NULL;
    snprintf(name, sizeof name, "resume.%u", self->id);
    scratch_path(name, path);
    RANK_OK(self, make(self->comm, scheme, N, &whole));
    for (uint32_t number = 0; number < STEPS; number++) {
        RANK_OK(self, step_once(whole, self->id, number, N, &expected[number]));
        if (number + 1 == SAVED_AFTER)
            RANK_OK(self, tamis_reducer_save(whole, path));
    }
    RANK_OK(self, make(self->comm, scheme, N, &resumed));
    RANK_OK(self, tamis_reducer_load(resumed, path));
    for (uint32_t number = SAVED_AFTER; number < STEPS; number++) {
        tamis_stats stats = TAMIS_STATS_INIT;
        RANK_OK(self, step_once(resumed, self->id, number, N, &got));
        RANK_CHECK(self, got == expected[number], "step %u differs from the whole run", number);
        RANK_OK(self, tamis_reducer_stats(resumed, &stats));
        RANK_CHECK(self, stats.steps == number + 1 - SAVED_AFTER || stats.steps == number + 1,
                   "stats.steps is %llu", (unsigned long long)stats.steps);
    }
    /* going back in the same reducer */
    RANK_OK(self, tamis_reducer_load(resumed, path));
    RANK_OK(self, step_once(resumed, self->id, SAVED_AFTER, N, &got));
    RANK_CHECK(self, got == expected[SAVED_AFTER], "the first step after going back differs");
    tamis_reducer_destroy(resumed);
    tamis_reducer_destroy(whole);
}

static void test_a_resumed_run_is_bit_identical(void **state) {
    static const uint32_t nranks_of[] = {1, 3}; /* every save flushes a disk */
    char path[SCRATCH_PATH];
    scheme_case scheme;
    (void)state;
    scratch_path("first", path);
    for (size_t s = 0; scheme_preset(s, &scheme); s++)
        for (size_t p = 0; p < 2; p++) {
            test_context("%s P=%u, resume", scheme.name, nranks_of[p]);
            ranks_run(nranks_of[p], 0, run_and_resume, scheme.name);
        }
}

/* Ranks that load different steps must not continue together. */
static void run_apart(test_rank *self) {
    char name[32], path[SCRATCH_PATH];
    uint64_t hash;
    tamis_reducer *reducer = NULL;
    snprintf(name, sizeof name, "apart.%u", self->id);
    scratch_path(name, path);
    RANK_OK(self, make(self->comm, "tamis", N, &reducer));
    for (uint32_t number = 0; number < 3; number++) {
        RANK_OK(self, step_once(reducer, self->id, number, N, &hash));
        if (number == (self->id == 1 ? 1u : 2u))
            RANK_OK(self, tamis_reducer_save(reducer, path));
    }
    RANK_OK(self, tamis_reducer_load(reducer, path));
    tamis_status status = step_once(reducer, self->id, 3, N, &hash);
    RANK_CHECK(self, tamis_status_loss(status) == TAMIS_LOST_COMM, "%s", tamis_status_name(status));
    RANK_CHECK(self, status != TAMIS_E_PROTOCOL || has_word(tamis_last_error(), "at step"),
               "\"%s\" does not name the steps", tamis_last_error());
    tamis_reducer_destroy(reducer);
}

static void test_ranks_that_load_different_steps_notice(void **state) {
    (void)state;
    test_context("rank 1 loads another step");
    ranks_run(3, 2000, run_apart, NULL);
}

/* -- one rank, one file ----------------------------------------------------------------------- */

/* A reducer after a few steps, and its twin, which never loads a bad file. */
typedef struct pair_case {
    tamis_comm *comm;
    tamis_reducer *tried, *twin;
    char path[SCRATCH_PATH];
    uint32_t next;
} pair_case;

static void pair_step(pair_case *pair) {
    uint64_t one, two;
    assert_int_equal(step_once(pair->tried, 0, pair->next, SMALL, &one), TAMIS_OK);
    assert_int_equal(step_once(pair->twin, 0, pair->next, SMALL, &two), TAMIS_OK);
    assert_true(one == two);
    pair->next++;
}

static pair_case pair_open(const char *scheme) {
    pair_case pair = {.next = 0};
    assert_int_equal(tamis_comm_create_local(1, NULL, &pair.comm), TAMIS_OK);
    assert_int_equal(make(pair.comm, scheme, SMALL, &pair.tried), TAMIS_OK);
    assert_int_equal(make(pair.comm, scheme, SMALL, &pair.twin), TAMIS_OK);
    scratch_path("state", pair.path);
    for (int i = 0; i < 3; i++)
        pair_step(&pair);
    return pair;
}

static void pair_close(pair_case *pair) {
    tamis_reducer_destroy(pair->tried);
    tamis_reducer_destroy(pair->twin);
    tamis_comm_destroy(pair->comm);
}

/* The file at pair->path is refused and changes nothing. */
static void expect_refused(pair_case *pair, const char *what, long where) {
    const float *residual = NULL;
    tamis_stats before = TAMIS_STATS_INIT, after = TAMIS_STATS_INIT;
    assert_int_equal(tamis_reducer_residual(pair->tried, &residual), TAMIS_OK);
    uint64_t hash = residual ? data_hash(0, residual, SMALL * sizeof(float)) : 0;
    assert_int_equal(tamis_reducer_stats(pair->tried, &before), TAMIS_OK);
    tamis_status status = tamis_reducer_load(pair->tried, pair->path);
    if (status != TAMIS_E_FORMAT && status != TAMIS_E_IO)
        fail_msg("%s at %ld: %s", what, where, tamis_status_name(status));
    assert_true(strlen(tamis_last_error()) > 10);
    assert_int_equal(tamis_reducer_residual(pair->tried, &residual), TAMIS_OK);
    assert_int_equal(tamis_reducer_stats(pair->tried, &after), TAMIS_OK);
    if ((residual && data_hash(0, residual, SMALL * sizeof(float)) != hash) ||
        memcmp(&before, &after, sizeof before) != 0)
        fail_msg("%s at %ld changed the reducer", what, where);
}

static void check_cuts(const char *scheme) {
    size_t bytes;
    pair_case pair = pair_open(scheme);
    assert_int_equal(tamis_reducer_save(pair.tried, pair.path), TAMIS_OK);
    unsigned char *content = scratch_read(pair.path, &bytes);
    assert_non_null(content);
    for (size_t length = 0; length < bytes; length++) {
        assert_int_equal(scratch_write(pair.path, content, length), 0);
        expect_refused(&pair, "cut", (long)length);
    }
    content[bytes] = 0; /* scratch_read leaves room */
    assert_int_equal(scratch_write(pair.path, content, bytes + 1), 0);
    expect_refused(&pair, "one byte more", (long)bytes);
    assert_int_equal(scratch_write(pair.path, content, bytes), 0);
    assert_int_equal(tamis_reducer_load(pair.tried, pair.path), TAMIS_OK);
    pair_step(&pair);
    free(content);
    pair_close(&pair);
}

static void test_a_file_cut_anywhere_is_refused(void **state) {
    (void)state;
    check_cuts("tamis");
    check_cuts("exdyna");
    check_cuts("oktopk");
    check_cuts("dense");
}

static void check_flips(const char *scheme) {
    size_t bytes;
    pair_case pair = pair_open(scheme);
    assert_int_equal(tamis_reducer_save(pair.tried, pair.path), TAMIS_OK);
    unsigned char *content = scratch_read(pair.path, &bytes);
    assert_non_null(content);
    for (size_t bit = 0; bit < bytes * 8; bit++) {
        content[bit / 8] ^= (unsigned char)(1u << bit % 8);
        assert_int_equal(scratch_write(pair.path, content, bytes), 0);
        expect_refused(&pair, "flipped bit", (long)bit);
        content[bit / 8] ^= (unsigned char)(1u << bit % 8);
    }
    pair_step(&pair);
    free(content);
    pair_close(&pair);
}

static void test_a_file_with_any_bit_flipped_is_refused(void **state) {
    (void)state;
    check_flips("tamis");
    check_flips("exdyna");
    check_flips("oktopk");
    check_flips("dense");
}

static void test_foreign_files_are_refused(void **state) {
    pair_case pair = pair_open("tamis");
    unsigned char noise[4096];
    (void)state;
    for (size_t i = 0; i < sizeof noise; i++)
        noise[i] = (unsigned char)data_mix(i);
    assert_int_equal(scratch_write(pair.path, noise, 0), 0);
    expect_refused(&pair, "empty file", 0);
    assert_int_equal(scratch_write(pair.path, noise, sizeof noise), 0);
    expect_refused(&pair, "noise", 0);
    memset(noise, 0, sizeof noise);
    assert_int_equal(scratch_write(pair.path, noise, sizeof noise), 0);
    expect_refused(&pair, "zeros", 0);
    unlink(pair.path);
    expect_refused(&pair, "no file", 0);
    pair_step(&pair);
    pair_close(&pair);
}

/* -- files of other reducers ------------------------------------------------------------------ */

typedef struct other_case {
    const char *what, *words;
    const char *scheme;
    uint32_t nranks, rank;
    size_t n;
    double density;
} other_case;

/* Loads the file that rank 1 of 3 of the usual reducer has written. */
static void load_elsewhere(test_rank *self) {
    const other_case *other = self->shared;
    char path[SCRATCH_PATH];
    uint64_t hash;
    tamis_reducer *reducer = NULL;
    tamis_reducer_config config = usual_config(other->scheme);
    tamis_layout *layout = data_layout(other->n);
    config.density = other->density;
    RANK_OK(self, tamis_reducer_create(self->comm, layout, &config, &reducer));
    if (self->id == other->rank) {
        RANK_STATUS(self, TAMIS_E_FORMAT,
                    tamis_reducer_load(reducer, scratch_path("of-rank-1", path)));
        RANK_CHECK(self, has_word(tamis_last_error(), other->words), "\"%s\" does not name %s",
                   tamis_last_error(), other->words);
    }
    RANK_OK(self, step_once(reducer, self->id, 0, other->n, &hash));
    tamis_reducer_destroy(reducer);
    tamis_layout_destroy(layout);
}

static void save_usual(test_rank *self) {
    char path[SCRATCH_PATH];
    uint64_t hash;
    tamis_reducer *reducer = NULL;
    RANK_OK(self, make(self->comm, "tamis", 200, &reducer));
    RANK_OK(self, step_once(reducer, self->id, 0, 200, &hash));
    if (self->id == 1)
        RANK_OK(self, tamis_reducer_save(reducer, scratch_path("of-rank-1", path)));
    tamis_reducer_destroy(reducer);
}

static void test_files_of_another_reducer_are_refused(void **state) {
    other_case others[] = {
        {"another rank", "rank", "tamis", 3, 2, 200, 0.05},
        {"another number of ranks", "rank", "tamis", 2, 1, 200, 0.05},
        {"another length", "layout|length|n ", "tamis", 3, 1, 201, 0.05},
        {"another scheme", "scheme", "topk", 3, 1, 200, 0.05},
        {"scheme without residual", "scheme", "dense", 3, 1, 200, 0.05},
        {"another density", "density", "tamis", 3, 1, 200, 0.06},
    };
    (void)state;
    test_context("save");
    ranks_run(3, 0, save_usual, NULL);
    for (size_t o = 0; o < sizeof others / sizeof others[0]; o++) {
        test_context("%s", others[o].what);
        ranks_run(others[o].nranks, 0, load_elsewhere, &others[o]);
    }
}

static void test_files_of_another_division_are_refused(void **state) {
    static const tamis_segment one[] = {{"a", 5}, {"b", 7}}, two[] = {{"a", 6}, {"b", 6}};
    tamis_reducer *first = NULL, *second = NULL;
    tamis_layout *layouts[2];
    tamis_comm *comm;
    char path[SCRATCH_PATH];
    (void)state;
    scratch_path("division", path);
    assert_int_equal(tamis_comm_create_local(1, NULL, &comm), TAMIS_OK);
    assert_int_equal(tamis_layout_create(one, 2, &layouts[0]), TAMIS_OK);
    assert_int_equal(tamis_layout_create(two, 2, &layouts[1]), TAMIS_OK);
    assert_int_equal(tamis_reducer_create(comm, layouts[0], NULL, &first), TAMIS_OK);
    assert_int_equal(tamis_reducer_create(comm, layouts[1], NULL, &second), TAMIS_OK);
    assert_int_equal(tamis_reducer_save(first, path), TAMIS_OK);
    assert_int_equal(tamis_reducer_load(second, path), TAMIS_E_FORMAT);
    assert_true(has_word(tamis_last_error(), "layout|segment"));
    tamis_reducer_destroy(first);
    tamis_reducer_destroy(second);
    tamis_layout_destroy(layouts[0]);
    tamis_layout_destroy(layouts[1]);
    tamis_comm_destroy(comm);
}

/* -- paths ------------------------------------------------------------------------------------ */

static void test_bad_paths_are_io_errors(void **state) {
    pair_case pair = pair_open("tamis");
    char folder[SCRATCH_PATH], below[SCRATCH_PATH], longest[8000];
    (void)state;
    size_t files = scratch_files();
    scratch_path("folder", folder);
    assert_int_equal(mkdir(folder, 0700), 0);
    snprintf(below, sizeof below, "%.400s/missing/state", folder);
    memset(longest, 'a', sizeof longest - 1);
    longest[sizeof longest - 1] = '\0';
    const char *const paths[] = {folder, below, "", "/", "/proc/tamis-state", longest};
    for (size_t p = 0; p < sizeof paths / sizeof paths[0]; p++) {
        tamis_status saved = tamis_reducer_save(pair.tried, paths[p]);
        tamis_status loaded = tamis_reducer_load(pair.tried, paths[p]);
        bool none = paths[p][0] == '\0' || paths[p] == longest;
        if (saved != TAMIS_E_IO && !(none && saved == TAMIS_E_ARGUMENT))
            fail_msg("save to \"%.40s\": %s", paths[p], tamis_status_name(saved));
        if (loaded != TAMIS_E_IO && loaded != TAMIS_E_FORMAT &&
            !(none && loaded == TAMIS_E_ARGUMENT))
            fail_msg("load of \"%.40s\": %s", paths[p], tamis_status_name(loaded));
    }
    assert_int_equal(rmdir(folder), 0); /* succeeds only if it is empty */
    assert_int_equal(scratch_files(), files);
    pair_step(&pair);
    pair_close(&pair);
}

static void test_what_is_no_regular_file_is_left_alone(void **state) {
    pair_case pair = pair_open("tamis");
    char pipe[SCRATCH_PATH];
    struct stat there;
    (void)state;
    assert_int_equal(mkfifo(scratch_path("pipe", pipe), 0600), 0);
    assert_int_equal(tamis_reducer_save(pair.tried, pipe), TAMIS_E_IO);
    assert_int_equal(tamis_reducer_load(pair.tried, pipe), TAMIS_E_IO);
    assert_int_equal(lstat(pipe, &there), 0);
    assert_true(S_ISFIFO(there.st_mode));
    assert_int_equal(unlink(pipe), 0);
    pair_step(&pair);
    pair_close(&pair);
}

static void test_a_folder_without_write_permission_is_an_io_error(void **state) {
    pair_case pair;
    char folder[SCRATCH_PATH], inside[SCRATCH_PATH + 8];
    (void)state;
    if (geteuid() == 0)
        skip(); /* root may write everywhere */
    pair = pair_open("tamis");
    scratch_path("locked", folder);
    assert_int_equal(mkdir(folder, 0500), 0);
    snprintf(inside, sizeof inside, "%s/state", folder);
    assert_int_equal(tamis_reducer_save(pair.tried, inside), TAMIS_E_IO);
    assert_non_null(strstr(tamis_last_error(), "locked"));
    assert_int_equal(rmdir(folder), 0);
    pair_close(&pair);
}

/* A file size limit makes writing fail half way, like a full disk. */
static void test_a_failed_save_leaves_the_previous_file(void **state) {
    struct rlimit usual, tight;
    uint64_t one, two;
    tamis_reducer *reducer = NULL;
    pair_case pair = pair_open("tamis");
    (void)state;
    assert_int_equal(make(pair.comm, "tamis", N, &reducer), TAMIS_OK);
    assert_int_equal(step_once(reducer, 0, 0, N, &one), TAMIS_OK);
    assert_int_equal(tamis_reducer_save(reducer, pair.path), TAMIS_OK);
    assert_int_equal(step_once(reducer, 0, 1, N, &one), TAMIS_OK);
    size_t files = scratch_files();

    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &usual), 0);
    for (rlim_t limit = 0; limit < N * 4; limit += 500) {
        tight = (struct rlimit){.rlim_cur = limit, .rlim_max = usual.rlim_max};
        setrlimit(RLIMIT_FSIZE, &tight);
        tamis_status status = tamis_reducer_save(reducer, pair.path);
        setrlimit(RLIMIT_FSIZE, &usual);
        assert_int_equal(status, TAMIS_E_IO);
        assert_int_equal(scratch_files(), files);
    }
    signal(SIGXFSZ, SIG_DFL);

    /* the file is still that of the first step */
    assert_int_equal(tamis_reducer_load(reducer, pair.path), TAMIS_OK);
    assert_int_equal(step_once(reducer, 0, 1, N, &two), TAMIS_OK);
    assert_true(one == two);
    tamis_reducer_destroy(reducer);
    pair_close(&pair);
}

static void test_save_replaces_the_file_and_leaves_no_other(void **state) {
    pair_case pair = pair_open("tamis");
    struct stat about;
    (void)state;
    unlink(pair.path);
    size_t files = scratch_files();
    for (int round = 0; round < 5; round++) {
        assert_int_equal(tamis_reducer_save(pair.tried, pair.path), TAMIS_OK);
        assert_int_equal(scratch_files(), files + 1);
        pair_step(&pair);
    }
    assert_int_equal(stat(pair.path, &about), 0);
    assert_int_equal(about.st_mode & 077, 0); /* for the owner only */
    assert_int_equal(tamis_reducer_save(pair.tried, pair.path), TAMIS_OK);
    assert_int_equal(tamis_reducer_load(pair.twin, pair.path), TAMIS_OK);
    pair_step(&pair);
    pair_close(&pair);
}

/* A name without a folder lies in the working directory. */
static void test_a_path_may_be_a_bare_name(void **state) {
    pair_case pair = pair_open("tamis");
    char *slash = strrchr(pair.path, '/'), before[SCRATCH_PATH];
    (void)state;
    assert_non_null(getcwd(before, sizeof before));
    *slash = '\0';
    assert_int_equal(chdir(pair.path), 0);
    assert_int_equal(tamis_reducer_save(pair.tried, "bare"), TAMIS_OK);
    assert_int_equal(tamis_reducer_load(pair.tried, "bare"), TAMIS_OK);
    assert_int_equal(unlink("bare"), 0);
    assert_int_equal(chdir(before), 0);
    pair_step(&pair);
    pair_close(&pair);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_resumed_run_is_bit_identical),
        cmocka_unit_test(test_ranks_that_load_different_steps_notice),
        cmocka_unit_test(test_a_file_cut_anywhere_is_refused),
        cmocka_unit_test(test_a_file_with_any_bit_flipped_is_refused),
        cmocka_unit_test(test_foreign_files_are_refused),
        cmocka_unit_test(test_files_of_another_reducer_are_refused),
        cmocka_unit_test(test_files_of_another_division_are_refused),
        cmocka_unit_test(test_bad_paths_are_io_errors),
        cmocka_unit_test(test_what_is_no_regular_file_is_left_alone),
        cmocka_unit_test(test_a_folder_without_write_permission_is_an_io_error),
        cmocka_unit_test(test_a_failed_save_leaves_the_previous_file),
        cmocka_unit_test(test_save_replaces_the_file_and_leaves_no_other),
        cmocka_unit_test(test_a_path_may_be_a_bare_name),
    };
    return cmocka_run_group_tests_name("state", tests, NULL, NULL);
}
