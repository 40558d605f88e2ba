/* SPDX-License-Identifier: MIT
 *
 * Common to all operations on a case: its reducers, steps and gradients.
 */
#include <string.h>

#include "bench/common/device.h"
#include "bench/common/half.h"
#include "bench/common/reducer.h"
#include "bench/perf/perf.h"

static void report_phase(void *context, const tamis_phase_event *event) {
    const perf_case *c = context;
    tamis_energy_on_phase(c->meter, event);
}

tamis_reducer *perf_reducer(const perf_case *c, const char *scheme, tamis_output output,
                            tamis_device device) {
    tamis_layout *layout;
    tamis_reducer *reducer;
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    tamis_update update = TAMIS_UPDATE_INIT;
    config.scheme = scheme;
    config.density = c->density;
    config.output = output;
    config.capacity = c->settings->capacity;
    config.threads = (uint32_t)c->settings->threads;
    config.device = device;
    config.grad_dtype = c->type;
    config.index_codec = (tamis_index_codec)c->settings->index;
    if (strcmp(scheme, "dense") != 0) { /* which has no residual to keep what rounding takes */
        config.value_codec = (tamis_value_codec)c->settings->values;
        config.sum_codec = (tamis_value_codec)c->settings->sum_values;
        config.ranks_per_node = (uint32_t)c->settings->nodes_of;
    }
    bool baseline = strcmp(scheme, c->settings->scheme) != 0; /* counts as one phase */
    if (!baseline) {
        config.on_phase = report_phase;
        config.on_phase_context = (void *)c;
    }
    if (c->settings->op == PERF_UPDATE) {
        update.beta1 = c->settings->beta1;
        config.update = &update;
    }
    if (!baseline)
        bench_reducer_set(c->settings->set, perf_own_options, &config,
                          config.update ? &update : NULL);
    bench_try(c->group, tamis_layout_create(c->shape.segments, c->shape.nsegments, &layout),
              "cannot create a layout");
    bench_try(c->group, tamis_reducer_create(c->group->comm, layout, &config, &reducer),
              "cannot create a reducer");
    tamis_layout_destroy(layout);
    return reducer;
}

void perf_step(const perf_case *c, tamis_reducer *reducer, void *grad) {
    tamis_step step = TAMIS_STEP_INIT;
    step.grad = grad;
    bench_try(c->group, tamis_reducer_start(reducer, &step), "start of a step");
    bench_try(c->group, tamis_reducer_wait(reducer), "end of a step");
}

/* Residual and moments read and written, gradient read and, for dense output, cleared. */
double perf_pass_bytes(const perf_case *c) {
    bool dense = c->settings->output == TAMIS_OUTPUT_DENSE;
    double vectors = c->settings->op == PERF_UPDATE ? 24.0 : 8.0;
    return (vectors + (dense ? 2.0 : 1.0) * (double)bench_type_bytes(c->type)) * (double)c->shape.n;
}

void perf_gradient_put(const perf_case *c, uint64_t stream, float *scratch, void *out) {
    perf_gradient(&c->shape, c->settings->seed, stream, scratch);
    bench_narrow(c->type, scratch, c->shape.n, scratch);
    bench_device_write(c->device, scratch, c->grad_bytes, out);
}
