/* SPDX-License-Identifier: MIT */
#include "lib/energy/attribute/solve.h"

#include <math.h>
#include <string.h>

enum { SWEEPS = 30 };

/* Rows of the lower triangle of those that are free, in place. */
static bool factor(uint32_t n, tam_matrix *l) {
    for (uint32_t j = 0; j < n; j++) {
        for (uint32_t i = j; i < n; i++) {
            double sum = l->at[i][j];
            for (uint32_t k = 0; k < j; k++)
                sum -= l->at[i][k] * l->at[j][k];
            if (i > j)
                l->at[i][j] = sum / l->at[j][j];
            else if (sum > 1e-14 * l->at[j][j])
                l->at[j][j] = sqrt(sum);
            else
                return false;
        }
    }
    return true;
}

static void substitute(uint32_t n, const tam_matrix *l, double *x) {
    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t k = 0; k < i; k++)
            x[i] -= l->at[i][k] * x[k];
        x[i] /= l->at[i][i];
    }
    for (uint32_t i = n; i-- > 0;) {
        for (uint32_t k = i + 1; k < n; k++)
            x[i] -= l->at[k][i] * x[k];
        x[i] /= l->at[i][i];
    }
}

bool tam_solve_part(uint32_t n, const tam_matrix *a, const double *b, uint32_t free_bits,
                    double *x) {
    tam_matrix l;
    double y[TAM_SOLVE_MOST];
    uint32_t which[TAM_SOLVE_MOST], count = 0;
    for (uint32_t i = 0; i < n; i++) {
        x[i] = 0.0;
        if (free_bits >> i & 1)
            which[count++] = i;
    }
    for (uint32_t i = 0; i < count; i++) {
        y[i] = b[which[i]];
        for (uint32_t j = 0; j <= i; j++)
            l.at[i][j] = a->at[which[i]][which[j]];
    }
    if (!factor(count, &l))
        return false;
    substitute(count, &l, y);
    for (uint32_t i = 0; i < count; i++)
        x[which[i]] = y[i];
    return true;
}

/* From x, which is feasible, towards z as far as nothing becomes negative; who is at 0 then is
 * free no more. @return whether z was reached */
static bool step(uint32_t n, const double *z, double *x, uint32_t *free_bits) {
    double part = 1.0;
    for (uint32_t i = 0; i < n; i++) {
        if (*free_bits >> i & 1 && z[i] <= 0.0)
            part = fmin(part, x[i] / (x[i] - z[i]));
    }
    bool reached = true;
    for (uint32_t i = 0; i < n; i++) {
        if (!(*free_bits >> i & 1))
            continue;
        bool blocked = z[i] <= 0.0 && x[i] / (x[i] - z[i]) <= part;
        x[i] = blocked ? 0.0 : x[i] + part * (z[i] - x[i]);
        if (blocked) {
            *free_bits &= ~(1u << i);
            reached = false;
        }
    }
    return reached;
}

/* The one at 0 that would gain most by becoming positive; n: there is none. */
static uint32_t steepest(uint32_t n, const tam_matrix *a, const double *b, const double *x,
                         uint32_t free_bits) {
    uint32_t best = n;
    double most = 0.0;
    for (uint32_t i = 0; i < n; i++) {
        double slope = b[i], size = fabs(b[i]);
        for (uint32_t j = 0; j < n; j++) {
            slope -= a->at[i][j] * x[j];
            size += fabs(a->at[i][j] * x[j]);
        }
        if (!(free_bits >> i & 1) && slope > 1e-10 * size && slope > most) {
            most = slope;
            best = i;
        }
    }
    return best;
}

bool tam_solve_nonnegative(uint32_t n, const tam_matrix *a, const double *b, double *x) {
    double z[TAM_SOLVE_MOST];
    uint32_t free_bits = 0;
    memset(x, 0, n * sizeof x[0]);
    for (uint32_t tries = 0; tries < 3 * TAM_SOLVE_MOST; tries++) {
        uint32_t enters = steepest(n, a, b, x, free_bits);
        if (enters == n)
            return true;
        free_bits |= 1u << enters;
        do {
            if (!tam_solve_part(n, a, b, free_bits, z))
                return false;
        } while (!step(n, z, x, &free_bits));
    }
    return true; /* feasible, and as good as rounding lets it be */
}

bool tam_solve_inverse(uint32_t n, const tam_matrix *a, tam_matrix *out) {
    tam_matrix l = *a;
    double column[TAM_SOLVE_MOST];
    if (!factor(n, &l))
        return false;
    for (uint32_t j = 0; j < n; j++) {
        memset(column, 0, sizeof column);
        column[j] = 1.0;
        substitute(n, &l, column);
        for (uint32_t i = 0; i < n; i++)
            out->at[i][j] = column[i];
    }
    return true;
}

static void rotate(double *x, double *y, double c, double s) {
    double old = *x;
    *x = c * old - s * *y;
    *y = s * old + c * *y;
}

/* Make a->at[p][q] zero. */
static void turn(uint32_t n, tam_matrix *a, tam_matrix *vectors, uint32_t p, uint32_t q) {
    double theta = (a->at[q][q] - a->at[p][p]) / (2.0 * a->at[p][q]);
    double t = copysign(1.0, theta) / (fabs(theta) + sqrt(theta * theta + 1.0));
    double c = 1.0 / sqrt(t * t + 1.0), s = t * c;
    for (uint32_t k = 0; k < n; k++)
        rotate(&a->at[k][p], &a->at[k][q], c, s);
    for (uint32_t k = 0; k < n; k++)
        rotate(&a->at[p][k], &a->at[q][k], c, s);
    for (uint32_t k = 0; k < n; k++)
        rotate(&vectors->at[k][p], &vectors->at[k][q], c, s);
}

void tam_solve_eigen(uint32_t n, const tam_matrix *a, double *values, tam_matrix *vectors) {
    tam_matrix work = *a;
    double least = 0.0;
    memset(vectors, 0, sizeof *vectors);
    for (uint32_t i = 0; i < n; i++)
        vectors->at[i][i] = 1.0;
    for (uint32_t i = 0; i < n; i++)
        least += 1e-16 * fabs(a->at[i][i]);
    for (uint32_t sweep = 0; sweep < SWEEPS; sweep++) {
        bool turned = false;
        for (uint32_t p = 0; p < n; p++) {
            for (uint32_t q = p + 1; q < n; q++) {
                if (fabs(work.at[p][q]) <= least)
                    continue;
                turn(n, &work, vectors, p, q);
                turned = true;
            }
        }
        if (!turned)
            break;
    }
    for (uint32_t i = 0; i < n; i++)
        values[i] = work.at[i][i];
}
