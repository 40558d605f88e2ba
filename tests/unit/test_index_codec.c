/* SPDX-License-Identifier: MIT
 *
 * Index codecs: what comes back is what went in, in as many bytes as promised, and bytes that no
 * list has are refused, whatever they are.
 */
#include "kernels/codecs/index_codecs.h"
#include "tests/support/data.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

#define LENGTH(array) (sizeof(array) / sizeof(array)[0])

#define FIRST ((tamis_index_codec)(TAMIS_INDEX_U32 + 1)) /* that is encoded at all */

/* A list, and the span it lies in. */
typedef struct list {
    uint32_t *positions;
    size_t count;
    uint64_t span;
} list;

static list new_list(uint64_t span, size_t most) {
    list l = {malloc((most + 1) * sizeof *l.positions), 0, span};
    assert_non_null(l.positions);
    return l;
}

static void add(list *l, uint64_t position) {
    assert_true(position < l->span);
    l->positions[l->count++] = (uint32_t)position;
}

/* Every position with probability share / 2^32. */
static list random_list(uint64_t span, uint64_t share, uint64_t seed) {
    list l = new_list(span, (size_t)span);
    for (uint64_t p = 0; p < span; p++)
        if (data_mix(seed * 1000003 + p) >> 32 < share)
            add(&l, p);
    return l;
}

/* -- the obvious way, one position at a time -------------------------------------------------- */

static size_t count_in(const list *l, uint64_t block) {
    size_t count = 0;
    for (size_t i = 0; i < l->count; i++)
        count += l->positions[i] / 65536 == block;
    return count;
}

static size_t plain_block16(const list *l, unsigned char *out) {
    size_t at = 0;
    for (uint64_t block = 0; block * 65536 < l->span; block++) {
        size_t left = count_in(l, block);
        while (left > 127) {
            out[at++] = (unsigned char)(left % 128 + 128);
            left /= 128;
        }
        out[at++] = (unsigned char)left;
    }
    for (size_t i = 0; i < l->count; i++, at += 2)
        memcpy(out + at, &(uint16_t){(uint16_t)(l->positions[i] % 65536)}, 2);
    return at;
}

static size_t plain_gap8(const list *l, unsigned char *out) {
    size_t at = 0;
    for (size_t i = 0; i < l->count; i++) {
        uint64_t over = l->positions[i] - (i ? (uint64_t)l->positions[i - 1] + 1 : 0);
        for (uint64_t j = 0; j < over / 255; j++)
            out[at++] = 255;
        out[at++] = (unsigned char)(over % 255);
    }
    return at;
}

static size_t plain_bitmap(const list *l, unsigned char *out) {
    size_t bytes = (size_t)(l->span / 8 + (l->span % 8 > 0)), next = 0;
    for (uint64_t p = 0; p < 8 * (uint64_t)bytes; p++) {
        bool listed = next < l->count && l->positions[next] == p;
        out[p / 8] = (unsigned char)((p % 8 ? out[p / 8] : 0) | listed << p % 8);
        next += listed;
    }
    return bytes;
}

/* A character for every bit, then eight of them to a byte. */
static size_t plain_rice(const list *l, unsigned char *out) {
    uint64_t count = l->count, low = 0, bits = 0;
    for (uint64_t r = 31; r < 32; r--) {
        if (count * (r + 1) + (l->span - count) / (UINT64_C(1) << r) <=
            count * (low + 1) + (l->span - count) / (UINT64_C(1) << low))
            low = r;
    }
    char *text = calloc(count * (low + 2) + (l->span - count) / (UINT64_C(1) << low) + 9, 1);
    assert_non_null(text);
    for (size_t i = 0; i < count; i++) {
        uint64_t over = l->positions[i] - (i ? (uint64_t)l->positions[i - 1] + 1 : 0);
        bits += over / (UINT64_C(1) << low);
        text[bits++] = 1;
        for (uint64_t b = 0; b < low; b++)
            text[bits++] = over >> b & 1;
    }
    size_t bytes = (size_t)((bits + 7) / 8);
    for (size_t i = 0; i < 8 * bytes; i++)
        out[i / 8] = (unsigned char)((i % 8 ? out[i / 8] : 0) | text[i] << i % 8);
    free(text);
    return bytes;
}

