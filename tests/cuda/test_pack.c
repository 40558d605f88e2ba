/* SPDX-License-Identifier: MIT
 *
 * Kernels on the CPU: packed lists, beside the host's codecs. What a kernel packs has the bytes of
 * the host; what it unpacks, the elements; and of damaged bytes it refuses just those that the host
 * refuses.
 */
#include "lib/contracts/index_codec.h"
#include "kernels/cuda/exchange.h"
#include "tests/support/data.h"
#include "tests/support/ranks.h"

#include <cuda_runtime_api.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

enum { OWN, OTHER, RANKS };

/** Two ranks that may select from the same part: what the one packs the other unpacks. */
typedef struct desk {
    tam_cuda_exchange x;
    tam_cuda_scratch scratch;
    tam_cuda_packet_check packet_checks[RANKS];
    tam_cuda_params params;
    tam_cuda_select_result selected;
    tam_strided parts[RANKS];
    const tam_index_codec *codec;
    uint32_t *positions, *back; /* [count], [capacity] */
    unsigned char *codes;       /* of the host */
    size_t bytes;
    uint32_t count;
    uint64_t random;
} desk;

static uint64_t below(desk *d, uint64_t limit) {
    return data_mix(d->random++) % limit;
}

static void *take(size_t count, size_t size) {
    void *memory = tam_alloc_array(count + 1, size);
    assert_non_null(memory);
    return memory;
}

/* -- a list ----------------------------------------------------------------------------------- */

enum { LONG = 1 << 24 }; /* a span whose positions are not tried one by one */

/* One in each of so many runs. */
static void spread_positions(desk *d, uint32_t span, uint32_t wanted) {
    uint32_t run = span / wanted;
    for (d->count = 0; d->count < wanted; d->count++)
        d->positions[d->count] = d->count * run + (uint32_t)below(d, run);
}

/* Every position with the same chance, but a run of all and a long gap now and then. */
static void fill_positions(desk *d, uint32_t span, uint32_t wanted) {
    uint32_t left = wanted;
    d->count = 0;
    if (span > LONG) {
        spread_positions(d, span, wanted);
        return;
    }
    for (uint32_t p = 0; p < span && left > 0; p++) {
        bool run = p >> 9 & 1 && wanted > span / 4;
        if (run || span - p <= left || below(d, span - p) < left) {
            d->positions[d->count++] = p;
            left--;
        }
    }
}

static tam_strided part_of(desk *d, uint32_t span) {
    if (span > LONG) /* elements have 32 bits */
        return (tam_strided){0, span, span, span};
    uint64_t run = 1 + below(d, span), stride = run + below(d, 3 * run);
    return (tam_strided){below(d, 1000), run, stride, span};
}

static void open_desk(desk *d, tamis_index_codec index_codec, uint32_t span, uint32_t wanted,
                      uint64_t seed) {
    *d = (desk){.codec = tam_index_codec_of(index_codec), .random = seed * 1000003};
    uint32_t capacity = wanted + (uint32_t)below(d, 20) + 1;
    size_t code_bytes = tam_header_round((size_t)d->codec->bytes(span, capacity));
    size_t packet = tam_header_bytes(TAM_COUNTERS) + code_bytes;
    size_t pieces = (size_t)RANKS * tam_rice_pieces((uint32_t)code_bytes);
    d->parts[OWN] = d->parts[OTHER] = part_of(d, span);
    d->positions = take(wanted, sizeof d->positions[0]);
    d->back = take(capacity, sizeof d->back[0]);
    d->codes = take(code_bytes, 1);
    d->x = (tam_cuda_exchange){
        .packets = {.memory = take(packet, RANKS),
                    .bytes = packet,
                    .rank = OWN,
                    .nranks = RANKS,
                    .capacity = capacity,
                    .index_bytes = (uint32_t)code_bytes,
                    .with_values = 1, /* which would be sealed afterwards */
                    .packed = {.index_codec = index_codec,
                               .span = span,
                               .parts = d->parts,
                               .lists = take((size_t)RANKS * capacity, sizeof(uint32_t)),
                               .offsets = take(RANKS * (span / 65536 + 2), sizeof(uint32_t)),
                               .zeros = take(capacity / TAM_PIECE + 1, sizeof(uint32_t)),
                               .pieces = take(pieces, sizeof(tam_cuda_rice)),
                               .skips = take(pieces, TAM_BLOCK_THREADS)}},
        .scheme.ownership = TAM_OWN_CYCLIC,
        .blocks = 1 + (uint32_t)below(d, 9),
        .params = &d->params,
        .selected = &d->selected,
        .packet_checks = d->packet_checks,
        .scratch = &d->scratch,
    };
    fill_positions(d, span, wanted);
}

