/* SPDX-License-Identifier: MIT
 *
 * In which stages the ranks exchange what all need: a list of radices, near to far. With P ranks
 * there are F = 2^ceil(log2 P) virtual ranks; radices are powers of two whose product is F.
 *
 *     (8, 8, 64)   vrank = d0 + 8 d1 + 64 d2
 *
 * In a stage, virtual ranks that differ in its digit alone send each other their parts: radix - 1
 * messages each. Sums go near to far, so that ranks of a node have shared out the vector before
 * anything crosses the network; gathers go far to near. Where the parts of the last stage are
 * small, its virtual ranks send each other all of them, and each adds up all: that takes r / 2
 * times the bytes of scattering and gathering them, in one latency and not two. (F) alone is the
 * linear exchange of all with all, (2, 2, ...) is recursive halving and doubling, (G, N) has two
 * levels: none is a case of its own.
 *
 * Ranks below 2P - F have the virtual rank of their own number, the others every second
 * one behind, and the empty one after it too. All sums are added along the perfect binary tree
 * over the virtual ranks, missing ones skipped (lib/base/tree.h), so all plans give the same bits.
 *
 * Virtual rank v owns the shard whose number is v with its bits reversed: whatever the plan, what a
 * stage sends to one virtual rank is then one run of memory.
 */
#ifndef TAM_POLICY_PLAN_H
#define TAM_POLICY_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    TAM_PLAN_RANKS_MAX = 65536,
    TAM_PLAN_STAGES = 16, /* of radix 2 for so many ranks */
    TAM_PLAN_CANDIDATES = 7,
    TAM_PLAN_SUMS = 17,       /* partial sums of a chunk that a rank can hold (collectives/coll) */
    TAM_PLAN_PIECE = 1 << 18, /* bytes; longer messages are sent in pieces */
    TAM_PLAN_FUSED_MOST = TAM_PLAN_PIECE / 8
};

typedef struct tam_plan {
    uint32_t nranks, nvranks;
    uint32_t nstages; /* 0: one rank */
    uint32_t radix[TAM_PLAN_STAGES];
    uint32_t
        fused_bytes; /* a part of a sum up to so long crosses the last of several stages once */
} tam_plan;

/** 2^ceil(log2 nranks). Here and below nranks is 1 to TAM_PLAN_RANKS_MAX. */
uint32_t tam_plan_nvranks(uint32_t nranks);

/** Ranks below this one have the virtual rank of their own number, and no other: tam_tree_own. */
static inline uint32_t tam_plan_own(const tam_plan *plan) {
    return 2 * plan->nranks - plan->nvranks;
}

/** The primary virtual rank of a rank, and the rank of a virtual rank. */
uint32_t tam_plan_vrank(const tam_plan *plan, uint32_t rank);
uint32_t tam_plan_rank(const tam_plan *plan, uint32_t vrank);

/** The virtual ranks of a rank: the primary one first. @return 1 or 2 */
uint32_t tam_plan_vranks_of(const tam_plan *plan, uint32_t rank, uint32_t vranks[2]);

/** Whether it is the primary virtual rank of its rank: a secondary one has nothing to add to a
 * sum. */
bool tam_plan_is_primary(const tam_plan *plan, uint32_t vrank);

/** All with all. */
tam_plan tam_plan_linear(uint32_t nranks);

/** Stages of at most `radix`, a power of two from 2 on: first inside nodes of ranks_per_node ranks
 * if that is a power of two that divides nranks and is less, then across. */
tam_plan tam_plan_make(uint32_t nranks, uint32_t ranks_per_node, uint32_t radix);

/** Whether so many bytes of floats, as a sum, cross the last stage once. */
bool tam_plan_fuses(const tam_plan *plan, uint64_t bytes);

/** Ranks of a node, from a number of the host of each rank: if every host has as many ranks, one
 * after the other; else 1.
 * @param  scattered  [out]  whether some host's ranks are not one after the other */
uint32_t tam_plan_nodes(const uint64_t *hosts, uint32_t nranks, bool *scattered);

/** Whether it is a plan for so many ranks: what arrived from elsewhere may be anything. Radices
 * behind the last stage are 0, so equal plans are equal bytes. */
bool tam_plan_valid(const tam_plan *plan, uint32_t nranks);

/** Whether a rank can hold the partial sums of every stage: up to log2(radix) + 1 of them, and in
 * stages after the first twice as many where some ranks have two virtual ranks, so radix 128 at
 * most. */
bool tam_plan_fits(const tam_plan *plan);

/** The plan that a text names: "usual", "linear", or radices, "8x8x64", perhaps with fused bytes.
 * @return false: the text names none, or none of so many ranks that fits */