/* What is known of each codec beside its row. */
static const struct {
    size_t (*encode)(const list *l, unsigned char *out);
    bool any_count; /* bytes of a list may also be those of one with another count */
} plain[TAMIS_INDEX_END] = {
    [TAMIS_INDEX_BLOCK16] = {plain_block16, false},
    [TAMIS_INDEX_GAP8] = {plain_gap8, false},
    [TAMIS_INDEX_BITMAP] = {plain_bitmap, false},
    [TAMIS_INDEX_RICE] = {plain_rice, true}, /* how gaps are cut follows from the count */
};

static void test_every_codec_has_a_row_here(void **state) {
    (void)state;
    for (tamis_index_codec f = FIRST; f < TAMIS_INDEX_END; f++)
        if (!plain[f].encode)
            fail_msg("%s: write it once more, the obvious way, for `plain`",
                     tam_index_codec_of(f)->name);
}

/* -- there and back --------------------------------------------------------------------------- */

/* Memory of exactly that size, so that sanitizers see a byte too many. */
static void *copy_of(const void *from, size_t bytes) {
    void *memory = malloc(bytes ? bytes : 1);
    assert_non_null(memory);
    memcpy(memory, from, bytes);
    return memory;
}

static void check_decodes(const tam_index_codec *codec, const list *l, const unsigned char *from,
                          size_t bytes) {
    unsigned char *in = copy_of(from, bytes);
    uint32_t *out = malloc(l->count * sizeof *out + 1);
    if (!codec->decode(in, bytes, l->span, l->count, out))
        fail_msg("%s: %zu of %llu refused", codec->name, l->count, (unsigned long long)l->span);
    assert_memory_equal(out, l->positions, l->count * sizeof *out);
    free(out);
    free(in);
}

/* Whatever comes of it, nothing is written beyond `count`, and only what `encode` writes is
 * accepted. @return whether it was */
static bool try_bytes(const tam_index_codec *codec, const unsigned char *from, size_t bytes,
                      uint64_t span, size_t count) {
    unsigned char *in = copy_of(from, bytes);
    uint32_t *out = malloc(count * sizeof *out + 1);
    bool good = codec->decode(in, bytes, span, count, out);
    if (good) {
        unsigned char *again = calloc(codec->bytes(span, count) + 1, 1);
        for (size_t i = 0; i < count; i++)
            assert_true(out[i] < span && (i == 0 || out[i - 1] < out[i]));
        assert_int_equal(codec->encode(out, count, span, again), bytes);
        assert_memory_equal(again, in, bytes);
        free(again);
    }
    free(out);
    free(in);
    return good;
}

static void check_list(const list *l) {
    for (tamis_index_codec f = FIRST; f < TAMIS_INDEX_END; f++) {
        const tam_index_codec *codec = tam_index_codec_of(f);
        size_t most = (size_t)codec->bytes(l->span, l->count);
        if (most > 1u << 27) /* bitmaps of long spans */
            continue;
        unsigned char *have = malloc(most + 1), *want = malloc(most + 1);
        have[most] = 171;
        size_t bytes = codec->encode(l->positions, l->count, l->span, have);
        assert_in_range(bytes, 0, most);
        assert_int_equal(have[most], 171);
        assert_int_equal(plain[f].encode(l, want), bytes);
        assert_memory_equal(have, want, bytes);
        check_decodes(codec, l, have, bytes);
        bool more = try_bytes(codec, have, bytes, l->span, l->count + 1);
        bool less = l->count > 0 && try_bytes(codec, have, bytes, l->span, l->count - 1);
        assert_true(plain[f].any_count || (!more && !less));
        free(want);
        free(have);
    }
}

static void test_random_lists_come_back(void **state) {
    static const uint64_t spans[] = {1, 7, 8, 9, 254, 255, 256, 1000, 65535, 65536, 65537, 200000};
    static const uint64_t shares[] = {0,        1u << 20,   1u << 24,         1u << 28,
                                      1u << 31, UINT32_MAX, UINT64_C(1) << 32};
    (void)state;
    for (size_t s = 0; s < LENGTH(spans); s++)
        for (size_t d = 0; d < LENGTH(shares); d++) {
            list l = random_list(spans[s], shares[d], s + 100 * d);
            check_list(&l);
            free(l.positions);
        }
}

