/* SPDX-License-Identifier: MIT */
#include "tests/train/reference.h"

#include <math.h>
#include <string.h>

enum { SIDE = 28, PIXELS = SIDE * SIDE, CLASSES = 10, MOST = 512 };

static double cross_entropy(const double *scores, size_t classes, size_t label) {
    double sum = 0.0;
    for (size_t c = 0; c < classes; c++)
        sum += exp(scores[c] - scores[label]);
    return log(sum);
}

static double pixel(uint8_t value) {
    return (value / 255.0 - 0.2860) / 0.3530;
}

/* y = W x + b with W [outputs][inputs], b behind it. @return what follows them. */
static const double *linear(const double *p, size_t inputs, size_t outputs, const double *x,
                            double *y) {
    const double *b = p + outputs * inputs;
    for (size_t o = 0; o < outputs; o++) {
        y[o] = b[o];
        for (size_t i = 0; i < inputs; i++)
            y[o] += p[o * inputs + i] * x[i];
    }
    return b + outputs;
}

/* -- mlp -------------------------------------------------------------------------------------- */

double reference_mlp(const train_settings *s, const double *p, const uint8_t *images,
                     const uint8_t *labels, size_t rows) {
    double loss = 0.0, x[PIXELS], y[MOST];
    for (size_t r = 0; r < rows; r++) {
        const double *at = p;
        size_t inputs = PIXELS;
        for (size_t i = 0; i < PIXELS; i++)
            x[i] = pixel(images[r * PIXELS + i]);
        for (size_t l = 0; l < s->depth; l++, inputs = s->hidden) {
            at = linear(at, inputs, s->hidden, x, y);
            for (size_t i = 0; i < s->hidden; i++)
                x[i] = y[i] > 0.0 ? y[i] : 0.0;
        }
        linear(at, inputs, CLASSES, x, y);
        loss += cross_entropy(y, CLASSES, labels[r]);
    }
    return loss / (double)rows;
}

/* -- cnn -------------------------------------------------------------------------------------- */

static double at_place(const double *channel, int side, int y, int x) {
    return y < 0 || x < 0 || y >= side || x >= side ? 0.0 : channel[y * side + x];
}

/* One number of a convolution of 5 x 5 before ReLU. */
static double tap_sum(const double *w, double bias, const double *x, size_t inputs, int side,
                      int row, int column) {
    double sum = bias;
    for (size_t c = 0; c < inputs; c++) {
        for (int dy = 0; dy < 5; dy++) {
            for (int dx = 0; dx < 5; dx++)
                sum += w[c * 25 + (size_t)(5 * dy + dx)] *
                       at_place(x + c * (size_t)(side * side), side, row + dy - 2, column + dx - 2);
        }
    }
    return sum;
}

/* With ReLU and the maximum over 2 x 2. @return what follows its parameters. */
static const double *convolution(const double *p, size_t inputs, size_t outputs, int side,
                                 const double *x, double *y) {
    const double *b = p + outputs * inputs * 25;
    for (size_t o = 0; o < outputs; o++) {
        for (int i = 0; i < side / 2 * (side / 2); i++) {
            double best = 0.0;
            for (int k = 0; k < 4; k++) {
                int row = 2 * (i / (side / 2)) + k / 2, column = 2 * (i % (side / 2)) + k % 2;
                best = fmax(best, tap_sum(p + o * inputs * 25, b[o], x, inputs, side, row, column));
            }
            *y++ = best;
        }
    }
    return b + outputs;
}

double reference_cnn(const train_settings *s, const double *p, const uint8_t *images,
                     const uint8_t *labels, size_t rows) {
    static double x[PIXELS], one[MOST * PIXELS / 4], two[MOST * PIXELS / 16];
    double loss = 0.0, scores[CLASSES];
    size_t c = s->channels;
    for (size_t r = 0; r < rows; r++) {
        const double *at = p;
        for (size_t i = 0; i < PIXELS; i++)
            x[i] = pixel(images[r * PIXELS + i]);
        at = convolution(at, 1, c, SIDE, x, one);
        at = convolution(at, c, 2 * c, SIDE / 2, one, two);
        linear(at, 2 * c * PIXELS / 16, CLASSES, two, scores);
        loss += cross_entropy(scores, CLASSES, labels[r]);
    }
    return loss / (double)rows;
}

