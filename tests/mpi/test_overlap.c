/* SPDX-License-Identifier: MIT
 *
 * Buckets over MPI, whose exchanges run while the caller marks others ready: the same bits as all
 * at once, whoever makes the accumulate pass; and a segment that one rank forgets.
 *
 * test: waits
 */
#include "tests/support/data.h"
#include "tests/support/mpi_ranks.h"
#include <string.h>
#include <tamis/overlap.h>

enum { SEGMENTS = 10, LENGTH = 3001, N = SEGMENTS * LENGTH, STEPS = 8 };

static float gradient[N];

static tamis_reducer *make(tamis_comm *comm, const char *scheme, tamis_worker worker) {
    tamis_reducer *reducer = NULL;
    tamis_reducer_config config = data_even_config(LENGTH);
    config.scheme = scheme;
    config.density = 0.01;
    config.worker = worker;
    MPI_OK(data_even_reducer(comm, SEGMENTS, LENGTH, &config, &reducer));
    return reducer;
}

static void shuffle(uint64_t seed, uint32_t *order) {
    for (uint32_t s = 0; s < SEGMENTS; s++) {
        uint32_t at = (uint32_t)(data_mix(seed + s) % (s + 1));
        order[s] = order[at];
        order[at] = s;
    }
}

static void mark_all(tamis_reducer *reducer, uint32_t number) {
    uint32_t order[SEGMENTS];
    tamis_step step = TAMIS_STEP_INIT;
    step.grad = gradient;
    shuffle(1000 * number + (uint32_t)mpi_rank, order);
    for (uint32_t i = 0; i < SEGMENTS; i++)
        MPI_OK(tamis_reducer_ready(reducer, order[i], &step));
}

/* @return a hash of all results */
static uint64_t run(tamis_comm *comm, const char *scheme, tamis_worker worker, bool marked) {
    tamis_reducer *reducer = make(comm, scheme, worker);
    uint64_t hash = 0;
    int done = 0;
    for (uint32_t number = 0; number < STEPS; number++) {
        tamis_step step = TAMIS_STEP_INIT;
        step.grad = gradient;
        data_fill(DATA_HEAVY, (uint32_t)mpi_rank, number, N, gradient);
        if (marked)
            mark_all(reducer, number);
        else
            MPI_OK(tamis_reducer_start(reducer, &step));
        for (done = 0; !done && number % 2; sleep_ms(1))
            MPI_OK(tamis_reducer_test(reducer, &done));
        MPI_OK(tamis_reducer_wait(reducer));
        hash = data_hash(hash, gradient, sizeof gradient);
    }
    MPI_CHECK(tamis_reducer_nbuckets(reducer) == SEGMENTS, "%u buckets",
              tamis_reducer_nbuckets(reducer));
    tamis_reducer_destroy(reducer);
    return hash;
}

static void check_bits(tamis_comm *comm, const char *scheme) {
    uint64_t straight = run(comm, scheme, TAMIS_WORKER_CALLER, false), first = straight;
    MPI_Bcast(&first, 1, MPI_UINT64_T, 0, MPI_COMM_WORLD);
    MPI_CHECK(straight == first, "%s: other bits than rank 0", scheme);
    MPI_CHECK(run(comm, scheme, TAMIS_WORKER_CALLER, true) == straight, "%s: marked", scheme);
    MPI_CHECK(run(comm, scheme, TAMIS_WORKER_THREAD, true) == straight, "%s: marked, by the thread",
              scheme);
    MPI_CHECK(run(comm, scheme, TAMIS_WORKER_THREAD, false) == straight, "%s: by the thread",
              scheme);
}

/* The last rank forgets a segment in the middle; the others wait for the last rank. */
static void check_forgotten(void) {
    tamis_comm *comm = mpi_comm(test_long_ms());
    tamis_reducer *reducer = make(comm, "tamis", TAMIS_WORKER_CALLER);
    bool forgets = mpi_rank == mpi_nranks - 1;
    MPI_Barrier(MPI_COMM_WORLD);
    test_deadline(comm, test_short_ms());
    tamis_step step = TAMIS_STEP_INIT;
    step.grad = gradient;
    data_fill(DATA_HEAVY, (uint32_t)mpi_rank, 0, N, gradient);
    for (uint32_t s = 0; s < SEGMENTS; s++) {
        if (s != SEGMENTS / 2 || !forgets)
            MPI_OK(tamis_reducer_ready(reducer, s, &step));
    }
    uint64_t begin_ms = now_ms();
    MPI_STATUS(TAMIS_E_TIMEOUT, tamis_reducer_wait(reducer));
    MPI_CHECK(now_ms() - begin_ms < test_short_ms() + test_grace_ms(), "it took %llu ms",
              (unsigned long long)(now_ms() - begin_ms));
    char word[32];
    const char *named = mpi_over_ucx() ? "rank %u has given up" : "rank(s) %u";
    snprintf(word, sizeof word, forgets ? "segment %u" : named,
             forgets ? SEGMENTS / 2 : (uint32_t)mpi_nranks - 1);
    MPI_CHECK(has_word(tamis_last_error(), word), "\"%s\" does not say \"%s\"", tamis_last_error(),
              word);
    tamis_reducer_destroy(reducer);
    tamis_comm_destroy(comm);
}

int main(int argc, char **argv) {
    static const char *const schemes[] = {"tamis", "micro", "deft", "topk", "dense"};
    mpi_begin(&argc, &argv, MPI_THREAD_MULTIPLE);
    tamis_comm *comm = mpi_comm(test_long_ms());
    for (size_t s = 0; s < sizeof schemes / sizeof schemes[0]; s++)
        check_bits(comm, schemes[s]);
    tamis_comm_destroy(comm);
    check_forgotten();
    mpi_leave();
    return 0;
}
