/* SPDX-License-Identifier: MIT
 *
 * The variants and their reducers.
 */
#include "bench/lab/overlap/overlap.h"

#include <stdlib.h>
#include <tamis/overlap.h>

#include "bench/common/measure.h"

/* Count buckets as the library forms them from segments. */
static uint32_t count_buckets(const tamis_segment *segments, size_t nsegments, uint64_t least) {
    uint32_t count = 0;
    uint64_t length = 0;
    for (size_t s = nsegments; s-- > 0;) {
        length += segments[s].length;
        if (length < least && s > 0)
            continue;
        count++;
        length = 0;
    }
    return count;
}

/* The largest length that gives at least `plan` buckets; if none does, one with most buckets. */
static uint64_t bucket_length(const overlap_run *run, const tamis_segment *segments,
                              uint32_t plan) {
    uint64_t low = 1, high = run->model.length + 1;
    if (plan == OVERLAP_PLANNED)
        return TAMIS_BUCKETS_PLANNED;
    while (high - low > 1) {
        uint64_t middle = low + (high - low) / 2;
        if (count_buckets(segments, run->model.nsegments, middle) >= plan)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* Backward marks b and W of a layer, from the last to the first: the segments from
 * right to left. */
static void find_starts(overlap_run *run, overlap_variant *v) {
    v->starts = bench_alloc(run->model.nsegments, sizeof *v->starts);
    for (uint32_t i = 0; i < tamis_reducer_nbuckets(v->reducer); i++) {
        tamis_bucket bucket = TAMIS_BUCKET_INIT;
        bench_try(run->group, tamis_reducer_bucket_at(v->reducer, i, &bucket), "a bucket");
        v->starts[bucket.first_segment] = true;
    }
}

static void open_reducer(overlap_run *run, overlap_variant *v) {
    const overlap_settings *s = run->settings;
    const tamis_segment *segments = run->model.segments;
    tamis_layout *layout;
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    config.scheme = v->kind == OVERLAP_DENSE ? "dense" : "tamis";
    config.density = v->density;
    config.output = v->kind == OVERLAP_DENSE ? TAMIS_OUTPUT_DENSE : TAMIS_OUTPUT_SPARSE;
    config.bucket_length = bucket_length(run, segments, v->plan);
    config.worker = v->worker;
    config.link_gbit = s->link_gbit;
    config.link_latency_us = s->latency_us;
    bench_try(run->group, tamis_layout_create(segments, run->model.nsegments, &layout),
              "cannot create a layout");
    bench_try(run->group, tamis_reducer_create(run->group->comm, layout, &config, &v->reducer),
              "cannot create a reducer");
    tamis_layout_destroy(layout);
    find_starts(run, v);
    size_t calls = (s->rounds + s->warmup) * run->model.nsegments;
    v->quiet_us = bench_alloc(v->overlapped ? calls : 1, sizeof *v->quiet_us);
}

static overlap_variant *add(overlap_run *run, overlap_variant v) {
    overlap_variant *out = &run->variants[run->nvariants++];
    *out = v;
    if (!out->plain)
        out->plain = out;
    if (v.kind == OVERLAP_DENSE || v.kind == OVERLAP_SPARSE)
        open_reducer(run, out);
    return out;
}

static void add_sparse(overlap_run *run, uint32_t plan, double density) {
    int worker = run->settings->worker;
    overlap_variant v = {.kind = OVERLAP_SPARSE, .density = density, .plan = plan};
    v.plain = add(run, v);
    v.overlapped = true;
    if (worker != OVERLAP_THREAD)
        add(run, v);
    v.worker = TAMIS_WORKER_THREAD;
    if (worker != OVERLAP_CALLER)
        add(run, v);
}

void overlap_open_variants(overlap_run *run) {
    const overlap_settings *s = run->settings;
    add(run, (overlap_variant){.kind = OVERLAP_COMPUTE});
    add(run, (overlap_variant){.kind = OVERLAP_MPI, .density = 1.0, .plan = 1});
    const overlap_variant *dense =
        add(run, (overlap_variant){.kind = OVERLAP_DENSE, .density = 1.0, .plan = 1});
    for (size_t p = 0; p < s->nplans; p++) {
        add(run, (overlap_variant){.kind = OVERLAP_DENSE,
                                   .overlapped = true,
                                   .density = 1.0,
                                   .plan = s->plans[p],
                                   .plain = dense});
        for (size_t d = 0; d < s->ndensities; d++)
            add_sparse(run, s->plans[p], s->densities[d]);
    }
}

void overlap_close_variants(overlap_run *run) {
    for (size_t i = 0; i < run->nvariants; i++) {
        tamis_reducer_destroy(run->variants[i].reducer);
        free(run->variants[i].starts);
        free(run->variants[i].quiet_us);
    }
}
