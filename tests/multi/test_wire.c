/* SPDX-License-Identifier: MIT
 *
 * What travels, and in how many bytes: index formats change no result; values of 16 bits lose
 * nothing, for what rounding takes stays in a residual; damage to any byte is refused by all ranks.
 */
#include "collectives/reducer/state.h"
#include "collectives/transport/faulty.h"
#include "lib/base/base.h"
#include "lib/base/half.h"
#include "tests/support/data.h"
#include "tests/support/ranks.h"
#include "tests/support/schemes.h"
#include "tests/support/trial.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

#define COUNT(array) (sizeof(array) / sizeof(array)[0])

static const tamis_index_format formats[] = {TAMIS_INDEX_AUTO, TAMIS_INDEX_BLOCK16,
                                             TAMIS_INDEX_GAP8, TAMIS_INDEX_BITMAP};

/* Every exchange, ownership and kind of slot; those with `capacity` have fixed ones. */
static const struct {
    const char *scheme;
    double capacity;
} cases[] = {
    {"tamis", 0},
    {"topk", 0},
    {"deft", 0},
    {"micro", 0},
    {"micro", 1.5},
    {"cyclic+norm+predict+pairs", 0},
    {"all+global+exact+pairs", 0},
    {"rotate+global+step+pairs", 0},
    {"rotate+global+step+pairs", 2},
};

static trial trial_of(size_t which, uint32_t nranks, size_t n, double density) {
    trial what = trial_usual(cases[which].scheme, nranks, n, density);
    what.capacity = cases[which].capacity;
    return what;
}

static void run(const trial *what, trial_record *out) {
    if (!trial_run(what, out))
        fail_msg("[%s] was refused: %s", test_context_text(), tamis_last_error());
    check_alike(out);
    check_union(out);
    check_stats(out);
}

/* -- formats of indices ------------------------------------------------------------------------- */

static void compare_formats(trial what) {
    trial_record plain, other;
    what.format = TAMIS_INDEX_U32;
    run(&what, &plain);
    for (size_t f = 0; f < COUNT(formats); f++) {
        what.format = formats[f];
        run(&what, &other);
        check_same(&plain, &other);
        record_free(&other);
    }
    record_free(&plain);
}

static void test_formats_of_indices_change_no_result(void **state) {
    static const uint32_t ranks_of[] = {1, 3, 5};
    (void)state;
    for (size_t c = 0; c < COUNT(cases); c++)
        for (size_t p = 0; p < COUNT(ranks_of); p++) {
            trial what = trial_of(c, ranks_of[p], 4097, p == 1 ? 0.15 : 0.01);
            what.steps = 5;
            compare_formats(what);
        }
}

static void test_formats_of_indices_change_no_result_of_several_buckets(void **state) {
    (void)state;
    for (size_t c = 0; c < COUNT(cases); c++) {
        trial what = trial_of(c, 3, 4097, 0.05);
        what.steps = 5;
        what.bucket_length = 500;
        what.disorder = 4;
        compare_formats(what);
    }
}

/* Lists that are empty, full, and of one entry. */
static void test_formats_of_indices_bear_extreme_lists(void **state) {
    static const double densities[] = {1, 0.0001};
    static const data_pattern patterns[] = {DATA_ZERO, DATA_SPIKE, DATA_EQUAL};
    (void)state;
    for (size_t c = 0; c < COUNT(cases); c++)
        for (size_t d = 0; d < COUNT(densities); d++)
            for (size_t p = 0; p < COUNT(patterns); p++) {
                trial what = trial_of(c, 3, 701, densities[d]);
                what.steps = 3;
                what.pattern = patterns[p];
                compare_formats(what);
            }
}

/* More than 65,536 elements of one rank, so more than one block of positions. */
static void test_formats_of_indices_change_no_result_of_long_vectors(void **state) {
    (void)state;
    trial what = trial_usual("tamis", 2, 300001, 0.01);
    what.steps = 2;
    compare_formats(what);
    what.scheme = "topk";
    compare_formats(what);
}

/* -- bytes -------------------------------------------------------------------------------------- */

