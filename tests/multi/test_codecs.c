/* SPDX-License-Identifier: MIT
 *
 * Codecs: index codecs change no result and take the promised bytes, states do not
 * depend on them, and all ranks refuse damage to any byte. 16-bit values: test_values.c.
 */
#include "lib/contracts/index_codec.h"
#include "collectives/state/state.h"
#include "collectives/transport/faulty.h"
#include "lib/base/base.h"
#include "tests/multi/codec_cases.h"

#include <tamis/overlap.h>
#include <tamis/state.h>
#include <tamis/stats.h>

/* -- index codecs ----------------------------------------------------------------------------- */

static void compare_codecs(trial what) {
    trial_record plain, other;
    what.index_codec = TAMIS_INDEX_U32;
    run(&what, &plain);
    for (size_t f = 0; f < COUNT(index_codecs); f++) {
        what.index_codec = index_codecs[f];
        run(&what, &other);
        check_same(&plain, &other);
        record_free(&other);
    }
    record_free(&plain);
}

static void test_index_codecs_change_no_result(void **state) {
    static const uint32_t ranks_of[] = {1, 3, 5};
    (void)state;
    for (size_t c = 0; c < COUNT(cases); c++)
        for (size_t p = 0; p < COUNT(ranks_of); p++) {
            if (!test_drawn(5))
                continue;
            trial what = trial_of(c, ranks_of[p], 4097, p == 1 ? 0.15 : 0.01);
            what.steps = 5;
            compare_codecs(what);
        }
}

static void test_index_codecs_change_no_result_of_several_buckets(void **state) {
    (void)state;
    for (size_t c = 0; c < COUNT(cases); c++) {
        if (!test_drawn(3))
            continue;
        trial what = trial_of(c, 3, 4097, 0.05);
        what.steps = 5;
        what.bucket_length = 500;
        what.disorder = 4;
        compare_codecs(what);
    }
}

/* Empty and full lists, and lists of one entry. */
static void test_index_codecs_bear_extreme_lists(void **state) {
    static const double densities[] = {1, 0.0001};
    static const data_pattern patterns[] = {DATA_ZERO, DATA_SPIKE, DATA_EQUAL};
    (void)state;
    for (size_t c = 0; c < COUNT(cases); c++)
        for (size_t d = 0; d < COUNT(densities); d++)
            for (size_t p = 0; p < COUNT(patterns); p++) {
                if (!test_drawn(5))
                    continue;
                trial what = trial_of(c, 3, 701, densities[d]);
                what.steps = 3;
                what.pattern = patterns[p];
                compare_codecs(what);
            }
}

/* One rank owns more than 65,536 elements, so more than one block of positions. */
static void test_index_codecs_change_no_result_of_long_vectors(void **state) {
    (void)state;
    trial what = trial_usual("tamis", 2, 300001, 0.01);
    what.steps = 2;
    compare_codecs(what);
    what.scheme = "topk";
    compare_codecs(what);
}

/* -- bytes ------------------------------------------------------------------------------------ */

typedef struct size_case {
    tamis_index_codec index_codec;
    tamis_value_codec value_codec, sums;
    const char *name;
    uint64_t index_bytes; /* of a packet, before it is rounded up to 4 */
} size_case;

enum { LONG = 131072 * 2, LONG_K = 2621 }; /* two ranks own 131072 each */

/* Bytes of 1280 values, which rank 0 sums, and of 1341, which rank 1 does: 5 blocks; and one of
 * 61. */
static const uint64_t encoded_bytes[TAMIS_VALUE_END][2] = {
    [TAMIS_VALUE_FLOAT32] = {5120, 5364},
    [TAMIS_VALUE_BFLOAT16] = {2560, 2682},
    [TAMIS_VALUE_INT8] = {5 * 258, 5 * 258 + 2 + 61},
    [TAMIS_VALUE_FP4] = {5 * 130, 5 * 130 + 2 + 31},
    [TAMIS_VALUE_FP2] = {5 * 68, 5 * 68 + 4 + 16},
};

