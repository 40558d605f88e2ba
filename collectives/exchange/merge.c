/* SPDX-License-Identifier: MIT */
#include "collectives/exchange/merge.h"

static tamis_status merge_refuse(const tam_packets *packets, uint32_t r, uint32_t index) {
    return tam_fail(
        TAMIS_E_PROTOCOL,
        "the packet of rank %u was refused: index %u is out of order or not owned by that rank",
        tam_packet_rank(packets, r), index);
}

static size_t take_whole(const tam_tile *tile, uint32_t *out) {
    for (uint32_t i = 0; i < tile->length; i++)
        out[i] = tile->begin + i;
    return tile->length;
}

static tam_list merge_list_of(const tam_packets *packets, uint32_t r) {
    return (tam_list){tam_packet_indices_of(packets, r), tam_packet_header_of(packets, r)->count};
}

/* The lists shrink from the front as they are taken. */
tamis_status tam_merge_exclusive(const tam_packets *packets, const tam_grid *grid,
                                 const uint32_t *owner_of_part, tam_list *lists, uint32_t *indices,
                                 size_t *count) {
    size_t total = 0;
    for (uint32_t r = 0; r < packets->nranks; r++)
        lists[r] = merge_list_of(packets, r);
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
                return merge_refuse(packets, r, list[at]);
            least = list[at] + 1;
            indices[total++] = list[at];
        }
        lists[r] = (tam_list){list + at, length - at};
    }
    for (uint32_t r = 0; r < packets->nranks; r++) {
        if (lists[r].count > 0)
            return merge_refuse(packets, r, lists[r].indices[0]);
    }
    *count = total;
    return TAMIS_OK;
}

static tamis_status check_ascending(const tam_packets *packets, uint32_t r, uint64_t n) {
    const uint32_t *list = tam_packet_indices_of(packets, r);
    size_t length = tam_packet_header_of(packets, r)->count;
    for (size_t i = 0; i < length; i++) {
        if (list[i] >= n || (i > 0 && list[i] <= list[i - 1]))
            return merge_refuse(packets, r, list[i]);
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

/* Merges each half of the lists, then the two halves; equal indices become one. `scratch` and `out`
 * are as long as all lists together. @return the length of the result */
static size_t merge_lists(const tam_list *lists, uint32_t nlists, uint32_t *scratch,
                          uint32_t *out) {
    if (nlists == 1) {
        memcpy(out, lists[0].indices, lists[0].count * sizeof out[0]);
        return lists[0].count;
    }
    uint32_t half = nlists / 2;
    size_t left = merge_lists(lists, half, out, scratch);
    size_t right = merge_lists(lists + half, nlists - half, out + left, scratch + left);
    return merge(scratch, left, scratch + left, right, out);
}

tamis_status tam_merge_shared(const tam_packets *packets, uint64_t n, tam_list *lists,
                              uint32_t *scratch, uint32_t *indices, size_t *count) {
    for (uint32_t r = 0; r < packets->nranks; r++) {
        TAM_TRY(check_ascending(packets, r, n));
        lists[r] = merge_list_of(packets, r);
    }
    *count = merge_lists(lists, packets->nranks, scratch, indices);
    return TAMIS_OK;
}

/* -- sums ------------------------------------------------------------------------------------- */

enum { SUMS = 128 }; /* made at a time, few enough to stay in cache */

uint32_t tam_merge_add_up(tam_add_list add, void *self, uint32_t nranks, const uint32_t *indices,
                          size_t count, float *values) {
    tam_tree_sum sums[SUMS];
    for (size_t i = 0; i < SUMS; i++)
        sums[i].count = sums[i].vrank = 0;
    for (size_t at = 0; at < count; at += SUMS) {
        size_t length = count - at < SUMS ? count - at : SUMS;
        for (uint32_t r = 0; r < nranks; r++) {
            if (!add(self, r, indices + at, length, sums))
                return r + 1;
        }
        for (size_t i = 0; i < length; i++)
            values[at + i] = tam_tree_end(&sums[i]);
    }
    return 0;
}

/* Values of packets, decoded block by block. */
typedef struct packet_values {
    const tam_packets *packets;
    size_t *cursors;
    float *decoded;
} packet_values;

static bool merge_decode_block(const tam_packets *packets, uint32_t r, size_t at, size_t rest,
                               float *out) {
    const unsigned char *values = tam_packet_values_of(packets, r);
    size_t count = rest < TAM_MERGE_BLOCK ? rest : TAM_MERGE_BLOCK;
    return tam_value_decode(packets->value_codec,
                            values + tam_value_bytes(packets->value_codec, at), count, out);
}

static bool add_packet(void *self, uint32_t r, const uint32_t *indices, size_t count,
                       tam_tree_sum *sums) {
    const packet_values *from = self;
    const tam_list list = merge_list_of(from->packets, r);
    uint32_t vrank = tam_tree_vrank(r, tam_tree_own(from->packets->nranks));
    float *decoded = from->decoded + (size_t)r * TAM_MERGE_BLOCK;
    size_t j = from->cursors[r];
    for (size_t i = 0; j < list.count && list.indices[j] <= indices[count - 1]; i++, j++) {
        if (j % TAM_MERGE_BLOCK == 0 &&
            !merge_decode_block(from->packets, r, j, list.count - j, decoded))
            return false;
        while (indices[i] != list.indices[j])
            i++;
        tam_tree_add(&sums[i], vrank, decoded[j % TAM_MERGE_BLOCK]);
    }
    from->cursors[r] = j;
    return true;
}

tamis_status tam_merge_sum_pairs(const tam_packets *packets, const uint32_t *indices, size_t count,
                                 size_t *cursors, float *decoded, float *values) {
    packet_values from = {packets, cursors, decoded};
    memset(cursors, 0, packets->nranks * sizeof cursors[0]);
    uint32_t refused = tam_merge_add_up(add_packet, &from, packets->nranks, indices, count, values);
    if (refused == 0)
        return TAMIS_OK;
    return tam_fail(
        TAMIS_E_PROTOCOL,
        "the packet of rank %u was refused: a scale of its %s values is negative or not "
        "finite",
        tam_packet_rank(packets, refused - 1), packets->value_codec->name);
}
