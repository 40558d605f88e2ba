/* SPDX-License-Identifier: MIT */
#include "bench/scale/passes.h"

#include "bench/common/measure.h"
#include "bench/common/random.h"
#include "bench/common/report.h"
#include "collectives/exchange/merge.h"
#include "kernels/cpu/cpu.h"
#include "lib/policy/grid.h"
#include "lib/policy/scheme.h"

#include <stdlib.h>

enum { ROUNDS = 15, SEGMENTS = 161 };

#define OVER                                                                                       \
    0.99f /* a hundredth of the residual, which is even from 0 to 1, reaches the threshold */

typedef struct passes {
    uint32_t nranks;
    tam_division division;
    void *kernels;
    tam_packets packets;
    uint32_t *owners, *merged;
    tam_list *lists;
    double accumulate_s[ROUNDS], union_s[ROUNDS];
} passes;

/* -- what all ranks selected ------------------------------------------------------------------ */

/* Evenly in the rank's part, at a random place of each run. */
static void select_entries(passes *p, uint32_t rank, uint64_t budget) {
    tam_strided part = tam_strided_of(&p->division, tam_part_of(&p->division, 0, rank));
    tam_header *header = (tam_header *)(uintptr_t)tam_packet_header_of(&p->packets, rank);
    uint32_t *list = (uint32_t *)(uintptr_t)tam_packet_indices_of(&p->packets, rank);
    uint64_t run = part.length / (budget ? budget : 1);
    for (uint64_t i = 0; i < budget && run > 0; i++)
        list[i] = (uint32_t)(i * run + bench_random(rank, i) % run);
    header->count = run > 0 ? (uint32_t)budget : 0;
    tam_strided_locate(&part, list, header->count, list);
}

static tamis_status open_passes(passes *p, const tamis_layout *layout, uint64_t k) {
    tam_scheme scheme;
    TAM_TRY(tam_scheme_parse("tamis", &scheme));
    TAM_TRY(tam_division_open(layout, scheme, p->nranks, 0, &p->division));
    TAM_TRY(tam_device_cpu.open(&p->division.grid, 2 * k / p->nranks + 4096, 1, &p->kernels));
    p->packets = (tam_packets){.nranks = p->nranks,
                               .capacity = (size_t)tam_budget_max(&p->division, k),
                               .span = p->division.grid.n,
                               .index_codec = TAMIS_INDEX_U32};
    TAM_TRY(tam_packets_open(&p->packets));
    p->owners = bench_alloc(p->nranks, sizeof p->owners[0]);
    p->lists = bench_alloc(p->nranks, sizeof p->lists[0]);
    p->merged = bench_alloc((size_t)k + 1, sizeof p->merged[0]);
    for (uint32_t r = 0; r < p->nranks; r++) {
        p->owners[r] = tam_owner_of(&p->division, 0, r);
        select_entries(p, r, tam_budget_of(&p->division, 0, r, k));
    }
    return TAMIS_OK;
}

static void close_passes(passes *p) {
    tam_device_cpu.close(p->kernels);
    tam_packets_close(&p->packets);
    tam_division_close(&p->division);
    free(p->owners);
    free(p->lists);
    free(p->merged);
}

/* -- time ------------------------------------------------------------------------------------- */

static tamis_status time_once(passes *p, float *acc, float *grad, const uint32_t *thresholds,
                              int round) {
    const tam_accumulate job = {.acc = acc,
                                .grad = grad,
                                .decay = 1.0f,
                                .scale = 1e-9f,
                                .clear = true,
                                .thresholds = thresholds};
    tam_accumulated found;
    size_t count;
    uint64_t begin_ns = tam_clock_ns();
    TAM_TRY(tam_device_cpu.accumulate(p->kernels, &job, &found));
    uint64_t between_ns = tam_clock_ns();
    TAM_TRY(tam_merge_exclusive(&p->packets, &p->division.grid, p->owners, p->lists, p->merged,
                                &count));
    p->accumulate_s[round] = 1e-9 * (double)(between_ns - begin_ns);
    p->union_s[round] = 1e-9 * (double)(tam_clock_ns() - between_ns);
    return TAMIS_OK;
}

