/* SPDX-License-Identifier: MIT
 *
 * A rank dies, and the others go on. Told to `die`, the last rank kills itself in the middle of the
 * run; that needs an MPI with ULFM, as Open MPI 5:
 *
 *     mpicc -O2 survive.c -o survive $(pkg-config --cflags --libs tamis) -lm
 *     mpirun --with-ft ulfm -np 4 ./survive die
 *
 *     rank 0   step 500 . . . lost | shrink, migrate | step 500 | step 501 ...     rank 0 of 3
 *     rank 1   step 500 . . . lost | shrink, migrate | step 500 | step 501 ...     rank 1 of 3
 *     rank 2   step 500 . . . lost | shrink, migrate | step 500 | step 501 ...     rank 2 of 3
 *     rank 3   (dead)
 */
#include <mpi.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <tamis/elastic.h>
#include <tamis/mpi.h>
#include <unistd.h>

#include "model.h"

enum { STEPS = 1000, BATCH = 16, TELL_EVERY = 250, DIES_BEFORE = STEPS / 2 };

static const float rate = 0.05f;

/* Parameters, and what they were before the last step: a rank that has made a step which others
 * have not goes back. An optimizer's state belongs here, too. */
typedef struct model {
    float params[PARAMETERS], before[PARAMETERS];
    uint64_t step; /* steps made */
} model;

static tamis_comm *comm;
static tamis_reducer *reducer;

static void check(tamis_status status, const char *call) {
    if (status == TAMIS_OK)
        return;
    fprintf(stderr, "%s: %s\n%s\n", call, tamis_last_error(), tamis_status_remedy(status));
    MPI_Abort(MPI_COMM_WORLD, 1);
}
#define CHECK(call) check(call, #call)

static void open_reducer(void) {
    const tamis_segment segments[] = {{"W1", B1 - W1}, {"b1", W2 - B1}, {"W2", B2 - W2}, {"b2", 1}};
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    tamis_layout *layout;
    config.density = 0.05;
    CHECK(tamis_comm_create_mpi(MPI_COMM_WORLD, NULL, &comm));
    CHECK(tamis_layout_create(segments, 4, &layout));
    CHECK(tamis_reducer_create(comm, layout, &config, &reducer));
    tamis_layout_destroy(layout);
}

/* The samples of a step follow from its number and from the ranks that there are now. */
static double gradient(const model *m, float *grads) {
    static model_pass pass;
    uint64_t rank = tamis_comm_rank(comm), nranks = tamis_comm_nranks(comm);
    double loss = 0.0;
    memset(grads, 0, PARAMETERS * sizeof *grads);
    for (uint64_t i = 0; i < BATCH; i++) {
        loss += model_forward(m->params, (m->step * BATCH + i) * nranks + rank, &pass) / BATCH;
        model_backward_output(&pass, 1.0f / BATCH, grads);
        model_backward_hidden(m->params, &pass, 1.0f / BATCH, grads);
    }
    return loss;
}

/* @return false: the communicator is lost, and the model stays as it is. What this rank has given
 * to the step is in its residual, and comes on top of the next gradient. */
static bool exchange(float *grads) {
    tamis_step s = TAMIS_STEP_INIT;
    s.grad = grads;
    tamis_status status = tamis_reducer_start(reducer, &s);
    if (status == TAMIS_OK)
        status = tamis_reducer_wait(reducer);
    if (tamis_status_loss(status) >= TAMIS_LOST_COMM)
        return false;
    check(status, "a step");
    return true;
}

static void apply(model *m, const float *grads) {
    memcpy(m->before, m->params, sizeof m->params);
    for (int i = 0; i < PARAMETERS; i++)
        m->params[i] -= rate * grads[i];
    m->step++;
}

/* Go on with whoever lives: the reducer with its residual, the model from the step that all of them
 * have. Another rank may die meanwhile. The old communicator goes last, after its reducer. */
static void recover(model *m) {
    tamis_migration report = TAMIS_MIGRATION_INIT;
    tamis_status status = TAMIS_E_ABORTED;
    tamis_comm *lost = comm, *smaller;
    tamis_reducer *migrated;
    while (status != TAMIS_OK) {
        CHECK(tamis_comm_shrink(lost, NULL, &smaller));
        if (lost != comm)
            tamis_comm_destroy(lost);
        status = tamis_reducer_migrate(reducer, smaller, &report, &migrated);
        if (tamis_status_loss(status) < TAMIS_LOST_COMM)
            check(status, "tamis_reducer_migrate");
        lost = smaller;
    }
    tamis_reducer_destroy(reducer);
    tamis_comm_destroy(comm);
    reducer = migrated;
    comm = smaller;
    if (m->step == report.step + 1) {
        memcpy(m->params, m->before, sizeof m->params);
        m->step--;
    }
    CHECK(tamis_comm_check_equal(comm, m->params, sizeof m->params));
    if (tamis_comm_rank(comm) == 0)
        printf("%u of %u ranks go on from step %llu\n", tamis_comm_nranks(comm),
               tamis_comm_nranks(comm) + report.gone, (unsigned long long)m->step);
}

int main(int argc, char **argv) {
    static model m;
    static float grads[PARAMETERS];
    bool deadly = argc > 1 && strcmp(argv[1], "die") == 0, fewer = false;
    double loss = 0.0; /* of this rank, in the steps since the last report */
    int threads;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &threads);
    open_reducer();
    model_init(m.params);
    CHECK(tamis_comm_check_equal(comm, m.params, sizeof m.params));
    uint32_t last = tamis_comm_nranks(comm) - 1; /* who dies */

    while (m.step < STEPS) {
        if (deadly && m.step == DIES_BEFORE && tamis_comm_rank(comm) == last)
            raise(SIGKILL);
        double here = gradient(&m, grads);
        if (!exchange(grads)) {
            recover(&m);
            fewer = true;
            continue;
        }
        apply(&m, grads);
        loss += here;
        if (m.step % TELL_EVERY == 0 && tamis_comm_rank(comm) == 0)
            printf("step %llu, loss %.4f\n", (unsigned long long)m.step, loss / TELL_EVERY);
        loss = m.step % TELL_EVERY == 0 ? 0.0 : loss;
    }
    CHECK(tamis_comm_check_equal(comm, m.params, sizeof m.params));
    if (tamis_comm_rank(comm) == 0)
        printf("replicas identical\n");

    tamis_reducer_destroy(reducer);
    tamis_comm_destroy(comm);
    fflush(stdout);
    if (fewer)
        _exit(0); /* MPI_Finalize of Open MPI 5.0 may wait for the dead */
    MPI_Finalize();
    return 0;
}
