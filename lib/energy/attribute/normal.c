/* SPDX-License-Identifier: MIT */
#include "lib/energy/attribute/fit.h"

void tam_normal_scale(tam_normal *n, uint32_t count, double factor) {
    for (uint32_t i = 0; i < count * (count + 1) / 2; i++)
        n->a[i] *= factor;
    for (uint32_t i = 0; i < count; i++)
        n->b[i] *= factor;
    n->yy *= factor;
    n->w *= factor;
    n->ww *= factor * factor;
}

void tam_normal_add(tam_normal *n, uint32_t count, double decay, const tam_row *row) {
    double *a = n->a;
    for (uint32_t i = 0; i < count; i++) {
        double wx = row->weight * row->x[i];
        for (uint32_t j = 0; j <= i; j++)
            a[j] = a[j] * decay + wx * row->x[j];
        a += i + 1;
        n->b[i] = n->b[i] * decay + wx * row->y;
    }
    n->yy = n->yy * decay + row->weight * row->y * row->y;
    n->w = n->w * decay + row->weight;
    n->ww = n->ww * decay * decay + row->weight * row->weight;
}

void tam_normal_matrix(const tam_normal *n, uint32_t count, tam_matrix *out) {
    const double *a = n->a;
    for (uint32_t i = 0; i < count; i++) {
        for (uint32_t j = 0; j <= i; j++)
            out->at[i][j] = out->at[j][i] = a[j];
        a += i + 1;
    }
}

double tam_normal_mean(const tam_normal *n, uint32_t count) {
    const double *a = n->a;
    double xx = 0.0, xy = 0.0;
    for (uint32_t i = 0; i < count; i++) {
        for (uint32_t j = 0; j <= i; j++)
            xx += (i == j ? 1.0 : 2.0) * a[j];
        a += i + 1;
        xy += n->b[i];
    }
    return xx > 0.0 && xy > 0.0 ? xy / xx : 0.0;
}

double tam_normal_error(const tam_normal *n, uint32_t count, const double *watts) {
    const double *a = n->a;
    double sum = n->yy;
    for (uint32_t i = 0; i < count; i++) {
        double predicted = 0.5 * a[i] * watts[i];
        for (uint32_t j = 0; j < i; j++)
            predicted += a[j] * watts[j];
        a += i + 1;
        sum += 2.0 * watts[i] * (predicted - n->b[i]);
    }
    return n->w > 0.0 && sum > 0.0 ? sum / n->w : 0.0;
}

double tam_normal_rows(const tam_normal *n) {
    return n->ww > 0.0 ? n->w * n->w / n->ww : 0.0;
}
