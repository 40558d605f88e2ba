/* SPDX-License-Identifier: MIT
 * test: waits
 *
 * Ranks that find each other by TAMIS_RENDEZVOUS: also beside connections that say nothing, or
 * anything; what is wrong is named, by the deadline.
 */
#include "tests/support/data.h"
#include "tests/support/ports.h"
#include "tests/support/processes.h"
#include "tests/support/ranks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <tamis/ucx.h>
#include <unistd.h>

enum { RANKS = 4 };

static int failures;

static tamis_status create(uint32_t timeout_ms, tamis_comm **out) {
    tamis_comm_config config = TAMIS_COMM_CONFIG_INIT;
    config.timeout_ms = timeout_ms;
    return tamis_comm_create_ucx(NULL, &config, out);
}

static int find_each_other(uint32_t rank) {
    tamis_comm *comm = NULL;
    float same[3] = {1.0f, 2.0f, 3.0f};
    test_port_place(rank, RANKS);
    if (create(test_long_ms(), &comm) != TAMIS_OK || tamis_comm_rank(comm) != rank ||
        tamis_comm_nranks(comm) != RANKS ||
        tamis_comm_check_equal(comm, same, sizeof same) != TAMIS_OK)
        return 1;
    tamis_comm_destroy(comm);
    return 0;
}

static int well(const tamis_callbacks *net, void *arg) {
    (void)arg;
    return find_each_other(net->rank);
}

/* Rank 0 comes last: the others try again. */
static int late(const tamis_callbacks *net, void *arg) {
    (void)arg;
    if (net->rank == 0)
        sleep_ms(700);
    return find_each_other(net->rank);
}

/* The last process is no rank. @param  bytes  that it sends; 0: it is silent */
static int disturb(size_t bytes) {
    unsigned char junk[4096];
    memset(junk, 0x5a, sizeof junk);
    for (int i = 0; i < 100; i++) {
        int s = test_port_try();
        if (s >= 0 && bytes > 0 && send(s, junk, bytes, MSG_NOSIGNAL) < 0)
            close(s);
        sleep_ms(5); /* left open: the end of the process closes them */
    }
    return 0;
}

static int beside_strangers(const tamis_callbacks *net, void *arg) {
    const size_t *bytes = arg;
    if (net->rank == RANKS)
        return disturb(*bytes);
    if (net->rank > 0)
        sleep_ms(300);
    return find_each_other(net->rank);
}

/* @return 0 if creating fails so, with the words in the sentence */
static int fails(uint32_t timeout_ms, tamis_status expected, const char *words) {
    tamis_comm *comm = NULL;
    tamis_status status = create(timeout_ms, &comm);
    if (status == expected && !comm && has_word(tamis_last_error(), words))
        return 0;
    fprintf(stderr, "%s, not %s: %s\n", tamis_status_name(status), tamis_status_name(expected),
            tamis_last_error());
    return 1;
}

static int one_is_missing(const tamis_callbacks *net, void *arg) {
    (void)arg;
    if (net->rank == 2)
        return 0;
    test_port_place(net->rank, RANKS);
    if (net->rank == 0)
        return fails(1500, TAMIS_E_TIMEOUT, "rank(s) 2 did not come");
    tamis_comm *comm = NULL; /* rank 0 says it by leaving */
    return create(3000, &comm) == TAMIS_OK;
}

static int other_numbers(const tamis_callbacks *net, void *arg) {
    (void)arg;
    if (net->rank > 1)
        return 0;
    test_port_place(net->rank, net->rank == 0 ? 2 : 3);
    return fails(test_long_ms(), TAMIS_E_MISMATCH, "ranks");
}

static int same_rank_twice(const tamis_callbacks *net, void *arg) {
    tamis_comm *comm = NULL;
    (void)arg;
    test_port_place(net->rank == 0 ? 0 : 1, RANKS);
    if (net->rank == 0)
        return fails(test_long_ms(), TAMIS_E_MISMATCH, "say that they are rank 1");
    return create(3000, &comm) == TAMIS_OK;
}

static int bad_settings(const tamis_callbacks *net, void *arg) {
    (void)arg;
    test_port_place(net->rank, 1);
    if (net->rank == 0)
        setenv("TAMIS_RENDEZVOUS", "nowhere", 1);
    if (net->rank == 1)
        setenv("RANK", "one", 1);
    if (net->rank == 2)
        unsetenv("TAMIS_RENDEZVOUS");
    if (net->rank != 3)
        setenv("WORLD_SIZE", "5", 1);
    if (net->rank == 3) { /* alone */
        tamis_comm *comm = NULL;
        setenv("RANK", "0", 1);
        return create(test_long_ms(), &comm) != TAMIS_OK || tamis_comm_nranks(comm) != 1;
    }
    return fails(test_long_ms(), TAMIS_E_ARGUMENT, "host:port|a number of ranks");
}

static void expect(const char *what, uint32_t nprocesses, process_body body, void *arg) {
    int statuses[PROCESSES_MOST];
    bool all_well = true;
    test_port_choose();
    processes_run(nprocesses, 100, body, arg, statuses);
    for (uint32_t r = 0; r < nprocesses; r++)
        all_well = all_well && statuses[r] == 0;
    failures += !all_well;
    printf("%s: %s, exit statuses%s\n", what, all_well ? "passed" : "FAILED",
           processes_text(statuses, nprocesses));
}

int main(void) {
    size_t nothing = 0, some = 16, much = 4096;
    expect("four", RANKS, well, NULL);
    expect("rank 0 comes late", RANKS, late, NULL);
    expect("silent strangers", RANKS + 1, beside_strangers, &nothing);
    expect("strangers with a few bytes", RANKS + 1, beside_strangers, &some);
    expect("strangers with many bytes", RANKS + 1, beside_strangers, &much);
    expect("one is missing", RANKS, one_is_missing, NULL);
    expect("other numbers of ranks", RANKS, other_numbers, NULL);
    expect("one rank twice", 3, same_rank_twice, NULL);
    expect("bad settings", RANKS, bad_settings, NULL);
    return failures != 0;
}
