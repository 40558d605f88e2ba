/* SPDX-License-Identifier: MIT
 *
 * What sparse exchanges have in common: packets with what each rank selected, the lists of a step,
 * and its end. A row built on it begins with this struct.
 */
#ifndef TAM_EXCHANGE_SPARSE_H
#define TAM_EXCHANGE_SPARSE_H

#include "collectives/exchange/merge.h"
#include "collectives/exchange/selection.h"
#include "collectives/exchange/packet.h"
#include "lib/contracts/exchange.h"

/** How counters travel (lib/base/header.h): behind headers each rank gets those of all others,
 * which is as fast as can be of few; else one sum is made of them. */
typedef enum tam_counter_way {
    TAM_COUNTERS_IN_HEADERS,
    TAM_COUNTERS_WITH_VALUES, /* behind the values, in the same sum */
    TAM_COUNTERS_ALONE        /* in a sum of their own: values are rounded, or nobody sums them */
} tam_counter_way;

typedef struct tam_sparse {
    tam_bucket_view *view;
    tam_packets packets;
    tam_counter_way way;
    uint32_t ncounters;
    float *counters; /* [ncounters] of this rank; once they were added up, of all */
    tam_packing packing;
    tam_strided *ranges; /* [nranks] where each rank selects at this step */
    uint32_t *owners;    /* [nranks] rank of each part at this step */
    size_t *cursors;     /* [nranks] */
    tam_list *lists;     /* [nranks] */
    size_t most;         /* entries of a result */
    bool quantizes;      /* values are quantized in transit */
    uint32_t *indices;   /* [most] the result */
    float *values;       /* [most] */
    uint32_t *scratch;   /* [most], ownership `all` only */
    float *errors;       /* [most] rounding errors of what is sent; NULL: nothing is rounded */
    float *decoded;      /* pairs: [nranks * TAM_MERGE_BLOCK] */
} tam_sparse;

/** A bucket's packets with all choices made, ready to be opened. */
tam_packets tam_sparse_packets(const tam_bucket_view *view);

/** Most entries in the union of such packets. */
size_t tam_sparse_union(const tam_bucket_view *view, const tam_packets *packets);

/** Memory for a row whose view, packets and `most` are set. Close it in any case. */
tamis_status tam_sparse_open(tam_sparse *s);
void tam_sparse_close(tam_sparse *s, bool in_flight);

/* Entries of the contract. */
void tam_sparse_limit(void *self);
tamis_status tam_sparse_accumulate(void *self);
tamis_status tam_sparse_plan(void *self, tam_link *link);
tamis_status tam_sparse_select(void *self);
uint64_t tam_sparse_drop(void *self);
tamis_status tam_sparse_apply(void *self);

/** @param  summed  values are summed as float32, so counters can travel with them */
tam_counter_way tam_sparse_way(const tam_bucket_view *view, bool summed);

/** What counters need, before the packets are opened. The way is set. */
tamis_status tam_sparse_open_counters(tam_sparse *s);

/** Fill this rank's header and counters from the result of the selection. */
void tam_sparse_fill_header(tam_sparse *s, const tam_select_result *result);

/** Exchange packets, and add up in view->out what they say. Counters that travel with values follow
 * when these were summed, unless the step stops.
 * @param  stops  [out]  the step will be skipped, as all ranks know */
tamis_status tam_sparse_gather(tam_sparse *s, tam_link *link, bool *stops);

/** Report in view->out what counters of all ranks say. */
void tam_sparse_report_counters(tam_sparse *s);

/** The union of all lists. */
tamis_status tam_sparse_build_union(tam_sparse *s, size_t *count);

/** Set view->out: a result of `count` entries, all local.
 * @param  sent  what leaves this rank's residual */
void tam_sparse_report(tam_sparse *s, size_t count, tam_entries sent);

/** Sum of squares. */
double tam_sparse_squares(const float *values, size_t count);

/** pairs, balanced-pairs: after select, add the values of its entries to the packet. */
tamis_status tam_sparse_select_values(tam_sparse *s);

#endif
