/* SPDX-License-Identifier: MIT
 *
 * States of all ranks, one file per rank (state.h), written and read.
 *
 * With as many ranks as before, each reads its own file and continues bit for bit. With another
 * number the residuals are divided anew (factors.h), moments become the mean of the old ones, and
 * thresholds come from any old rank; all else is the same on all ranks. With local steps that holds
 * only right after an exchange, and the optimizers' states, too, become their mean.
 *
 * A crash between the writes of two ranks leaves files of two steps under one name, which are then
 * refused. Sets (sets.h) have no such moment.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tamis/state.h>
#include <xxhash.h>

#include "bench/common/measure.h"
#include "bench/train/factors.h"
#include "bench/train/state.h"

static void file_name(trainer *t, const char *prefix, uint32_t rank, const char *end,
                      char out[1024]) {
    int length = snprintf(out, 1024, "%s.rank%u.state%s", prefix, rank, end);
    if (length < 0 || length >= 1024)
        bench_fail(t->group, "the path %s is too long", prefix);
}

/* -- save ------------------------------------------------------------------------------------- */

/* Check before the first step, not after the last, that the folder exists and takes a file of this
 * rank. */
void trainer_save_check(trainer *t, const char *prefix) {
    char path[1024], partial[1024];
    file_name(t, prefix, t->group->rank, "", path);
    file_name(t, prefix, t->group->rank, ".part", partial);
    FILE *file = fopen(partial, "wb");
    if (!file || fclose(file) != 0 || remove(partial) != 0)
        bench_fail(t->group, "--save %s: %s cannot be written: %s", prefix, path, strerror(errno));
}

void trainer_save(trainer *t, const char *prefix) {
    char path[1024];
    files_piece pieces[STATE_PIECES];
    files_why why;
    state s;
    file_name(t, prefix, t->group->rank, "", path);
    if (!state_open(t, &s))
        bench_fail(t->group, "--save %s: no memory for a copy of the state", prefix);
    state_copy(t, &s);
    bench_energy_totals(&t->energy, &s.header.joules);
    s.header.checksum = state_checksum(&s);
    state_pieces(&s, pieces);
    if (!files_write(path, pieces, STATE_PIECES, &why))
        bench_fail(t->group, "%.480s", why.text);
    state_close(&s);
}

/* -- load ------------------------------------------------------------------------------------- */

static const char *read_header(trainer *t, FILE *file, state_header *out) {
    state_header wanted = state_expected(t);
    if (fread(out, sizeof *out, 1, file) != 1)
        return "it is truncated";
    if (t->settings->elastic)
        wanted.samples = out->samples;
    const char *why = state_difference(out, &wanted);
    uint64_t bytes = out->bytes;
    for (int i = 0; i < STATE_PARTS; i++)
        bytes += out->parts[i];
    if (!why && (fseek(file, 0, SEEK_END) != 0 || (uint64_t)ftell(file) != bytes))
        why = "it is truncated or has extra data at its end";
    return why ? why : fseek(file, (long)out->bytes, SEEK_SET) ? strerror(errno) : NULL;
}

static FILE *open_file(trainer *t, const char *path, state_header *out) {
    FILE *file = fopen(path, "rb");
    if (!file)
        bench_fail(t->group, "cannot read %s: %s", path, strerror(errno));
    const char *why = read_header(t, file, out);
    if (why)
        bench_fail(t->group, "cannot resume from %s: %s", path, why);
    return file;
}

/* Read the file of old rank `old`, from the same save as `first`. */
static void read_content(trainer *t, const char *prefix, uint32_t old, const state_header *first,
                         state *out) {
    char path[1024];
    state_header h;
    file_name(t, prefix, old, "", path);
    FILE *file = open_file(t, path, &h);
    bool whole = true;
    state_borrow(t, &h, out);
    for (int i = 0; i < STATE_PARTS; i++)
        whole =
            whole && (!out->parts[i] || fread(out->parts[i], 1, h.parts[i], file) == h.parts[i]);
    fclose(file);
    if (!whole || state_checksum(out) != h.checksum)
        bench_fail(t->group, "cannot resume from %s: it is damaged", path);
    if (h.step != first->step || h.nranks != first->nranks || h.rank != old)
        bench_fail(t->group,
                   "cannot resume from %s: it is of rank %llu of %llu and step %llu, but the first "
                   "file of %llu ranks and step %llu",
                   path, (unsigned long long)h.rank, (unsigned long long)h.nranks,
                   (unsigned long long)h.step, (unsigned long long)first->nranks,
                   (unsigned long long)first->step);
}

/* Sums over files. A single file with weight 1 keeps its bits, even the sign of a zero. */
typedef struct sums {
    double *parts[STATE_PARTS];
    bool begun[STATE_PARTS];
} sums;