static FILE *table_of(const scale_settings *s) {
    return s->report == stdout ? stderr : stdout;
}

static void report(const scale_settings *s, passes *p) {
    double accumulate_ms = 1e3 * tam_median(p->accumulate_s, ROUNDS);
    double union_ms = 1e3 * tam_median(p->union_s, ROUNDS);
    json_t *record = bench_report_new("scale_passes");
    fprintf(table_of(s), "%6u %8u %8u %10.2f %10.2f %10.2f %10.2f\n", p->nranks, p->division.block,
            p->division.grid.ntiles, accumulate_ms, 1e3 * p->accumulate_s[0], union_ms,
            1e3 * p->union_s[0]); /* the median has sorted them */
    json_t *figures = json_pack(
        "{sI sI sI sI sf sf sf sf}", "elements", (json_int_t)s->elements, "ranks",
        (json_int_t)p->nranks, "block", (json_int_t)p->division.block, "tiles",
        (json_int_t)p->division.grid.ntiles, "accumulate_ms", accumulate_ms, "accumulate_min_ms",
        1e3 * p->accumulate_s[0], "union_ms", union_ms, "union_min_ms", 1e3 * p->union_s[0]);
    json_object_update(record, figures);
    json_decref(figures);
    bench_report_write(s->report, record);
}

/* Numbers of ranks take turns, so that a disturbance hits all. */
static tamis_status time_all(const scale_settings *s, passes *all) {
    size_t n = (size_t)s->elements;
    uint32_t thresholds[SEGMENTS];
    float *acc = bench_alloc(n, sizeof *acc), *grad = bench_alloc(n, sizeof *grad);
    tamis_status status = TAMIS_OK;
    for (size_t i = 0; i < n; i++)
        acc[i] = (float)(bench_random(1, i) >> 40) * 0x1p-24f;
    for (uint32_t g = 0; g < SEGMENTS; g++)
        thresholds[g] = tam_bits(OVER);
    for (int round = 0; round < ROUNDS; round++) {
        for (size_t i = 0; i < s->nranks && status == TAMIS_OK; i++)
            status = time_once(&all[i], acc, grad, thresholds, round);
    }
    free(acc);
    free(grad);
    return status;
}

/* A layout whose segments have one length, which no power of two divides. */
static tamis_status make_layout(uint64_t elements, tamis_layout **out) {
    tamis_segment segments[SEGMENTS];
    for (uint32_t i = 0; i < SEGMENTS; i++)
        segments[i] =
            (tamis_segment){.length = elements * (i + 1) / SEGMENTS - elements * i / SEGMENTS};
    return tamis_layout_create(segments, SEGMENTS, out);
}

static tamis_status run(const scale_settings *s, passes *all, const tamis_layout *layout) {
    uint64_t k = (uint64_t)(s->density * (double)s->elements);
    for (size_t i = 0; i < s->nranks; i++) {
        all[i].nranks = (uint32_t)s->ranks[i];
        TAM_TRY(open_passes(&all[i], layout, k > 0 ? k : 1));
    }
    TAM_TRY(time_all(s, all));
    fprintf(table_of(s),
            "# ms of one rank, %d turns. accumulate: median, least; union: median, least\n"
            "#ranks    block    tiles accumulate        min      union        min\n",
            ROUNDS);
    for (size_t i = 0; i < s->nranks; i++) {
        report(s, &all[i]);
        close_passes(&all[i]);
    }
    return TAMIS_OK;
}

/* After a failure the program ends, with whatever is open. */
int scale_passes(const scale_settings *s) {
    tamis_layout *layout = NULL;
    passes *all = bench_alloc(s->nranks, sizeof *all);
    tamis_status status = make_layout(s->elements, &layout);
    if (status == TAMIS_OK)
        status = run(s, all, layout);
    if (status != TAMIS_OK)
        fprintf(stderr, "tamis_scale: %s\n", tamis_last_error());
    tamis_layout_destroy(layout);
    free(all);
    return status != TAMIS_OK;
}
