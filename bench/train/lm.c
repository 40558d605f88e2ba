/* SPDX-License-Identifier: MIT
 *
 * The workload lm: a small decoder-only transformer like GPT-2 (Radford et al. 2019) that predicts
 * each character of a text from those before it in a window. T = context, D = width, V characters:
 *
 *     h = token[c] + position                                       rows: windows * T places
 *     in each block    h += out(attention(qkv(norm1(h))))
 *                      h += out(GELU(in(norm2(h))))                 in: D -> 4 D
 *     scores = norm(h) token'
 *     segments   embedding.token [V][D], embedding.position [T][D],
 *                block0.norm1.weight ... block0.mlp.out.bias, block1..., norm.weight, norm.bias
 */
#include <cblas.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "bench/common/measure.h"
#include "bench/common/options.h"
#include "bench/common/random.h"
#include "bench/train/attention.h"
#include "bench/train/layers.h"
#include "bench/train/text.h"

/* -- model ------------------------------------------------------------------------------------ */

typedef struct block {
    norm norm1, norm2;
    linear qkv, out, mlp_in, mlp_out;
    norm_kept kept1, kept2;
    float *normed1, *normed2; /* [rows][D] */
    float *qkv_rows;          /* [rows][3 D] */
    float *a, *o;             /* as in attention.h */
    float *wide, *gelu;       /* [rows][4 D]: before and after GELU */
} block;

typedef struct lm {
    size_t nblocks, rows, vocabulary, width;
    size_t token, position; /* where they begin in the flat vector */
    norm norm;
    norm_kept kept;
    attention attention;
    block *blocks;
    uint8_t *tokens;   /* [batch][T + 1] */
    float *h, *normed; /* [rows][D] */
    float *scores;     /* [rows][V] */
    float *dh, *spare; /* [rows][D] */
    float *wide;       /* [rows][4 D] */
} lm;

static void check(const train_settings *s) {
    double d = (double)s->width, most = 4294967296.0 - 65536.0;
    double parameters = 12.0 * (double)s->layers * d * (d + 2) + (256 + (double)s->context) * d;
    if (s->width % s->heads)
        bench_usage("--heads %llu must divide --width %llu", (unsigned long long)s->heads,
                    (unsigned long long)s->width);
    if (parameters > most)
        bench_usage("--layers %llu --width %llu make up to %.0f parameters; one reducer takes %.0f",
                    (unsigned long long)s->layers, (unsigned long long)s->width, parameters, most);
}

static norm add_norm(workload *w, size_t width, const char *name) {
    norm l = {.width = width};
    l.weight = workload_add(w, width, 0, "%s.weight", name);
    l.bias = workload_add(w, width, 0, "%s.bias", name);
    return l;
}

static linear add_linear(workload *w, size_t inputs, size_t outputs, const char *name) {
    linear l = {.inputs = inputs, .outputs = outputs};
    l.weight = workload_add(w, outputs * inputs, inputs, "%s.weight", name);
    l.bias = workload_add(w, outputs, 0, "%s.bias", name);
    return l;
}

static const char *part_of(size_t index, const char *what, char out[64]) {
    snprintf(out, 64, "block%zu.%s", index, what);
    return out;
}

static float *rows_of(const lm *m, size_t width) {
    return bench_alloc(m->rows * width, sizeof(float));
}

static norm_kept open_norm(const lm *m) {
    return (norm_kept){.hat = rows_of(m, m->width), .scale = rows_of(m, 1)};
}

static void close_norm(norm_kept *kept) {
    free(kept->scale);
    free(kept->hat);
}

