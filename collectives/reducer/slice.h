/* SPDX-License-Identifier: MIT
 *
 * The hierarchical exchange: N nodes of G ranks each, rank a G + g is rank g of node a. What all
 * ranks of a node have to give is summed first, slice by slice, and the rest of a step is that of
 * the N ranks of a column, on a slice, as if there were no other ranks:
 *
 *     sum      alltoall in the node: slice g of every gradient to rank g, added in rank order
 *     step     accumulate, cut, slots, union, reduce in the column: N ranks, n / G elements
 *     share    slots in the node: indices and sums of every slice; all ranks hold the whole result
 *
 * A bucket is cut into chunks and each chunk into G runs; slice g is the g-th run of all chunks. So a
 * chunk of a gradient travels from where it lies, its sum is made in cache, and no slice is a few
 * layers alone. G = 2, runs of 3, 14 elements:
 *
 *     element   0 1 2 3 4 5 | 6 7 8 9 10 11 | 12 13
 *     slice     0 0 0 1 1 1 | 0 0 0 1  1  1 |  0  0
 *
 * Which is ownership cyclic among the G ranks of a node, with parts that stay where they are.
 */
#ifndef TAM_REDUCER_SLICE_H
#define TAM_REDUCER_SLICE_H

#include "collectives/reducer/reducer.h"
#include "collectives/transport/team.h"

enum { TAM_SLICE_RUN = 65536 }; /* elements of a run, at most */

/** After the last chunk: what was sent to one rank of the node. */
typedef struct tam_tail {
    uint64_t config, step, rank, checksum;
} tam_tail;

/** What a rank holds of a bucket. */
struct tam_slice {
    uint32_t local, nlocal; /* g, G */
    tam_division division;  /* of the bucket: part g is slice g */
    tamis_layout *layout;   /* of the own slice */
    uint64_t k_max;         /* of the bucket */
    tam_team node, column;

    float *sum;                /* [slice] the node's gradients */
    float *parts;              /* [chunk] runs of one slice, of every rank of the node */
    float *packed;             /* [chunk] a gradient that does not travel from where it lies */
    size_t *send_at, *recv_at; /* [G + 1] */
    tam_tail *sent, *came;     /* [G] */
    uint64_t *heard;           /* [G] checksums of what came */

    void *kernels;   /* of the whole bucket: the result is applied to the gradient */
    tam_slots slots; /* results of the slices. Words: picks of each rank of the column, rescans, the
                         first node whose sum was not finite */
    uint32_t *owners;   /* [G] 0, 1, 2, ... */
    size_t *cursors;    /* [G] */
    tam_reach *reaches; /* [G] */
    uint32_t *indices;  /* [k_max] the result, elements of the bucket */
    float *values;
    size_t count;
    tamis_stats all; /* of the step, what all columns say together */
};

/** The own slice of a bucket that knows its layout: geometry alone. */
tamis_status tam_slice_place(tam_bucket *b, uint64_t k_max);

/** Memory for the messages of a bucket that is otherwise open. */
tamis_status tam_slice_open(tam_bucket *b);
void tam_slice_close(tam_bucket *b);

/** Of k entries of the bucket those in the own slice, in proportion to its length. */
uint64_t tam_slice_share(const tam_bucket *b, uint64_t k);

/** The own slice of the node's sum. The gradient is read, and nothing else is changed. */
tamis_status tam_slice_sum(tam_bucket *b, tam_link *link);

/** A pass over the slice: its accumulated gradient. */
tam_accumulate tam_slice_pass(const tam_bucket *b);

/** The step of the column has its sums: give them to the node and take those of the other slices.
 * Whether the step is skipped all ranks decide here. */
tamis_status tam_slice_gather(tam_bucket *b, tam_link *link);

/** Entries that `rank` of the communicator picked. */
uint32_t tam_slice_picked(const tam_bucket *b, uint32_t rank);

/** Sum of the norms of all slices' groups. */
double tam_slice_norm(const tam_bucket *b);

/** First node whose sum was not finite in this step; N: none. */
uint32_t tam_slice_bad_node(const tam_bucket *b);

#endif
