/* SPDX-License-Identifier: MIT */
#include "bench/train/layers.h"

#include <cblas.h>
#include <math.h>

/* -- linear ----------------------------------------------------------------------------------- */

static void add_columns(const float *matrix, size_t rows, size_t columns, float *restrict out) {
    for (size_t r = 0; r < rows; r++) {
        for (size_t c = 0; c < columns; c++)
            out[c] += matrix[r * columns + c];
    }
}

void linear_forward(const linear *l, size_t rows, const float *params, const float *x, float *y) {
    int in = (int)l->inputs, out = (int)l->outputs;
    for (size_t r = 0; r < rows; r++)
        memcpy(y + r * l->outputs, params + l->bias, l->outputs * sizeof *y);
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int)rows, out, in, 1.0f, x, in,
                params + l->weight, in, 1.0f, y, out);
}

void linear_backward(const linear *l, size_t rows, const float *params, const float *x,
                     const float *dy, float *dx, float *grad) {
    int in = (int)l->inputs, out = (int)l->outputs;
    cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, out, in, (int)rows, 1.0f, dy, out, x, in,
                1.0f, grad + l->weight, in);
    add_columns(dy, rows, l->outputs, grad + l->bias);
    if (dx)
        linear_propagate(l, rows, params, dy, dx);
}

void linear_propagate(const linear *l, size_t rows, const float *params, const float *dy,
                      float *dx) {
    int in = (int)l->inputs, out = (int)l->outputs;
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (int)rows, in, out, 1.0f, dy, out,
                params + l->weight, in, 0.0f, dx, in);
}

/* -- norm ------------------------------------------------------------------------------------- */

static float sum_of(const float *x, size_t n) {
    float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (size_t i = 0; i < n; i++)
        sum += x[i];
    return sum;
}

static float product_of(const float *x, const float *y, size_t n) {
    float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (size_t i = 0; i < n; i++)
        sum += x[i] * y[i];
    return sum;
}

void norm_forward(const norm *l, size_t rows, const float *params, const float *x,
                  const norm_kept *kept, float *y) {
    const float *w = params + l->weight, *b = params + l->bias;
    const float share = 1.0f / (float)l->width;
    for (size_t r = 0; r < rows; r++, x += l->width, y += l->width) {
        float *hat = kept->hat + r * l->width;
        float mean = share * sum_of(x, l->width);
        for (size_t i = 0; i < l->width; i++)
            hat[i] = x[i] - mean;
        float scale = 1.0f / sqrtf(share * product_of(hat, hat, l->width) + 1e-5f);
        for (size_t i = 0; i < l->width; i++) {
            hat[i] *= scale;
            y[i] = hat[i] * w[i] + b[i];
        }
        kept->scale[r] = scale;
    }
}

/* With u = w dy: dx = scale (u - mean(u) - hat mean(u hat)). */
void norm_backward(const norm *l, size_t rows, const float *params, const norm_kept *kept,
                   const float *dy, float *dx, float *grad) {
    const float *w = params + l->weight, share = 1.0f / (float)l->width;
    float *restrict dw = grad + l->weight, *restrict db = grad + l->bias;
    for (size_t r = 0; r < rows; r++, dy += l->width, dx += l->width) {
        const float *hat = kept->hat + r * l->width;
        float mean = 0.0f, along = 0.0f;
#pragma omp simd reduction(+ : mean, along)
        for (size_t i = 0; i < l->width; i++) {
            float u = w[i] * dy[i];
            mean += u;
            along += u * hat[i];
            dw[i] += dy[i] * hat[i];
            db[i] += dy[i];
        }
        mean *= share;
        along *= share;
        for (size_t i = 0; i < l->width; i++)
            dx[i] += kept->scale[r] * (w[i] * dy[i] - mean - hat[i] * along);
    }
}

/* -- GELU ------------------------------------------------------------------------------------- */

/* One loop compiled for three instruction sets, of which the best is chosen at run time. The loop
 * is NAME_loop and works element by element, so all three give the same bits. This does not use
 * target_clones, whose resolver runs before the sanitizers are ready. */
#define LEVELS_INLINE static inline __attribute__((always_inline))
#define LEVELS_LOOP LEVELS_INLINE void

#if defined(__x86_64__)

#define LEVELS(name, parameters, arguments)                                                        \
    static void name##_plain parameters {                                                          \
        name##_loop arguments;                                                                     \
    }                                                                                              \
    __attribute__((target("avx2"))) static void name##_avx2 parameters {                           \
        name##_loop arguments;                                                                     \
    }                                                                                              \
    __attribute__((target("avx512f"))) static void name##_avx512 parameters {                      \
        name##_loop arguments;                                                                     \
    }                                                                                              \
    void name parameters {                                                                         \
        if (__builtin_cpu_supports("avx512f"))                                                     \
            name##_avx512 arguments;                                                               \
        else if (__builtin_cpu_supports("avx2"))                                                   \
            name##_avx2 arguments;                                                                 \
        else                                                                                       \
            name##_plain arguments;                                                                \
    }

#else

#define LEVELS(name, parameters, arguments)                                                        \
    void name parameters {                                                                         \
        name##_loop arguments;                                                                     \
    }

#endif

/* x (1 + tanh u) / 2 = x s with s = 1 / (1 + e^-2u), u = sqrt(2 / pi) (x + 0.044715 x^3). */
static const float twice_root = 1.5957691216f, cubic = 0.044715f;

LEVELS_INLINE float gate(float x) {
    return 1.0f / (1.0f + layers_exp(-twice_root * (x + cubic * x * x * x)));
}

LEVELS_LOOP gelu_forward_loop(size_t n, const float *restrict x, float *restrict y) {
    for (size_t i = 0; i < n; i++)
        y[i] = x[i] * gate(x[i]);
}

LEVELS_LOOP gelu_backward_loop(size_t n, const float *restrict x, float *restrict dy) {
    for (size_t i = 0; i < n; i++) {
        float s = gate(x[i]), slope = twice_root * (1.0f + 3.0f * cubic * x[i] * x[i]);
        dy[i] *= s + x[i] * s * (1.0f - s) * slope;
    }
}

LEVELS(gelu_forward, (size_t n, const float *restrict x, float *restrict y), (n, x, y))
LEVELS(gelu_backward, (size_t n, const float *restrict x, float *restrict dy), (n, x, dy))

/* -- scores ----------------------------------------------------------------------------------- */

static float highest(const float *scores, size_t classes) {
    float top = scores[0];
    for (size_t c = 1; c < classes; c++)
        top = scores[c] > top ? scores[c] : top;
    return top;
}

double scores_gradient(float *scores, size_t classes, size_t label, size_t rows) {
    float top = highest(scores, classes), sum = 0.0f;
    double loss = (double)top - (double)scores[label];
    for (size_t c = 0; c < classes; c++)
        sum += scores[c] = expf(scores[c] - top);
    for (size_t c = 0; c < classes; c++)
        scores[c] = (scores[c] / sum - (c == label ? 1.0f : 0.0f)) / (float)rows;
    return loss + log((double)sum);
}

double scores_loss(const float *scores, size_t classes, size_t label) {
    float top = highest(scores, classes), sum = 0.0f;
    for (size_t c = 0; c < classes; c++)
        sum += expf(scores[c] - top);
    return (double)top - (double)scores[label] + log((double)sum);
}

size_t scores_best(const float *scores, size_t classes) {
    size_t best = 0;
    for (size_t c = 1; c < classes; c++)
        best = scores[c] > scores[best] ? c : best;
    return best;
}
