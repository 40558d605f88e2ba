/* SPDX-License-Identifier: MIT
 *
 * data_parallel.c with AdamW, in update mode: each rank runs Adam on its own gradient, and the
 * ranks exchange the steps instead of gradients (docs/fidelity.md says why). The differences from
 * data_parallel.c are between lines of dashes.
 *
 *     mpicc -O2 adamw.c -o adamw $(pkg-config --cflags --libs tamis) -lm
 *     mpirun -np 4 ./adamw
 */
#include <mpi.h>
#include <stdio.h>
#include <tamis/mpi.h>
#include <tamis/overlap.h>

#include "model.h"

enum { STEPS = 1000, BATCH = 16, TELL_EVERY = 250 };

static const float rate = 0.002f, weight_decay = 0.01f;

/* The message says what went wrong, where and on which rank. A failure on one rank ends all. */
static void check(tamis_status status, const char *call) {
    if (status == TAMIS_OK)
        return;
    fprintf(stderr, "%s: %s\n%s\n", call, tamis_last_error(), tamis_status_remedy(status));
    MPI_Abort(MPI_COMM_WORLD, 1);
}
#define CHECK(call) check(call, #call)

int main(int argc, char **argv) {
    static float params[PARAMETERS], grads[PARAMETERS];
    static model_pass passes[BATCH];
    int rank, nranks, threads;

    /* Lets a thread of the library drive the exchange while this one computes. */
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &threads);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &nranks);
    if (threads < MPI_THREAD_MULTIPLE && rank == 0)
        fprintf(stderr, "this MPI has no MPI_THREAD_MULTIPLE: nothing will overlap\n");

    enum { SEGMENT_W1, SEGMENT_B1, SEGMENT_W2, SEGMENT_B2, SEGMENTS };
    const tamis_segment segments[SEGMENTS] = {
        {"W1", B1 - W1}, {"b1", W2 - B1}, {"W2", B2 - W2}, {"b2", 1}};
    tamis_comm *comm;
    tamis_layout *layout;
    tamis_reducer *reducer;
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    config.bucket_length = HIDDEN; /* 2 buckets: the output's travels while hidden computes */
    /* ----------------------------------------------------------------------------------------- */
    tamis_update update = TAMIS_UPDATE_INIT; /* Adam; density and the rest are what suits it */
    config.update = &update;
    /* ----------------------------------------------------------------------------------------- */
    CHECK(tamis_comm_create_mpi(MPI_COMM_WORLD, NULL, &comm));
    CHECK(tamis_layout_create(segments, SEGMENTS, &layout));
    CHECK(tamis_reducer_create(comm, layout, &config, &reducer));
    tamis_layout_destroy(layout);

    /* All ranks begin with the same parameters and then apply the same changes. */
    if (rank == 0)
        model_init(params);
    MPI_Bcast(params, PARAMETERS, MPI_FLOAT, 0, MPI_COMM_WORLD);
    CHECK(tamis_comm_check_equal(comm, params, sizeof params));

    double loss = 0.0; /* of the steps since the last report */
    for (int step = 1; step <= STEPS; step++) {
        memset(grads, 0, sizeof grads);
        for (int i = 0; i < BATCH; i++) { /* rank r has samples r, r + P, r + 2 P, ... */
            uint64_t sample = ((uint64_t)step * BATCH + (uint64_t)i) * (uint64_t)nranks;
            loss += model_forward(params, sample + (uint64_t)rank, &passes[i]);
        }

        tamis_step s = TAMIS_STEP_INIT;
        s.grad = grads;
        for (int i = 0; i < BATCH; i++)
            model_backward_output(&passes[i], 1.0f / BATCH, grads);
        CHECK(tamis_reducer_ready(reducer, SEGMENT_B2, &s)); /* now the library owns it */
        CHECK(tamis_reducer_ready(reducer, SEGMENT_W2, &s));
        for (int i = 0; i < BATCH; i++)
            model_backward_hidden(params, &passes[i], 1.0f / BATCH, grads);
        CHECK(tamis_reducer_ready(reducer, SEGMENT_B1, &s));
        CHECK(tamis_reducer_ready(reducer, SEGMENT_W1, &s));

        CHECK(tamis_reducer_wait(reducer)); /* grads: the chosen entries of Adam's steps */
        /* ------------------------------------------------------------------------------------- */
        for (int i = 0; i < PARAMETERS; i++) {
            params[i] -= rate * weight_decay * params[i];
            params[i] -= rate * grads[i];
        }
        /* ------------------------------------------------------------------------------------- */

        if (step % TELL_EVERY == 0) {
            CHECK(tamis_comm_check_equal(comm, params, sizeof params));
            MPI_Allreduce(MPI_IN_PLACE, &loss, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
            if (rank == 0)
                printf("step %d, loss %.4f\n", step, loss / (TELL_EVERY * BATCH * nranks));
            loss = 0.0;
        }
    }
    if (rank == 0)
        printf("replicas identical\n");

    tamis_reducer_destroy(reducer);
    tamis_comm_destroy(comm);
    MPI_Finalize();
    return 0;
}
