/* SPDX-License-Identifier: MIT
 *
 * Over MPI: the same bits as over the local transport, scheme "dense" equals MPI_Allreduce, mass is
 * conserved.
 */
#include "tests/support/data.h"
#include "tests/support/mpi_ranks.h"
#include "tests/support/schemes.h"
#include <stdlib.h>
#include <string.h>

enum { STEPS = 6 };

/* One run of a scheme, over whatever communicator. */
typedef struct run_case {
    const char *scheme;
    size_t n;
    double density;
    bool real; /* numbers for which the order of summation shows */
    tamis_index_codec index_codec;
    tamis_value_codec value_codec;
    uint32_t ranks_per_node;
    const tamis_update *update; /* NULL: gradients */
    /* per rank and step, of gradient, result and residual */
    uint64_t hash[RANKS_MOST][STEPS];
    double mass[RANKS_MOST]; /* put in less what is held; rank 0: less what was applied */
} run_case;

static double sum_of(const float *x, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += (double)x[i];
    return sum;
}

static tamis_status hash_step(const tamis_reducer *reducer, const float *gradient, size_t n,
                              uint64_t *out) {
    tamis_result result = TAMIS_RESULT_INIT;
    const float *residual = NULL;
    tamis_status status = tamis_reducer_result(reducer, &result);
    if (status == TAMIS_OK)
        status = tamis_reducer_residual(reducer, &residual);
    if (status != TAMIS_OK)
        return status;
    *out = data_hash(result.count, gradient, n * sizeof(float));
    if (result.indices) {
        *out = data_hash(*out, result.indices, result.count * sizeof(uint32_t));
        *out = data_hash(*out, result.values, result.count * sizeof(float));
    }
    if (residual)
        *out = data_hash(*out, residual, data_held(reducer) * sizeof(float));
    return TAMIS_OK;
}

static tamis_status run_steps(run_case *run, tamis_reducer *reducer, uint32_t r, float *gradient) {
    const float *residual = NULL;
    tamis_step step = TAMIS_STEP_INIT;
    tamis_status status = TAMIS_OK;
    step.grad = gradient;
    run->mass[r] = 0;
    for (uint32_t number = 0; status == TAMIS_OK && number < STEPS; number++) {
        if (run->real)
            data_fill_real(r, number, run->n, gradient);
        else
            data_fill(DATA_HEAVY, r, number, run->n, gradient);
        run->mass[r] += sum_of(gradient, run->n);
        if ((status = tamis_reducer_start(reducer, &step)) == TAMIS_OK &&
            (status = tamis_reducer_wait(reducer)) == TAMIS_OK)
            status = hash_step(reducer, gradient, run->n, &run->hash[r][number]);
        if (r == 0)
            run->mass[r] -= sum_of(gradient, run->n);
    }
    if (status == TAMIS_OK)
        status = tamis_reducer_residual(reducer, &residual);
    if (residual)
        run->mass[r] -= sum_of(residual, data_held(reducer));
    return status;
}

static tamis_status run_rank(run_case *run, tamis_comm *comm) {
    tamis_reducer *reducer = NULL;
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    tamis_layout *layout = data_layout(run->n);
    float *gradient = malloc(run->n * sizeof *gradient);
    config.scheme = run->scheme;
    config.density = run->density;
    config.op = TAMIS_OP_SUM;
    config.index_codec = run->index_codec;
    config.value_codec = run->value_codec;
    config.ranks_per_node = run->ranks_per_node;
    config.update = run->update;
    config.residual_decay = run->update ? 0.5 : 1.0;
    tamis_status status = tamis_reducer_create(comm, layout, &config, &reducer);
    if (status == TAMIS_OK)
        status = run_steps(run, reducer, tamis_comm_rank(comm), gradient);
    tamis_reducer_destroy(reducer);
    tamis_layout_destroy(layout);
    free(gradient);
    return status;
}

static void run_local(test_rank *self) {
    RANK_OK(self, run_rank(self->shared, self->comm));
}

