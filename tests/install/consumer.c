/* SPDX-License-Identifier: MIT
 *
 * A program as a user writes it: one rank, one step, half of four entries.
 */
#include <stdio.h>
#include <tamis/tamis.h>

static int reduce(tamis_comm *comm, const tamis_layout *layout) {
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    config.density = 0.5;
    tamis_reducer *reducer = NULL;
    if (tamis_reducer_create(comm, layout, &config, &reducer) != TAMIS_OK)
        return 1;
    float grad[4] = {1.0f, -8.0f, 0.5f, 4.0f};
    tamis_step step = TAMIS_STEP_INIT;
    step.grad = grad;
    int bad =
        tamis_reducer_start(reducer, &step) != TAMIS_OK || tamis_reducer_wait(reducer) != TAMIS_OK;
    tamis_reducer_destroy(reducer);
    printf("%g %g %g %g\n", grad[0], grad[1], grad[2], grad[3]);
    return bad || grad[0] != 0.0f || grad[1] != -8.0f || grad[2] != 0.0f || grad[3] != 4.0f;
}

int main(void) {
    tamis_comm *comm = NULL;
    tamis_layout *layout = NULL;
    tamis_segment segment = {"weights", 4};
    int bad = tamis_version() != TAMIS_VERSION ||
              tamis_comm_create_local(1, NULL, &comm) != TAMIS_OK ||
              tamis_layout_create(&segment, 1, &layout) != TAMIS_OK || reduce(comm, layout);
    if (bad)
        fprintf(stderr, "consumer: wrong result; last error: %s\n", tamis_last_error());
    tamis_layout_destroy(layout);
    tamis_comm_destroy(comm);
    return bad;
}
