/* SPDX-License-Identifier: MIT
 *
 * Small dense symmetric systems: at most TAM_SOLVE_MOST unknowns.
 */
#ifndef TAM_ENERGY_SOLVE_H
#define TAM_ENERGY_SOLVE_H

#include <stdbool.h>
#include <stdint.h>

enum { TAM_SOLVE_MOST = 32 };

/** The first n rows and columns count. */
typedef struct tam_matrix {
    double at[TAM_SOLVE_MOST][TAM_SOLVE_MOST];
} tam_matrix;

/** Solve A x = b for the unknowns that `free_bits` names; the others are 0.
 * @return false: A is not positive definite there */
bool tam_solve_part(uint32_t n, const tam_matrix *a, const double *b, uint32_t free_bits,
                    double *x);

/** Least x'Ax - 2b'x with x >= 0 (Lawson and Hanson 1974, ch. 23, on normal equations). A must be
 * positive definite. @return false: it is not */
bool tam_solve_nonnegative(uint32_t n, const tam_matrix *a, const double *b, double *x);

/** @return false: A is not positive definite */
bool tam_solve_inverse(uint32_t n, const tam_matrix *a, tam_matrix *out);

/** Eigenvalues, and eigenvectors as columns, by Jacobi rotations: what is nearly singular shows. */
void tam_solve_eigen(uint32_t n, const tam_matrix *a, double *values, tam_matrix *vectors);

#endif