typedef struct size_case {
    tamis_index_format format;
    tamis_type wire;
    const char *name;
    uint64_t index_bytes; /* of a slot, before it is rounded up to 8 */
} size_case;

enum { LONG = 131072 * 2, LONG_K = 2621 }; /* two ranks own 131072 each */

static void run_size(test_rank *self) {
    const size_case *c = self->shared;
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    tamis_bucket bucket = TAMIS_BUCKET_INIT;
    tamis_stats stats = TAMIS_STATS_INIT;
    tamis_reducer *reducer = NULL;
    float *grad = calloc(LONG, sizeof *grad);
    config.scheme = "cyclic+global+exact+union";
    config.index_format = c->format;
    config.wire_type = c->wire;
    data_fill(DATA_HEAVY, self->id, 0, LONG, grad);
    const tamis_step step = data_step(grad);
    RANK_OK(self, data_reducer(self->comm, LONG, &config, &reducer));
    RANK_OK(self, tamis_reducer_bucket(reducer, 0, &bucket));
    RANK_CHECK(self, strcmp(bucket.index_format, c->name) == 0, "format %s", bucket.index_format);
    RANK_OK(self, tamis_reduce_start(reducer, &step));
    RANK_OK(self, tamis_reduce_wait(reducer));
    RANK_OK(self, tamis_reducer_stats(reducer, &stats));
    uint64_t value = c->wire == TAMIS_TYPE_BFLOAT16 ? 2 : 4;
    uint64_t expected = 88 + (c->index_bytes + 7) / 8 * 8 + value * LONG_K;
    RANK_CHECK(self, stats.wire_bytes == expected, "%s: %llu bytes, not %llu", c->name,
               (unsigned long long)stats.wire_bytes, (unsigned long long)expected);
    tamis_reducer_destroy(reducer);
    free(grad);
}

/* Two ranks: a slot to the other, the other's half of the values out, the own half of the sums. The
 * slot holds the larger share of k, 1311. */
static void test_a_step_sends_the_bytes_that_its_formats_take(void **state) {
    static size_case sizes[] = {
        {TAMIS_INDEX_U32, TAMIS_TYPE_FLOAT32, "u32", 4 * 1311},
        {TAMIS_INDEX_BLOCK16, TAMIS_TYPE_FLOAT32, "block16", 2 * 1311 + 2 + 2},
        {TAMIS_INDEX_GAP8, TAMIS_TYPE_FLOAT32, "gap8", 1311 + (131072 - 1311) / 255},
        {TAMIS_INDEX_BITMAP, TAMIS_TYPE_FLOAT32, "bitmap", 131072 / 8},
        {TAMIS_INDEX_AUTO, TAMIS_TYPE_FLOAT32, "block16", 2 * 1311 + 2 + 2},
        {TAMIS_INDEX_AUTO, TAMIS_TYPE_BFLOAT16, "block16", 2 * 1311 + 2 + 2},
        {TAMIS_INDEX_BLOCK16, TAMIS_TYPE_BFLOAT16, "block16", 2 * 1311 + 2 + 2},
    };
    (void)state;
    for (size_t i = 0; i < COUNT(sizes); i++) {
        test_context("%s", sizes[i].name);
        ranks_run(2, 0, run_size, &sizes[i]);
    }
}

/* -- values of 16 bits -------------------------------------------------------------------------- */

/* Entries of the last step's result at which some rank keeps something. */
static size_t kept(const trial_record *record) {
    uint32_t last = record->trial.steps - 1;
    const uint32_t *indices = record->indices + (size_t)last * record->trial.n;
    size_t count = 0;
    for (size_t i = 0; i < record_moment(record, last, 0)->count; i++) {
        bool any = false;
        for (uint32_t r = 0; r < record->trial.nranks; r++)
            any = any || record_residual(record, last, r)[indices[i]] != 0.0f;
        count += any;
    }
    return count;
}

