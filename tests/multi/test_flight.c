/* SPDX-License-Identifier: MIT
 *
 * The flight recorder: what a run leaves, what a rank that stops or differs leaves, warnings before
 * the deadline, and what an event costs.
 */
#include "collectives/transport/comm.h"
#include "tests/support/data.h"
#include "tests/support/ranks.h"
#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <tamis/stats.h>
#include <unistd.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

enum { N = 200 };

static char folder[] = "/tmp/tamis-flight-XXXXXX";

/* -- files ------------------------------------------------------------------------------------ */

/* The file of a rank, whose name ends with the process. @return false: there is none */
static bool find_rank(uint32_t rank, char path[600]) {
    char middle[32];
    bool found = false;
    DIR *dir = opendir(folder);
    snprintf(middle, sizeof middle, "-%u-%d.jsonl", rank, (int)getpid());
    for (struct dirent *e; !found && (e = readdir(dir));) {
        size_t length = strlen(e->d_name), tail = strlen(middle);
        found = length >= tail && strcmp(e->d_name + length - tail, middle) == 0;
        snprintf(path, 600, "%s/%s", folder, e->d_name);
    }
    closedir(dir);
    return found;
}

/* To be freed. */
static char *read_path(const char *path) {
    FILE *file = fopen(path, "r");
    char *text = calloc(1, 1 << 20);
    assert_non_null(file);
    assert_true(fread(text, 1, (1 << 20) - 1, file) > 0);
    fclose(file);
    return text;
}

static char *read_rank(uint32_t rank) {
    char path[600];
    return find_rank(rank, path) ? read_path(path) : NULL;
}

static void empty_folder(void) {
    char path[600];
    DIR *dir = opendir(folder);
    for (struct dirent *e; (e = readdir(dir));) {
        snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        if (e->d_name[0] != '.')
            assert_int_equal(unlink(path), 0);
    }
    closedir(dir);
}

static size_t count(const char *text, const char *what) {
    size_t found = 0;
    for (const char *at = text; (at = strstr(at, what)); at += strlen(what))
        found++;
    return found;
}

/* -- runs ------------------------------------------------------------------------------------- */

typedef struct flight_case {
    uint32_t stops;     /* this rank makes no step after the first two; UINT32_MAX: none */
    uint64_t timeout_s; /* that stands in the sentences */
    tamis_status status[RANKS_MOST];
} flight_case;

static void run_rank(test_rank *self) {
    flight_case *c = self->shared;
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    tamis_reducer *reducer = NULL;
    float gradient[N];
    tamis_status status = TAMIS_OK;
    RANK_OK(self, data_reducer(self->comm, N, &config, &reducer));
    for (uint32_t number = 0; number < 5 && status == TAMIS_OK; number++) {
        if (self->id == c->stops && number == 2)
            break;
        const tamis_step step = data_step(gradient);
        data_fill_real(self->id, number, N, gradient);
        RANK_OK(self, tamis_reducer_start(reducer, &step));
        status = tamis_reducer_wait(reducer);
    }
    c->status[self->id] = status;
    tamis_reducer_destroy(reducer);
}

static void all_ranks_leave_the_same_collectives(void **state) {
    enum { P = 3 };
    tamis_comm *comms[P];
    flight_case c = {.stops = UINT32_MAX};
    char *first = NULL;
    (void)state;
    empty_folder();
    assert_int_equal(tamis_comm_create_local(P, NULL, comms), TAMIS_OK);
    ranks_run_on(comms, P, run_rank, &c);
    for (uint32_t r = 0; r < P; r++) {
        assert_int_equal(tamis_comm_write_flight(comms[r], folder), TAMIS_OK);
        char *text = read_rank(r);
        assert_non_null(text);
        assert_int_equal(count(text, "\"event\":\"start\""), 5);
        assert_int_equal(count(text, "\"event\":\"wait\""), 5);
        assert_int_equal(count(text, "\"event\":\"done\",\"step\":4,\"status\":\"TAMIS_OK\""), 1);
        assert_true(count(text, "\"event\":\"begin\"") >= 10);
        assert_int_equal(count(text, "\"event\":\"begin\""), count(text, "\"event\":\"end\""));
        assert_true(count(text, "\"step\":4,\"collective\":") >= 2);
        if (first)
            assert_int_equal(count(text, "\"call\":\"sum\""), count(first, "\"call\":\"sum\""));
        free(first);
        first = text;
    }
    free(first);
    for (uint32_t r = 0; r < P; r++)
        tamis_comm_destroy(comms[r]);
}

