/* SPDX-License-Identifier: MIT */
#include "bench/train/attention.h"

#include <cblas.h>
#include <math.h>
#include <string.h>

#include "bench/train/layers.h"

/* Where a head of a window begins: in qkv and its gradient (there its q; k and v follow `width` and
 * 2 `width` later), in o, in A. */
typedef struct place {
    size_t qkv, o, a;
} place;

static place place_of(const attention *l, size_t window, size_t head) {
    size_t row = window * l->context, column = head * (l->width / l->heads);
    return (place){
        .qkv = row * 3 * l->width + column,
        .o = row * l->width + column,
        .a = (window * l->heads + head) * l->context * l->context,
    };
}

/* Softmax of the row's first `past` numbers, the places that it may attend to; sets the others to
 * 0. So no exponential is computed above the diagonal. */
static void softmax_row(float *s, size_t past, size_t length, float scale) {
    float top = s[0], sum = 0.0f;
    for (size_t i = 1; i < past; i++)
        top = s[i] > top ? s[i] : top;
#pragma omp simd reduction(+ : sum)
    for (size_t i = 0; i < past; i++) {
        float e = layers_exp(scale * (s[i] - top));
        s[i] = e;
        sum += e;
    }
    sum = 1.0f / sum;
    for (size_t i = 0; i < past; i++)
        s[i] *= sum;
    memset(s + past, 0, (length - past) * sizeof *s);
}

/* dA -> dS of a row: a (dA - sum a dA) / sqrt(d). */
static void softmax_row_backward(const float *a, float *da, size_t past, size_t length,
                                 float scale) {
    float along = 0.0f;
#pragma omp simd reduction(+ : along)
    for (size_t i = 0; i < past; i++)
        along += a[i] * da[i];
    for (size_t i = 0; i < past; i++)
        da[i] = scale * a[i] * (da[i] - along);
    memset(da + past, 0, (length - past) * sizeof *da);
}

void attention_forward(const attention *l, const float *qkv, float *a, float *o) {
    int t = (int)l->context, d = (int)(l->width / l->heads), w = (int)l->width;
    const float scale = 1.0f / sqrtf((float)d);
    for (size_t i = 0; i < l->windows * l->heads; i++) {
        place at = place_of(l, i / l->heads, i % l->heads);
        const float *q = qkv + at.qkv, *k = q + w, *v = k + w;
        float *s = a + at.a;
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, t, t, d, 1.0f, q, 3 * w, k, 3 * w,
                    0.0f, s, t);
        for (size_t row = 0; row < l->context; row++)
            softmax_row(s + row * l->context, row + 1, l->context, scale);
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, t, d, t, 1.0f, s, t, v, 3 * w, 0.0f,
                    o + at.o, w);
    }
}

void attention_backward(const attention *l, const float *qkv, const float *a, const float *d_o,
                        float *dqkv) {
    int t = (int)l->context, d = (int)(l->width / l->heads), w = (int)l->width;
    const float scale = 1.0f / sqrtf((float)d);
    float *ds = l->spare;
    for (size_t i = 0; i < l->windows * l->heads; i++) {
        place at = place_of(l, i / l->heads, i % l->heads);
        const float *q = qkv + at.qkv, *k = q + w, *v = k + w, *s = a + at.a, *up = d_o + at.o;
        float *dq = dqkv + at.qkv, *dk = dq + w, *dv = dk + w;
        cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, t, d, t, 1.0f, s, t, up, w, 0.0f, dv,
                    3 * w);
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, t, t, d, 1.0f, up, w, v, 3 * w, 0.0f,
                    ds, t);
        for (size_t row = 0; row < l->context; row++)
            softmax_row_backward(s + row * l->context, ds + row * l->context, row + 1, l->context,
                                 scale);
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, t, d, t, 1.0f, ds, t, k, 3 * w, 0.0f,
                    dq, 3 * w);
        cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, t, d, t, 1.0f, ds, t, q, 3 * w, 0.0f,
                    dk, 3 * w);
    }
}
