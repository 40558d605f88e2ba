/* SPDX-License-Identifier: MIT */
#include "harness.h"

#include <tamis/overlap.h>

static const size_t begins[] = {0, 200704, 200704 + 256, 200704 + 256 + 2560, n};

static void backward_layer(int layer, float *out) {
    fill(out, begins[layer], begins[layer + 1]);
}

int main(int argc, char **argv) {
    tamis_segment segments[] = {{"W1", 200704}, {"b1", 256}, {"W2", 2560}, {"b2", 10}};
    tamis_comm *comm;
    tamis_layout *layout;
    tamis_reducer *red;
    int level, last = 3;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
    check(tamis_comm_create_mpi(MPI_COMM_WORLD, NULL, &comm));
    check(tamis_layout_create(segments, 4, &layout));
    tamis_reducer_config cfg = TAMIS_REDUCER_CONFIG_INIT;
#include "overlap.cfg"
    check(tamis_reducer_create(comm, layout, &cfg, &red));
    for (int i = 0; i < steps; i++) {
        tamis_step step = TAMIS_STEP_INIT;
        step.grad = grads;
#include "overlap.body"
        optimizer(params, grads);
    }
    end_well("overlap", comm, layout, red);
    return 0;
}
