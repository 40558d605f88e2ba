/* SPDX-License-Identifier: MIT
 *
 * What exchanges of picks have in common: slots with each rank's picks, the lists of a step, and
 * its end. A row built on it begins with this struct.
 */
#ifndef TAM_EXCHANGE_SPARSE_H
#define TAM_EXCHANGE_SPARSE_H

#include "collectives/exchange/merge.h"
#include "collectives/exchange/nothing.h"
#include "collectives/exchange/pick.h"
#include "collectives/exchange/slot.h"
#include "lib/base/exchange.h"

/** How tallies travel (lib/base/head.h): behind heads each rank gets those of all others, which is
 * as fast as can be of few; else one sum is made of them. */
typedef enum tam_tallies {
    TAM_TALLIES_IN_HEADS,
    TAM_TALLIES_WITH_VALUES, /* behind the values, in the same sum */
    TAM_TALLIES_ALONE        /* in a sum of their own: values are rounded, or nobody sums them */
} tam_tallies;

typedef struct tam_sparse {
    tam_bucket_view *view;
    tam_slots slots;
    tam_tallies way;
    uint32_t ntallies;
    float *tallies; /* [ntallies] of this rank; once they were added up, of all */
    tam_packing packing;
    tam_strided *ranges; /* [nranks] where each rank selects at this step */
    uint32_t *owners;    /* [nranks] rank of each part at this step */
    size_t *cursors;     /* [nranks] */
    tam_list *lists;     /* [nranks] */
    size_t most;         /* entries of a result */
    bool rounds;         /* the way in which values travel takes something of them */
    uint32_t *indices;   /* [most] the result */
    float *values;       /* [most] */
    uint32_t *scratch;   /* [most], ownership `all` only */
    float *errors;       /* [most] rounding errors of what is given; NULL: nothing is rounded */
    float *came;         /* pairs: [nranks * TAM_MERGE_BLOCK] */
} tam_sparse;

/** A bucket's slots with all choices made, ready to be opened. */
tam_slots tam_sparse_slots(const tam_bucket_view *view);

/** Most entries in the union of such slots. */
size_t tam_sparse_union(const tam_bucket_view *view, const tam_slots *slots);

/** Memory for a row whose view, slots and `most` are set. Close it in any case. */
tamis_status tam_sparse_open(tam_sparse *s);
void tam_sparse_close(tam_sparse *s, bool lingers);

/* Entries of the contract. */
void tam_sparse_limit(void *self);
tamis_status tam_sparse_accumulate(void *self);
tamis_status tam_sparse_plan(void *self, tam_link *link);
tamis_status tam_sparse_pick(void *self);
uint64_t tam_sparse_drop(void *self);
tamis_status tam_sparse_apply(void *self);

/** @param  summed  values are summed as float32, so tallies can travel with them */
tam_tallies tam_sparse_way(const tam_bucket_view *view, bool summed);

/** What tallies need, before the slots are opened. The way is set. */
tamis_status tam_sparse_open_tallies(tam_sparse *s);

/** Fill this rank's head and tallies from the result of the cut. */
void tam_sparse_fill_head(tam_sparse *s, const tam_cut_result *result);

/** Exchange slots, and add up in view->out what they say. Tallies that travel with values follow
 * when these were summed, unless the step stops.
 * @param  stops  [out]  the step will be skipped, as all ranks know */
tamis_status tam_sparse_gather(tam_sparse *s, tam_link *link, bool *stops);

/** Tell in view->out what tallies of all ranks say. */
void tam_sparse_tell_tallies(tam_sparse *s);

/** The union of all lists. */
tamis_status tam_sparse_unite(tam_sparse *s, size_t *count);

/** Set view->out: a result of `count` entries, all held by this rank.
 * @param  given  what leaves this rank's residual */
void tam_sparse_tell(tam_sparse *s, size_t count, tam_entries given);

/** Sum of squares. */
double tam_sparse_squares(const float *values, size_t count);

/** pairs, balanced-pairs: after pick, add the values of the picks to the slot. */
tamis_status tam_sparse_pick_values(tam_sparse *s);

#endif
