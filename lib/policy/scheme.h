/* SPDX-License-Identifier: MIT
 *
 * A scheme is four policies. A preset is a row of names, not a code path.
 */
#ifndef TAM_POLICY_SCHEME_H
#define TAM_POLICY_SCHEME_H

#include "lib/base/base.h"
#include "lib/base/numbers.h"

#include <tamis/lists.h>

typedef enum tam_ownership {
    TAM_OWN_ALL,     /* every rank selects everywhere */
    TAM_OWN_ROTATE,  /* P contiguous ranges, moved on by one each step (MiCRO) */
    TAM_OWN_BINS,    /* groups packed into P bins of equal cost, moved on by one (DEFT) */
    TAM_OWN_CYCLIC,  /* block b belongs to part b mod P, moved on by one */
    TAM_OWN_LEADER,  /* one rank selects everywhere, another in the next step (CLT-k) */
    TAM_OWN_BALANCED /* runs of blocks that neighbouring parts hand on, moved on by one (ExDyna) */
} tam_ownership;

typedef enum tam_budget {
    TAM_BUDGET_GLOBAL, /* no budgets: k of the whole vector */
    TAM_BUDGET_NORM    /* a budget per group in proportion to its norm (DEFT) */
} tam_budget;

typedef enum tam_threshold {
    TAM_THRESHOLD_EXACT,   /* search for the k largest */
    TAM_THRESHOLD_STEP,    /* a threshold that moves by fixed factors (MiCRO) */
    TAM_THRESHOLD_PREDICT, /* predict, over-select, then exactly k */
    TAM_THRESHOLD_FIXED,   /* a threshold that stays */
    TAM_THRESHOLD_SAGE,    /* each rank has its own, from samples and a count (SAGE) */
    TAM_THRESHOLD_REUSE    /* the k largest in some steps, their threshold in between (Ok-Topk) */
} tam_threshold;

/* row(NAME, name, word): exchanges. The enum, the words and collectives/exchange/table.c follow.
 *
 *     union            indices gathered, the values of all ranks summed at their union
 *     pairs            (index, value) gathered, each rank sends only what it selected
 *     dense            the gradients, no residual
 *     quantized        every element of the residual, quantized
 *     balanced-pairs   pairs to the owners of regions, the largest sums to all (Ok-Topk)
 *     sparse-rows      all rows of a segment that any rank touched; the layout asks for it
 */
/* clang-format off */
#define TAM_EXCHANGES(row) \
    row(UNION, union, "union") \
    row(PAIRS, pairs, "pairs") \
    row(DENSE, dense, "dense") \
    row(BALANCED_PAIRS, balanced_pairs, "balanced-pairs") \
    row(SPARSE_ROWS, sparse_rows, "sparse-rows") \
    row(QUANTIZED, quantized, "quantized")
/* clang-format on */

#define TAM_EXCHANGE_ENUMERATOR(NAME, name, word) TAM_EXCHANGE_##NAME,
typedef enum tam_exchange_kind {
    TAM_EXCHANGES(TAM_EXCHANGE_ENUMERATOR) TAM_EXCHANGE_AUTO, /* union or dense, bucket by bucket */
    TAM_EXCHANGE_KINDS = TAM_EXCHANGE_AUTO
} tam_exchange_kind;
#undef TAM_EXCHANGE_ENUMERATOR

typedef struct tam_scheme {
    tam_ownership ownership;
    tam_budget budget;
    tam_threshold threshold;
    tam_exchange_kind exchange;
} tam_scheme;

/** @param  text  preset or "ownership+budget+threshold+exchange"; NULL: the default preset */
tamis_status tam_scheme_parse(const char *text, tam_scheme *out);

/** The index-th combination of policies that is refused. @return 0 past the end */
int tam_scheme_refusal(size_t index, tamis_refusal *out);

/** A scheme as one number, and any number, valid or not, as words. */
uint64_t tam_scheme_code(tam_scheme scheme);
void tam_scheme_print(uint64_t code, char *text, size_t size);

/** The word of its exchange. */
const char *tam_scheme_exchange(tam_scheme scheme);

/* What follows from a scheme; each rule in one place. */