static void add(sums *s, const state *c, int part, double weight) {
    size_t n = c->header.parts[part] / sizeof(float);
    const float *values = c->parts[part];
    if (n == 0 || weight == 0.0)
        return;
    if (!s->begun[part])
        s->parts[part] = bench_alloc(n, sizeof(double));
    for (size_t i = 0; i < n; i++) {
        double value = weight * (double)values[i];
        s->parts[part][i] = s->begun[part] ? s->parts[part][i] + value : value;
    }
    s->begun[part] = true;
}

static void end(sums *s, state *c, int part) {
    float *values = c->parts[part];
    for (size_t i = 0; s->begun[part] && i < c->header.parts[part] / sizeof(float); i++)
        values[i] = (float)s->parts[part][i];
    free(s->parts[part]);
}

/* With another number of ranks, moments are the mean over all old ranks, so that no new rank has to
 * begin without. */
static void collect(trainer *t, const char *prefix, const state_header *first, state *out) {
    uint32_t rank = t->group->rank, ranks = t->group->nranks, olds = (uint32_t)first->nranks;
    bool moments = first->parts[STATE_MOMENTS] + first->parts[STATE_MOMENTS + 1] > 0 ||
                   (t->local.handle && t->optimizer.nstates > 0);
    sums s = {0};
    *out = (state){.header = *first};
    for (uint32_t old = 0; old < olds; old++) {
        double factor = factor_of(rank, ranks, old, olds);
        double weight = olds == ranks ? factor : 1.0 / olds;
        if (factor == 0.0 && (!moments || weight == 0.0))
            continue;
        state_return(out);
        read_content(t, prefix, old, first, out);
        add(&s, out, STATE_RESIDUAL, factor);
        for (int i = STATE_OPTIMIZER; t->local.handle && i < STATE_CONTROL; i++)
            add(&s, out, i, weight);
        add(&s, out, STATE_MOMENTS, weight);
        add(&s, out, STATE_MOMENTS + 1, weight);
    }
    for (int i = STATE_OPTIMIZER; i < STATE_LOCAL; i++)
        end(&s, out, i);
}

/* What ranks have changed since an exchange is on the ranks that saved. Steps beside it, as many in
 * every round, are dropped: parameters are the base. */
static void give_local_steps(trainer *t, const state *c) {
    tamis_local_stats stats = TAMIS_LOCAL_STATS_INIT;
    bench_try(
        t->group,
        tamis_local_load(t->local.handle, c->parts[STATE_LOCAL], c->header.parts[STATE_LOCAL]),
        "cannot load the local steps");
    bench_try(t->group, tamis_local_stats_read(t->local.handle, &stats), "local steps");
    if (c->header.nranks != t->group->nranks &&
        (stats.under_way || stats.position > t->settings->local_delay))
        bench_fail(t->group,
                   "cannot resume with %u ranks from files of %llu: they were saved %u local steps "
                   "after an exchange; save right after one (at a multiple of --local-steps, plus "
                   "--local-delay)",
                   t->group->nranks, (unsigned long long)c->header.nranks, stats.position);
    local_steps_resume(&t->local);
}

/* With another number of ranks load control and residual separately: they no longer belong
 * together. */
static void give_state(trainer *t, const state *c) {
    tamis_reducer *r = t->exchange.reducer;
    const void *control = c->parts[STATE_CONTROL];
    const float *residual = c->parts[STATE_RESIDUAL];
    size_t bytes = c->header.parts[STATE_CONTROL];
    bool together = c->header.nranks == t->group->nranks;
    bench_try(t->group, tamis_reducer_load_memory(r, control, bytes, together ? residual : NULL),
              "cannot load the state of the reducer");
    if (residual && !together)
        bench_try(t->group, tamis_reducer_load_memory(r, NULL, 0, residual),
                  "cannot load the residual");
    if (t->settings->reduce == TRAIN_UPDATE)
        bench_try(t->group,
                  tamis_reducer_load_moments(r, c->parts[STATE_MOMENTS],
                                             c->parts[STATE_MOMENTS + 1], c->header.passes),
                  "cannot load the moments");
    if (t->local.handle)
        give_local_steps(t, c);
}

void trainer_load(trainer *t, const char *prefix) {
    char path[1024];
    state_header first;
    state c;
    file_name(t, prefix, 0, "", path);
    fclose(open_file(t, path, &first));
    collect(t, prefix, &first, &c);
    const uint64_t place[] = {c.header.step, c.header.origin.step, c.header.origin.epoch,
                              c.header.origin.sample, c.header.origin.together};
    if (!bench_same(t->group, XXH3_64bits(place, sizeof place)))
        bench_fail(t->group,
                   "files of %s are of different steps, or of other places in the samples", prefix);
    give_state(t, &c);
    bench_energy_resume(&t->energy, &c.header.joules);
    t->step = c.header.step;
    t->order.origin = c.header.origin;
    if (c.header.samples != t->group->nranks * t->settings->batch)
        order_regroup(&t->order, t->step, t->group->nranks * t->settings->batch);
    state_return(&c);
}
