/* SPDX-License-Identifier: MIT */
#include "collectives/reducer/addresses.h"

enum { HALF = TAM_ADDRESS_BLOCK / 2 };

bool tam_addresses_open(tam_addresses *a, const tamis_layout *layout, size_t element_bytes) {
    uint32_t most = layout->nsegments / HALF + 1;
    *a = (tam_addresses){.layout = layout, .element_bytes = element_bytes};
    a->usual = tam_alloc_array(layout->nsegments, sizeof a->usual[0]);
    a->blocks = tam_alloc_array(most, sizeof a->blocks[0]);
    a->order = tam_alloc_array(most, sizeof a->order[0]);
    for (uint32_t i = 0; a->order && i < most; i++)
        a->order[i] = i;
    return a->usual && a->blocks && a->order;
}

void tam_addresses_close(tam_addresses *a) {
    tam_free(a->order);
    tam_free(a->blocks);
    tam_free(a->usual);
}

static tam_address_block *addresses_block(const tam_addresses *a, uint32_t at) {
    return &a->blocks[a->order[at]];
}

void tam_addresses_begin(tam_addresses *a) {
    bool all = !a->at_usual && a->count == a->layout->nsegments;
    for (uint32_t i = 0; all && i < a->nblocks; i++) {
        const tam_address_block *b = addresses_block(a, i);
        for (uint32_t j = 0; j < b->count; j++)
            a->usual[b->pairs[j].value] = b->pairs[j].key;
    }
    a->has_usual = a->has_usual || all;
    a->at_usual = a->has_usual;
    a->nblocks = a->count = 0;
}

/* -- find and insert -------------------------------------------------------------------------- */

/* Where an address belongs. */
typedef struct position {
    uint32_t block, pair;
} position;

static position addresses_find(const tam_addresses *a, uint64_t key) {
    uint32_t low = 0, high = a->nblocks, first = 0, end = 0;
    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;
        bool below = addresses_block(a, middle)->pairs[0].key <= key;
        low = below ? middle : low;
        high = below ? high : middle;
    }
    for (end = a->nblocks > 0 ? addresses_block(a, low)->count : 0; first < end;) {
        uint32_t middle = first + (end - first) / 2;
        bool below = addresses_block(a, low)->pairs[middle].key < key;
        first = below ? middle + 1 : first;
        end = below ? end : middle;
    }
    return (position){low, first};
}

/* An empty block behind another. */
static tam_address_block *add_block(tam_addresses *a, uint32_t at) {
    uint32_t fresh = a->order[a->nblocks];
    memmove(&a->order[at + 1], &a->order[at], (a->nblocks - at) * sizeof a->order[0]);
    a->order[at] = fresh;
    a->nblocks++;
    a->blocks[fresh].count = 0;
    return &a->blocks[fresh];
}

static position split(tam_addresses *a, position at) {
    tam_address_block *upper = add_block(a, at.block + 1), *lower = addresses_block(a, at.block);
    memcpy(upper->pairs, lower->pairs + HALF, HALF * sizeof upper->pairs[0]);
    upper->count = lower->count = HALF;
    return at.pair > HALF ? (position){at.block + 1, at.pair - HALF} : at;
}

static void addresses_insert(tam_addresses *a, position at, tam_pair own) {
    if (a->nblocks == 0)
        add_block(a, 0);
    if (addresses_block(a, at.block)->count == TAM_ADDRESS_BLOCK)
        at = split(a, at);
    tam_address_block *b = addresses_block(a, at.block);
    memmove(&b->pairs[at.pair + 1], &b->pairs[at.pair], (b->count - at.pair) * sizeof own);
    b->pairs[at.pair] = own;
    b->count++;
    a->count++;
}

/* -- a step ----------------------------------------------------------------------------------- */

bool tam_addresses_is_usual(const tam_addresses *a, uint32_t segment, const void *grad) {
    return a->at_usual && a->usual[segment] == (uintptr_t)grad;
}

void tam_addresses_leave_usual(tam_addresses *a, const bool *ready) {
    if (!a->at_usual)
        return;
    a->at_usual = false;
    for (uint32_t s = 0; s < a->layout->nsegments; s++) {
        if (ready[s])
            addresses_insert(a, addresses_find(a, a->usual[s]), (tam_pair){a->usual[s], s});
    }
}

static tamis_status check_apart(const tam_addresses *a, const tam_pair *low, const tam_pair *high) {
    uint32_t segment = (uint32_t)low->value;
    if (low->key + tam_segment_length(a->layout, segment) * a->element_bytes <= high->key)
        return TAMIS_OK;
    return tam_fail(TAMIS_E_ARGUMENT, "tamis_step: the gradients of %s and %s overlap",
                    a->layout->names[segment], a->layout->names[high->value]);
}

/* An address below all others belongs at the begin of the first block, any other behind one. */
static tamis_status check_neighbours(const tam_addresses *a, position at, const tam_pair *own) {
    if (a->nblocks == 0)
        return TAMIS_OK;
    const tam_address_block *b = addresses_block(a, at.block);
    if (at.pair > 0)
        TAM_TRY(check_apart(a, &b->pairs[at.pair - 1], own));
    if (at.pair < b->count)
        return check_apart(a, own, &b->pairs[at.pair]);
    if (at.block + 1 < a->nblocks)
        return check_apart(a, own, &addresses_block(a, at.block + 1)->pairs[0]);
    return TAMIS_OK;
}

tamis_status tam_addresses_add(tam_addresses *a, uint32_t segment, const void *grad,
                               const bool *ready) {
    if (tam_addresses_is_usual(a, segment, grad))
        return TAMIS_OK;
    tam_addresses_leave_usual(a, ready);
    tam_pair own = {(uintptr_t)grad, segment};
    position at = addresses_find(a, own.key);
    TAM_TRY(check_neighbours(a, at, &own));
    addresses_insert(a, at, own);
    return TAMIS_OK;
}

/* Blocks are filled anew from the first on: never more than was read. */
void tam_addresses_withdraw(tam_addresses *a, const bool *ready) {
    uint32_t nblocks = a->nblocks, kept = 0;
    for (uint32_t i = 0; i < nblocks; i++) {
        const uint32_t count = addresses_block(a, i)->count;
        for (uint32_t j = 0; j < count; j++) {
            tam_pair pair = addresses_block(a, i)->pairs[j];
            if (!ready[pair.value])
                continue;
            tam_address_block *b = addresses_block(a, kept / TAM_ADDRESS_BLOCK);
            b->pairs[kept % TAM_ADDRESS_BLOCK] = pair;
            kept++;
        }
    }
    a->count = kept;
    a->nblocks = (kept + TAM_ADDRESS_BLOCK - 1) / TAM_ADDRESS_BLOCK;
    for (uint32_t i = 0; i < a->nblocks; i++, kept -= TAM_ADDRESS_BLOCK)
        addresses_block(a, i)->count = kept < TAM_ADDRESS_BLOCK ? kept : TAM_ADDRESS_BLOCK;
}