static void open_block(workload *w, const lm *m, size_t index, block *out) {
    size_t d = m->width;
    char name[64];
    out->norm1 = add_norm(w, d, part_of(index, "norm1", name));
    out->qkv = add_linear(w, d, 3 * d, part_of(index, "attention.qkv", name));
    out->out = add_linear(w, d, d, part_of(index, "attention.out", name));
    out->norm2 = add_norm(w, d, part_of(index, "norm2", name));
    out->mlp_in = add_linear(w, d, 4 * d, part_of(index, "mlp.in", name));
    out->mlp_out = add_linear(w, 4 * d, d, part_of(index, "mlp.out", name));
    workload_end_layer(w);
    out->kept1 = open_norm(m);
    out->kept2 = open_norm(m);
    out->normed1 = rows_of(m, d);
    out->normed2 = rows_of(m, d);
    out->qkv_rows = rows_of(m, 3 * d);
    out->a = rows_of(m, m->attention.heads * m->attention.context);
    out->o = rows_of(m, d);
    out->wide = rows_of(m, 4 * d);
    out->gelu = rows_of(m, 4 * d);
}

static void close_block(block *b) {
    free(b->gelu);
    free(b->wide);
    free(b->o);
    free(b->a);
    free(b->qkv_rows);
    free(b->normed2);
    free(b->normed1);
    close_norm(&b->kept2);
    close_norm(&b->kept1);
}

static void open_rows(const workload *w, lm *m) {
    size_t context = m->attention.context;
    m->kept = open_norm(m);
    m->attention.spare = bench_alloc(context * context, sizeof(float));
    m->tokens = bench_alloc(w->batch * (context + 1), 1);
    m->h = rows_of(m, m->width);
    m->normed = rows_of(m, m->width);
    m->scores = rows_of(m, m->vocabulary);
    m->dh = rows_of(m, m->width);
    m->spare = rows_of(m, m->width);
    m->wide = rows_of(m, 4 * m->width);
}

static void open_model(const train_settings *s, const workload_part *part, workload *w) {
    const passages *p = w->data->content;
    size_t d = s->width;
    lm *m = bench_alloc(1, sizeof *m);
    *m = (lm){
        .nblocks = s->layers,
        .rows = part->batch * s->context,
        .vocabulary = p->text.vocabulary,
        .width = d,
        .attention = {part->batch, s->context, s->heads, d, NULL},
        .blocks = bench_alloc(s->layers, sizeof(block)),
    };
    workload_reserve(w, 12 * m->nblocks + 4, m->nblocks + 2);
    m->token = workload_add(w, m->vocabulary * d, d, "embedding.token");
    m->position = workload_add(w, s->context * d, d, "embedding.position");
    workload_end_layer(w);
    for (size_t i = 0; i < m->nblocks; i++)
        open_block(w, m, i, &m->blocks[i]);
    m->norm = add_norm(w, d, "norm");
    workload_end_layer(w);
    open_rows(w, m);
    w->identity = XXH3_64bits(p->text.characters, m->vocabulary);
    w->model = m;
}

static void close_model(workload *w) {
    lm *m = w->model;
    free(m->wide);
    free(m->spare);
    free(m->dh);
    free(m->scores);
    free(m->normed);
    free(m->h);
    free(m->tokens);
    free(m->attention.spare);
    close_norm(&m->kept);
    for (size_t i = 0; i < m->nblocks; i++)
        close_block(&m->blocks[i]);
    free(m->blocks);
    free(m);
}

static void describe(const workload *w, json_t *record) {
    const lm *m = w->model;
    json_t *more =
        json_pack("{sI sI sI sI sI}", "layers", (json_int_t)m->nblocks, "width",
                  (json_int_t)m->width, "heads", (json_int_t)m->attention.heads, "context",
                  (json_int_t)m->attention.context, "vocabulary", (json_int_t)m->vocabulary);
    json_object_update(record, more);
    json_decref(more);
}

static void draw(float *params, const linear *l, double deviation, uint64_t key) {
    for (size_t i = 0; i < l->outputs * l->inputs; i++)
        params[l->weight + i] = (float)(deviation * bench_normal(key, i));
}

