/* SPDX-License-Identifier: MIT
 *
 * An all-gather over MPI for a group that survives, made of single messages. In MPI's own, that do
 * not block, Open MPI 5.0 frees messages that are on their way when a rank dies, and ends the whole
 * job when one of them then fails ("Send error after request freed").
 *
 *     round       0           1             2            the blocks of the ranks r, r + 1, ...
 *     has         r       r .. r+1      r .. r+3         arrive from the rank r + 2^round
 */
#ifndef TAMIS_BENCH_GROUP_SPREAD_H
#define TAMIS_BENCH_GROUP_SPREAD_H

#include <mpi.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct bench_spread bench_spread;

/** What is done with the blocks at the end: they are copied, or the largest numbers taken. */
typedef struct bench_spread_out {
    void *all;     /* [nranks * bytes]; NULL: not wanted */
    uint64_t *max; /* [bytes / 8]; NULL: not wanted */
} bench_spread_out;

/** Begin. All ranks give as many bytes, and the same tag, which no other that is under way has.
 * @return NULL: the communicator is lost, or there is no memory */
bench_spread *bench_spread_begin(MPI_Comm comm, int tag, const void *mine, size_t bytes,
                                 bench_spread_out out);

/** Go on with it. Afterwards, if it has ended or failed, it must not be used any more: the first
 * frees it, the second leaves it to MPI, which may still write there.
 * @return false: the communicator is lost */
bool bench_spread_test(bench_spread *s, bool *ended);

#endif
