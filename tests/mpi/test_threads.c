/* SPDX-License-Identifier: MIT
 *
 * MPI with MPI_THREAD_MULTIPLE: the library's thread drives the exchange while the caller computes
 * and talks MPI itself; the two never mix. Several reducers and communicators live side by side.
 */
#include "tests/support/data.h"
#include "tests/support/mpi_ranks.h"
#include <string.h>

enum { N = 4000, STEPS = 30, COMMS = 2, PER_COMM = 2 };

static float gradients[COMMS][PER_COMM][N];
static tamis_comm *comms[COMMS];
static tamis_reducer *reducers[COMMS][PER_COMM];

static void set_up(void) {
    static const char *const schemes[PER_COMM] = {"tamis", "micro"};
    tamis_layout *layout = data_layout(N);
    for (int c = 0; c < COMMS; c++) {
        comms[c] = mpi_comm(test_long_ms());
        for (int r = 0; r < PER_COMM; r++) {
            tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
            config.scheme = schemes[r];
            MPI_OK(tamis_reducer_create(comms[c], layout, &config, &reducers[c][r]));
        }
    }
    tamis_layout_destroy(layout);
}

static void tear_down(void) {
    for (int c = 0; c < COMMS; c++) {
        for (int r = 0; r < PER_COMM; r++)
            tamis_reducer_destroy(reducers[c][r]);
        tamis_comm_destroy(comms[c]);
    }
}

static void start_all(uint32_t number) {
    for (int c = 0; c < COMMS; c++)
        for (int r = 0; r < PER_COMM; r++) {
            tamis_step step = TAMIS_STEP_INIT;
            data_fill(DATA_HEAVY, (uint32_t)mpi_rank, number, N, gradients[c][r]);
            step.grad = gradients[c][r];
            MPI_OK(tamis_reducer_start(reducers[c][r], &step));
        }
}

/* The caller's own traffic, on the communicator that the library was given. */
static void talk(uint32_t number) {
    int sum = 0, mine = mpi_rank + (int)number;
    MPI_Allreduce(&mine, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    MPI_CHECK(sum == mpi_nranks * (mpi_nranks - 1) / 2 + mpi_nranks * (int)number,
              "the caller's own sum is %d", sum);
}

/* Both communicators were given the same gradients, so they give the same bits. */
static void wait_all(uint32_t number) {
    for (int r = 0; r < PER_COMM; r++) {
        for (int c = COMMS - 1; c >= 0; c--)
            MPI_OK(tamis_reducer_wait(reducers[c][r]));
        MPI_CHECK(memcmp(gradients[0][r], gradients[1][r], sizeof gradients[0][r]) == 0,
                  "step %u: the communicators differ", number);
        uint64_t hash = data_hash(0, gradients[0][r], sizeof gradients[0][r]), first = hash;
        MPI_Bcast(&first, 1, MPI_UINT64_T, 0, MPI_COMM_WORLD);
        MPI_CHECK(hash == first, "step %u: other bits than rank 0", number);
    }
}

int main(int argc, char **argv) {
    mpi_begin(&argc, &argv, MPI_THREAD_MULTIPLE);
    set_up();
    for (uint32_t number = 0; number < STEPS; number++) {
        start_all(number);
        talk(number);
        wait_all(number);
    }
    tear_down();
    return mpi_end();
}