/* Exactly: all numbers are whole, and small enough for binary32; of bfloat16 many are not. */
static void test_values_of_16_bits_conserve_mass_exactly(void **state) {
    static const uint32_t ranks_of[] = {1, 2, 3, 5};
    static const double densities[] = {1, 0.1, 0.01};
    trial_record record;
    (void)state;
    for (size_t c = 0; c < COUNT(cases); c++)
        for (size_t p = 0; p < COUNT(ranks_of); p++)
            for (size_t d = 0; d < COUNT(densities); d++) {
                trial what = trial_of(c, ranks_of[p], 3001, densities[d]);
                what.wire = TAMIS_TYPE_BFLOAT16;
                what.format = formats[(c + p + d) % COUNT(formats)];
                what.bucket_length = d == 1 ? 700 : 0;
                what.scale = 7; /* whole numbers of up to 19 bits; their sums have at most 24 */
                what.steps = 5;
                run(&what, &record);
                check_conservation(&record);
                if (d > 0 && kept(&record) == 0)
                    fail_msg("[%s] nothing was rounded", test_context_text());
                record_free(&record);
            }
}

/* The same picks and residuals; the rounded sum divided. */
static void test_a_mean_of_16_bits_is_the_sum_divided_once(void **state) {
    (void)state;
    for (size_t c = 0; c < COUNT(cases); c++) {
        trial what = trial_of(c, 3, 1000, 0.05);
        trial_record sums, means;
        what.wire = TAMIS_TYPE_BFLOAT16;
        what.real = true;
        run(&what, &sums);
        what.average = TAMIS_AVERAGE_MEAN;
        run(&what, &means);
        for (uint32_t step = 0; step < what.steps; step++) {
            for (size_t i = 0; i < what.n; i++)
                assert_true(record_result(&means, step)[i] == record_result(&sums, step)[i] / 3.0f);
            for (uint32_t r = 0; r < what.nranks; r++)
                assert_memory_equal(record_residual(&sums, step, r),
                                    record_residual(&means, step, r), what.n * sizeof(float));
        }
        record_free(&sums);
        record_free(&means);
    }
}

/* One step of three ranks over everything, each with the same gradient everywhere. */
typedef struct flat_case {
    const char *scheme;
    float given[3];
    tamis_nonfinite nonfinite;
    tamis_status status;
    /* by the ranks */
    float result[3];
    float residual[3][16];
    double residual_norm[3];
} flat_case;

static void run_flat(test_rank *self) {
    flat_case *c = self->shared;
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    tamis_reducer *reducer = NULL;
    tamis_stats stats = TAMIS_STATS_INIT;
    const float *residual = NULL;
    float grad[15];
    config.scheme = c->scheme;
    config.density = 1.0;
    config.average = TAMIS_AVERAGE_SUM;
    config.nonfinite = c->nonfinite;
    config.wire_type = TAMIS_TYPE_BFLOAT16;
    for (size_t i = 0; i < 15; i++)
        grad[i] = c->given[self->id];
    const tamis_step step = data_step(grad);
    RANK_OK(self, data_reducer(self->comm, 15, &config, &reducer));
    RANK_OK(self, tamis_reduce_start(reducer, &step));
    RANK_STATUS(self, c->status, tamis_reduce_wait(reducer));
    for (size_t i = 1; i < 15; i++)
        RANK_CHECK(self, memcmp(&grad[i], &grad[0], sizeof grad[0]) == 0, "entry %zu is %g", i,
                   (double)grad[i]);
    RANK_OK(self, tamis_reducer_residual(reducer, &residual));
    RANK_OK(self, tamis_reducer_stats(reducer, &stats));
    memcpy(c->residual[self->id], residual, 15 * sizeof residual[0]);
    c->residual_norm[self->id] = stats.residual_norm;
    c->result[self->id] = grad[0];
    tamis_reducer_destroy(reducer);
}

static void step_flat(flat_case *c) {
    test_context("%s: %g %g %g", c->scheme, (double)c->given[0], (double)c->given[1],
                 (double)c->given[2]);
    ranks_run(3, 0, run_flat, c);
    assert_memory_equal(&c->result[0], &c->result[1], sizeof(float));
    assert_memory_equal(&c->result[0], &c->result[2], sizeof(float));
}

