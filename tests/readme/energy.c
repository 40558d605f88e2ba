/* SPDX-License-Identifier: MIT */
#include "harness.h"

#include <tamis/energy.h>

int main(int argc, char **argv) {
    tamis_segment segments[] = {{"all", n}};
    tamis_comm *comm;
    tamis_layout *layout;
    tamis_reducer *red;
    tamis_energy *energy;
    tamis_energy_totals totals = TAMIS_ENERGY_TOTALS_INIT;
    int level;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
#include "energy.open"
    check(tamis_comm_create_mpi(MPI_COMM_WORLD, NULL, &comm));
    check(tamis_layout_create(segments, 1, &layout));
    tamis_reducer_config cfg = TAMIS_REDUCER_CONFIG_INIT;
#include "energy.cfg"
    check(tamis_reducer_create(comm, layout, &cfg, &red));
    for (int i = 0; i < steps; i++) {
        tamis_step step = TAMIS_STEP_INIT;
        step.grad = grads;
        backward(grads);
        check(tamis_reducer_start(red, &step));
        check(tamis_reducer_wait(red));
        optimizer(params, grads);
    }
#include "energy.body"
    end_well("energy", comm, layout, red);
    tamis_energy_destroy(energy);
    return totals.known || totals.missing[0] ? 0 : 1; /* joules, or why there are none */
}
