/* SPDX-License-Identifier: MIT
 * test: waits
 *
 * How communicators over UCX begin and end: ranks that do not agree, that leave before others, that
 * stop, that abort, and that end without a word.
 */
#include "lib/base/base.h"
#include "tests/support/data.h"
#include "tests/support/processes.h"
#include "tests/support/ranks.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <tamis/elastic.h>
#include <tamis/ucx.h>
#include <unistd.h>

enum { N = 2000, RANKS = 3 };

static int failures;

/* Runs a body in RANKS processes. @param  first  exit status of the first; of the others: 0 */
static void expect(const char *what, process_body body, int first) {
    int statuses[RANKS];
    processes_run(RANKS, 100, body, NULL, statuses);
    bool well = true;
    for (uint32_t r = 0; r < RANKS; r++)
        well = well && statuses[r] == (r == 0 ? first : 0);
    failures += !well;
    printf("%s: %s, exit statuses%s\n", what, well ? "passed" : "FAILED",
           processes_text(statuses, RANKS));
}

static tamis_status create(const tamis_callbacks *rendezvous, uint32_t timeout_ms,
                           tamis_comm **out) {
    tamis_comm_config config = TAMIS_COMM_CONFIG_INIT;
    config.timeout_ms = timeout_ms;
    return tamis_comm_create_ucx(rendezvous, &config, out);
}

static tamis_status one_step(tamis_reducer *r, uint32_t rank) {
    static float grad[N];
    const tamis_step step = data_step(grad);
    data_fill(DATA_HEAVY, rank, 0, N, grad);
    tamis_status status = tamis_reducer_start(r, &step);
    return status == TAMIS_OK ? tamis_reducer_wait(r) : status;
}

static tamis_status open_reducer(tamis_comm *comm, tamis_reducer **out) {
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    config.density = 0.05;
    return data_reducer(comm, N, &config, out);
}

/* -- beginnings ------------------------------------------------------------------------------- */

static int refuses_arguments(const tamis_callbacks *rendezvous, void *arg) {
    tamis_comm *comm = NULL;
    tamis_callbacks bad = *rendezvous;
    (void)arg;
    unsetenv("TAMIS_RENDEZVOUS");
    DEMAND(tamis_comm_create_ucx(NULL, NULL, &comm) != TAMIS_OK, "no rendezvous");
    DEMAND(tamis_comm_create_ucx(rendezvous, NULL, NULL) == TAMIS_E_ARGUMENT, "no out");
    bad.allgather = NULL;
    DEMAND(tamis_comm_create_ucx(&bad, NULL, &comm) == TAMIS_E_ARGUMENT, "no all-gather");
    bad = *rendezvous;
    bad.rank = bad.nranks;
    DEMAND(tamis_comm_create_ucx(&bad, NULL, &comm) == TAMIS_E_ARGUMENT, "rank out of range");
    bad.rank = bad.nranks = 0;
    DEMAND(tamis_comm_create_ucx(&bad, NULL, &comm) == TAMIS_E_ARGUMENT, "no ranks");
    DEMAND(!comm, "a communicator was made");
    return 0;
}

static const tamis_callbacks *true_rendezvous;
static unsigned nth, spoilt;

/* In call number `spoilt` rank 1 sends other bytes than it has. */
static tamis_status spoil(void *context, const void *send, void *recv, size_t bytes) {
    unsigned char copy[8192];
    (void)context;
    memcpy(copy, send, bytes);
    if (true_rendezvous->rank == 1 && nth++ == spoilt)
        copy[bytes / 2] ^= 0x10;
    return true_rendezvous->allgather(true_rendezvous->context, copy, recv, bytes);
}

/* What is damaged is refused by all, or lay behind the end of an address or a text. */
static int refuses_damage(const tamis_callbacks *rendezvous, void *arg) {
    tamis_callbacks net = *rendezvous;
    (void)arg;
    true_rendezvous = rendezvous;
    net.allgather = spoil;
    for (spoilt = 0; spoilt < 3; spoilt++) {
        tamis_comm *comm = NULL;
        nth = 0;
        tamis_status status = tamis_comm_create_ucx(&net, NULL, &comm);
        DEMAND((status == TAMIS_OK) == (comm != NULL), "%s", tamis_status_name(status));
        DEMAND(status == TAMIS_OK || status == TAMIS_E_PROTOCOL, "%s: %s",
               tamis_status_name(status), tamis_last_error());
        DEMAND(spoilt != 1 || status == TAMIS_E_PROTOCOL, "a damaged address was taken");
        tamis_comm_destroy(comm);
    }
    return 0;
}