/* 129 fits 8 bits, three times 129 does not: 388 is sent. The slice's owner keeps the difference. */
static void test_what_rounding_a_sum_takes_is_kept_by_its_owner(void **state) {
    flat_case c = {.scheme = "topk", .given = {129, 129, 129}};
    (void)state;
    step_flat(&c);
    assert_true(c.result[0] == 388.0f);
    for (uint32_t r = 0; r < 3; r++) {
        for (size_t i = 0; i < 15; i++)
            assert_true(c.residual[r][i] == (i / 5 == r ? -1.0f : 0.0f));
        assert_true(fabs(c.residual_norm[r] - sqrt(5.0)) < 1e-6);
    }
}

/* 257 lies between 256 and 258, 259 between 258 and 260: ties go to the even mantissa. */
static void test_what_rounding_a_value_takes_is_kept_by_its_sender(void **state) {
    flat_case c = {.scheme = "topk", .given = {257, 0, 259}};
    (void)state;
    step_flat(&c);
    assert_true(c.result[0] == 516.0f); /* 256 + 260 */
    for (size_t i = 0; i < 15; i++) {
        assert_true(c.residual[0][i] == 1.0f);
        assert_true(c.residual[1][i] == 0.0f);
        assert_true(c.residual[2][i] == -1.0f);
    }
    c = (flat_case){.scheme = "all+global+exact+pairs", .given = {257, 0, 259}};
    step_flat(&c); /* pairs travel once, and every rank adds them up */
    assert_true(c.result[0] == 516.0f);
    for (size_t i = 0; i < 15; i++)
        assert_true(c.residual[0][i] == 1.0f && c.residual[2][i] == -1.0f);
}

/* The largest bfloat16 is 0x7f7f; above it binary32 still has 65,536 numbers. */
static void test_finite_values_stay_finite_and_what_exceeds_is_kept(void **state) {
    static const char *const schemes[] = {"topk", "all+global+exact+pairs"};
    const float most = tam_bfloat16_widen(0x7f7f), largest = tam_float(0x7f7fffff);
    (void)state;
    for (int s = 0; s < 2; s++) {
        flat_case c = {.scheme = schemes[s], .given = {-largest, 0, 0}};
        step_flat(&c);
        assert_true(c.result[0] == -most);
        for (size_t i = 0; i < 15; i++)
            assert_true(c.residual[0][i] == -(largest - most));
    }
    /* a sum that binary32 has and bfloat16 has not */
    float little = tam_bfloat16_widen(0x7b00);
    flat_case c = {.scheme = "topk", .given = {most, little, 0}};
    step_flat(&c);
    assert_true(most + little < INFINITY && c.result[0] == most);
    for (size_t i = 0; i < 15; i++)
        for (uint32_t r = 0; r < 3; r++)
            assert_true(c.residual[r][i] == (i / 5 == r ? (most + little) - most : 0.0f));
}

static void test_sums_that_are_not_finite_are_met_as_with_32_bits(void **state) {
    static const char *const schemes[] = {"topk", "all+global+exact+pairs"};
    const float large = tam_float(0x7f7fffff);
    (void)state;
    for (int s = 0; s < 2; s++) {
        flat_case c = {.scheme = schemes[s], .given = {large, large, 257}};
        c.nonfinite = TAMIS_NONFINITE_DROP; /* nothing is kept of such an entry */
        step_flat(&c);
        for (uint32_t r = 0; r < 3; r++)
            for (size_t i = 0; i < 15; i++)
                assert_true(c.residual[r][i] == 0.0f);
        assert_true(c.result[0] == 0.0f);
        c.nonfinite = TAMIS_NONFINITE_ERROR;
        c.status = TAMIS_E_NONFINITE;
        step_flat(&c);
        assert_true(c.result[0] == 0.0f);
        c = (flat_case){.scheme = schemes[s], .given = {NAN, 257, 0}};
        c.nonfinite = TAMIS_NONFINITE_DROP;
        step_flat(&c);
        assert_true(c.result[0] == 256.0f && c.residual[1][3] == 1.0f);
    }
}

/* -- memory and state --------------------------------------------------------------------------- */

typedef struct state_case {
    trial what;
    _Alignas(8) unsigned char control[2][1 << 14];
    size_t bytes[2];
    bool other; /* u32 and float32 are loaded into another format */
} state_case;

