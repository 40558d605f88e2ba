/* SPDX-License-Identifier: MIT
 *
 * Networks by name, or by their numbers.
 */
#ifndef TAMIS_BENCH_SCALE_NETS_H
#define TAMIS_BENCH_SCALE_NETS_H

#include "lib/policy/plan.h"

#define SCALE_NETS                                                                                 \
    "ib|ib1|tcp|tcp8|wan, or FAR_US,MESSAGE_US,FAR_GBIT[,NEAR_US,NEAR_GBIT[,CABLE_GBIT[,"          \
    "COPY_GB_S]]]"

typedef struct scale_net {
    const char *name;
    tam_net net;    /* ranks_per_node as usual for it */
    uint32_t sites; /* a node is a site with 1 / sites of the ranks; 0: it is a machine */
} scale_net;

/** A usage error if it is neither a name nor such numbers. */
scale_net scale_net_parse(const char *text);

/** The network of so many ranks. @param  ranks_per_node  0: as usual */
tam_net scale_net_of(const scale_net *net, uint32_t nranks, uint64_t ranks_per_node);

/** Its numbers in words. */
const char *scale_net_text(const scale_net *net, char *text, size_t size);

#endif
