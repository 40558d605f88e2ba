/* SPDX-License-Identifier: MIT
 *
 * The sum of a node: each of its G ranks receives its own shard of all their gradients by
 * all-to-alls, chunk by chunk (lib/policy/node_shard.h), and adds them up as lib/base/tree.h says.
 */
#ifndef TAM_EXCHANGE_NODE_H
#define TAM_EXCHANGE_NODE_H

#include "collectives/transport/subcomm.h"
#include "lib/contracts/exchange.h"
#include "lib/policy/node_shard.h"

/** Sent after the last chunk: describes what one rank of the node was sent. */
typedef struct tam_trailer {
    uint64_t config, step, rank, checksum;
} tam_trailer;

typedef struct tam_node {
    tam_bucket_view *view;
    float *sum;                /* [shard] */
    float *on_device;          /* the same in memory of the device; NULL: it is the host's */
    float *parts;              /* [chunk] runs of one shard, from every rank of the node */
    float *packed;             /* [chunk] of a gradient that cannot be sent in place */
    void *raw;                 /* [chunk] of a device's, as it lies there; may be packed */
    size_t *send_at, *recv_at; /* [G + 1] */
    tam_trailer *sent, *recv;  /* [G] */
    uint64_t *received;        /* [G] checksums of the received data */
} tam_node;

/** Close it in any case. */
tamis_status tam_node_open(tam_bucket_view *view, tam_node *out);
void tam_node_close(tam_node *node, bool in_flight);

/** Compute this rank's shard of the node's sum. The gradient is only read.
 * Errors:  PROTOCOL names the rank whose gradient was refused; DEVICE. @param  link  of the node */
tamis_status tam_node_sum(tam_node *node, tam_link *link);

/** The pass that adds the sum to the residual. */
tam_accumulate tam_node_pass(const tam_node *node);

#endif
