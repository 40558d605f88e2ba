/* SPDX-License-Identifier: MIT
 *
 * config.byte_share: the largest density whose entries take at most that share of a dense ring's
 * bytes. With n elements, k entries, and P ranks, a rank sends P - 1 times
 *
 *     k / P of n / P indices              all-gather
 *     k / P values, k / P sums            reduce-scatter and all-gather
 *     n / P float32, n / P float32        a dense ring
 *
 * Headers of packets and messages come on top, and in stages partial sums, which are float32. They
 * depend on the plan, which may have been measured: bits shall not.
 */
#include "collectives/reducer/reducer.h"

#include "lib/contracts/index_codec.h"
#include "lib/contracts/value_codec.h"
#include "lib/policy/defaults.h"

#include <math.h>

/* What bytes depend on. */
typedef struct byte_case {
    uint64_t n, nranks;
    tamis_index_codec asked;
    const tam_value_codec *up, *down;
} byte_case;

static double byte_share_of(const byte_case *c, uint64_t k) {
    uint64_t span = (c->n + c->nranks - 1) / c->nranks, count = (k + c->nranks - 1) / c->nranks;
    bool thrifty = c->up->bits <= TAM_VALUE_FEW_BITS;
    tamis_index_codec codec =
        c->asked != TAMIS_INDEX_AUTO ? c->asked : tam_index_codec_choose(span, count, thrifty);
    uint64_t bytes = tam_index_codec_of(codec)->bytes(span, count) +
                     tam_value_bytes(c->up, (size_t)count) +
                     tam_value_bytes(c->down, (size_t)count);
    return (double)bytes / (8.0 * (double)span);
}

static uint64_t most_entries(const byte_case *c, double share, uint64_t most) {
    uint64_t low = 0, high = most;
    while (low < high) {
        uint64_t middle = high - (high - low) / 2;
        if (byte_share_of(c, middle) <= share)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

static tamis_status check_byte_share(const tamis_reducer *r, const tamis_reducer_config *c) {
    static const char name[] = "tamis_reducer_config.byte_share";
    if (c->density != 0.0)
        return tam_fail(TAMIS_E_ARGUMENT, "%s is %.9g, and density is %.9g: give one of them", name,
                        c->byte_share, c->density);
    if (!tam_scheme_plain(r->scheme))
        return tam_fail(TAMIS_E_ARGUMENT,
                        "%s: what this scheme sends is not known beforehand; give a density, or "
                        "leave the scheme as it is",
                        name);
    if (c->ranks_per_node > 1)
        return tam_fail(TAMIS_E_ARGUMENT,
                        "%s: what ranks of a node send each other is not counted; give a density",
                        name);
    return TAMIS_OK;
}

/* It gives back the entries from which it is made. */
static double largest_density(const tamis_reducer *r, const tamis_reducer_config *c, uint64_t n,
                              double most) {
    tamis_value_codec up = tam_value_codec_resolve(c->value_codec);
    const byte_case of = {.n = n,
                          .nranks = r->comm->nranks,
                          .asked = c->index_codec,
                          .up = tam_value_codec_of(up),
                          .down = tam_value_codec_of(tam_sum_codec_resolve(c->sum_codec, up))};
    uint64_t k = most_entries(&of, c->byte_share, tam_reducer_entries(most, n));
    double density = (double)k / (double)n;
    return density * (double)n < (double)k ? nextafter(density, 1.0) : density;
}

/* It was tuned with what is not rounded. */
static bool has_own_scale(const tamis_reducer *r, const tamis_reducer_config *c) {
    return c->update && r->update.scale != 0.0 && r->update.norm_matching == 0.0;
}

/* Codecs that are left open go with the density, and the density with the codecs. */
static double density_of(const tamis_reducer *r, uint64_t n, tamis_reducer_config *c) {
    tam_defaults found = tam_defaults_of(c->update ? &r->update : NULL, 0.0, r->scheme);
    bool open = c->value_codec == TAMIS_VALUE_AUTO && !has_own_scale(r, c);
    if (open)
        c->value_codec = found.value_codec;
    double most = c->value_codec > TAMIS_VALUE_FLOAT32 ? found.most : 1.0;
    double density = largest_density(r, c, n, most);
    if (!open || density >= found.few_bits_below || c->sum_codec != TAMIS_VALUE_AUTO)
        return density;
    c->value_codec = c->sum_codec = TAMIS_VALUE_FP2;
    return largest_density(r, c, n, most < found.few_bits_below ? most : found.few_bits_below);
}

tamis_status tam_byte_share_complete(const tamis_reducer *r, const tamis_layout *layout,
                                     tamis_reducer_config *c) {
    uint64_t n = layout->ordinary;
    TAM_TRY(check_byte_share(r, c));
    if (n == 0)
        return TAMIS_OK;
    c->density = density_of(r, n, c);
    if (c->density == 0.0)
        return tam_fail(TAMIS_E_ARGUMENT,
                        "tamis_reducer_config.byte_share is %.9g, less than one of %llu entries "
                        "takes; give more",
                        c->byte_share, (unsigned long long)n);
    c->byte_share = 0.0; /* options that were read can be given */
    return TAMIS_OK;
}