static void test_full_blocks_and_empty_blocks_come_back(void **state) {
    (void)state;
    list l = new_list(7 * 65536 + 5, 2 * 65536 + 2);
    for (uint64_t p = 0; p < 65536; p++) /* 65,536 entries in one block: a count of three bytes */
        add(&l, 2 * 65536 + p);
    check_list(&l);
    add(&l, 6 * 65536);
    add(&l, 7 * 65536 + 4); /* the last of all */
    check_list(&l);
    free(l.positions);
}

static void test_gaps_about_255_come_back(void **state) {
    (void)state;
    for (uint32_t gap = 250; gap < 520; gap++) {
        list l = new_list(4096, 20);
        for (uint64_t p = gap; p < 4096; p += gap + 1)
            add(&l, p);
        check_list(&l);
        free(l.positions);
    }
}

/* No vector is made of them: positions alone. */
static void test_positions_of_long_vectors_come_back(void **state) {
    static const uint64_t spans[] = {(1u << 24) + 1, UINT64_C(0x80000000) / 4 + 3,
                                     UINT64_C(0xfffeffff), UINT64_C(0xffff0000)};
    (void)state;
    for (size_t s = 0; s < LENGTH(spans); s++) {
        list l = new_list(spans[s], 100);
        add(&l, 0);
        for (unsigned i = 1; i < 64; i++)
            add(&l, spans[s] / 64 * i + data_mix(i) % 1000);
        add(&l, spans[s] - 2);
        add(&l, spans[s] - 1);
        check_list(&l);
        free(l.positions);
    }
}

/* -- bytes ------------------------------------------------------------------------------------ */

/* Fixed packets have room for this and no more. */
static void test_no_list_takes_more_bytes_than_said(void **state) {
    (void)state;
    for (uint64_t span = 1; span < 70000; span = span * 3 + 1)
        for (size_t count = 0; count <= span; count = count * 2 + 1) {
            list last = new_list(span, count), even = new_list(span, count);
            for (size_t i = 0; i < count; i++) {
                add(&last, span - count + i);
                add(&even, span * i / count);
            }
            check_list(&last); /* one gap as long as can be */
            check_list(&even);
            free(last.positions);
            free(even.positions);
        }
}

static void test_bytes_grow_with_span_and_count(void **state) {
    (void)state;
    for (tamis_index_codec f = TAMIS_INDEX_U32; f < TAMIS_INDEX_END; f++) {
        const tam_index_codec *codec = tam_index_codec_of(f);
        for (uint64_t i = 0; i < 20000; i++) {
            uint64_t span = 1 + data_mix(i) % (i % 2 ? 1000 : 0xffff0000), count;
            count = data_mix(i + 77) % (span + span / 4 + 1);
            assert_true(codec->bytes(span, count) <= codec->bytes(span + 1, count));
            assert_true(codec->bytes(span, count) <= codec->bytes(span, count + 1));
            assert_true(count < span || codec->bytes(span, count) == codec->bytes(span, span));
        }
    }
}

static void test_the_choice_follows_the_density(void **state) {
    static const struct {
        uint64_t span, count;
        tamis_index_codec index_codec;
    } cases[] = {
        {3675000, 10, TAMIS_INDEX_U32},        /* few: no count for every block */
        {3675000, 3675, TAMIS_INDEX_BLOCK16},  /* 0.1 % */
        {3675000, 36750, TAMIS_INDEX_BLOCK16}, /* 1 % */
        {3675000, 44000, TAMIS_INDEX_GAP8},    /* 1.2 % */
        {3675000, 257250, TAMIS_INDEX_GAP8},   /* 7 % */
        {3675000, 367500, TAMIS_INDEX_GAP8},   /* 10 % */
        {3675000, 735000, TAMIS_INDEX_BITMAP}, /* 20 % */
        {3675000, 3675000, TAMIS_INDEX_BITMAP}, {1, 1, TAMIS_INDEX_GAP8}, {1, 0, TAMIS_INDEX_U32},
    };
    (void)state;
    for (size_t i = 0; i < LENGTH(cases); i++)
        assert_int_equal(tam_index_codec_choose(cases[i].span, cases[i].count, false),
                         cases[i].index_codec);
}

/* -- what no encoder writes ------------------------------------------------------------------- */

