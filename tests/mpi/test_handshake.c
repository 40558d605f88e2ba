/* SPDX-License-Identifier: MIT
 *
 * Over MPI: ranks that were configured differently all learn it, with field and rank, and go on.
 */
#include "tests/support/data.h"
#include "tests/support/mpi_ranks.h"
#include <string.h>

enum { N = 1000 };

typedef enum difference {
    DIFFERS_LENGTH,
    DIFFERS_DENSITY,
    DIFFERS_SCHEME,
    DIFFERS_AVERAGE,
    REFUSED_DENSITY,
    REFUSED_LAYOUT,
    DIFFERENCES
} difference;

static const char *const words[DIFFERENCES] = {
    "layout|length|n |segment", "density", "scheme|ownership", "op", "density|rank", "layout|rank"};

static tamis_status create(tamis_comm *comm, difference what, bool odd, tamis_reducer **out) {
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    tamis_layout *layout = data_layout(odd && what == DIFFERS_LENGTH ? N + 1 : N);
    if (odd && what == DIFFERS_DENSITY)
        config.density = 0.02;
    if (odd && what == DIFFERS_SCHEME)
        config.scheme = "topk";
    if (odd && what == DIFFERS_AVERAGE)
        config.op = TAMIS_OP_SUM;
    if (odd && what == REFUSED_DENSITY)
        config.density = 2;
    tamis_status status =
        tamis_reducer_create(comm, odd && what == REFUSED_LAYOUT ? NULL : layout, &config, out);
    tamis_layout_destroy(layout);
    return status;
}

static void check_difference(tamis_comm *comm, difference what) {
    bool odd = mpi_rank == mpi_nranks - 1;
    bool refused = what == REFUSED_DENSITY || what == REFUSED_LAYOUT;
    char named[32];
    tamis_reducer *reducer = NULL;
    uint64_t start_ms = now_ms();
    MPI_STATUS(refused ? TAMIS_E_ARGUMENT : TAMIS_E_MISMATCH, create(comm, what, odd, &reducer));
    MPI_CHECK(now_ms() - start_ms < test_long_ms() / 2, "it took %llu ms",
              (unsigned long long)(now_ms() - start_ms));
    MPI_CHECK(!reducer, "an output was written");
    MPI_CHECK(has_word(tamis_last_error(), words[what]), "\"%s\" does not name %s",
              tamis_last_error(), words[what]);
    snprintf(named, sizeof named, "rank %d", mpi_nranks - 1);
    MPI_CHECK((odd && refused) || strstr(tamis_last_error(), named), "\"%s\" does not name %s",
              tamis_last_error(), named);
    MPI_STATUS(TAMIS_OK, tamis_comm_status(comm));
}

static void check_usable(tamis_comm *comm) {
    static float gradient[N];
    tamis_reducer *reducer = NULL;
    tamis_step step = TAMIS_STEP_INIT;
    data_fill(DATA_HEAVY, (uint32_t)mpi_rank, 0, N, gradient);
    step.grad = gradient;
    MPI_OK(create(comm, DIFFERENCES, false, &reducer));
    MPI_OK(tamis_reducer_start(reducer, &step));
    MPI_OK(tamis_reducer_wait(reducer));
    tamis_reducer_destroy(reducer);
}

int main(int argc, char **argv) {
    mpi_begin(&argc, &argv, MPI_THREAD_MULTIPLE);
    tamis_comm *comm = mpi_comm(test_long_ms());
    for (int what = 0; what < DIFFERENCES; what++) {
        check_difference(comm, (difference)what);
        check_usable(comm);
    }
    tamis_comm_destroy(comm);
    return mpi_end();
}
