/* SPDX-License-Identifier: MIT
 *
 * The state with which a run continues, one file per rank:
 *
 *     | header | params | state of the optimizer | control | residual | moments | local steps |
 *                                                  `------ of the reducer ------'
 *
 * Segments that are exchanged dense have no residual; their reducer has no state to save.
 *
 * With as many ranks as before, each reads its own file and continues bit for bit. With another
 * number the residuals are divided anew (shares.h), moments become the mean of the old ones, and
 * thresholds come from any old rank; all else is the same on all ranks. With local steps that holds
 * only right after an exchange, and the optimizers' states, too, become their mean.
 *
 * A crash between the writes of two ranks would leave files of two steps under one name, so use a
 * new prefix for each save that must not be lost.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "bench/common/measure.h"
#include "bench/train/shares.h"
#include "bench/train/trainer.h"

static const char magic[8] = "TAMTRN6";

/* The parts that follow the header, in this order. An absent part has 0 bytes. */
enum {
    PARAMS,
    STATES,
    CONTROL = STATES + OPTIMIZER_STATES,
    RESIDUAL,
    MOMENTS,
    LOCAL = MOMENTS + 2,
    PARTS
};

/* In the machine's byte order; a machine with the other order refuses it by `bytes`. */
typedef struct header {
    char magic[8];
    uint64_t bytes;   /* of this header, so that readers find what follows */
    uint64_t samples; /* of a step, all ranks together */
    uint64_t step, seed, batch, optimizer, reduce, rank, nranks;
    uint64_t workload, model;   /* XXH3 of the name; XXH3 of segments and identity */
    uint64_t passes;            /* that made the moments */
    uint64_t parts[PARTS];      /* bytes */
    tamis_energy_totals joules; /* of all ranks so far */
    uint64_t checksum;          /* XXH3 of all else */
} header;

typedef struct content {
    header header;
    void *parts[PARTS]; /* the trainer owns params and state */
} content;

/* -- what a file of this run would be --------------------------------------------------------- */

/* A hash of all that gives a parameter its meaning: segment lengths and names, identity. */
static uint64_t model_of(const trainer *t) {
    const workload *w = &t->work;
    uint64_t sum = w->identity;
    if (t->apart)
        sum = XXH3_64bits_withSeed(t->apart, w->nsegments * sizeof t->apart[0], sum);
    for (size_t i = 0; i < w->nsegments; i++) {
        sum = XXH3_64bits_withSeed(w->names[i], strlen(w->names[i]), sum);
        sum = XXH3_64bits_withSeed(&w->segments[i].length, sizeof w->segments[i].length, sum);
    }
    return sum;
}

static void size_parts(const trainer *t, uint64_t *parts) {
    const train_settings *s = t->settings;
    uint64_t bytes = t->work.length * sizeof(float), held = t->exchange.length * sizeof(float);
    tamis_update update = optimizer_as_update(s);
    bool moments = s->reduce == TRAIN_UPDATE, adam = update.rule == TAMIS_UPDATE_ADAM;
    size_t control;
    bench_try(t->group, tamis_reducer_control_bytes(t->exchange.reducer, &control),
              "size of a state");
    size_t local = 0;
    if (t->local.handle)
        bench_try(t->group, tamis_local_bytes(t->local.handle, &local), "size of local steps");
    parts[LOCAL] = local;
    parts[PARAMS] = bytes;
    for (size_t i = 0; i < t->optimizer.nstates; i++)
        parts[STATES + i] = bytes;
    parts[CONTROL] = control;
    parts[RESIDUAL] = t->dense ? 0 : held;
    parts[MOMENTS] = moments && (!adam || update.beta1 > 0.0) ? held : 0;
    parts[MOMENTS + 1] = moments && adam ? held : 0;
}

static header expected(const trainer *t) {
    const char *kind = t->work.kind->name;
    header h = {
        .bytes = sizeof h,
        .samples = t->group->nranks * t->settings->batch,
        .step = t->step,
        .seed = t->settings->seed,
        .batch = t->settings->batch,
        .optimizer = (uint64_t)t->settings->optimizer,
        .reduce = (uint64_t)t->settings->reduce,
        .rank = t->group->rank,
        .nranks = t->group->nranks,
        .workload = XXH3_64bits(kind, strlen(kind)),
        .model = model_of(t),
    };
    memcpy(h.magic, magic, sizeof magic);
    size_parts(t, h.parts);
    return h;
}

static void open_content(trainer *t, const header *h, content *out) {
    *out = (content){.header = *h};
    out->parts[PARAMS] = t->params;
    for (size_t i = 0; i < t->optimizer.nstates; i++)
        out->parts[STATES + i] = t->optimizer.states[i];
    for (int i = CONTROL; i < PARTS; i++)
        out->parts[i] = h->parts[i] ? bench_alloc(h->parts[i], 1) : NULL;
}

