/* SPDX-License-Identifier: MIT
 *
 * Steps of a reducer with preset `tamis` through the public interface. Predicted: packets with room
 * for ceil(k / P) indices by the codec that the reducer chose, then a sum of k floats, by the plan
 * that transport mpi uses.
 */
#include "bench/scale/verify.h"

#include "bench/common/measure.h"
#include "bench/common/random.h"
#include "bench/common/report.h"
#include "lib/contracts/index_codec.h"
#include "lib/base/header.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <tamis/overlap.h>
#include <tamis/stats.h>

enum { WARMUP = 3 };

typedef struct measured {
    tamis_stats stats;
    tamis_bucket bucket;
    double exchange_s; /* median of the slowest rank's */
} measured;

static tamis_reducer *open_reducer(bench_group *group, const scale_settings *s) {
    tamis_segment all = {"all", s->elements};
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    tamis_layout *layout;
    tamis_reducer *reducer;
    config.density = s->density;
    config.value_codec = (tamis_value_codec)s->values;
    config.sum_codec = (tamis_value_codec)s->sum_values;
    config.index_codec = s->index_bytes == 4.0 ? TAMIS_INDEX_U32 : TAMIS_INDEX_AUTO;
    bench_try(group, tamis_layout_create(&all, 1, &layout), "cannot create a layout");
    bench_try(group, tamis_reducer_create(group->comm, layout, &config, &reducer),
              "cannot create a reducer");
    tamis_layout_destroy(layout);
    return reducer;
}

/* Another gradient in each step, with heavy tails. */
static void fill_gradient(const bench_group *group, uint64_t step, float *grad, size_t n) {
    for (size_t i = 0; i < n; i++) {
        uint64_t x = bench_random(group->rank + 1, step * n + i);
        grad[i] = (float)((double)(int64_t)x * 0x1p-63 / (1.0 + (double)(x & 1023)));
    }
}

static void run_steps(bench_group *group, const scale_settings *s, measured *out) {
    tamis_reducer *reducer = open_reducer(group, s);
    size_t n = (size_t)s->elements;
    float *grad = bench_alloc(n, sizeof *grad);
    double *times = bench_alloc(s->steps, sizeof *times);
    for (uint64_t step = 0; step < s->steps + WARMUP; step++) {
        tamis_step given = TAMIS_STEP_INIT;
        fill_gradient(group, step, grad, n);
        given.grad = grad;
        bench_barrier(group);
        bench_try(group, tamis_reducer_start(reducer, &given), "start of a step");
        bench_try(group, tamis_reducer_wait(reducer), "end of a step");
        bench_try(group, tamis_reducer_stats(reducer, &out->stats), "no figures");
        double longest_s = bench_max(group, out->stats.exchange_s - out->stats.skew_s);
        if (step >= WARMUP)
            times[step - WARMUP] = longest_s;
    }
    bench_try(group, tamis_reducer_bucket_at(reducer, 0, &out->bucket), "no bucket");
    out->exchange_s = bench_median(times, (size_t)s->steps);
    tamis_reducer_destroy(reducer);
    free(times);
    free(grad);
}

#define NAME_OF(NAME, name, number) [number] = #name,

/* Bytes of the longest encoding of a rank's budget, as fixed packets have room for. */
static size_t packet_of(bench_group *group, const scale_settings *s, const measured *m) {
    static const char *const names[] = {TAMIS_INDEX_CODECS(NAME_OF)};
    uint64_t p = group->nranks, each = (m->stats.target + p - 1) / p;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (!names[i] || strcmp(names[i], m->bucket.index_codec) != 0)
            continue;
        const tam_index_codec *codec = tam_index_codec_of((tamis_index_codec)i);
        size_t bytes = (size_t)codec->bytes((s->elements + p - 1) / p, each);
        return tam_header_bytes(0) + tam_header_round(bytes);
    }
    bench_fail(group, "index codec %s is not known to this program", m->bucket.index_codec);
}

static void report(const scale_settings *s, const scale_case *c, const measured *m,
                   const tam_plan *plan, const double bytes[2], double formula_s) {
    char text[64];
    FILE *out = s->report == stdout ? stderr : stdout;
    bool given = strcmp(s->net.name, "given") == 0; /* a named one is not what the ranks have */
    fprintf(out,
            "# tamis_scale --verify: %u ranks, plan %s, n %llu, k %llu of %llu selected, indices "
            "%s\n"
            "# bytes of rank 0 in a step: sent %.0f, predicted %.0f (%+.2f %%)\n"
            "# exchange of a step, slowest rank, median: %.1f us measured",
            c->nranks, tam_plan_text(plan, text, sizeof text), (unsigned long long)s->elements,
            (unsigned long long)m->stats.target, (unsigned long long)m->stats.selected,
            m->bucket.index_codec, bytes[0], bytes[1], 100.0 * (bytes[0] / bytes[1] - 1.0),
            1e6 * m->exchange_s);
    if (given)
        fprintf(out, "; %.1f us by the formula for net %s", 1e6 * formula_s, s->net_text);
    fputs("\n", out);
    json_t *record = bench_report_new("scale-verify"), *more;
    more = json_pack("{ss sI sI sI ss ss sf sf sf so}", "net", s->net.name, "ranks",
                     (json_int_t)c->nranks, "elements", (json_int_t)s->elements, "entries",
                     (json_int_t)m->stats.selected, "plan", text, "index_codec",
                     m->bucket.index_codec, "sent_bytes", bytes[0], "predicted_bytes", bytes[1],
                     "exchange_us", 1e6 * m->exchange_s, "formula_us",
                     given ? json_real(1e6 * formula_s) : json_null());
    json_object_update(record, more);
    json_decref(more);
    bench_report_write(s->report, record);
}

int scale_verify(bench_group *group, void *context) {
    const scale_settings *s = context;
    measured m = {.stats = TAMIS_STATS_INIT, .bucket = TAMIS_BUCKET_INIT};
    run_steps(group, s, &m);
    tam_plan plan;
    if (!tam_plan_parse(tamis_comm_plan(group->comm), group->nranks, 1, &plan))
        bench_fail(group, "stages %s are no plan", tamis_comm_plan(group->comm));
    scale_case c = scale_case_of(s, group->nranks);
    uint64_t predicted = 0;
    scale_fill_case(&c, m.stats.selected, s->index_bytes, 1); /* of one segment */
    c.packet_bytes = packet_of(group, s, &m);
    bench_try(group, scale_count_rank(&c, &plan, group->rank, &predicted), "cannot count");
    double bytes[2] = {(double)m.stats.wire_bytes, (double)predicted};
    double off = predicted > 0 ? fabs(bytes[0] / bytes[1] - 1.0) : bytes[0] > 0.0;
    double most = bench_max(group, off);
    if (group->rank == 0)
        report(s, &c, &m, &plan, bytes, scale_formula_s(&c, &plan));
    if (most > 0.05 && off == most)
        fprintf(
            stderr,
            "tamis_scale: rank %u of %u sent %.0f bytes in a step where plan and index codec give "
            "%.0f: they differ by %.1f %%, more than 5 %%; the model of this program no longer "
            "fits the library\n",
            group->rank, group->nranks, bytes[0], bytes[1], 100.0 * off);
    return most > 0.05;
}