/* The other's half out, the own sums, with room for the longer part, and two checksums; float32
 * goes another way, and takes the counters with it. */
static uint64_t bytes_of_values(const size_case *c, uint32_t rank) {
    enum { COUNTERS = 14 };
    if (c->value_codec == TAMIS_VALUE_FLOAT32)
        return 4 * (LONG_K + COUNTERS);
    return 4 * COUNTERS + encoded_bytes[c->value_codec][1 - rank] + encoded_bytes[c->sums][1] + 16;
}

static void run_size(test_rank *self) {
    const size_case *c = self->shared;
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    tamis_bucket bucket = TAMIS_BUCKET_INIT;
    tamis_stats stats = TAMIS_STATS_INIT;
    tamis_reducer *reducer = NULL;
    float *grad = calloc(LONG, sizeof *grad);
    config.scheme = "cyclic+global+exact+union";
    config.index_codec = c->index_codec;
    config.value_codec = c->value_codec;
    config.sum_codec = c->sums;
    config.density = 0.01;
    data_fill(DATA_HEAVY, self->id, 0, LONG, grad);
    const tamis_step step = data_step(grad);
    RANK_OK(self, data_reducer(self->comm, LONG, &config, &reducer));
    RANK_OK(self, tamis_reducer_bucket_at(reducer, 0, &bucket));
    RANK_CHECK(self, strcmp(bucket.index_codec, c->name) == 0, "index codec %s",
               bucket.index_codec);
    RANK_OK(self, tamis_reducer_start(reducer, &step));
    RANK_OK(self, tamis_reducer_wait(reducer));
    RANK_OK(self, tamis_reducer_stats(reducer, &stats));
    uint64_t expected = 28 + (c->index_bytes + 3) / 4 * 4 + bytes_of_values(c, self->id);
    RANK_CHECK(self, stats.wire_bytes == expected, "%s: %llu bytes, not %llu", c->name,
               (unsigned long long)stats.wire_bytes, (unsigned long long)expected);
    tamis_reducer_destroy(reducer);
    free(grad);
}

/* Two ranks: each sends the other a packet, the other's part of the values, and its own part of the
 * sums. The packet holds the larger budget, 1311. */
static void test_a_step_sends_the_bytes_that_its_codecs_take(void **state) {
    static size_case sizes[] = {
        {TAMIS_INDEX_U32, TAMIS_VALUE_FLOAT32, TAMIS_VALUE_FLOAT32, "u32", 4 * 1311},
        {TAMIS_INDEX_BLOCK16, TAMIS_VALUE_FLOAT32, TAMIS_VALUE_FLOAT32, "block16",
         2 * 1311 + 2 + 2},
        {TAMIS_INDEX_GAP8, TAMIS_VALUE_FLOAT32, TAMIS_VALUE_FLOAT32, "gap8",
         1311 + (131072 - 1311) / 255},
        {TAMIS_INDEX_BITMAP, TAMIS_VALUE_FLOAT32, TAMIS_VALUE_FLOAT32, "bitmap", 131072 / 8},
        {TAMIS_INDEX_AUTO, TAMIS_VALUE_FLOAT32, TAMIS_VALUE_FLOAT32, "block16", 2 * 1311 + 2 + 2},
        {TAMIS_INDEX_AUTO, TAMIS_VALUE_BFLOAT16, TAMIS_VALUE_BFLOAT16, "block16", 2 * 1311 + 2 + 2},
        {TAMIS_INDEX_BLOCK16, TAMIS_VALUE_INT8, TAMIS_VALUE_INT8, "block16", 2 * 1311 + 2 + 2},
        {TAMIS_INDEX_BLOCK16, TAMIS_VALUE_FP4, TAMIS_VALUE_INT8, "block16", 2 * 1311 + 2 + 2},
        {TAMIS_INDEX_BLOCK16, TAMIS_VALUE_FP2, TAMIS_VALUE_FP4, "block16", 2 * 1311 + 2 + 2},
        {TAMIS_INDEX_BLOCK16, TAMIS_VALUE_BFLOAT16, TAMIS_VALUE_FP2, "block16", 2 * 1311 + 2 + 2},
    };
    (void)state;
    for (size_t i = 0; i < COUNT(sizes); i++) {
        test_context("%s", sizes[i].name);
        ranks_run(2, 0, run_size, &sizes[i]);
    }
}