static void close_content(content *c) {
    for (int i = CONTROL; i < PARTS; i++)
        free(c->parts[i]);
}

static uint64_t checksum(const content *c) {
    uint64_t sum = XXH3_64bits(&c->header, offsetof(header, checksum));
    for (int i = 0; i < PARTS; i++)
        sum = XXH3_64bits_withSeed(c->parts[i], c->header.parts[i], sum);
    return sum;
}

static void file_name(trainer *t, const char *prefix, uint32_t rank, const char *end,
                      char out[1024]) {
    int length = snprintf(out, 1024, "%s.rank%u.state%s", prefix, rank, end);
    if (length < 0 || length >= 1024)
        bench_fail(t->group, "the path %s is too long", prefix);
}

/* -- save ------------------------------------------------------------------------------------- */

/* Local steps first: an exchange under way ends with this. */
static void take_state(trainer *t, content *c) {
    tamis_reducer *r = t->exchange.reducer;
    if (c->parts[LOCAL])
        bench_try(t->group,
                  tamis_local_save(t->local.handle, c->parts[LOCAL], c->header.parts[LOCAL]),
                  "local steps");
    if (c->parts[RESIDUAL])
        bench_try(t->group, tamis_reducer_save_residual(r, c->parts[RESIDUAL]), "residual");
    if (t->settings->reduce == TRAIN_UPDATE)
        bench_try(t->group,
                  tamis_reducer_save_moments(r, c->parts[MOMENTS], c->parts[MOMENTS + 1],
                                             &c->header.passes),
                  "moments");
    bench_try(t->group, tamis_reducer_save_control(r, c->parts[CONTROL], c->header.parts[CONTROL]),
              "thresholds");
}

static bool write_content(const content *c, const char *path) {
    FILE *file = fopen(path, "wb");
    if (!file)
        return false;
    bool ok = fwrite(&c->header, sizeof c->header, 1, file) == 1;
    for (int i = 0; ok && i < PARTS; i++)
        ok = !c->parts[i] || fwrite(c->parts[i], 1, c->header.parts[i], file) == c->header.parts[i];
    return fclose(file) == 0 && ok;
}

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
    char path[1024], partial[1024];
    content c;
    header h = expected(t);
    file_name(t, prefix, t->group->rank, "", path);
    file_name(t, prefix, t->group->rank, ".part", partial);
    bench_energy_totals(&t->energy, &h.joules);
    open_content(t, &h, &c);
    take_state(t, &c);
    c.header.checksum = checksum(&c);
    if (!write_content(&c, partial) || rename(partial, path) != 0)
        bench_fail(t->group, "cannot write %s: %s", path, strerror(errno));
    close_content(&c);
}

/* -- load ------------------------------------------------------------------------------------- */

/* The control part is left to the library, which checks it better. */
static bool same_parts(const header *a, const header *b) {
    for (int i = 0; i < PARTS; i++) {
        if (i != CONTROL && a->parts[i] != b->parts[i])
            return false;
    }
    return true;
}

static const char *difference(const header *found, const header *wanted) {
    static _Thread_local char text[200];
    snprintf(text, sizeof text,
             "it was saved by %llu ranks with --batch %llu; ranks times --batch must stay %llu to "
             "continue the order of samples",
             (unsigned long long)found->nranks, (unsigned long long)found->batch,
             (unsigned long long)found->samples);
    return memcmp(found->magic, wanted->magic, sizeof magic) != 0 || found->bytes != wanted->bytes
               ? "it is not the state of a run"
           : found->workload != wanted->workload ? "its --workload differs"
           : found->parts[PARAMS] != wanted->parts[PARAMS] || found->model != wanted->model
               ? "its model has another shape, other dense segments, or was trained on other data"
           : found->seed != wanted->seed           ? "its --seed differs"
           : found->optimizer != wanted->optimizer ? "its --optimizer differs"
           : found->reduce != wanted->reduce       ? "its --reduce differs"
           : found->samples != wanted->samples     ? text
           : !same_parts(found, wanted) ? "its --scheme, --beta1 or local steps keep other vectors"
                                        : NULL;
}

static const char *read_header(trainer *t, FILE *file, header *out) {
    header wanted = expected(t);
    if (fread(out, sizeof *out, 1, file) != 1)
        return "it is truncated";
    const char *why = difference(out, &wanted);
    uint64_t bytes = out->bytes;
    for (int i = 0; i < PARTS; i++)
        bytes += out->parts[i];
    if (!why && (fseek(file, 0, SEEK_END) != 0 || (uint64_t)ftell(file) != bytes))
        why = "it is truncated or has extra data at its end";
    return why ? why : fseek(file, (long)out->bytes, SEEK_SET) ? strerror(errno) : NULL;
}