static void compare(tamis_comm *comm, const run_case *what) {
    static run_case over_mpi, local;
    uint64_t expected[STEPS];
    double total = 0;
    over_mpi = local = *what;
    MPI_OK(run_rank(&over_mpi, comm));
    if (mpi_rank == 0) {
        test_context("%s over threads", what->scheme);
        ranks_run((uint32_t)mpi_nranks, 0, run_local, &local);
    }
    MPI_Scatter(local.hash, sizeof expected, MPI_BYTE, expected, sizeof expected, MPI_BYTE, 0,
                MPI_COMM_WORLD);
    for (int step = 0; step < STEPS; step++)
        MPI_CHECK(over_mpi.hash[mpi_rank][step] == expected[step],
                  "%s n=%zu density=%g: step %d differs from the local transport", what->scheme,
                  what->n, what->density, step);
    MPI_Reduce(&over_mpi.mass[mpi_rank], &total, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
    MPI_CHECK(mpi_rank != 0 || what->real || total == 0, "%s n=%zu density=%g: %g was lost",
              what->scheme, what->n, what->density, total);
}

static void check_same_bits(tamis_comm *comm) {
    static const size_t sizes[] = {1, 7, 1000, 50021};
    static const double densities[] = {1, 0.05, 0.001};
    scheme_case scheme;
    for (size_t s = 0; scheme_preset(s, &scheme); s++)
        for (size_t n = 0; n < 4; n++)
            for (size_t d = 0; d < 3; d++) {
                if (!test_drawn(5))
                    continue;
                run_case run = {.scheme = scheme.name, .n = sizes[n], .density = densities[d]};
                compare(comm, &run);
                run.real = true;
                compare(comm, &run);
            }
    run_case pairs = {.scheme = "cyclic+norm+predict+pairs", .n = 4097, .density = 0.02};
    compare(comm, &pairs);
}

/* 16 bits, and every index codec. */
static void check_codecs(tamis_comm *comm) {
    static const char *const schemes[] = {"tamis", "topk", "micro", "cyclic+norm+predict+pairs"};
    for (int s = 0; s < 4; s++)
        for (tamis_index_codec f = TAMIS_INDEX_AUTO; f < TAMIS_INDEX_END; f++) {
            run_case run = {.scheme = schemes[s], .n = 50021, .density = 0.05, .index_codec = f};
            compare(comm, &run);
            run.value_codec = TAMIS_VALUE_BFLOAT16;
            compare(comm, &run);
            run.real = true;
            compare(comm, &run);
        }
}

/* Nodes of any size that divides the ranks; the longer vector has several chunks. */
static void check_nodes(tamis_comm *comm) {
    static const size_t sizes[] = {1000, 400009};
    for (uint32_t size = 2; size <= (uint32_t)mpi_nranks; size++)
        for (size_t n = 0; n < 2 && (uint32_t)mpi_nranks % size == 0; n++) {
            run_case run = {
                .scheme = "tamis", .n = sizes[n], .density = 0.02, .ranks_per_node = size};
            compare(comm, &run);
            run.real = true;
            compare(comm, &run);
        }
}

/* The update of each rank depends on what was applied before, and so does its residual. */
static void check_updates(tamis_comm *comm) {
    tamis_update update = TAMIS_UPDATE_INIT;
    update.beta1 = 0.9;
    for (int rule = TAMIS_UPDATE_ADAM; rule <= TAMIS_UPDATE_MOMENTUM; rule++) {
        run_case run = {.n = 50021, .density = 0.01, .real = true, .update = &update};
        update.rule = (tamis_update_rule)rule;
        run.scheme = "tamis";
        compare(comm, &run);
        run.scheme = "cyclic+norm+predict+pairs";
        compare(comm, &run);
    }
}

static void check_dense(tamis_comm *comm) {
    enum { N = 30011 };
    static float gradient[N], expected[N];
    tamis_reducer *reducer = NULL;
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    tamis_layout *layout = data_layout(N);
    tamis_step step = TAMIS_STEP_INIT;
    config.scheme = "dense";
    config.op = TAMIS_OP_SUM;
    step.grad = gradient;
    MPI_OK(tamis_reducer_create(comm, layout, &config, &reducer));
    for (uint32_t number = 0; number < 3; number++) {
        data_fill(DATA_HEAVY, (uint32_t)mpi_rank, number, N, gradient);
        MPI_Allreduce(gradient, expected, N, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        MPI_OK(tamis_reducer_start(reducer, &step));
        MPI_OK(tamis_reducer_wait(reducer));
        for (size_t i = 0; i < N; i++)
            if (gradient[i] != expected[i]) {
                MPI_CHECK(false, "dense, entry %zu: %g, MPI says %g", i, (double)gradient[i],
                          (double)expected[i]);
                break;
            }
    }
    tamis_reducer_destroy(reducer);
    tamis_layout_destroy(layout);
}

int main(int argc, char **argv) {
    mpi_begin(&argc, &argv, MPI_THREAD_MULTIPLE);
    tamis_comm *comm = mpi_comm(test_long_ms());
    MPI_CHECK(tamis_comm_rank(comm) == (uint32_t)mpi_rank, "rank %u", tamis_comm_rank(comm));
    MPI_CHECK(tamis_comm_nranks(comm) == (uint32_t)mpi_nranks, "%u ranks", tamis_comm_nranks(comm));
    MPI_CHECK(strcmp(tamis_comm_transport(comm), mpi_over_ucx() ? "ucx" : "mpi") == 0, "%s",
              tamis_comm_transport(comm));
    check_same_bits(comm);
    check_codecs(comm);
    check_nodes(comm);
    check_updates(comm);
    check_dense(comm);
    tamis_comm_destroy(comm);
    return mpi_end();
}