/* -- memory and state ------------------------------------------------------------------------- */

typedef struct state_case {
    trial what;
    _Alignas(8) unsigned char control[2][1 << 16];
    size_t bytes[2];
    bool other; /* load u32 and float32 into another codec */
} state_case;

static tamis_reducer_config config_of(const trial *what) {
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    config.scheme = what->scheme;
    config.density = what->density;
    config.capacity = what->capacity;
    config.index_codec = what->index_codec;
    config.value_codec = what->value_codec;
    return config;
}

static void run_memory(test_rank *self) {
    const trial *what = self->shared;
    tamis_reducer_config config = config_of(what);
    tamis_reducer *reducer = NULL;
    float grad[3000];
    const tamis_step step = data_step(grad);
    RANK_OK(self, data_reducer(self->comm, 3000, &config, &reducer));
    rank_barrier(self);
    uint64_t made = tam_alloc_made();
    for (uint32_t number = 0; number < 4; number++) {
        data_fill(DATA_HEAVY, self->id, number, 3000, grad);
        RANK_OK(self, tamis_reducer_start(reducer, &step));
        RANK_OK(self, tamis_reducer_wait(reducer));
    }
    rank_barrier(self);
    RANK_CHECK(self, tam_alloc_made() == made, "a step allocated");
    rank_barrier(self);
    tamis_reducer_destroy(reducer);
}

static void test_no_codec_allocates_in_a_step(void **state) {
    (void)state;
    for (size_t c = 0; c < COUNT(cases); c++)
        for (size_t f = 0; f < COUNT(index_codecs); f++)
            for (int value_codec = 0; value_codec < 2; value_codec++) {
                if (!test_drawn(5))
                    continue;
                trial what = trial_of(c, 3, 3000, 0.1);
                what.index_codec = index_codecs[f];
                what.value_codec = value_codec ? TAMIS_VALUE_BFLOAT16 : TAMIS_VALUE_FLOAT32;
                test_context("%s, index codec %d, value codec %d", what.scheme,
                             (int)what.index_codec, value_codec);
                ranks_run(3, 0, run_memory, &what);
            }
}

static void run_state(test_rank *self) {
    state_case *c = self->shared;
    tamis_reducer_config config = config_of(&c->what);
    tamis_reducer *reducer = NULL, *other = NULL;
    float grad[2000];
    size_t bytes = 0;
    unsigned char *control = malloc(sizeof c->control[0]);
    float *residual = malloc(2000 * sizeof *residual);
    const tamis_step step = data_step(grad);
    RANK_OK(self, data_reducer(self->comm, 2000, &config, &reducer));
    data_fill(DATA_HEAVY, self->id, 0, 2000, grad);
    RANK_OK(self, tamis_reducer_start(reducer, &step));
    RANK_OK(self, tamis_reducer_wait(reducer));
    RANK_OK(self, tamis_reducer_control_bytes(reducer, &bytes));
    RANK_OK(self, tamis_reducer_save_control(reducer, control, bytes));
    RANK_OK(self, tamis_reducer_save_residual(reducer, residual));
    config.index_codec = TAMIS_INDEX_GAP8;
    config.value_codec = TAMIS_VALUE_BFLOAT16;
    RANK_OK(self, data_reducer(self->comm, 2000, &config, &other));
    RANK_OK(self, tamis_reducer_load_memory(other, control, bytes, residual));
    if (self->id == 0) {
        memcpy(c->control[c->other], control, bytes);
        c->bytes[c->other] = bytes;
    }
    data_fill(DATA_HEAVY, self->id, 1, 2000, grad);
    RANK_OK(self, tamis_reducer_start(other, &step)); /* all ranks agree on the step */
    RANK_OK(self, tamis_reducer_wait(other));
    tamis_reducer_destroy(other);
    tamis_reducer_destroy(reducer);
    free(control);
    free(residual);
}

