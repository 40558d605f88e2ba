/* SPDX-License-Identifier: MIT
 *
 * tamis_perf: times one operation over sizes and densities, always beside a dense all-reduce and an
 * axpy. Ends with status 1 if a check found an error.
 */
#include <stdlib.h>
#include <string.h>

#include "bench/common/device.h"
#include "bench/common/half.h"
#include "bench/common/start.h"
#include "bench/perf/perf.h"

static perf_case make_case(bench_group *group, const perf_settings *s, size_t n, double density) {
    perf_case c = {.group = group, .settings = s, .density = density};
    c.device = (tamis_device)s->device;
    c.type = (tamis_dtype)s->grad;
    c.index_codec = "u32"; /* where a device runs the steps */
    c.grad_bytes = n * bench_type_bytes(c.type);
    perf_shape_make(n, s->segments, s->seed, &c.shape);
    bench_scheme_find(s->scheme, &c.scheme);
    return c;
}

static double run_case(bench_group *group, const perf_settings *settings, size_t n,
                       double density) {
    perf_case c = make_case(group, settings, n, density);
    perf_sample *samples = perf_replays(&c) ? perf_replay(&c) : perf_loop(&c);
    double wrong = !settings->check                ? 0.0
                   : c.device == TAMIS_DEVICE_CUDA ? perf_parity(&c)
                                                   : perf_check(&c);
    if (group->rank == 0)
        perf_table_row(&c, samples, wrong);
    free(samples);
    perf_shape_free(&c.shape);
    return wrong;
}

static int run(bench_group *group, void *context) {
    const perf_settings *s = context;
    double wrong = 0;
    if (group->rank == 0)
        perf_table_header(s, group);
    for (uint64_t bytes = s->min_bytes; bytes <= s->max_bytes; bytes *= s->factor) {
        for (size_t d = 0; d < s->ndensities; d++)
            wrong += run_case(group, s, bytes / 4, s->densities[d]);
    }
    if (group->rank == 0 && s->check)
        fprintf(s->table, "# wrong elements: %.0f %s\n", wrong, wrong > 0 ? "FAILED" : "OK");
    return wrong > 0;
}

int main(int argc, char **argv) {
    static perf_settings settings;
    perf_settings_read(argc, argv, &settings);
    int status = bench_launch((bench_transport)settings.transport, (tamis_device)settings.device,
                              (uint32_t)settings.ranks, run, &settings);
    return bench_report_close(settings.report, status);
}
