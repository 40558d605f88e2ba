/* SPDX-License-Identifier: MIT */
#include "lib/base/fold.h"

enum { WARP = 32, WARPS = TAM_FOLD_LANES / WARP };

static double fold_halves(double *x, size_t count) {
    for (size_t by = count / 2; by > 0; by /= 2) {
        for (size_t i = 0; i < by; i++)
            x[i] += x[i + by];
    }
    return x[0];
}

static double fold(double lanes[TAM_FOLD_LANES]) {
    double warps[WARPS];
    for (size_t w = 0; w < WARPS; w++)
        warps[w] = fold_halves(lanes + w * WARP, WARP);
    return fold_halves(warps, WARPS);
}

double tam_fold_list(const double *list, size_t count) {
    double lanes[TAM_FOLD_LANES] = {0};
    for (size_t i = 0; i < count; i++)
        lanes[i % TAM_FOLD_LANES] += list[i];
    return fold(lanes);
}

static double fold_piece(const float *values, size_t count) {
    double lanes[TAM_FOLD_LANES] = {0};
    for (size_t first = 0; first < count; first += TAM_FOLD_LANES) {
        size_t end = count - first < TAM_FOLD_LANES ? count - first : TAM_FOLD_LANES;
        for (size_t t = 0; t < end; t++)
            lanes[t] += (double)values[first + t] * values[first + t];
    }
    return fold(lanes);
}

double tam_fold_squares(const float *values, size_t count) {
    double lanes[TAM_FOLD_LANES] = {0};
    for (size_t piece = 0; piece * TAM_FOLD_PIECE < count; piece++) {
        size_t rest = count - piece * TAM_FOLD_PIECE;
        size_t length = rest < TAM_FOLD_PIECE ? rest : TAM_FOLD_PIECE;
        lanes[piece % TAM_FOLD_LANES] += fold_piece(values + piece * TAM_FOLD_PIECE, length);
    }
    return fold(lanes);
}