static void test_an_encoding_cut_anywhere_is_refused(void **state) {
    (void)state;
    list l = random_list(140000, UINT64_C(1) << 25, 5);
    add(&l, 139999);
    for (tamis_index_codec f = FIRST; f < TAMIS_INDEX_END; f++) {
        const tam_index_codec *codec = tam_index_codec_of(f);
        unsigned char *in = calloc(codec->bytes(l.span, l.count) + 1, 1);
        size_t bytes = codec->encode(l.positions, l.count, l.span, in);
        for (size_t cut = 0; cut < bytes; cut++)
            assert_false(try_bytes(codec, in, cut, l.span, l.count));
        assert_false(try_bytes(codec, in, bytes + 1, l.span, l.count));
        free(in);
    }
    free(l.positions);
}

static void test_positions_beyond_the_span_are_refused(void **state) {
    (void)state;
    for (uint64_t span = 100; span < 110; span++) {
        list l = new_list(span + 1, 2);
        add(&l, 3);
        add(&l, span);
        for (tamis_index_codec f = FIRST; f < TAMIS_INDEX_END; f++) {
            const tam_index_codec *codec = tam_index_codec_of(f);
            unsigned char in[64];
            size_t bytes = codec->encode(l.positions, l.count, l.span, in);
            assert_true(try_bytes(codec, in, bytes, span + 1, 2));
            assert_false(try_bytes(codec, in, bytes, span, 2));
        }
        free(l.positions);
    }
}

static void test_counts_of_block16_have_one_form(void **state) {
    const unsigned char longer[] = {0x82, 0x00, 1, 0, 2, 0}; /* two, in two bytes */
    const unsigned char good[] = {0x02, 1, 0, 2, 0};
    const unsigned char endless[] = {0x80, 0x80, 0x80, 0x80, 0x80, 1, 0, 2, 0};
    const unsigned char equal[] = {0x02, 2, 0, 2, 0}, falling[] = {0x02, 2, 0, 1, 0};
    (void)state;
    assert_true(try_bytes(&tam_index_block16, good, sizeof good, 1000, 2));
    assert_false(try_bytes(&tam_index_block16, longer, sizeof longer, 1000, 2));
    assert_false(try_bytes(&tam_index_block16, endless, sizeof endless, 1000, 2));
    assert_false(try_bytes(&tam_index_block16, equal, sizeof equal, 1000, 2));
    assert_false(try_bytes(&tam_index_block16, falling, sizeof falling, 1000, 2));
}

/* Bits flipped in a good encoding, and bytes made up: harmless, and accepted only if some list has
 * them. */
static void test_any_bytes_are_harmless(void **state) {
    (void)state;
    for (uint64_t round = 0; round < 3000; round++) {
        uint64_t span = 1 + data_mix(round) % 3000;
        list l = random_list(span, data_mix(round + 9) >> 32, round);
        for (tamis_index_codec f = FIRST; f < TAMIS_INDEX_END; f++) {
            const tam_index_codec *codec = tam_index_codec_of(f);
            unsigned char *in = calloc(codec->bytes(span, l.count) + 1, 1);
            size_t bytes = codec->encode(l.positions, l.count, span, in);
            for (uint64_t i = 0; i < 8 && bytes > 0; i++) {
                uint64_t bit = data_mix(round * 64 + i) % (8 * bytes);
                in[bit / 8] ^= (unsigned char)(1u << bit % 8);
                try_bytes(codec, in, bytes, span, l.count);
            }
            for (size_t i = 0; i < bytes; i++)
                in[i] = (unsigned char)data_mix(round + i);
            try_bytes(codec, in, bytes, span, l.count);
            free(in);
        }
        free(l.positions);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_codec_has_a_row_here),
        cmocka_unit_test(test_random_lists_come_back),
        cmocka_unit_test(test_full_blocks_and_empty_blocks_come_back),
        cmocka_unit_test(test_gaps_about_255_come_back),
        cmocka_unit_test(test_positions_of_long_vectors_come_back),
        cmocka_unit_test(test_no_list_takes_more_bytes_than_said),
        cmocka_unit_test(test_bytes_grow_with_span_and_count),
        cmocka_unit_test(test_the_choice_follows_the_density),
        cmocka_unit_test(test_an_encoding_cut_anywhere_is_refused),
        cmocka_unit_test(test_positions_beyond_the_span_are_refused),
        cmocka_unit_test(test_counts_of_block16_have_one_form),
        cmocka_unit_test(test_any_bytes_are_harmless),
    };
    return cmocka_run_group_tests_name("index_codec", tests, NULL, NULL);
}