static tamis_status fail_gather(void *context, const void *send, void *recv, size_t bytes) {
    (void)context, (void)send, (void)recv, (void)bytes;
    return TAMIS_E_TIMEOUT;
}

static int passes_failures(const tamis_callbacks *rendezvous, void *arg) {
    tamis_callbacks net = *rendezvous;
    tamis_comm *comm = NULL;
    (void)arg;
    net.allgather = fail_gather;
    DEMAND(tamis_comm_create_ucx(&net, NULL, &comm) == TAMIS_E_TIMEOUT, "another status");
    return 0;
}

/* Several at once, and reducers on each. */
static int makes_many(const tamis_callbacks *rendezvous, void *arg) {
    enum { COMMS = 5 };
    tamis_comm *comms[COMMS];
    tamis_reducer *reducers[COMMS];
    (void)arg;
    for (int i = 0; i < COMMS; i++) {
        DEMAND_OK(create(rendezvous, test_long_ms(), &comms[i]));
        DEMAND_OK(open_reducer(comms[i], &reducers[i]));
    }
    for (int i = COMMS - 1; i >= 0; i--)
        DEMAND_OK(one_step(reducers[i], rendezvous->rank));
    for (int i = 0; i < COMMS; i++) {
        tamis_reducer_destroy(reducers[i]);
        tamis_comm_destroy(comms[i]);
    }
    return 0;
}

/* -- ends ------------------------------------------------------------------------------------- */

static int alone(const tamis_callbacks *rendezvous, tamis_comm **comm, tamis_reducer **r) {
    DEMAND_OK(create(rendezvous, test_long_ms(), comm));
    DEMAND_OK(open_reducer(*comm, r));
    DEMAND_OK(one_step(*r, rendezvous->rank));
    return 0;
}

/* Rank 1 destroys, the others make another step: they are told so, and soon. */
static int leaves_early(const tamis_callbacks *rendezvous, void *arg) {
    tamis_comm *comm = NULL;
    tamis_reducer *r = NULL;
    uint64_t begin_ms;
    (void)arg;
    if (alone(rendezvous, &comm, &r) != 0)
        return 1;
    if (rendezvous->rank != 1) {
        begin_ms = now_ms();
        tamis_status status = one_step(r, rendezvous->rank);
        DEMAND(status == TAMIS_E_TRANSPORT, "%s: %s", tamis_status_name(status),
               tamis_last_error());
        DEMAND(has_word(tamis_last_error(), "rank 1 has destroyed its communicator"), "%s",
               tamis_last_error());
        DEMAND(now_ms() - begin_ms < test_long_ms(), "it took its deadline");
    }
    tamis_reducer_destroy(r);
    tamis_comm_destroy(comm);
    return 0;
}

/* Rank 0 comes to its end later than the others wait there: it is none of their business. */
static int leaves_late(const tamis_callbacks *rendezvous, void *arg) {
    tamis_comm *comm = NULL;
    tamis_reducer *r = NULL;
    (void)arg;
    if (alone(rendezvous, &comm, &r) != 0)
        return 1;
    if (rendezvous->rank == 0)
        sleep_ms(2500);
    tamis_reducer_destroy(r);
    DEMAND(tamis_comm_status(comm) == TAMIS_OK, "%s", tamis_last_error());
    tamis_comm_destroy(comm);
    return 0;
}

/* Whoever ends without a word has died. */
static int ends_silently(const tamis_callbacks *rendezvous, void *arg) {
    tamis_comm *comm = NULL;
    tamis_reducer *r = NULL;
    (void)arg;
    if (alone(rendezvous, &comm, &r) != 0)
        return 1;
    if (rendezvous->rank == 2)
        _exit(0);
    DEMAND(one_step(r, rendezvous->rank) == TAMIS_E_TRANSPORT, "%s", tamis_last_error());
    DEMAND(has_word(tamis_last_error(), "rank 2 has died"), "%s", tamis_last_error());
    tamis_reducer_destroy(r);
    tamis_comm_destroy(comm);
    return 0;
}

static int aborts(const tamis_callbacks *rendezvous, void *arg) {
    tamis_comm *comm = NULL;
    tamis_reducer *r = NULL;
    (void)arg;
    if (alone(rendezvous, &comm, &r) != 0)
        return 1;
    if (rendezvous->rank == 1)
        DEMAND_OK(tamis_comm_abort(comm));
    tamis_status status = one_step(r, rendezvous->rank);
    DEMAND(status == TAMIS_E_ABORTED, "%s: %s", tamis_status_name(status), tamis_last_error());
    DEMAND(rendezvous->rank == 1 || has_word(tamis_last_error(), "tamis_comm_abort was called"),
           "%s", tamis_last_error());
    tamis_reducer_destroy(r);
    tamis_comm_destroy(comm);
    return 0;
}

