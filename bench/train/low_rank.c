/* SPDX-License-Identifier: MIT */
#include "bench/train/low_rank.h"

#include <cblas.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench/common/measure.h"
#include "bench/common/options.h"
#include "bench/common/random.h"

enum { P = 0, Q = 1 };

/* A segment, and where its parts begin. What is sent whole is all in side P. */
typedef struct part {
    size_t begin, rows, columns, p, q;
    bool whole;
} part;

static size_t length_of(const low_rank *l, const part *at, int side) {
    if (at->whole)
        return side == P ? at->rows * at->columns : 0;
    return l->rank * (side == P ? at->rows : at->columns);
}

static part first_part(void) {
    return (part){0};
}

/* @return false: there is no more. `at` begins as first_part. */
static bool next_part(const low_rank *l, size_t i, part *at) {
    const workload *w = l->work;
    if (i > 0) {
        at->begin += at->rows * at->columns;
        at->p += length_of(l, at, P);
        at->q += length_of(l, at, Q);
    }
    if (i == w->nsegments)
        return false;
    at->columns = w->columns[i] ? w->columns[i] : 1;
    at->rows = w->segments[i].length / at->columns;
    at->whole = 2 * l->rank * (at->rows + at->columns) >= at->rows * at->columns;
    return true;
}

void low_rank_check(const train_settings *s) {
    if (s->low_rank == 0)
        return;
    if (strcmp(s->scheme, "dense") != 0 || s->local_steps > 0 || s->reduce != 0)
        bench_usage("--low-rank needs --scheme dense, --reduce gradient and no --local-steps");
    if (s->stages > 1 || s->micro_batches > 1 || s->overlap || s->device != TAMIS_DEVICE_CPU)
        bench_usage("--low-rank needs --stages 1, --micro-batches 1, --overlap off and --device "
                    "cpu");
    if (s->save || s->load)
        bench_usage("--low-rank has no --save and --load");
}

/* -- life ------------------------------------------------------------------------------------- */

static tamis_reducer *make(bench_group *group, size_t length) {
    tamis_segment segment = {"side", length};
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    tamis_layout *layout;
    tamis_reducer *reducer;
    config.scheme = "dense";
    bench_try(group, tamis_layout_create(&segment, 1, &layout), "cannot create a layout");
    bench_try(group, tamis_reducer_create(group->comm, layout, &config, &reducer),
              "cannot create a reducer");
    tamis_layout_destroy(layout);
    return reducer;
}

void low_rank_open(bench_group *group, const workload *work, uint64_t rank, uint64_t seed,
                   low_rank *out) {
    *out = (low_rank){.group = group, .work = work, .rank = rank};
    part at = first_part();
    if (rank == 0)
        return;
    for (size_t i = 0; next_part(out, i, &at); i++)
        continue;
    if (at.q == 0)
        bench_fail(group, "--low-rank: no matrix would shrink to less than half; give less");
    size_t lengths[2] = {at.p, at.q};
    for (int side = P; side <= Q; side++) {
        out->sides[side] = make(group, lengths[side]);
        out->values[side] = bench_alloc(lengths[side], sizeof(float));
    }
    out->kept = bench_alloc(work->length, sizeof(float));
    uint64_t key = bench_key(seed, 6, 0);
    for (size_t i = 0; i < at.q; i++)
        out->values[Q][i] = (float)bench_normal(key, i);
}

void low_rank_close(low_rank *l) {
    for (int side = P; side <= Q; side++) {
        tamis_reducer_destroy(l->sides[side]);
        free(l->values[side]);
    }
    free(l->kept);
}

/* -- a step ----------------------------------------------------------------------------------- */

static void reduce(low_rank *l, int side) {
    tamis_step step = TAMIS_STEP_INIT;
    step.grad = l->values[side];
    bench_try(l->group, tamis_reducer_start(l->sides[side], &step), "start of one side");
    bench_try(l->group, tamis_reducer_wait(l->sides[side]), "end of one side");
}

/* Gram and Schmidt, modified: column after column, in place. A column of zeros stays. */
static void orthonormalize(float *p, size_t rows, size_t rank) {
    int r = (int)rank, n = (int)rows;
    for (size_t j = 0; j < rank; j++) {
        float norm = cblas_snrm2(n, p + j, r);
        cblas_sscal(n, 1.0f / (norm + 1e-8f), p + j, r);
        for (size_t k = j + 1; k < rank; k++)
            cblas_saxpy(n, -cblas_sdot(n, p + j, r, p + k, r), p + j, r, p + k, r);
    }
}

static void put_left(low_rank *l, const part *at, const float *grad) {
    int n = (int)at->rows, m = (int)at->columns, r = (int)l->rank;
    float *a = l->kept + at->begin, *p = l->values[P] + at->p;
    if (at->whole) {
        memcpy(p, grad + at->begin, at->rows * at->columns * sizeof *p);
        return;
    }
    cblas_saxpy(n * m, 1.0f, grad + at->begin, 1, a, 1);
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, n, r, m, 1.0f, a, m,
                l->values[Q] + at->q, r, 0.0f, p, r);
}

static void put_right(low_rank *l, const part *at) {
    int n = (int)at->rows, m = (int)at->columns, r = (int)l->rank;
    float *p = l->values[P] + at->p;
    if (at->whole)
        return;
    orthonormalize(p, at->rows, l->rank);
    cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, m, r, n, 1.0f, l->kept + at->begin, m, p,
                r, 0.0f, l->values[Q] + at->q, r);
}

static void take(low_rank *l, const part *at, float *grad) {
    int n = (int)at->rows, m = (int)at->columns, r = (int)l->rank;
    const float *p = l->values[P] + at->p;
    if (at->whole) {
        memcpy(grad + at->begin, p, at->rows * at->columns * sizeof *p);
        return;
    }
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, n, m, r, 1.0f, p, r, l->values[Q] + at->q,
                r, 0.0f, grad + at->begin, m);
    cblas_saxpy(n * m, -1.0f, grad + at->begin, 1, l->kept + at->begin, 1);
}

void low_rank_reduce(low_rank *l, float *grad) {
    part at = first_part();
    for (size_t i = 0; next_part(l, i, &at); i++)
        put_left(l, &at, grad);
    reduce(l, P);
    at = first_part();
    for (size_t i = 0; next_part(l, i, &at); i++)
        put_right(l, &at);
    reduce(l, Q);
    at = first_part();
    for (size_t i = 0; next_part(l, i, &at); i++)
        take(l, &at, grad);
}

void low_rank_stats(const low_rank *l, tamis_stats *out) {
    for (int side = P; side <= Q; side++) {
        tamis_stats stats = TAMIS_STATS_INIT;
        bench_try(l->group, tamis_reducer_stats(l->sides[side], &stats), "statistics of one side");
        out->wire_bytes += stats.wire_bytes;
        out->wire_bytes_total += stats.wire_bytes_total;
        out->accumulate_s += stats.accumulate_s;
        out->exchange_s += stats.exchange_s;
        out->apply_s += stats.apply_s;
        out->wait_s += stats.wait_s;
    }
}