static void begin_norm(float *params, const norm *l) {
    for (size_t i = 0; i < l->width; i++)
        params[l->weight + i] = 1.0f;
}

/* As GPT-2: deviation 0.02, divided by sqrt(2 * nblocks) for layers whose output is added to h. */
static void init(const workload *w, uint64_t seed, float *params) {
    const lm *m = w->model;
    const double usual = 0.02, added = usual / sqrt(2.0 * (double)m->nblocks);
    const linear embeddings[] = {{m->width, m->vocabulary, m->token, 0},
                                 {m->width, m->attention.context, m->position, 0}};
    uint64_t stream = 0;
    memset(params, 0, w->length * sizeof *params);
    for (size_t i = 0; i < 2; i++)
        draw(params, &embeddings[i], usual, bench_key(seed, 1, stream++));
    for (size_t i = 0; i < m->nblocks; i++) {
        const block *b = &m->blocks[i];
        begin_norm(params, &b->norm1);
        begin_norm(params, &b->norm2);
        draw(params, &b->qkv, usual, bench_key(seed, 1, stream++));
        draw(params, &b->out, added, bench_key(seed, 1, stream++));
        draw(params, &b->mlp_in, usual, bench_key(seed, 1, stream++));
        draw(params, &b->mlp_out, added, bench_key(seed, 1, stream++));
    }
    begin_norm(params, &m->norm);
}

/* -- forward ---------------------------------------------------------------------------------- */

static void take(workload *w, size_t slot, workload_set set, const uint32_t *order, size_t first,
                 size_t rows) {
    const passages *p = w->data->content;
    lm *m = w->model;
    size_t length = p->context + 1;
    (void)slot;
    for (size_t r = 0; r < rows; r++) {
        size_t sample = order ? order[r] : first + r;
        memcpy(m->tokens + r * length, passages_window(p, set, sample), length);
    }
}

/* The character at a row of all windows, followed by the one to predict. */
static const uint8_t *token_at(const lm *m, size_t row) {
    size_t context = m->attention.context;
    return m->tokens + row / context * (context + 1) + row % context;
}

static void add_to(float *restrict sum, const float *restrict x, size_t n) {
    for (size_t i = 0; i < n; i++)
        sum[i] += x[i];
}

static void embed(lm *m, const float *params) {
    for (size_t r = 0; r < m->rows; r++) {
        const float *token = params + m->token + *token_at(m, r) * m->width;
        const float *position = params + m->position + r % m->attention.context * m->width;
        for (size_t i = 0; i < m->width; i++)
            m->h[r * m->width + i] = token[i] + position[i];
    }
}

static void block_forward(lm *m, block *b, const float *params) {
    size_t n = m->rows * m->width;
    norm_forward(&b->norm1, m->rows, params, m->h, &b->kept1, b->normed1);
    linear_forward(&b->qkv, m->rows, params, b->normed1, b->qkv_rows);
    attention_forward(&m->attention, b->qkv_rows, b->a, b->o);
    linear_forward(&b->out, m->rows, params, b->o, m->spare);
    add_to(m->h, m->spare, n);
    norm_forward(&b->norm2, m->rows, params, m->h, &b->kept2, b->normed2);
    linear_forward(&b->mlp_in, m->rows, params, b->normed2, b->wide);
    gelu_forward(4 * n, b->wide, b->gelu);
    linear_forward(&b->mlp_out, m->rows, params, b->gelu, m->spare);
    add_to(m->h, m->spare, n);
}

static void forward(workload *w, const float *params, size_t slot) {
    lm *m = w->model;
    int rows = (int)m->rows, d = (int)m->width, v = (int)m->vocabulary;
    (void)slot;
    embed(m, params);
    for (size_t i = 0; i < m->nblocks; i++)
        block_forward(m, &m->blocks[i], params);
    norm_forward(&m->norm, m->rows, params, m->h, &m->kept, m->normed);
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, rows, v, d, 1.0f, m->normed, d,
                params + m->token, d, 0.0f, m->scores, v);
}