/* -- lm --------------------------------------------------------------------------------------- */

static const double *layer_norm(const double *p, size_t width, const double *x, double *y) {
    double mean = 0.0, variance = 0.0;
    for (size_t i = 0; i < width; i++)
        mean += x[i] / (double)width;
    for (size_t i = 0; i < width; i++)
        variance += (x[i] - mean) * (x[i] - mean) / (double)width;
    for (size_t i = 0; i < width; i++)
        y[i] = p[i] * (x[i] - mean) / sqrt(variance + 1e-5) + p[width + i];
    return p + 2 * width;
}

static double gelu(double x) {
    return 0.5 * x * (1.0 + tanh(sqrt(2.0 / acos(-1.0)) * (x + 0.044715 * x * x * x)));
}

/* What place t sees of the places up to it, of one head; rows of qkv are [3 * width]. */
static void attend(const double *qkv, size_t width, size_t size, size_t head, size_t t, double *o) {
    double weight[MOST], sum = 0.0;
    const double *q = qkv + t * 3 * width + head * size;
    for (size_t u = 0; u <= t; u++) {
        const double *k = qkv + u * 3 * width + width + head * size;
        double score = 0.0;
        for (size_t i = 0; i < size; i++)
            score += q[i] * k[i] / sqrt((double)size);
        sum += weight[u] = exp(score);
    }
    for (size_t i = 0; i < size; i++) {
        o[head * size + i] = 0.0;
        for (size_t u = 0; u <= t; u++)
            o[head * size + i] +=
                weight[u] / sum * qkv[u * 3 * width + 2 * width + head * size + i];
    }
}

/* h [T][D] -> the same after a block. @return what follows its parameters. */
static const double *block(const train_settings *s, const double *p, double *h) {
    static double qkv[MOST * 3];
    double x[MOST], y[MOST], z[MOST];
    size_t d = s->width, size = d / s->heads;
    const double *qkv_p = p + 2 * d, *out_p = qkv_p + 3 * d * (d + 1), *norm2 = out_p + d * (d + 1);
    const double *after = norm2;
    for (size_t t = 0; t < s->context; t++) {
        layer_norm(p, d, h + t * d, x);
        linear(qkv_p, d, 3 * d, x, qkv + t * 3 * d);
    }
    for (size_t t = 0; t < s->context; t++) {
        for (size_t head = 0; head < s->heads; head++)
            attend(qkv, d, size, head, t, x);
        linear(out_p, d, d, x, y);
        for (size_t i = 0; i < d; i++)
            h[t * d + i] += y[i];
        after = layer_norm(norm2, d, h + t * d, x);
        after = linear(after, d, 4 * d, x, z);
        for (size_t i = 0; i < 4 * d; i++)
            z[i] = gelu(z[i]);
        after = linear(after, 4 * d, d, z, y);
        for (size_t i = 0; i < d; i++)
            h[t * d + i] += y[i];
    }
    return after;
}

static double window_loss(const train_settings *s, const double *p, size_t vocabulary,
                          const uint8_t *tokens) {
    double h[MOST], x[MOST], scores[MOST], loss = 0.0;
    size_t d = s->width;
    const double *token = p, *position = p + vocabulary * d, *at = position + s->context * d;
    for (size_t t = 0; t < s->context; t++) {
        for (size_t i = 0; i < d; i++)
            h[t * d + i] = token[tokens[t] * d + i] + position[t * d + i];
    }
    for (size_t l = 0; l < s->layers; l++)
        at = block(s, at, h);
    for (size_t t = 0; t < s->context; t++) {
        layer_norm(at, d, h + t * d, x);
        memset(scores, 0, sizeof scores);
        for (size_t v = 0; v < vocabulary; v++) {
            for (size_t i = 0; i < d; i++)
                scores[v] += token[v * d + i] * x[i];
        }
        loss += cross_entropy(scores, vocabulary, tokens[t + 1]) / (double)s->context;
    }
    return loss;
}

double reference_lm(const train_settings *s, const double *p, size_t vocabulary,
                    const uint8_t *windows, size_t rows) {
    double loss = 0.0;
    for (size_t r = 0; r < rows; r++)
        loss += window_loss(s, p, vocabulary, windows + r * (s->context + 1)) / (double)rows;
    return loss;
}