/* Its ring holds the last events, whatever came before. */
static void only_the_last_events_stay(void **state) {
    tam_flight *f = tam_flight_open(7, 9);
    (void)state;
    empty_folder();
    for (uint32_t i = 0; i < 3 * TAM_FLIGHT_EVENTS + 5; i++)
        tam_flight_record(f, &(tam_event){.kind = TAM_FLIGHT_BEGIN,
                                          .call = TAM_FLIGHT_SUM,
                                          .step = i + 1,
                                          .number = i + 1,
                                          .other = 3,
                                          .bytes = UINT64_MAX});
    assert_int_equal(tam_flight_write(f, folder), 0);
    char *text = read_rank(7);
    assert_int_equal(count(text, "\n"), TAM_FLIGHT_EVENTS + 1);
    assert_int_equal(count(text, "\"bucket\":2,\"bytes\":18446744073709551615}"),
                     TAM_FLIGHT_EVENTS);
    assert_non_null(strstr(text, "\"step\":3076,\"collective\":3077,"));
    assert_null(strstr(text, "\"collective\":2053,"));
    assert_non_null(strstr(text, "\"collective\":2054,"));
    free(text);
    tam_flight_close(f);
}

/* Another thread, or what a signal interrupted, has begun an event and not yet written it: what
 * lies there is zeros, or an event of 1024 before. */
static void an_event_that_is_not_complete_is_left_out(void **state) {
    (void)state;
    for (uint32_t before = 0; before <= TAM_FLIGHT_EVENTS; before += TAM_FLIGHT_EVENTS) {
        tam_flight *f = tam_flight_open(3, 9);
        empty_folder();
        for (uint32_t i = 0; i < before; i++)
            tam_flight_record(f, &(tam_event){.kind = TAM_FLIGHT_BEGIN, .number = i + 1});
        atomic_fetch_add(&f->next, 1);
        tam_flight_record(f, &(tam_event){.kind = TAM_FLIGHT_BEGIN, .number = before + 2});
        assert_int_equal(tam_flight_write(f, folder), 0);
        char *text = read_rank(3);
        assert_int_equal(count(text, "\"event\":"), before > 0 ? before - 1 : 1);
        assert_int_equal(count(text, "\"collective\":1,"), 0);
        assert_int_equal(count(text, "\"collective\":2,"), before == 0);
        free(text);
        tam_flight_close(f);
    }
}

typedef struct writing {
    const tamis_comm *comm;
    atomic_bool enough;
    atomic_uint wrote, failed;
} writing;

static void *write_on(void *arg) {
    writing *w = arg;
    while (!atomic_load(&w->enough)) {
        atomic_fetch_add(&w->failed, tamis_comm_write_flight(w->comm, folder) != TAMIS_OK);
        atomic_fetch_add(&w->wrote, 1);
    }
    return NULL;
}

/* As a rank that is asked while it loses its communicator; and whoever reads need not wait. */
static void files_are_always_complete(void **state) {
    enum { THREADS = 3, READS = 100 };
    tamis_comm *comm;
    pthread_t threads[THREADS];
    char path[600];
    (void)state;
    empty_folder();
    assert_int_equal(tamis_comm_create_local(1, NULL, &comm), TAMIS_OK);
    for (uint32_t i = 0; i < TAM_FLIGHT_EVENTS; i++)
        tam_comm_record(comm, TAM_FLIGHT_START, i, TAMIS_OK);
    assert_int_equal(tamis_comm_write_flight(comm, folder), TAMIS_OK);
    assert_true(find_rank(0, path));
    writing w = {.comm = comm};
    for (int t = 0; t < THREADS; t++)
        assert_int_equal(pthread_create(&threads[t], NULL, write_on, &w), 0);
    for (int i = 0; i < READS || atomic_load(&w.wrote) < READS; i++) {
        char *text = read_path(path);
        if (count(text, "\n") != TAM_FLIGHT_EVENTS + 1 || text[strlen(text) - 1] != '\n')
            fail_msg("of %zu bytes and %zu lines", strlen(text), count(text, "\n"));
        free(text);
    }
    atomic_store(&w.enough, true);
    for (int t = 0; t < THREADS; t++)
        pthread_join(threads[t], NULL);
    assert_int_equal(atomic_load(&w.failed), 0);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(folder), 0); /* nothing else is left */
    assert_int_equal(mkdir(folder, 0700), 0);
    tamis_comm_destroy(comm);
}

static void a_rank_that_stops_is_named_before_the_deadline(void **state) {
    enum { P = 4 };
    tamis_comm_config config = TAMIS_COMM_CONFIG_INIT;
    tamis_comm *comms[P];
    flight_case c = {.stops = 2};
    (void)state;
    empty_folder();
    config.timeout_ms = 2000;
    assert_int_equal(tamis_comm_create_local(P, &config, comms), TAMIS_OK);
    ranks_run_on(comms, P, run_rank, &c);
    for (uint32_t r = 0; r < P; r++) {
        assert_int_equal(c.status[r], r == 2 ? TAMIS_OK : TAMIS_E_TIMEOUT);
        char *text = read_rank(r); /* left by themselves, as TAMIS_FLIGHT says */
        assert_true((text != NULL) == (r != 2));
        if (!text)
            continue;
        assert_int_equal(count(text, "\"event\":\"late\""), 1);
        assert_int_equal(count(text, "\"waits_for\":2,"), 1);
        assert_int_equal(count(text, "\"event\":\"lost\",\"status\":\"TAMIS_E_TIMEOUT\""), 1);
        free(text);
    }
    for (uint32_t r = 0; r < P; r++)
        tamis_comm_destroy(comms[r]);
}