/** No residual. */
TAM_SHARED bool tam_scheme_dense(tam_scheme s) {
    return s.exchange == TAM_EXCHANGE_DENSE;
}

/** Every element travels in every step: the density is 1, whatever is asked for. */
TAM_SHARED bool tam_scheme_whole(tam_scheme s) {
    return s.exchange == TAM_EXCHANGE_DENSE || s.exchange == TAM_EXCHANGE_QUANTIZED;
}

/** Sparse rows: lists hold rows of a segment, and there is no k. */
TAM_SHARED bool tam_scheme_is_sparse_rows(tam_scheme s) {
    return s.exchange == TAM_EXCHANGE_SPARSE_ROWS;
}

/** Ranks send only what they selected, not all they hold at the union. */
TAM_SHARED bool tam_scheme_sends_selected(tam_scheme s) {
    return s.exchange == TAM_EXCHANGE_PAIRS || s.exchange == TAM_EXCHANGE_BALANCED_PAIRS;
}

TAM_SHARED bool tam_scheme_balanced_pairs(tam_scheme s) {
    return s.exchange == TAM_EXCHANGE_BALANCED_PAIRS;
}

/** Each bucket chooses its exchange. A bucket's own scheme is never auto. */
TAM_SHARED bool tam_scheme_auto(tam_scheme s) {
    return s.exchange == TAM_EXCHANGE_AUTO;
}

/** What a bucket of exchange auto does if it is not dense. */
TAM_SHARED tam_scheme tam_scheme_sparse(tam_scheme s) {
    s.exchange = tam_scheme_auto(s) ? TAM_EXCHANGE_UNION : s.exchange;
    return s;
}

/** All entries at or over a threshold are sent, however many. */
TAM_SHARED bool tam_scheme_by_threshold(tam_scheme s) {
    return s.threshold == TAM_THRESHOLD_STEP || s.threshold == TAM_THRESHOLD_FIXED ||
           s.threshold == TAM_THRESHOLD_SAGE || s.threshold == TAM_THRESHOLD_REUSE;
}

/** Exact counts group by group (DEFT). */
TAM_SHARED bool tam_scheme_by_group(tam_scheme s) {
    return s.budget == TAM_BUDGET_NORM && s.threshold == TAM_THRESHOLD_EXACT &&
           (s.ownership == TAM_OWN_BINS || s.ownership == TAM_OWN_ALL);
}

/** One count for all groups; keys are weighted by group. */
TAM_SHARED bool tam_scheme_weighted(tam_scheme s) {
    return s.budget == TAM_BUDGET_NORM && !tam_scheme_by_group(s);
}

/** Every rank sends a count known beforehand. */
TAM_SHARED bool tam_scheme_exact_count(tam_scheme s) {
    return !tam_scheme_by_threshold(s) && !tam_scheme_by_group(s);
}

/** Exclusive owners, exact counts, sums over the union: as the defaults are. */
TAM_SHARED bool tam_scheme_plain(tam_scheme s) {
    return tam_scheme_exact_count(s) && s.exchange == TAM_EXCHANGE_UNION &&
           s.ownership != TAM_OWN_ALL && s.ownership != TAM_OWN_LEADER;
}

/** A rank that selects may take all of k: it is not divided among the ranks. */
TAM_SHARED bool tam_scheme_undivided(tam_scheme s) {
    return s.ownership == TAM_OWN_ALL || s.ownership == TAM_OWN_LEADER;
}

/** Levels are learned: needed for candidates, or for weights. */
TAM_SHARED bool tam_scheme_has_levels(tam_scheme s) {
    return s.threshold == TAM_THRESHOLD_PREDICT || tam_scheme_weighted(s);
}

/** The part in which a rank selects at a step; meaningless for `all`. Parts rotate one way, the
 * leader the other: with a leader part 0 is the whole vector, and the other parts are empty. */
TAM_SHARED uint32_t tam_scheme_part(tam_scheme s, uint64_t step, uint32_t rank, uint32_t nranks) {
    uint32_t turned = (uint32_t)(step % nranks);
    return (s.ownership == TAM_OWN_LEADER ? rank + nranks - turned : rank + turned) % nranks;
}

#endif
