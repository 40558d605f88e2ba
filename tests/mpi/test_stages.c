/* SPDX-License-Identifier: MIT
 *
 * Many ranks, which exchange in stages: sums of whole steps, what creation costs, and a rank that
 * stays silent, which all others name in time. Few ranks, which exchange all with all, do the same.
 */
#include "lib/base/base.h"
#include "lib/policy/plan.h"
#include "tests/support/data.h"
#include "tests/support/mpi_ranks.h"
#include "tests/support/rank_tree.h"

#include <stdlib.h>
#include <string.h>

enum { N = 4096, TIMEOUT_MS = 4000 };

static double now_s(void) {
    return 1e-9 * (double)tam_clock_ns();
}

/* KiB of memory that is present. */
static long resident_kib(void) {
    long pages = 0, whole = 0;
    FILE *file = fopen("/proc/self/statm", "re");
    if (file) {
        if (fscanf(file, "%ld %ld", &whole, &pages) != 2)
            pages = 0;
        fclose(file);
    }
    return pages * (sysconf(_SC_PAGESIZE) / 1024);
}

static float value_of(uint32_t rank, size_t i) {
    return (float)((rank * 31 + i * 17) % 1009) * (i % 3 ? 1e-3f : 1e3f);
}

static void check_sums(tamis_comm *comm) {
    static float gradient[N];
    float values[128];
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    tamis_reducer *reducer = NULL;
    tamis_step step = TAMIS_STEP_INIT;
    config.scheme = "dense";
    MPI_OK(data_even_reducer(comm, 1, N, &config, &reducer));
    for (size_t i = 0; i < N; i++)
        gradient[i] = value_of((uint32_t)mpi_rank, i);
    step.grad = gradient;
    MPI_OK(tamis_reducer_start(reducer, &step));
    MPI_OK(tamis_reducer_wait(reducer));
    size_t wrong = 0;
    for (size_t i = 0; i < N; i++) {
        for (int r = 0; r < mpi_nranks; r++)
            values[r] = value_of((uint32_t)r, i);
        float mean = rank_tree_sum(values, 1, (uint32_t)mpi_nranks) / (float)mpi_nranks;
        wrong += memcmp(&gradient[i], &mean, sizeof mean) != 0;
    }
    MPI_CHECK(wrong == 0, "%zu of %d means differ from the tree's", wrong, N);
    tamis_reducer_destroy(reducer);
}

/* The plan is the same on all ranks, and one of so many, whatever each measured. */
static void check_plan(tamis_comm *comm) {
    char first[64];
    tam_plan plan;
    snprintf(first, sizeof first, "%s", tamis_comm_plan(comm));
    MPI_Bcast(first, sizeof first, MPI_CHAR, 0, MPI_COMM_WORLD);
    MPI_CHECK(strcmp(first, tamis_comm_plan(comm)) == 0, "stages are %s, but %s on rank 0",
              tamis_comm_plan(comm), first);
    MPI_CHECK(tam_plan_parse(first, (uint32_t)mpi_nranks, 1, &plan), "stages are %s", first);
}

/* One sleeps, and the others wait. */
static void check_silence(int silent) {
    tamis_comm *comm = mpi_comm(TIMEOUT_MS);
    char name[24];
    snprintf(name, sizeof name, "rank(s) %d", silent);
    MPI_Barrier(MPI_COMM_WORLD);
    double begin_s = now_s(), took_s = 0.0;
    if (mpi_rank != silent) {
        MPI_STATUS(TAMIS_E_TIMEOUT, tamis_comm_check_equal(comm, &begin_s, 0));
        took_s = now_s() - begin_s;
        MPI_CHECK(strstr(tamis_last_error(), name), "it says: %s", tamis_last_error());
        MPI_CHECK(took_s < 1e-3 * TIMEOUT_MS + 1.0 * test_load(), "it took %.2f s", took_s);
    }
    double most_s = 0.0;
    MPI_Reduce(&took_s, &most_s, 1, MPI_DOUBLE, MPI_MAX, silent, MPI_COMM_WORLD);
    if (mpi_rank == silent)
        printf("silent rank %d of %d: named by all within %.2f s of %.1f\n", silent, mpi_nranks,
               most_s, 1e-3 * TIMEOUT_MS);
    tamis_comm_destroy(comm);
}

int main(int argc, char **argv) {
    mpi_begin(&argc, &argv, MPI_THREAD_MULTIPLE);
    MPI_Barrier(MPI_COMM_WORLD);
    long before_kib = resident_kib();
    double begin_s = now_s();
    tamis_comm *comm = mpi_comm(60000);
    double took_s = now_s() - begin_s;
    long grew_kib = resident_kib() - before_kib;
    if (mpi_rank == 0)
        printf("%d ranks, stages %s: created in %.3f s, memory grew by %ld KiB\n", mpi_nranks,
               tamis_comm_plan(comm), took_s, grew_kib);
    MPI_CHECK(grew_kib < (mpi_over_ucx() ? 64 : 16) * 1024, "memory grew by %ld KiB", grew_kib);
    check_plan(comm);
    check_sums(comm);
    tamis_comm_destroy(comm);
    check_silence(mpi_nranks - 1);
    mpi_leave();
    return 0;
}
