/* SPDX-License-Identifier: MIT
 *
 * Segments that have rows, over MPI: the same bits as a dense sum, on all ranks, whichever way the
 * rows are summed.
 */
#include "tests/support/data.h"
#include "tests/support/mpi_ranks.h"
#include "tests/support/rank_tree.h"
#include <stdlib.h>
#include <string.h>
#include <tamis/overlap.h>

/* An ordinary segment, 400 rows of 12, another. */
enum { HEAD = 500, ROWS = 400, LENGTH = 12, WORDS = ROWS * LENGTH, TAIL = 300, STEPS = 6 };
enum { N = HEAD + WORDS + TAIL };

/* Steps take turns: others, the same, many, all. */
static int touched(int rank, uint32_t step, size_t row) {
    switch (step % 4) {
    case 0:
        return row % 40 == (size_t)rank;
    case 1:
        return row % 50 == 3;
    case 2:
        return data_mix(row << 8 | (uint64_t)rank) % 3 != 0;
    default:
        return 1;
    }
}

static void fill(int rank, uint32_t step, float *grad) {
    data_fill_real((uint32_t)rank, step, N, grad);
    for (size_t i = 0; i < WORDS; i++) {
        if (!touched(rank, step, i / LENGTH))
            grad[HEAD + i] = 0.0f;
    }
}

static void check_step(const char *scheme, uint32_t step, const float *got) {
    uint32_t nranks = (uint32_t)mpi_nranks;
    float *grads = malloc(nranks * N * sizeof *grads);
    size_t wrong = 0;
    for (uint32_t r = 0; r < nranks; r++)
        fill((int)r, step, grads + (size_t)r * N);
    for (size_t i = HEAD; i < HEAD + WORDS; i++) {
        float mean = (0.0f + rank_tree_sum(grads + i, N, nranks)) / (float)nranks; /* no -0 */
        wrong += memcmp(&mean, &got[i], sizeof got[i]) != 0;
    }
    MPI_CHECK(wrong == 0, "%s, step %u: %zu sums of rows are wrong", scheme, step, wrong);
    free(grads);
}

static tamis_reducer *make(tamis_comm *comm, const char *scheme, uint64_t bucket_length) {
    static const tamis_segment segments[] = {{"head", HEAD}, {"words", WORDS}, {"tail", TAIL}};
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    tamis_layout *layout = NULL;
    tamis_reducer *reducer = NULL;
    config.scheme = scheme;
    config.bucket_length = bucket_length;
    MPI_OK(tamis_layout_create(segments, 3, &layout));
    MPI_OK(tamis_layout_set_rows(layout, 1, LENGTH));
    MPI_OK(tamis_reducer_create(comm, layout, &config, &reducer));
    tamis_layout_destroy(layout);
    return reducer;
}

static void run(tamis_comm *comm, const char *scheme, uint64_t bucket_length) {
    float *grad = malloc(N * sizeof *grad);
    tamis_reducer *reducer = make(comm, scheme, bucket_length);
    const tamis_step step = data_step(grad);
    for (uint32_t number = 0; reducer && number < STEPS; number++) {
        fill(mpi_rank, number, grad);
        for (uint32_t s = 3; bucket_length > 0 && s-- > 0;)
            MPI_OK(tamis_reducer_ready(reducer, s, &step));
        if (bucket_length == 0)
            MPI_OK(tamis_reducer_start(reducer, &step));
        MPI_OK(tamis_reducer_wait(reducer));
        check_step(scheme, number, grad);
        uint64_t hash = data_hash(0, grad, N * sizeof *grad), first = hash;
        MPI_Bcast(&first, 1, MPI_UINT64_T, 0, MPI_COMM_WORLD);
        MPI_CHECK(hash == first, "%s, step %u: not what rank 0 has", scheme, number);
    }
    tamis_reducer_destroy(reducer);
    free(grad);
}

int main(int argc, char **argv) {
    static const char *const schemes[] = {"tamis", "dense", "micro", "all+global+exact+pairs"};
    mpi_begin(&argc, &argv, MPI_THREAD_MULTIPLE);
    tamis_comm *comm = mpi_comm(30000);
    for (size_t s = 0; s < sizeof schemes / sizeof schemes[0]; s++) {
        run(comm, schemes[s], 0);
        run(comm, schemes[s], 100);
    }
    tamis_comm_destroy(comm);
    return mpi_end();
}