static void bad_folders_are_refused(void **state) {
    tamis_comm *comm;
    char longest[5000];
    (void)state;
    assert_int_equal(tamis_comm_create_local(1, NULL, &comm), TAMIS_OK);
    assert_int_equal(tamis_comm_write_flight(NULL, folder), TAMIS_E_ARGUMENT);
    assert_int_equal(tamis_comm_write_flight(comm, ""), TAMIS_E_ARGUMENT);
    assert_non_null(strstr(tamis_last_error(), "empty"));
    assert_int_equal(tamis_comm_write_flight(comm, "/nowhere/at/all"), TAMIS_E_IO);
    assert_non_null(strstr(tamis_last_error(), "/nowhere/at/all"));
    memset(longest, 'x', sizeof longest);
    longest[sizeof longest - 1] = '\0';
    assert_int_equal(tamis_comm_write_flight(comm, longest), TAMIS_E_IO);
    assert_int_equal(tamis_comm_write_flight(comm, "/dev/full"), TAMIS_E_IO);
    errno = EDOM; /* a signal handler must leave it alone */
    assert_int_equal(tamis_comm_write_flight(comm, "/nowhere/at/all"), TAMIS_E_IO);
    assert_int_equal(tamis_comm_write_flight(comm, folder), TAMIS_OK);
    assert_int_equal(errno, EDOM);
    tamis_comm_destroy(comm);
}

/* What a call writes to stderr, in `text`. */
static void create_and_listen(char *text, size_t bytes) {
    FILE *said = tmpfile();
    tamis_comm *comm = NULL;
    int kept = dup(STDERR_FILENO);
    assert_true(said && kept >= 0 && dup2(fileno(said), STDERR_FILENO) >= 0);
    tamis_status status = tamis_comm_create_local(1, NULL, &comm);
    assert_true(dup2(kept, STDERR_FILENO) >= 0 && close(kept) == 0);
    assert_int_equal(status, TAMIS_OK);
    tamis_comm_destroy(comm);
    rewind(said);
    text[fread(text, 1, bytes - 1, said)] = '\0';
    fclose(said);
}

static void a_folder_that_is_not_there_is_said_before_a_failure(void **state) {
    (void)state;
    char away[sizeof folder + 8], text[512];
    create_and_listen(text, sizeof text);
    assert_string_equal(text, "");
    snprintf(away, sizeof away, "%s.away", folder);
    assert_int_equal(rename(folder, away), 0);
    create_and_listen(text, sizeof text);
    assert_int_equal(rename(away, folder), 0);
    assert_non_null(strstr(text, "rank 0 will not be able to write its flight recorder to "));
    assert_non_null(strstr(text, folder));
}

/* A figure for docs/measured. Ten times what is promised fails: the machine may do other work. */
static void an_event_costs_little(void **state) {
    enum { EVENTS = 200000, TRIES = 20 };
    tam_flight *f = tam_flight_open(0, 1);
    double best_ns = 1e9;
    (void)state;
    for (int t = 0; t < TRIES; t++) {
        uint64_t begin_ns = tam_clock_ns();
        for (uint32_t i = 0; i < EVENTS; i++)
            tam_flight_record(f, &(tam_event){.kind = TAM_FLIGHT_END, .number = i});
        double each_ns = (double)(tam_clock_ns() - begin_ns) / EVENTS;
        best_ns = each_ns < best_ns ? each_ns : best_ns;
    }
    printf("an event: %.1f ns\n", best_ns);
    assert_true(best_ns < 500 || TEST_SANITIZED);
    tam_flight_close(f);
}

int main(void) {
    assert_non_null(mkdtemp(folder));
    setenv("TAMIS_FLIGHT", folder, 1); /* read at the first use */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_ranks_leave_the_same_collectives),
        cmocka_unit_test(only_the_last_events_stay),
        cmocka_unit_test(an_event_that_is_not_complete_is_left_out),
        cmocka_unit_test(files_are_always_complete),
        cmocka_unit_test(a_rank_that_stops_is_named_before_the_deadline),
        cmocka_unit_test(bad_folders_are_refused),
        cmocka_unit_test(a_folder_that_is_not_there_is_said_before_a_failure),
        cmocka_unit_test(an_event_costs_little),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    empty_folder();
    rmdir(folder);
    return failed;
}