static FILE *open_file(trainer *t, const char *path, header *out) {
    FILE *file = fopen(path, "rb");
    if (!file)
        bench_fail(t->group, "cannot read %s: %s", path, strerror(errno));
    const char *why = read_header(t, file, out);
    if (why)
        bench_fail(t->group, "cannot resume from %s: %s", path, why);
    return file;
}

/* Read the file of old rank `old`, from the same save as `first`. */
static void read_content(trainer *t, const char *prefix, uint32_t old, const header *first,
                         content *out) {
    char path[1024];
    header h;
    file_name(t, prefix, old, "", path);
    FILE *file = open_file(t, path, &h);
    bool whole = true;
    open_content(t, &h, out);
    for (int i = 0; i < PARTS; i++)
        whole =
            whole && (!out->parts[i] || fread(out->parts[i], 1, h.parts[i], file) == h.parts[i]);
    fclose(file);
    if (!whole || checksum(out) != h.checksum)
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
    double *parts[PARTS];
    bool begun[PARTS];
} sums;

static void add(sums *s, const content *c, int part, double weight) {
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

static void end(sums *s, content *c, int part) {
    float *values = c->parts[part];
    for (size_t i = 0; s->begun[part] && i < c->header.parts[part] / sizeof(float); i++)
        values[i] = (float)s->parts[part][i];
    free(s->parts[part]);
}

/* With another number of ranks, moments are the mean over all old ranks, so that no new rank has to
 * begin without. */
static void collect(trainer *t, const char *prefix, const header *first, content *out) {
    uint32_t rank = t->group->rank, ranks = t->group->nranks, olds = (uint32_t)first->nranks;
    bool moments = first->parts[MOMENTS] + first->parts[MOMENTS + 1] > 0 ||
                   (t->local.handle && t->optimizer.nstates > 0);
    sums s = {0};
    *out = (content){.header = *first};
    for (uint32_t old = 0; old < olds; old++) {
        double share = share_of(rank, ranks, old, olds);
        double weight = olds == ranks ? share : 1.0 / olds;
        if (share == 0.0 && (!moments || weight == 0.0))
            continue;
        close_content(out);
        read_content(t, prefix, old, first, out);
        add(&s, out, RESIDUAL, share);
        for (int i = STATES; t->local.handle && i < CONTROL; i++)
            add(&s, out, i, weight);
        add(&s, out, MOMENTS, weight);
        add(&s, out, MOMENTS + 1, weight);
    }
    for (int i = STATES; i < LOCAL; i++)
        end(&s, out, i);
}

/* What ranks have changed since an exchange is on the ranks that saved. Steps beside it, as many in
 * every round, are dropped: parameters are the base. */
static void give_local_steps(trainer *t, const content *c) {
    tamis_local_stats stats = TAMIS_LOCAL_STATS_INIT;
    bench_try(t->group, tamis_local_load(t->local.handle, c->parts[LOCAL], c->header.parts[LOCAL]),
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
static void give_state(trainer *t, const content *c) {
    tamis_reducer *r = t->exchange.reducer;
    const void *control = c->parts[CONTROL];
    const float *residual = c->parts[RESIDUAL];
    size_t bytes = c->header.parts[CONTROL];
    bool together = c->header.nranks == t->group->nranks;
    bench_try(t->group, tamis_reducer_load_memory(r, control, bytes, together ? residual : NULL),
              "cannot load the state of the reducer");
    if (residual && !together)
        bench_try(t->group, tamis_reducer_load_memory(r, NULL, 0, residual),
                  "cannot load the residual");
    if (t->settings->reduce == TRAIN_UPDATE)
        bench_try(t->group,
                  tamis_reducer_load_moments(r, c->parts[MOMENTS], c->parts[MOMENTS + 1],
                                             c->header.passes),
                  "cannot load the moments");
    if (t->local.handle)
        give_local_steps(t, c);
}

void trainer_load(trainer *t, const char *prefix) {
    char path[1024];
    header first;
    content c;
    file_name(t, prefix, 0, "", path);
    fclose(open_file(t, path, &first));
    collect(t, prefix, &first, &c);
    if (!bench_same(t->group, first.step))
        bench_fail(t->group, "files of %s are of different steps", prefix);
    give_state(t, &c);
    bench_energy_resume(&t->energy, &c.header.joules);
    t->step = c.header.step;
    close_content(&c);
}
