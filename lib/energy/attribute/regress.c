/* SPDX-License-Identifier: MIT
 *
 * The mathematics of a fit. Row i says that a counter gained y_i joules while phase k was under way
 * for x_ik seconds, and watts p are sought:
 *
 *     y_i = sum over k of x_ik p_k + error,     variance of the error: variance / w_i,     p >= 0
 *
 * Rows are not kept, but their sums A = sum w x x', b = sum w x y, which shrink a little with each
 * row, so that old ones are forgotten. The watts are those with the least sum of squares, where the
 * prior, p_k = mean_w +- mean_w, counts as one more row for each phase:
 *
 *     minimise p'(A + ridge I)p - 2 p'(b + ridge mean_w),     ridge = variance / mean_w^2
 *
 * A phase of which rows tell nothing thus has the mean and an error as large. Without the bound at
 * 0 the errors of the watts have the covariance variance (A + ridge I)^-1.
 */
#include "lib/energy/attribute/fit.h"

#include <math.h>

/* A column that varies beside the others by no more than that part of itself cannot be told from
 * them (rounding alone makes as much), nor if by little more than uncertain times make of it. */
static const double least_part = 1e-8, blur_most = 3.0;

/* Another phase belongs to what a phase is mistaken for, from that part of 1 / phases on. */
static const double linked = 0.25;

typedef struct matrix {
    uint32_t n;
    double at[TAM_FIT_MAX][TAM_FIT_MAX];
} matrix;

/* -- sums ------------------------------------------------------------------------------------- */

static uint32_t list(uint32_t phases, uint8_t which[TAM_FIT_MAX]) {
    uint32_t n = 0;
    for (uint32_t k = 0; k < TAM_FIT_MAX; k++) {
        if (phases >> k & 1)
            which[n++] = (uint8_t)k;
    }
    return n;
}

static uint32_t packed(uint32_t i, uint32_t j) {
    return i * (i + 1) / 2 + j;
}

void tam_normal_add(tam_normal *n, uint32_t phases, double decay, const tam_row *row) {
    uint8_t which[TAM_FIT_MAX];
    uint32_t count = list(phases, which);
    for (uint32_t i = 0; i < count; i++) {
        double *xx = n->xx + packed(which[i], 0), wx = row->weight * row->x[which[i]];
        for (uint32_t j = 0; j <= i; j++)
            xx[which[j]] = xx[which[j]] * decay + wx * row->x[which[j]];
        n->xy[which[i]] = n->xy[which[i]] * decay + wx * row->y;
    }
    n->yy = n->yy * decay + row->weight * row->y * row->y;
    n->w = n->w * decay + row->weight;
    n->ww = n->ww * decay * decay + row->weight * row->weight;
}

void tam_normal_scale(tam_normal *n, double factor) {
    for (uint32_t i = 0; i < sizeof n->xx / sizeof n->xx[0]; i++)
        n->xx[i] *= factor;
    for (uint32_t k = 0; k < TAM_FIT_MAX; k++)
        n->xy[k] *= factor;
    n->yy *= factor;
    n->w *= factor;
    n->ww *= factor * factor;
}

double tam_normal_rows(const tam_normal *n) {
    return n->ww > 0.0 ? n->w * n->w / n->ww : 0.0;
}

/* Phases become columns; those of a group one column together, for its sum is all that is known. */
static uint32_t number(uint32_t phases, const uint32_t *group, uint8_t column[TAM_FIT_MAX]) {
    uint32_t n = 0;
    memset(column, 0, TAM_FIT_MAX * sizeof column[0]);
    for (uint32_t k = 0; k < TAM_FIT_MAX; k++) {
        uint32_t first = 0;
        while (first < k && !(group[k] >> first & 1))
            first++;
        if (phases >> k & 1)
            column[k] = first < k ? column[first] : (uint8_t)n++;
    }
    return n;
}

static void regress_unpack(const tam_normal *n, uint32_t phases, const uint32_t *group,
                           uint8_t column[TAM_FIT_MAX], matrix *out) {
    uint8_t which[TAM_FIT_MAX];
    uint32_t count = list(phases, which);
    out->n = number(phases, group, column);
    for (uint32_t i = 0; i < out->n; i++)
        memset(out->at[i], 0, out->n * sizeof out->at[i][0]);
    for (uint32_t i = 0; i < count; i++) {
        for (uint32_t j = 0; j < count; j++)
            out->at[column[which[i]]][column[which[j]]] +=
                n->xx[j <= i ? packed(which[i], which[j]) : packed(which[j], which[i])];
    }
}

double tam_normal_mean(const tam_normal *n, uint32_t phases) {
    uint8_t which[TAM_FIT_MAX];
    uint32_t count = list(phases, which);
    double xx = 0.0, xy = 0.0;
    for (uint32_t i = 0; i < count; i++) {
        for (uint32_t j = 0; j <= i; j++)
            xx += (i == j ? 1.0 : 2.0) * n->xx[packed(which[i], which[j])];
        xy += n->xy[which[i]];
    }
    return xx > 0.0 && xy > 0.0 ? xy / xx : 0.0;
}

