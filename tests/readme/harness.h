/* SPDX-License-Identifier: MIT
 *
 * What a program has around the snippets of the README: a gradient, an optimizer, and the end.
 */
#ifndef TESTS_README_HARNESS_H
#define TESTS_README_HARNESS_H

#include "step.head"

#include <stdlib.h>

enum { n = 200704 + 256 + 2560 + 10, CAPACITY = n + 64 };

static float params[CAPACITY], grads[CAPACITY];
static const int steps = 5;

static int of_rank(void) {
    int rank;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    return rank;
}

/* Entries of another size and, on every rank, of another sign here and there. */
static void fill(float *out, size_t from, size_t to) {
    for (size_t i = from; i < to; i++)
        out[i] = (float)(i % 97) * ((i + (size_t)of_rank()) % 3 ? 1.0f : -1.0f);
}

static void backward(float *out) {
    fill(out, 0, n);
}

/* Steps whose gradient came back to 30 percent, as the end will see. */
static int good_steps;
static void optimizer(float *p, const float *g) {
    size_t chosen = 0;
    for (size_t i = 0; i < n; i++) {
        chosen += g[i] != 0.0f;
        p[i] -= 0.1f * g[i];
    }
    good_steps += chosen > n / 100 && chosen <= 3 * n / 10;
}

static void end_well(const char *name, tamis_comm *comm, tamis_layout *layout, tamis_reducer *red) {
    check(tamis_comm_check_equal(comm, params, n * sizeof *params));
    tamis_reducer_destroy(red);
    tamis_layout_destroy(layout);
    tamis_comm_destroy(comm);
    MPI_Finalize();
    if (good_steps != steps)
        exit(1);
    printf("%s: ok\n", name);
}

#endif
