/* SPDX-License-Identifier: MIT
 *
 * MPI without MPI_THREAD_MULTIPLE: the exchange runs inside wait, on the thread that calls it.
 * Also what tamis_comm_create_mpi refuses.
 */
#include "tests/support/data.h"
#include "tests/support/mpi_ranks.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { N = 5000, STEPS = 20, LATE_MS = 150 };

static void check_refusals(void) {
    tamis_comm *comm = NULL;
    tamis_comm_config config = TAMIS_COMM_CONFIG_INIT;
    MPI_STATUS(TAMIS_E_ARGUMENT, tamis_comm_create_mpi(MPI_COMM_WORLD, NULL, NULL));
    MPI_STATUS(TAMIS_E_ARGUMENT, tamis_comm_create_mpi(MPI_COMM_NULL, NULL, &comm));
    config.size = 1;
    MPI_STATUS(TAMIS_E_ARGUMENT, tamis_comm_create_mpi(MPI_COMM_WORLD, &config, &comm));
    MPI_CHECK(!comm, "an output was written");
}

static void check_steps(tamis_comm *comm) {
    static float gradient[N];
    tamis_reducer *reducer = NULL;
    tamis_layout *layout = data_layout(N);
    tamis_step step = TAMIS_STEP_INIT;
    tamis_result result = TAMIS_RESULT_INIT;
    uint64_t hash = 0;
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    step.grad = gradient;
    config.density = 0.01;
    MPI_OK(tamis_reducer_create(comm, layout, &config, &reducer));
    for (uint32_t number = 0; number < STEPS; number++) {
        data_fill(DATA_HEAVY, (uint32_t)mpi_rank, number, N, gradient);
        MPI_OK(tamis_reducer_start(reducer, &step));
        MPI_OK(tamis_reducer_wait(reducer));
        MPI_OK(tamis_reducer_result(reducer, &result));
        MPI_CHECK(result.count == N / 100, "%zu entries", result.count);
        hash = data_hash(hash, gradient, sizeof gradient);
    }
    uint64_t first = hash;
    MPI_Bcast(&first, 1, MPI_UINT64_T, 0, MPI_COMM_WORLD);
    MPI_CHECK(hash == first, "other bits than rank 0");
    tamis_reducer_destroy(reducer);
    tamis_layout_destroy(layout);
}

/* The thread that waits is the caller's own. @return processor time of a wait for the last rank */
static double waiting_cpu_s(tamis_comm *comm) {
    tamis_reducer *reducer = NULL;
    tamis_layout *layout = data_layout(N);
    static float gradient[N];
    tamis_step step = TAMIS_STEP_INIT;
    step.grad = gradient;
    MPI_OK(tamis_reducer_create(comm, layout, NULL, &reducer));
    data_fill(DATA_HEAVY, (uint32_t)mpi_rank, 0, N, gradient);
    sleep_ms(mpi_rank == mpi_nranks - 1 ? LATE_MS : 0);
    MPI_OK(tamis_reducer_start(reducer, &step));
    double cpu_s = mpi_cpu_s();
    MPI_OK(tamis_reducer_wait(reducer));
    cpu_s = mpi_cpu_s() - cpu_s;
    tamis_reducer_destroy(reducer);
    tamis_layout_destroy(layout);
    return cpu_s;
}

/* The library's log, which goes to a file of this rank. */
static char log_path[] = "/tmp/test_funneled.XXXXXX";

static bool log_holds(const char *words) {
    char text[4096] = "";
    FILE *file = fopen(log_path, "r");
    size_t bytes = file ? fread(text, 1, sizeof text - 1, file) : 0;
    if (file)
        fclose(file);
    text[bytes] = '\0';
    return strstr(text, words);
}

/* Who asks for overlap is told why there is none; others are not. */
static void check_warnings(tamis_comm *comm) {
    static const char words[] = "MPI_Init_thread(MPI_THREAD_MULTIPLE)";
    tamis_layout *layout = data_layout(N);
    for (int asked = 0; asked < 3; asked++) {
        tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
        tamis_reducer *reducer = NULL;
        config.worker = asked == 1 ? TAMIS_WORKER_THREAD : TAMIS_WORKER_CALLER;
        config.bucket_length = asked == 2 ? N / 2 : 0;
        MPI_CHECK(truncate(log_path, 0) == 0, "no log");
        MPI_OK(tamis_reducer_create(comm, layout, &config, &reducer));
        MPI_CHECK(log_holds(words) == (asked > 0), "asked %d, but warned %d", asked, !asked);
        tamis_reducer_destroy(reducer);
    }
    tamis_layout_destroy(layout);
}

int main(int argc, char **argv) {
    int log = mkstemp(log_path);
    setenv("TAMIS_LOG_FILE", log_path, 1);
    tamis_comm *too_early = NULL;
    tamis_status before = tamis_comm_create_mpi(MPI_COMM_WORLD, NULL, &too_early);
    mpi_begin(&argc, &argv, MPI_THREAD_FUNNELED);
    MPI_STATUS(TAMIS_E_STATE, before);
    MPI_CHECK(log_holds("MPI is not initialised; call MPI_Init_thread"), "the log is silent");
    MPI_CHECK(strstr(tamis_status_remedy(before), "initialise MPI"), "\"%s\"",
              tamis_status_remedy(before));
    MPI_CHECK(!too_early, "an output was written");
    check_refusals();
    double least_s = 1.0;
    for (int round = 0; round < 5; round++) {
        tamis_comm *comm = mpi_comm(test_long_ms());
        check_steps(comm);
        check_warnings(comm);
        double cpu_s = waiting_cpu_s(comm);
        least_s = cpu_s < least_s ? cpu_s : least_s;
        tamis_comm_destroy(comm);
    }
    MPI_CHECK(mpi_rank == mpi_nranks - 1 || least_s < 0.3e-3 * LATE_MS,
              "%g s of the processor to wait for %d ms", least_s, LATE_MS);
    close(log);
    unlink(log_path);
    return mpi_end();
}
