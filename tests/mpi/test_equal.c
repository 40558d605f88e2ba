/* SPDX-License-Identifier: MIT
 *
 * tamis_comm_check_equal over MPI: ranks that differ are named on all ranks and nothing is lost; a
 * rank that is in a step meanwhile is noticed on those that check.
 */
#include "tests/support/data.h"
#include "tests/support/mpi_ranks.h"
#include <string.h>
#include <tamis/elastic.h>

enum { N = 5000, TIMEOUT_MS = 20000 };

static float values[N];

static void check_values(tamis_comm *comm) {
    char named[64];
    int odd = mpi_nranks - 1;
    data_fill(DATA_HEAVY, 0, 0, N, values);
    MPI_OK(tamis_comm_check_equal(comm, values, sizeof values));
    values[N - 1] += mpi_rank == odd ? 1e-3f : 0.0f;
    MPI_STATUS(TAMIS_E_MISMATCH, tamis_comm_check_equal(comm, values, sizeof values));
    snprintf(named, sizeof named, "rank(s) %d differ", odd);
    MPI_CHECK(strstr(tamis_last_error(), named), "\"%s\"", tamis_last_error());
    MPI_OK(tamis_comm_check_equal(comm, values, sizeof values - sizeof values[0]));
    MPI_STATUS(TAMIS_OK, tamis_comm_status(comm));
}

static void check_other_call(tamis_comm *comm) {
    tamis_layout *layout = data_layout(N);
    tamis_reducer *reducer = NULL;
    if (mpi_rank == 1)
        MPI_STATUS(TAMIS_E_MISMATCH, tamis_reducer_create(comm, layout, NULL, &reducer));
    else
        MPI_STATUS(TAMIS_E_MISMATCH, tamis_comm_check_equal(comm, values, sizeof values));
    MPI_CHECK(strstr(tamis_last_error(), "rank 0 is in tamis_comm_check_equal, rank 1 in "
                                         "tamis_reducer_create"),
              "\"%s\"", tamis_last_error());
    MPI_OK(tamis_reducer_create(comm, layout, NULL, &reducer));
    tamis_reducer_destroy(reducer);
    tamis_layout_destroy(layout);
}

/* Rank 1 has gone on to the next step; what it sends is no entry of a records. */
static void check_step(tamis_comm *comm) {
    tamis_layout *layout = data_layout(N);
    tamis_reducer *reducer = NULL;
    tamis_step step = TAMIS_STEP_INIT;
    step.grad = values;
    MPI_OK(tamis_reducer_create(comm, layout, NULL, &reducer));
    if (mpi_rank == 1) {
        tamis_status status = tamis_reducer_start(reducer, &step);
        status = status == TAMIS_OK ? tamis_reducer_wait(reducer) : status;
        MPI_CHECK(tamis_status_loss(status) == TAMIS_LOST_COMM, "%s", tamis_status_name(status));
    } else {
        tamis_status status = tamis_comm_check_equal(comm, NULL, 0);
        MPI_CHECK(tamis_status_loss(status) == TAMIS_LOST_COMM, "%s", tamis_status_name(status));
        MPI_CHECK(tamis_last_error()[0], "no sentence");
    }
}

int main(int argc, char **argv) {
    mpi_begin(&argc, &argv, MPI_THREAD_MULTIPLE);
    tamis_comm *comm = mpi_comm(TIMEOUT_MS);
    check_values(comm);
    check_other_call(comm);
    check_step(comm);
    mpi_leave();
    return 0;
}