bool tam_plan_parse(const char *text, uint32_t nranks, uint32_t ranks_per_node, tam_plan *out);

/** The plan as text, "8x8x64"; "1" for one rank. @return text */
const char *tam_plan_text(const tam_plan *plan, char *text, size_t size);

/** Also with fused bytes, "8x8x64/1024"; none are not shown. */
const char *tam_plan_whole_text(const tam_plan *plan, char *text, size_t size);

/** Messages that a rank sends in one gather or scatter: the most of any rank. A sum has two of
 * them, but of its last stage only one where it is fused. What goes to one rank in one stage is one
 * message; one without content counts too. Ranks with two virtual ranks have up to 2 (radix - 1)
 * peers in stages after the first. */
uint32_t tam_plan_messages(const tam_plan *plan);

/* -- time (plan_time.c) ----------------------------------------------------------------------- */

/** A network: ranks in nodes, numbered node after node. LogGP by stage. */
typedef struct tam_net {
    uint32_t ranks_per_node;
    double near_s, near_s_per_byte; /* inside a node: latency, and of one rank's messages */
    double far_s, far_s_per_byte;   /* between nodes */
    double cable_s_per_byte; /* of all that leaves a node; 0: ranks have cables of their own */
    double message_s;        /* of a processor, to send one message and receive another */
    double copy_s_per_byte;  /* of a processor, to pack and unpack */
    double incast_s; /* added for each sender beyond the 8th that a rank has on other nodes at
                        once: TCP loses packets then */
} tam_net;

/** Seconds of one stage, in which each virtual rank sends radix - 1 messages of so many bytes. A
 * message costs its sender and its receiver half of message_s and of the copies. One after the
 * other they pass the sender, its wire or the cable, and the receiver, as in a pipeline: the stage
 * ends when the last has passed, but no processor can do less than all its sends, then, from the
 * first arrival on, all its receives. message_s and incast_s count the peers of the busiest rank,
 * for the others wait for it: radix - 1 where nranks is a power of two. Where nodes are no power of
 * two, or do not divide nranks, a stage is near only inside the largest power of two that divides
 * both numbers; bytes that cross are those of the average rank. */
double tam_plan_stage_s(const tam_net *net, const tam_plan *plan, uint32_t stage, double bytes);

/** An all-gather of so many bytes from each rank: in all stages together the average rank receives
 * (nranks - 1) * bytes_each. A sum, by owners, of so many bytes of floats: as long as two gathers
 * of bytes / nranks, if no stage is fused. */
double tam_plan_gather_s(const tam_net *net, const tam_plan *plan, double bytes_each);
double tam_plan_sum_s(const tam_net *net, const tam_plan *plan, double bytes);

/** A sum of values that travel in another form, in bytes of all of them: from the second stage on
 * they are partial sums, as floats. */
typedef struct tam_plan_encoded {
    double values, floats, sums;
} tam_plan_encoded;

double tam_plan_encoded_s(const tam_net *net, const tam_plan *plan,
                          const tam_plan_encoded *encoded);

/** The part of what a rank sends towards the owners of shards that are partial sums. */
double tam_plan_encoded_partial(const tam_plan *plan);

/** What a step exchanges. */
typedef struct tam_plan_case {
    uint32_t nranks;
    double gathered;          /* bytes that each rank gives to an all-gather; 0: there is none */
    double summed;            /* bytes of floats that are summed; 0: none */
    tam_plan_encoded encoded; /* 0 floats: none */
} tam_plan_case;

double tam_plan_step_s(const tam_net *net, const tam_plan *plan, const tam_plan_case *c);

/** Linear, two levels if they fit, and radices 2 to 32 inside nodes and across. */
void tam_plan_candidates(uint32_t nranks, uint32_t ranks_per_node,
                         tam_plan out[TAM_PLAN_CANDIDATES]);

/** The longest part of the last stage, of those of 2^i bytes, that gains by crossing it once. */
uint32_t tam_plan_fused(const tam_net *net, const tam_plan *plan);

/** The candidate that takes the least time: by +, *, / and comparisons alone on numbers that all
 * ranks share, so that all choose the same. Where two take the same time, the one with fewer
 * stages; then the first in the order of that list. tam_plan_usual where no time, or not even the
 * least, is a finite number above 0: nothing is exchanged, or the numbers are of no network. */
tam_plan tam_plan_choose(const tam_net *net, const tam_plan_case *c);

/** Where nothing is known of the network: linear up to 8 ranks, else radix 8. */
tam_plan tam_plan_usual(uint32_t nranks, uint32_t ranks_per_node);

#endif