static void score(workload *w, size_t slot, size_t rows, workload_score *sums) {
    const lm *m = w->model;
    size_t context = m->attention.context;
    double sum = 0.0;
    (void)slot;
    for (size_t r = 0; r < rows * context; r++)
        sum += scores_loss(m->scores + r * m->vocabulary, m->vocabulary, token_at(m, r)[1]);
    sums->loss += sum / (double)context;
}

/* -- backward --------------------------------------------------------------------------------- */

static double loss(workload *w, size_t slot) {
    lm *m = w->model;
    double sum = 0.0;
    (void)slot;
    for (size_t r = 0; r < m->rows; r++)
        sum += scores_gradient(m->scores + r * m->vocabulary, m->vocabulary, token_at(m, r)[1],
                               m->rows);
    return sum / (double)m->rows;
}

/* dh: gradient of the block's output -> of its input. A term that was added to h has the same
 * gradient as h. */
static void block_backward(lm *m, block *b, const float *params, float *grad) {
    size_t rows = m->rows;
    linear_backward(&b->mlp_out, rows, params, b->gelu, m->dh, m->wide, grad);
    gelu_backward(4 * rows * m->width, b->wide, m->wide);
    linear_backward(&b->mlp_in, rows, params, b->normed2, m->wide, m->spare, grad);
    norm_backward(&b->norm2, rows, params, &b->kept2, m->spare, m->dh, grad);
    linear_backward(&b->out, rows, params, b->o, m->dh, m->spare, grad);
    attention_backward(&m->attention, b->qkv_rows, b->a, m->spare, m->wide);
    linear_backward(&b->qkv, rows, params, b->normed1, m->wide, m->spare, grad);
    norm_backward(&b->norm1, rows, params, &b->kept1, m->spare, m->dh, grad);
}

static void head_backward(lm *m, const float *params, float *grad) {
    int rows = (int)m->rows, d = (int)m->width, v = (int)m->vocabulary;
    cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, v, d, rows, 1.0f, m->scores, v, m->normed,
                d, 1.0f, grad + m->token, d);
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, rows, d, v, 1.0f, m->scores, v,
                params + m->token, d, 0.0f, m->spare, d);
    memset(m->dh, 0, m->rows * m->width * sizeof *m->dh);
    norm_backward(&m->norm, m->rows, params, &m->kept, m->spare, m->dh, grad);
}

static void embed_backward(const lm *m, float *grad) {
    for (size_t r = 0; r < m->rows; r++) {
        const float *dh = m->dh + r * m->width;
        add_to(grad + m->token + *token_at(m, r) * m->width, dh, m->width);
        add_to(grad + m->position + r % m->attention.context * m->width, dh, m->width);
    }
}

static void backward(workload *w, const float *params, size_t slot, bool add, float *grad,
                     workload_hook hook, void *context) {
    lm *m = w->model;
    (void)slot;
    if (!add)
        memset(grad, 0, w->length * sizeof *grad);
    head_backward(m, params, grad);
    if (hook)
        hook(context, m->nblocks + 1);
    for (size_t i = m->nblocks; i-- > 0;) {
        block_backward(m, &m->blocks[i], params, grad);
        if (hook)
            hook(context, i + 1);
    }
    embed_backward(m, grad);
    if (hook)
        hook(context, 0);
}

const workload_kind workload_lm = {
    .name = "lm",
    .metric = "validation_loss",
    .metric_text = "validation loss",
    .metric_is_loss = true,
    .batch = 8,
    .steps = 1200,
    .eval_every = 100,
    .check = check,
    .load = passages_load,
    .unload = passages_unload,
    .hash = passages_hash,
    .open = open_model,
    .close = close_model,
    .describe = describe,
    .init = init,
    .take = take,
    .forward = forward,
    .loss = loss,
    .backward = backward,
    .score = score,
};