/* -- equations -------------------------------------------------------------------------------- */

/* A = L L', by Cholesky, in place of the lower triangle. @return false: it is
 * not positive definite */
static bool factor(matrix *a) {
    for (uint32_t j = 0; j < a->n; j++) {
        for (uint32_t i = j; i < a->n; i++) {
            double sum = a->at[i][j];
            for (uint32_t k = 0; k < j; k++)
                sum -= a->at[i][k] * a->at[j][k];
            if (i == j && !(sum > 1e-14 * a->at[j][j]))
                return false;
            a->at[i][j] = i > j ? sum / a->at[j][j] : sqrt(sum);
        }
    }
    return true;
}

/* Solve L L' x = b, in place. */
static void substitute(const matrix *l, double *x) {
    for (uint32_t i = 0; i < l->n; i++) {
        for (uint32_t k = 0; k < i; k++)
            x[i] -= l->at[i][k] * x[k];
        x[i] /= l->at[i][i];
    }
    for (uint32_t i = l->n; i-- > 0;) {
        for (uint32_t k = i + 1; k < l->n; k++)
            x[i] -= l->at[k][i] * x[k];
        x[i] /= l->at[i][i];
    }
}

static bool invert(const matrix *a, matrix *out) {
    matrix l = *a;
    double column[TAM_FIT_MAX];
    if (!factor(&l))
        return false;
    out->n = a->n;
    for (uint32_t j = 0; j < a->n; j++) {
        memset(column, 0, sizeof column);
        column[j] = 1.0;
        substitute(&l, column);
        for (uint32_t i = 0; i < a->n; i++)
            out->at[i][j] = column[i];
    }
    return true;
}

/* The unknowns that `free_bits` names; the others are 0. */
static bool solve_part(const matrix *a, const double *b, uint32_t free_bits, double *x) {
    matrix l;
    double y[TAM_FIT_MAX];
    uint8_t which[TAM_FIT_MAX];
    l.n = list(free_bits, which);
    for (uint32_t i = 0; i < l.n; i++) {
        y[i] = b[which[i]];
        for (uint32_t j = 0; j <= i; j++)
            l.at[i][j] = a->at[which[i]][which[j]];
    }
    if (!factor(&l))
        return false;
    substitute(&l, y);
    memset(x, 0, a->n * sizeof x[0]);
    for (uint32_t i = 0; i < l.n; i++)
        x[which[i]] = y[i];
    return true;
}

/* Bits of those on the wrong side: free and negative, or at 0 though more would be better. */
static uint32_t misplaced(const matrix *a, const double *b, const double *x, uint32_t free_bits) {
    uint32_t bits = 0;
    for (uint32_t i = 0; i < a->n; i++) {
        double slope = b[i], size = fabs(b[i]);
        for (uint32_t j = 0; j < a->n; j++) {
            slope -= a->at[i][j] * x[j];
            size += fabs(a->at[i][j] * x[j]);
        }
        bool wrong = free_bits >> i & 1 ? x[i] < 0.0 : slope > 1e-10 * size;
        bits |= (uint32_t)wrong << i;
    }
    return bits;
}

/* Least x'Ax - 2b'x with x >= 0, A positive definite. All are free at first, and those on the wrong
 * side change it, at once while that helps. After some rounds only the last one does: this is known
 * to end (Murty 1974), which the bound on rounds does not cut off in practice. */
static bool solve_nonnegative(const matrix *a, const double *b, double *x) {
    enum { ROUNDS_AT_ONCE = 8, ROUNDS_MAX = 8 * TAM_FIT_MAX };
    uint32_t free_bits = UINT32_MAX >> (32 - a->n);
    for (uint32_t round = 0; round < ROUNDS_MAX; round++) {
        if (!solve_part(a, b, free_bits, x))
            return false;
        uint32_t wrong = misplaced(a, b, x, free_bits);
        if (!wrong)
            return true;
        uint32_t last = 1u << (31 - __builtin_clz(wrong));
        free_bits ^= round < ROUNDS_AT_ONCE ? wrong : last;
    }
    for (uint32_t i = 0; i < a->n; i++)
        x[i] = fmax(x[i], 0.0);
    return true;
}

/* -- watts ------------------------------------------------------------------------------------ */

static double mean_error(const tam_normal *n, const matrix *a, const double *b, const double *x) {
    double sum = n->yy;
    for (uint32_t i = 0; i < a->n; i++) {
        double predicted = 0.0;
        for (uint32_t j = 0; j < a->n; j++)
            predicted += a->at[i][j] * x[j];
        sum += x[i] * (predicted - 2.0 * b[i]);
    }
    return sum > 0.0 ? sum / n->w : 0.0;
}