static tamis_reducer_config config_of(const trial *what) {
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    config.scheme = what->scheme;
    config.density = what->density;
    config.capacity = what->capacity;
    config.index_format = what->format;
    config.wire_type = what->wire;
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
        RANK_OK(self, tamis_reduce_start(reducer, &step));
        RANK_OK(self, tamis_reduce_wait(reducer));
    }
    rank_barrier(self);
    RANK_CHECK(self, tam_alloc_made() == made, "a step allocated");
    rank_barrier(self);
    tamis_reducer_destroy(reducer);
}

static void test_no_format_allocates_in_a_step(void **state) {
    (void)state;
    for (size_t c = 0; c < COUNT(cases); c++)
        for (size_t f = 0; f < COUNT(formats); f++)
            for (int wire = 0; wire < 2; wire++) {
                trial what = trial_of(c, 3, 3000, 0.1);
                what.format = formats[f];
                what.wire = wire ? TAMIS_TYPE_BFLOAT16 : TAMIS_TYPE_FLOAT32;
                test_context("%s, format %d, wire %d", what.scheme, (int)what.format, wire);
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
    RANK_OK(self, tamis_reduce_start(reducer, &step));
    RANK_OK(self, tamis_reduce_wait(reducer));
    RANK_OK(self, tamis_reducer_control_bytes(reducer, &bytes));
    RANK_OK(self, tamis_reducer_control_save(reducer, control, bytes));
    RANK_OK(self, tamis_reducer_residual_save(reducer, residual));
    config.index_format = TAMIS_INDEX_GAP8;
    config.wire_type = TAMIS_TYPE_BFLOAT16;
    RANK_OK(self, data_reducer(self->comm, 2000, &config, &other));
    RANK_OK(self, tamis_reducer_restore(other, control, bytes, residual));
    if (self->id == 0) {
        memcpy(c->control[c->other], control, bytes);
        c->bytes[c->other] = bytes;
    }
    data_fill(DATA_HEAVY, self->id, 1, 2000, grad);
    RANK_OK(self, tamis_reduce_start(other, &step)); /* all ranks agree on where they are */
    RANK_OK(self, tamis_reduce_wait(other));
    tamis_reducer_destroy(other);
    tamis_reducer_destroy(reducer);
    free(control);
    free(residual);
}

static void test_states_do_not_depend_on_how_things_travel(void **state) {
    static state_case c;
    (void)state;
    c.what = trial_usual("tamis", 3, 2000, 0.05);
    c.what.format = TAMIS_INDEX_U32;
    test_context("states of u32");
    ranks_run(3, 0, run_state, &c);
    c.what.format = TAMIS_INDEX_BITMAP;
    c.other = true;
    test_context("states of bitmap");
    ranks_run(3, 0, run_state, &c);
    assert_int_equal(c.bytes[0], c.bytes[1]);
    for (int i = 0; i < 2; i++) { /* a figure, and the checksum over it */
        tam_state_header *h = (tam_state_header *)(void *)c.control[i];
        h->wire_bytes_total = h->header_hash = 0;
    }
    assert_memory_equal(c.control[0], c.control[1], c.bytes[0]);
}

/* -- damage --------------------------------------------------------------------------------------- */

enum { SHORT = 96, RANKS = 3, BAD_RANK = 1 }; /* blocks of 32: a third each */

typedef struct spoil_case {
    trial what;
    uint64_t nth; /* gather of the step */
    uint32_t bit;
    bool spoil;
    tamis_status status[RANKS];
    uint64_t hash[RANKS];
    uint64_t bytes; /* sent in a good step */
} spoil_case;

static void run_spoilt(test_rank *self) {
    spoil_case *c = self->shared;
    tamis_reducer_config config = config_of(&c->what);
    tamis_stats stats = TAMIS_STATS_INIT;
    tamis_reducer *reducer = NULL;
    float grad[SHORT];
    const tamis_step step = data_step(grad);
    RANK_OK(self, data_reducer(self->comm, SHORT, &config, &reducer));
    if (c->spoil && self->id == BAD_RANK)
        RANK_OK(self, tam_faulty_install(self->comm, TAM_FAULT_SPOIL, c->nth, c->bit));
    data_fill(DATA_HEAVY, self->id, 0, SHORT, grad);
    RANK_OK(self, tamis_reduce_start(reducer, &step));
    c->status[self->id] = tamis_reduce_wait(reducer);
    c->hash[self->id] = data_hash(0, grad, sizeof grad);
    RANK_OK(self, tamis_reducer_stats(reducer, &stats));
    if (self->id == BAD_RANK)
        c->bytes = stats.wire_bytes;
    tamis_reducer_destroy(reducer);
}

/* A bit of every byte of what a rank gathers. Room that a short list leaves free may be spoilt: then
 * nothing has happened. @return whether it was refused */
static bool spoil(spoil_case *c, const spoil_case *good) {
    test_context("%s, format %d, wire %d, gather %llu, bit %u", c->what.scheme, (int)c->what.format,
                 (int)c->what.wire, (unsigned long long)c->nth, c->bit);
    ranks_run(RANKS, 2000, run_spoilt, c);
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

/* @param bytes  of what is gathered; 0: all of the step are of this one, sent to two others */
static void spoil_all(const trial *what, uint64_t nth, size_t head, size_t bytes,
                      size_t most_free) {
    spoil_case good = {.what = *what};
    size_t free_bytes = 0;
    test_context("%s, undamaged", what->scheme);
    ranks_run(RANKS, 0, run_spoilt, &good);
    bytes = bytes > 0 ? bytes : (size_t)good.bytes / 2;
    for (size_t byte = 0; byte < bytes; byte++) {
        spoil_case c = {.what = *what, .nth = nth, .spoil = true};
        c.bit = (uint32_t)(8 * byte + data_mix(byte) % 8);
        bool refused = spoil(&c, &good);
        if (!refused && byte < head)
            fail_msg("[%s] byte %zu of the head was not missed", test_context_text(), byte);
        free_bytes += !refused;
    }
    if (free_bytes > most_free)
        fail_msg("[%s] %zu spoilt bytes were not missed", test_context_text(), free_bytes);
}

static void test_damage_to_any_byte_is_refused_by_all_ranks(void **state) {
    (void)state;
    for (tamis_index_format f = TAMIS_INDEX_U32; f <= TAMIS_INDEX_BITMAP; f++)
        for (int wire = 0; wire < 2; wire++) {
            trial what = trial_usual("cyclic+global+exact+pairs", RANKS, SHORT, 0.25);
            what.format = f;
            what.wire = wire ? TAMIS_TYPE_BFLOAT16 : TAMIS_TYPE_FLOAT32;
            spoil_all(&what, 0, 88, 0, 14); /* rounding up to 8 leaves 7 bytes free, twice */
            what.scheme = "rotate+global+step+union";
            spoil_all(&what, 0, 88, 88, 0); /* growing: the heads travel alone, */
            spoil_all(&what, 1, 0, 4, 0);   /* then the payload */
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_formats_of_indices_change_no_result),
        cmocka_unit_test(test_formats_of_indices_change_no_result_of_several_buckets),
        cmocka_unit_test(test_formats_of_indices_bear_extreme_lists),
        cmocka_unit_test(test_formats_of_indices_change_no_result_of_long_vectors),
        cmocka_unit_test(test_a_step_sends_the_bytes_that_its_formats_take),
        cmocka_unit_test(test_values_of_16_bits_conserve_mass_exactly),
        cmocka_unit_test(test_a_mean_of_16_bits_is_the_sum_divided_once),
        cmocka_unit_test(test_what_rounding_a_sum_takes_is_kept_by_its_owner),
        cmocka_unit_test(test_what_rounding_a_value_takes_is_kept_by_its_sender),
        cmocka_unit_test(test_finite_values_stay_finite_and_what_exceeds_is_kept),
        cmocka_unit_test(test_sums_that_are_not_finite_are_met_as_with_32_bits),
        cmocka_unit_test(test_no_format_allocates_in_a_step),
        cmocka_unit_test(test_states_do_not_depend_on_how_things_travel),
        cmocka_unit_test(test_damage_to_any_byte_is_refused_by_all_ranks),
    };
    return cmocka_run_group_tests_name("wire", tests, NULL, NULL);
}
