/* SPDX-License-Identifier: MIT
 *
 * The sum of a node: of the gradients of its G ranks each rank gets its own slice, chunk by chunk
 * (lib/policy/slice.h), by all-to-alls, and adds them up in rank order.
 */
#ifndef TAM_EXCHANGE_NODE_H
#define TAM_EXCHANGE_NODE_H

#include "collectives/transport/team.h"
#include "lib/base/exchange.h"
#include "lib/policy/slice.h"

/** After the last chunk: what was sent to one rank of the node. */
typedef struct tam_tail {
    uint64_t config, step, rank, checksum;
} tam_tail;

typedef struct tam_node {
    tam_bucket_view *view;
    float *sum;                /* [slice] */
    float *parts;              /* [chunk] runs of one slice, of every rank of the node */
    float *packed;             /* [chunk] a gradient that does not travel from where it lies */
    size_t *send_at, *recv_at; /* [G + 1] */
    tam_tail *sent, *came;     /* [G] */
    uint64_t *heard;           /* [G] checksums of what came */
} tam_node;

/** Close it in any case. */
tamis_status tam_node_open(tam_bucket_view *view, tam_node *out);
void tam_node_close(tam_node *node, bool lingers);

/** The own slice of the node's sum. The gradient is read, and nothing else is changed.
 * Errors:  PROTOCOL names the rank whose gradient was refused. @param  link  of the node */
tamis_status tam_node_sum(tam_node *node, tam_link *link);

/** The pass that takes it in. */
tam_accumulate tam_node_pass(const tam_node *node);

#endif