static void close_desk(desk *d) {
    tam_free(d->x.packets.memory);
    tam_free(d->x.packets.packed.lists);
    tam_free(d->x.packets.packed.offsets);
    tam_free(d->x.packets.packed.zeros);
    tam_free(d->x.packets.packed.pieces);
    tam_free(d->x.packets.packed.skips);
    tam_free(d->positions);
    tam_free(d->back);
    tam_free(d->codes);
}

static tam_header *header_of(const desk *d, uint32_t rank) {
    return (tam_header *)(void *)(d->x.packets.memory + rank * d->x.packets.bytes);
}

static unsigned char *codes_of(const desk *d, uint32_t rank) {
    return (unsigned char *)header_of(d, rank) + tam_header_bytes(TAM_COUNTERS);
}

static uint32_t *list_of(const desk *d, uint32_t rank) {
    return d->x.packets.packed.lists + (size_t)rank * d->x.packets.capacity;
}

static void finish(int error) {
    assert_int_equal(error, cudaSuccess);
    assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
}

/* -- both ways -------------------------------------------------------------------------------- */

static void pack(desk *d) {
    d->selected.count = d->count;
    tam_strided_locate(&d->parts[OWN], d->positions, d->count, list_of(d, OWN));
    d->bytes = d->codec->encode(d->positions, d->count, d->x.packets.packed.span, d->codes);
    memset(codes_of(d, OWN), 0xa5, d->x.packets.index_bytes);
    d->scratch.sent = 0;
    finish(tam_launch_pack(&d->x, NULL));
    assert_int_equal(d->scratch.code_bytes, d->bytes);
    assert_true(d->scratch.sent == tam_sum_bytes(TAM_SUM_INDICES, d->codes, d->bytes));
    assert_memory_equal(codes_of(d, OWN), d->codes, d->bytes);
}

/* @return whether the device takes d->codes for `count` entries, and as what the host does */
static bool unpack(desk *d, uint32_t count, size_t bytes) {
    tam_header *header = header_of(d, OTHER);
    uint32_t *list = list_of(d, OTHER);
    header->count = count;
    header->index_bytes = (uint32_t)bytes;
    memcpy(codes_of(d, OTHER), d->codes, d->x.packets.index_bytes);
    memset(list, 0xee, d->x.packets.capacity * sizeof list[0]);
    d->packet_checks[OTHER].faults = 0;
    finish(tam_launch_unpack(&d->x, NULL));
    bool good = d->codec->decode(d->codes, bytes, d->x.packets.packed.span, count, d->back);
    if (d->packet_checks[OTHER].faults != (good ? 0 : 1u << TAM_REFUSED_CODE))
        fail_msg("[%s] %u entries in %zu bytes: faults %x, but the host %s them",
                 test_context_text(), count, bytes, d->packet_checks[OTHER].faults,
                 good ? "takes" : "refuses");
    if (good) {
        tam_strided_locate(&d->parts[OTHER], d->back, count, d->back);
        assert_memory_equal(list, d->back, count * sizeof list[0]);
    }
    return good;
}

static void try_list(tamis_index_codec index_codec, uint32_t span, uint32_t count, uint64_t seed) {
    desk d;
    test_context("%s, %u of %u, seed %llu", tam_index_codec_of(index_codec)->name, count, span,
                 (unsigned long long)seed);
    open_desk(&d, index_codec, span, count, seed);
    pack(&d);
    assert_true(unpack(&d, d.count, d.bytes));
    close_desk(&d);
}

static void test_lists_have_the_bytes_of_the_host(void **state) {
    static const uint32_t cases[][2] = {
        {1, 0},      {1, 1},       {7, 7},         {70, 3},       {255, 1},      {256, 256},
        {300, 299},  {5000, 700},  {65536, 300},   {65537, 129},  {70000, 30},   {131072, 40000},
        {200000, 1}, {90000, 256}, {300000, 3000}, {200000, 255}, {140000, 257}, {1000000, 40},
    };
    (void)state;
    for (tamis_index_codec f = TAMIS_INDEX_BLOCK16; f < TAMIS_INDEX_END; f++)
        for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
            try_list(f, cases[i][0], cases[i][1], i);
}

/* PTX on a CPU takes its time (tests/cuda/ptx). */
static size_t how_many(size_t brief, size_t all) {
    return getenv("EMULATE_PTX") ? brief : all;
}