/* Rank 0 stops. Nobody can know that it will not go on, so without a list the others time out;
 * with one they go on. */
static int stops(const tamis_callbacks *rendezvous, void *arg) {
    const uint32_t left[] = {1, 2};
    tamis_comm *comm = NULL, *smaller = NULL;
    tamis_reducer *r = NULL, *migrated = NULL;
    tamis_shrink how = TAMIS_SHRINK_INIT;
    (void)arg;
    if (alone(rendezvous, &comm, &r) != 0)
        return 1;
    if (rendezvous->rank == 0)
        raise(SIGSTOP); /* and is killed by who started it */
    test_deadline(comm, test_short_ms());
    DEMAND(tamis_status_loss(one_step(r, rendezvous->rank)) == TAMIS_LOST_COMM, "%s",
           tamis_last_error());
    DEMAND(tamis_comm_shrink(comm, NULL, &smaller) == TAMIS_E_TIMEOUT, "%s", tamis_last_error());
    how.ranks = left;
    how.nranks = 2;
    test_deadline(comm, test_long_ms());
    DEMAND_OK(tamis_comm_shrink(comm, &how, &smaller));
    DEMAND_OK(tamis_reducer_migrate(r, smaller, NULL, &migrated));
    DEMAND_OK(one_step(migrated, rendezvous->rank));
    tamis_reducer_destroy(migrated);
    tamis_comm_destroy(smaller);
    return 0;
}

static atomic_int *gone_on; /* ranks, of all processes */

/* Rank 2 comes when the others have gone on without it: also when they have ended, it never goes on
 * by itself. */
static int comes_too_late(const tamis_callbacks *rendezvous, void *arg) {
    tamis_comm *comm = NULL, *smaller = NULL;
    tamis_reducer *r = NULL;
    (void)arg;
    if (alone(rendezvous, &comm, &r) != 0)
        return 1;
    while (rendezvous->rank == 2 && atomic_load(gone_on) < 2)
        sleep_ms(1);
    test_deadline(comm, rendezvous->rank == 2 ? test_long_ms() : test_short_ms());
    tamis_status status = tamis_comm_shrink(comm, NULL, &smaller);
    if (rendezvous->rank == 2) {
        DEMAND(status == TAMIS_E_TIMEOUT, "%s: %s", tamis_status_name(status), tamis_last_error());
        DEMAND(has_word(tamis_last_error(), "went on without this rank"), "%s", tamis_last_error());
        return 0;
    }
    DEMAND(status == TAMIS_OK && tamis_comm_nranks(smaller) == 2, "%s", tamis_last_error());
    atomic_fetch_add(gone_on, 1);
    tamis_reducer_destroy(r);
    tamis_comm_destroy(smaller);
    tamis_comm_destroy(comm);
    return 0;
}

/* All shrink a healthy communicator, again and again: what belongs to the lost one is freed, but
 * for the records of a job. */
static int shrinks_often(const tamis_callbacks *rendezvous, void *arg) {
    enum { TIMES = 20, RECORDS = 2 };
    tamis_comm *comm = NULL, *smaller = NULL;
    (void)arg;
    DEMAND_OK(create(rendezvous, test_long_ms(), &comm));
    uint64_t before = tam_alloc_live();
    for (int i = 0; i < TIMES; i++) {
        DEMAND_OK(tamis_comm_shrink(comm, NULL, &smaller));
        DEMAND(tamis_comm_nranks(smaller) == RANKS, "%u ranks", tamis_comm_nranks(smaller));
        tamis_comm_destroy(comm);
        comm = smaller;
    }
    uint64_t after = tam_alloc_live();
    DEMAND(after <= before + RECORDS * TIMES + 1, "%llu allocations, before %llu",
           (unsigned long long)after, (unsigned long long)before);
    tamis_comm_destroy(comm);
    return 0;
}

int main(void) {
    gone_on =
        mmap(NULL, sizeof *gone_on, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (gone_on == MAP_FAILED)
        return 1;
    expect("arguments", refuses_arguments, 0);
    expect("damage at the rendezvous", refuses_damage, 0);
    expect("a rendezvous that fails", passes_failures, 0);
    expect("many", makes_many, 0);
    expect("one leaves early", leaves_early, 0);
    expect("one leaves late", leaves_late, 0);
    expect("one ends silently", ends_silently, 0);
    expect("one aborts", aborts, 0);
    expect("one stops", stops, 128 + SIGKILL);
    expect("one comes too late", comes_too_late, 0);
    expect("shrunk often", shrinks_often, 0);
    return failures != 0;
}