static void test_states_do_not_depend_on_how_things_travel(void **state) {
    static state_case c;
    (void)state;
    c.what = trial_usual("tamis", 3, 2000, 0.05);
    c.what.index_codec = TAMIS_INDEX_U32;
    test_context("states of u32");
    ranks_run(3, 0, run_state, &c);
    c.what.index_codec = TAMIS_INDEX_BITMAP;
    c.other = true;
    test_context("states of bitmap");
    ranks_run(3, 0, run_state, &c);
    assert_int_equal(c.bytes[0], c.bytes[1]);
    for (int i = 0; i < 2; i++) { /* a figure, and the checksum over it */
        tam_state_header *h = (tam_state_header *)(void *)c.control[i];
        tam_run_position *now = (tam_run_position *)(void *)(h + 1);
        now->wire_bytes_total = h->parts_hash = h->header_hash = 0;
    }
    assert_memory_equal(c.control[0], c.control[1], c.bytes[0]);
}

/* -- damage ----------------------------------------------------------------------------------- */

enum { SHORT = 96, RANKS = 3, BAD_RANK = 1 }; /* blocks of 32: a third each */
enum { HEADER = 28, COUNTERS = 56 };          /* bytes */

typedef struct spoil_case {
    trial what;
    uint64_t nth; /* gather of the step */
    uint32_t bit;
    bool spoil;
    tamis_status status[RANKS];
    uint64_t hash[RANKS];
    uint64_t bytes; /* sent in a good step */
    uint32_t selects[SHORT];
    size_t nselected; /* of all ranks */
} spoil_case;

static void run_spoilt(test_rank *self) {
    spoil_case *c = self->shared;
    tamis_reducer_config config = config_of(&c->what);
    tamis_result result = TAMIS_RESULT_INIT;
    tamis_stats stats = TAMIS_STATS_INIT;
    tamis_reducer *reducer = NULL;
    float grad[SHORT];
    const tamis_step step = data_step(grad);
    RANK_OK(self, data_reducer(self->comm, SHORT, &config, &reducer));
    if (c->spoil && self->id == BAD_RANK)
        RANK_OK(self, tam_faulty_install(self->comm, TAM_FAULT_SPOIL, c->nth, c->bit));
    data_fill(DATA_HEAVY, self->id, 0, SHORT, grad);
    RANK_OK(self, tamis_reducer_start(reducer, &step));
    c->status[self->id] = tamis_reducer_wait(reducer);
    c->hash[self->id] = data_hash(0, grad, sizeof grad);
    RANK_OK(self, tamis_reducer_stats(reducer, &stats));
    if (self->id == BAD_RANK)
        c->bytes = stats.wire_bytes;
    if (self->id == 0 && !c->spoil) {
        RANK_OK(self, tamis_reducer_result(reducer, &result));
        memcpy(c->selects, result.indices, result.count * sizeof c->selects[0]);
        c->nselected = result.count;
    }
    tamis_reducer_destroy(reducer);
}

/* Flip a bit of what a rank gathers. Damage to space that a short list leaves free has no effect.
 * @return whether it was refused */
static bool spoil(spoil_case *c, const spoil_case *good) {
    test_context("%s, index codec %d, value codec %d, gather %llu, bit %u", c->what.scheme,
                 (int)c->what.index_codec, (int)c->what.value_codec, (unsigned long long)c->nth,
                 c->bit);
    ranks_run(RANKS, 0, run_spoilt, c);
    for (uint32_t r = 0; r < RANKS; r++) {
        if (c->status[r] != c->status[0])
            fail_msg("[%s] rank %u: %s, rank 0: %s", test_context_text(), r,
                     tamis_status_name(c->status[r]), tamis_status_name(c->status[0]));
        if (c->status[r] == TAMIS_OK)
            assert_int_equal(c->hash[r], good->hash[r]);
    }
    assert_true(c->status[0] == TAMIS_OK || c->status[0] == TAMIS_E_PROTOCOL);
    return c->status[0] == TAMIS_E_PROTOCOL;
}