/* rice takes a list in pieces: of 2,048 entries when it packs, of 8,192 bits when it unpacks, and
 * 256 pieces at a time. Where all positions are selected each takes a bit. */
static void test_lists_of_many_pieces(void **state) {
    static const uint32_t cases[][2] = {
        {2047, 2047},       {2048, 2048},       {2049, 2049},        {9000, 2048},
        {30000, 2049},      {8191, 8191},       {8192, 8192},        {8193, 8193},
        {16384, 16384},     {16416, 16416},     {4294967295, 1},     {4294967295, 4},
        {2147483648, 300},  {4294967295, 2049}, {2097153, 2097153},  {2097152, 2097152},
        {2097151, 2097151}, {2088960, 2088960}, {3000000000, 9000},  {700000, 60000},
        {4000000, 530000},  {9000000, 5000000}, {15000000, 2000000}, {16000000, 90000},
    };
    size_t count = how_many(15, sizeof cases / sizeof cases[0]);
    (void)state;
    for (size_t i = 0; i < count; i++)
        try_list(TAMIS_INDEX_RICE, cases[i][0], cases[i][1], i);
}

/* -- damage ----------------------------------------------------------------------------------- */

/* Something of it may be as good as before. */
static void damage(desk *d, uint32_t *count, size_t *bytes) {
    switch (below(d, 6)) {
    case 0:
        *count += (uint32_t)below(d, 3) - 1;
        break;
    case 1:
        *bytes += below(d, 5);
        *bytes -= *bytes < 2 ? 0 : 2;
        break;
    case 2:
        d->codes[below(d, d->bytes + 1)] = 0;
        break;
    case 3:
        d->codes[below(d, d->bytes + 1)] = (unsigned char)below(d, 256);
        break;
    default:
        d->codes[below(d, d->bytes + 1)] ^= (unsigned char)(1u << below(d, 8));
    }
    *count = *count < d->x.packets.capacity ? *count : d->x.packets.capacity;
    *bytes = *bytes < d->x.packets.index_bytes ? *bytes : d->x.packets.index_bytes;
}

enum { TIMES = 12 };

/* @return how often it was refused */
static uint32_t try_damage(tamis_index_codec index_codec, uint32_t span, uint32_t wanted,
                           uint64_t seed) {
    desk d;
    uint32_t refused = 0;
    test_context("%s, %u of %u, damaged, seed %llu", tam_index_codec_of(index_codec)->name, wanted,
                 span, (unsigned long long)seed);
    open_desk(&d, index_codec, span, wanted, seed);
    pack(&d);
    for (int i = 0; i < TIMES; i++) {
        uint32_t count = d.count;
        size_t bytes = d.codec->encode(d.positions, d.count, span, d.codes);
        for (uint64_t n = 1 + below(&d, 2); n > 0; n--)
            damage(&d, &count, &bytes);
        refused += !unpack(&d, count, bytes);
    }
    close_desk(&d);
    return refused;
}

static void test_damage_is_refused_where_the_host_refuses(void **state) {
    static const uint32_t spans[] = {1, 40, 700, 3000, 66000, 140000};
    (void)state;
    for (tamis_index_codec f = TAMIS_INDEX_BLOCK16; f < TAMIS_INDEX_END; f++) {
        uint32_t refused = 0;
        for (uint64_t seed = 1; seed <= 120; seed++) {
            uint32_t span = spans[seed % 6], most = span < 600 ? span : 599;
            refused += try_damage(f, span, (uint32_t)(data_mix(seed) % (most + 1)), seed);
        }
        assert_in_range(refused, 200, TIMES * 120 - 200); /* some are taken, some are not */
    }
}

static void test_damage_among_many_pieces(void **state) {
    static const uint32_t cases[][2] = {
        {8192, 8192}, {8193, 8000}, {50000, 3000}, {400000, 40000}, {3000000, 450000}};
    enum { SEEDS = 4 };
    uint32_t refused = 0, lists = SEEDS * (uint32_t)how_many(3, sizeof cases / sizeof cases[0]);
    (void)state;
    for (uint32_t i = 0; i < lists; i++)
        refused += try_damage(TAMIS_INDEX_RICE, cases[i / SEEDS][0], cases[i / SEEDS][1], i);
    assert_in_range(refused, lists, (TIMES - 1) * lists); /* as above */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lists_have_the_bytes_of_the_host),
        cmocka_unit_test(test_lists_of_many_pieces),
        cmocka_unit_test(test_damage_is_refused_where_the_host_refuses),
        cmocka_unit_test(test_damage_among_many_pieces),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
