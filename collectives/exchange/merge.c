/* SPDX-License-Identifier: MIT */
#include "collectives/exchange/merge.h"

static tamis_status refuse(const tam_slots *slots, uint32_t r, uint32_t index) {
    return tam_fail(
        TAMIS_E_PROTOCOL,
        "the slot of rank %u was refused: index %u is out of order or not owned by that rank",
        tam_slot_rank(slots, r), index);
}

static size_t take_whole(const tam_tile *tile, uint32_t *out) {
    for (uint32_t i = 0; i < tile->length; i++)
        out[i] = tile->begin + i;
    return tile->length;
}

static tam_list list_of(const tam_slots *slots, uint32_t r) {
    return (tam_list){tam_slot_indices_of(slots, r), tam_slot_head_of(slots, r)->count};
}

/* The lists shrink from the front as they are taken. */
tamis_status tam_merge_exclusive(const tam_slots *slots, const tam_grid *grid,
                                 const uint32_t *owner_of_part, tam_list *lists, uint32_t *indices,
                                 size_t *count) {
    size_t total = 0;
    for (uint32_t r = 0; r < slots->nranks; r++)
        lists[r] = list_of(slots, r);
    for (uint32_t t = 0; t < grid->ntiles; t++) {
        const tam_tile *tile = &grid->tiles[t];
        if (tile->part == TAM_PART_COMMON) {
            total += take_whole(tile, indices + total);
            continue;
        }
        uint32_t r = owner_of_part[tile->part], end = tile->begin + tile->length;
        const uint32_t *list = lists[r].indices;
        size_t at = 0, length = lists[r].count;
        uint32_t least = tile->begin;
        for (; at < length && list[at] < end; at++) {
            if (list[at] < least)
                return refuse(slots, r, list[at]);
            least = list[at] + 1;
            indices[total++] = list[at];
        }
        lists[r] = (tam_list){list + at, length - at};
    }
    for (uint32_t r = 0; r < slots->nranks; r++) {
        if (lists[r].count > 0)
            return refuse(slots, r, lists[r].indices[0]);
    }
    *count = total;
    return TAMIS_OK;
}

static tamis_status check_ascending(const tam_slots *slots, uint32_t r, uint64_t n) {
    const uint32_t *list = tam_slot_indices_of(slots, r);
    size_t length = tam_slot_head_of(slots, r)->count;
    for (size_t i = 0; i < length; i++) {
        if (list[i] >= n || (i > 0 && list[i] <= list[i - 1]))
            return refuse(slots, r, list[i]);
    }
    return TAMIS_OK;
}

/* Union of two ascending lists. */
static size_t merge(const uint32_t *a, size_t na, const uint32_t *b, size_t nb, uint32_t *out) {
    size_t i = 0, j = 0, count = 0;
    while (i < na && j < nb) {
        uint32_t x = a[i], y = b[j];
        out[count++] = x < y ? x : y;
        i += x <= y;
        j += y <= x;
    }
    memcpy(out + count, a + i, (na - i) * sizeof out[0]);
    count += na - i;
    memcpy(out + count, b + j, (nb - j) * sizeof out[0]);
    return count + nb - j;
}

/* Merges each half of the lists, then the two halves. */
size_t tam_merge_lists(const tam_list *lists, uint32_t nlists, uint32_t *scratch, uint32_t *out) {
    if (nlists == 1) {
        memcpy(out, lists[0].indices, lists[0].count * sizeof out[0]);
        return lists[0].count;
    }
    uint32_t half = nlists / 2;
    size_t left = tam_merge_lists(lists, half, out, scratch);
    size_t right = tam_merge_lists(lists + half, nlists - half, out + left, scratch + left);
    return merge(scratch, left, scratch + left, right, out);
}

tamis_status tam_merge_shared(const tam_slots *slots, uint64_t n, tam_list *lists,
                              uint32_t *scratch, uint32_t *indices, size_t *count) {
    for (uint32_t r = 0; r < slots->nranks; r++) {
        TAM_TRY(check_ascending(slots, r, n));
        lists[r] = list_of(slots, r);
    }
    *count = tam_merge_lists(lists, slots->nranks, scratch, indices);
    return TAMIS_OK;
}

static void add_list(const uint32_t *list, size_t length, const float *sent,
                     const uint32_t *indices, float *values) {
    for (size_t i = 0, j = 0; j < length; j++, i++) {
        while (indices[i] != list[j])
            i++;
        values[i] += sent[j];
    }
}

tamis_status tam_merge_sum_pairs(const tam_slots *slots, const uint32_t *indices, size_t count,
                                 float *came, float *values) {
    memset(values, 0, count * sizeof values[0]);
    for (uint32_t r = 0; r < slots->nranks; r++) {
        size_t length = tam_slot_head_of(slots, r)->count;
        if (!tam_wire_decode(slots->wire, tam_slot_values_of(slots, r), length, came))
            return tam_fail(TAMIS_E_PROTOCOL,
                            "the slot of rank %u was refused: a scale of its %s values is negative "
                            "or not finite",
                            tam_slot_rank(slots, r), slots->wire->name);
        add_list(tam_slot_indices_of(slots, r), length, came, indices, values);
    }
    return TAMIS_OK;
}