bool tam_normal_solve(const tam_normal *n, const tam_unknowns *u, double watts[TAM_FIT_MAX],
                      double *error_j2) {
    uint8_t column[TAM_FIT_MAX];
    matrix a, whole;
    double b[TAM_FIT_MAX] = {0}, with_prior[TAM_FIT_MAX], x[TAM_FIT_MAX];
    regress_unpack(n, u->phases, u->group, column, &a);
    for (uint32_t k = 0; k < TAM_FIT_MAX; k++)
        b[column[k]] += u->phases >> k & 1 ? n->xy[k] : 0.0;
    whole = a;
    for (uint32_t i = 0; i < a.n; i++) {
        with_prior[i] = b[i] + u->ridge * u->mean_w;
        whole.at[i][i] += u->ridge;
    }
    if (!(n->w > 0.0) || !solve_nonnegative(&whole, with_prior, x))
        return false;
    *error_j2 = mean_error(n, &a, b, x);
    for (uint32_t k = 0; k < TAM_FIT_MAX; k++)
        watts[k] = u->phases >> k & 1 ? x[column[k]] : u->mean_w;
    return true;
}

/* With forgetting the equations weigh more than the rows tell, by w / ww. */
bool tam_normal_spread(const tam_normal *n, const tam_unknowns *u, double spread[TAM_FIT_MAX]) {
    uint8_t column[TAM_FIT_MAX];
    matrix a, inverse;
    regress_unpack(n, u->phases, u->group, column, &a);
    for (uint32_t i = 0; i < a.n; i++)
        a.at[i][i] += u->ridge;
    if (!invert(&a, &inverse))
        return false;
    for (uint32_t k = 0; k < TAM_FIT_MAX; k++)
        spread[k] =
            u->phases >> k & 1 ? inverse.at[column[k]][column[k]] * n->ww / n->w : 1.0 / u->ridge;
    return true;
}

/* -- what cannot be told apart ---------------------------------------------------------------- */

/* With columns of length 1 and C = A^-1, what is left of column i beside the others has the squared
 * length 1 / C_ii, and is the column less -C_ij / C_ii times each other one. */
static double leftover_blur(const matrix *c, const matrix *blur, uint32_t i) {
    double sum = 0.0;
    for (uint32_t j = 0; j < c->n; j++) {
        for (uint32_t k = 0; k < c->n; k++)
            sum += c->at[i][j] * blur->at[j][k] * c->at[i][k];
    }
    return sum / (c->at[i][i] * c->at[i][i]);
}

/* Bits of columns that column i is mistaken for, itself included; 0: none. */
static uint32_t find_mates(const matrix *c, const matrix *blur, uint32_t i) {
    uint32_t bits = 0;
    if (1.0 / c->at[i][i] > least_part + blur_most * leftover_blur(c, blur, i))
        return 0;
    for (uint32_t j = 0; j < c->n; j++) {
        if (j != i && fabs(c->at[i][j]) > c->at[i][i] * linked / c->n)
            bits |= 1u << j | 1u << i;
    }
    return bits;
}

static void regress_scale(matrix *m, const double *by) {
    for (uint32_t i = 0; i < m->n; i++) {
        for (uint32_t j = 0; j < m->n; j++)
            m->at[i][j] *= by[i] * by[j];
    }
}

/* Who shares a mate is in one group. */
static void regress_join(const uint32_t *mates, uint32_t count, const uint8_t *which,
                         uint32_t *group) {
    for (uint32_t i = 0; i < count; i++) {
        uint32_t bits = mates[i], before = 0;
        while (bits != before) {
            before = bits;
            for (uint32_t j = 0; j < count; j++)
                bits |= mates[j] & bits ? mates[j] : 0;
        }
        for (uint32_t j = 0; j < count; j++) {
            if (bits >> j & 1)
                group[which[i]] |= 1u << which[j];
        }
    }
}

void tam_normal_groups(const tam_normal *n, uint32_t phases, const tam_normal *blur,
                       uint32_t group[TAM_FIT_MAX], double *condition) {
    uint8_t which[TAM_FIT_MAX], column[TAM_FIT_MAX];
    uint32_t mates[TAM_FIT_MAX] = {0}, count = list(phases, which);
    double length[TAM_FIT_MAX];
    matrix a, wrong, c;
    memset(group, 0, TAM_FIT_MAX * sizeof group[0]);
    regress_unpack(n, phases, group, column, &a);
    regress_unpack(blur, phases, group, column, &wrong);
    for (uint32_t i = 0; i < count; i++)
        length[i] = a.at[i][i] > 0.0 ? 1.0 / sqrt(a.at[i][i]) : 0.0;
    regress_scale(&a, length);
    regress_scale(&wrong, length);
    for (uint32_t i = 0; i < count; i++)
        a.at[i][i] += 0.1 * least_part;
    *condition = 1.0 / least_part;
    if (!invert(&a, &c)) { /* rounding: nothing is told from anything */
        for (uint32_t i = 0; i < count; i++)
            group[which[i]] = phases;
        return;
    }
    *condition = 1.0;
    for (uint32_t i = 0; i < count; i++) {
        mates[i] = length[i] > 0.0 ? find_mates(&c, &wrong, i) : 0;
        *condition = fmax(*condition, length[i] > 0.0 ? sqrt(c.at[i][i]) : 1.0);
    }
    regress_join(mates, count, which, group);
}
