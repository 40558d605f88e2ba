/* SPDX-License-Identifier: MIT
 *
 * Errors are logged: a call that fails logs its message once, at level error, unless TAMIS_LOG is
 * off; a program that forgets to wait, or ends without a step, gets a warning.
 */
#include "tests/support/data.h"
#include "tests/support/ranks.h"
#include "tests/support/scratch.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <tamis/state.h>
#include <unistd.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

enum { N = 200 };

struct user {
    tamis_comm *comm;
    tamis_reducer *reducer;
    tamis_step step;
    float gradient[N];
};

/* Settings are read once per process, so each case runs in its own process. */
struct hearing {
    const char *level;           /* TAMIS_LOG */
    void (*body)(struct user *); /* NULL: density 10, so no reducer is made */
    const char *words;           /* a line that holds them... */
    int lines;                   /* is written this many times */
    int all;                     /* number of all lines */
};

static int count_lines(const char *log, const char *words) {
    int count = 0;
    for (const char *line = log; *line;) {
        const char *end = strchr(line, '\n'), *found = strstr(line, words);
        count += found && found < end;
        line = end + 1;
    }
    return count;
}

static void expect(tamis_status expected, tamis_status got) {
    if (expected != got)
        _exit(1);
}

static void make(struct user *u, double density) {
    tamis_segment segment = {"all", N};
    tamis_layout *layout = NULL;
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    config.density = density;
    u->step = (tamis_step)TAMIS_STEP_INIT;
    u->step.grad = u->gradient;
    data_fill(DATA_HEAVY, 0, 0, N, u->gradient);
    expect(TAMIS_OK, tamis_comm_create_local(1, NULL, &u->comm));
    expect(TAMIS_OK, tamis_layout_create(&segment, 1, &layout));
    expect(density > 1 ? TAMIS_E_ARGUMENT : TAMIS_OK,
           tamis_reducer_create(u->comm, layout, &config, &u->reducer));
    tamis_layout_destroy(layout);
}

static void run(const struct hearing *h) {
    struct user u = {.reducer = NULL};
    make(&u, h->body ? 0.1 : 10);
    if (h->body)
        h->body(&u);
    tamis_reducer_destroy(u.reducer);
    tamis_comm_destroy(u.comm);
}

static void hear(const struct hearing *h) {
    char path[SCRATCH_PATH];
    int status = -1;
    test_context("TAMIS_LOG=%s: %s", h->level, h->words);
    scratch_path("heard.log", path);
    scratch_write(path, (const unsigned char *)"", 0);
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        setenv("TAMIS_LOG", h->level, 1);
        setenv("TAMIS_LOG_FILE", path, 1);
        run(h);
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    size_t bytes = 0;
    unsigned char *log = scratch_read(path, &bytes);
    assert_non_null(log);
    log[bytes] = '\0';
    if (count_lines((char *)log, h->words) != h->lines || count_lines((char *)log, "") != h->all)
        fail_msg("%s, not %d of %d lines with '%s' but:\n%s", test_context_text(), h->lines, h->all,
                 h->words, (char *)log);
    free(log);
}

static void wrong_again_and_again(struct user *u) {
    (void)u;
    for (int i = 0; i < 100; i++)
        expect(TAMIS_E_ARGUMENT, tamis_reducer_wait(NULL));
}

static void start_twice(struct user *u) {
    expect(TAMIS_OK, tamis_reducer_start(u->reducer, &u->step));
    expect(TAMIS_E_STATE, tamis_reducer_start(u->reducer, &u->step));
    expect(TAMIS_OK, tamis_reducer_wait(u->reducer));
}

static void never_wait(struct user *u) {
    expect(TAMIS_OK, tamis_reducer_start(u->reducer, &u->step));
}

static void lose_and_go_on(struct user *u) {
    expect(TAMIS_OK, tamis_comm_abort(u->comm));
    for (int i = 0; i < 100; i++) {
        expect(TAMIS_E_ABORTED, tamis_reducer_start(u->reducer, &u->step));
        expect(TAMIS_E_STATE, tamis_reducer_wait(u->reducer));
    }
}

static void save_nothing(struct user *u) {
    char path[SCRATCH_PATH];
    expect(TAMIS_OK, tamis_reducer_save(u->reducer, scratch_path("none.state", path)));
}

static void do_well(struct user *u) {
    expect(TAMIS_OK, tamis_reducer_start(u->reducer, &u->step));
    expect(TAMIS_OK, tamis_reducer_wait(u->reducer));
    expect(TAMIS_OK, tamis_comm_check_equal(u->comm, u->gradient, sizeof u->gradient));
}

static void what_goes_wrong_is_heard_once(void **state) {
    static const struct hearing all[] = {
        {"warn", NULL, "error [", 1, 1},
        {"warn", NULL, "TAMIS_E_ARGUMENT: tamis_reducer_config.density is 10", 1, 1},
        {"error", NULL, "density is 10, not in (0, 1] or 0 (open)", 1, 1},
        {"off", NULL, "density", 0, 0},
        {"warn", wrong_again_and_again, "tamis_reducer_wait: reducer is NULL", 1, 1},
        {"warn", start_twice, "TAMIS_E_STATE", 1, 1},
        {"warn", never_wait, "warn [", 1, 1},
        {"warn", never_wait, "call tamis_reducer_wait", 1, 1},
        {"error", lose_and_go_on, "the communicator is lost", 1, 2},
        {"warn", save_nothing, "0 steps", 1, 1},
        {"warn", do_well, "", 0, 0},
    };
    (void)state;
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        hear(&all[i]);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(what_goes_wrong_is_heard_once)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