/* @param bytes  gathered; 0: all bytes of the step belong to this gather and go to two others */
static void spoil_all(const trial *what, uint64_t nth, size_t header, size_t bytes,
                      size_t most_free) {
    spoil_case good = {.what = *what};
    size_t free_bytes = 0;
    test_context("%s, undamaged", what->scheme);
    ranks_run(RANKS, 0, run_spoilt, &good);
    bytes = bytes > 0 ? bytes : (size_t)good.bytes / 2;
    for (size_t byte = 0; byte < bytes; byte += test_stride(7)) {
        spoil_case c = {.what = *what, .nth = nth, .spoil = true};
        c.bit = (uint32_t)(8 * byte + data_mix(byte) % 8);
        bool refused = spoil(&c, &good);
        if (!refused && byte < header)
            fail_msg("[%s] byte %zu of the header was not missed", test_context_text(), byte);
        free_bytes += !refused;
    }
    if (free_bytes > most_free)
        fail_msg("[%s] %zu spoilt bytes were not missed", test_context_text(), free_bytes);
}

static size_t list_of(tamis_index_codec index_codec, const spoil_case *c) {
    const tam_index_codec *codec = tam_index_codec_of(index_codec);
    unsigned char list[8 * SHORT];
    return codec->encode ? codec->encode(c->selects, c->nselected, SHORT, list) : 4 * c->nselected;
}

/* A list of one rank goes out in pieces, one for each rank: the header of this one, and its piece,
 * behind whose part of the list nothing is missed. */
static void spoil_led(const trial *what) {
    spoil_case good = {.what = *what};
    ranks_run(RANKS, 0, run_spoilt, &good);
    uint64_t most = tam_index_codec_of(what->index_codec)->bytes(SHORT, good.nselected);
    size_t piece = tam_header_round((tam_header_round((size_t)most) + RANKS - 1) / RANKS);
    size_t used = list_of(what->index_codec, &good), end = (BAD_RANK + 1) * piece;
    size_t free_bytes = used < end - piece ? piece : used < end ? end - used : 0;
    spoil_all(what, 1, HEADER, HEADER + piece, free_bytes);
}

static void test_damage_to_any_byte_is_refused_by_all_ranks(void **state) {
    (void)state;
    for (tamis_index_codec f = TAMIS_INDEX_U32; f < TAMIS_INDEX_END; f++)
        for (int value_codec = 0; value_codec < 2; value_codec++) {
            trial what = trial_usual("cyclic+global+exact+pairs", RANKS, SHORT, 0.25);
            what.index_codec = f;
            what.value_codec = value_codec ? TAMIS_VALUE_BFLOAT16 : TAMIS_VALUE_FLOAT32;
            spoil_all(&what, 0, HEADER + COUNTERS, 0,
                      6); /* rounding up to 4 leaves 3 free, twice */
            what.scheme = "rotate+global+step+union";
            spoil_all(&what, 0, HEADER, HEADER, 0); /* growing: the headers travel alone, */
            spoil_all(&what, 1, 0, 4, 0);           /* then the payload */
            what.scheme = "cltk";                   /* led by rank 0 */
            spoil_led(&what);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_index_codecs_change_no_result),
        cmocka_unit_test(test_index_codecs_change_no_result_of_several_buckets),
        cmocka_unit_test(test_index_codecs_bear_extreme_lists),
        cmocka_unit_test(test_index_codecs_change_no_result_of_long_vectors),
        cmocka_unit_test(test_a_step_sends_the_bytes_that_its_codecs_take),
        cmocka_unit_test(test_no_codec_allocates_in_a_step),
        cmocka_unit_test(test_states_do_not_depend_on_how_things_travel),
        cmocka_unit_test(test_damage_to_any_byte_is_refused_by_all_ranks),
    };
    return cmocka_run_group_tests_name("codecs", tests, NULL, NULL);
}
