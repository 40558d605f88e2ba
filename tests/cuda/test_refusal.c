/* SPDX-License-Identifier: MIT
 *
 * Kernels on the CPU and host path on a fake runtime: messages of an exchange on the device that
 * are damaged, stale, forged or missing are refused, by all ranks, before anything is applied.
 */
#include "tests/cuda/exchange_world.h"
#include "tests/cuda/fake.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

enum { ALL = 7, SENDER = 2, NOT_SENDER = ALL & ~(1 << SENDER), ONE = 1 << 1 };
enum { DIRECT = 0, REPLAYED = 2 }; /* steps: those that begin with step 0 have no graph */

#define PAIRS "all+global+exact+pairs"
#define WORDS_ABSENT "sums are missing"

/* -- damage: to what came from rank SENDER ---------------------------------------------------- */

static uint32_t *last_index(exchange_endpoint *at) {
    return exchange_list(at, SENDER) + exchange_header(at, SENDER)->count - 1;
}

static void lose(exchange_endpoint *at) {
    memset(exchange_header(at, SENDER), 0, at->buffers->packet_bytes);
}

static void break_off(exchange_endpoint *at) {
    unsigned char *packet = at->buffers->packets + SENDER * at->buffers->packet_bytes;
    memset(packet + at->buffers->packet_bytes / 2, 0xab, at->buffers->packet_bytes / 2);
}

/* The packet of another rank, whole and sound. */
static void mistake_rank(exchange_endpoint *at) {
    memcpy(exchange_header(at, SENDER), exchange_header(at, 0), at->buffers->packet_bytes);
}

static void change_config(exchange_endpoint *at) {
    exchange_header(at, SENDER)->config ^= 1;
    exchange_reseal(at, SENDER);
}

/* The packet of the step before, whole and sound. Not for the first step. */
static void repeat(exchange_endpoint *at) {
    size_t bytes = at->buffers->packet_bytes;
    memcpy(exchange_header(at, SENDER), at->earlier + SENDER * bytes, bytes);
}

static void raise_count(exchange_endpoint *at) {
    exchange_header(at, SENDER)->count = (uint32_t)tam_budget_max(&at->division, at->control.k) + 1;
    exchange_reseal(at, SENDER);
}

static void raise_count_to_nonsense(exchange_endpoint *at) {
    exchange_header(at, SENDER)->count = 0xfffffff0u;
    exchange_reseal(at, SENDER);
}

static void flip_index(exchange_endpoint *at) {
    *last_index(at) ^= 1;
}

static void flip_deferred(exchange_endpoint *at) {
    exchange_counters(at, SENDER)[TAM_COUNTER_DEFERRED] += 1.0f;
}

static void flip_nonfinite(exchange_endpoint *at) {
    tam_header_flag(exchange_header(at, SENDER), TAM_HEADER_NONFINITE);
}

static void flip_mean(exchange_endpoint *at) {
    uint32_t *counters = (uint32_t *)(void *)exchange_counters(at, SENDER);
    counters[TAM_COUNTERS + at->division.grid.ngroups - 1] ^= 1;
}

static void flip_value(exchange_endpoint *at) {
    uint32_t *values = exchange_list(at, SENDER) + tam_budget_max(&at->division, at->control.k);
    values[3] ^= 1;
}

static void shorten_indices(exchange_endpoint *at) {
    exchange_header(at, SENDER)->index_bytes -= 4;
    exchange_reseal(at, SENDER);
}

static void exchange_neighbours(exchange_endpoint *at) {
    exchange_swap_first(at, SENDER);
}

static void repeat_index(exchange_endpoint *at) {
    uint32_t *last = last_index(at);
    last[-1] = *last;
    exchange_reseal(at, SENDER);
}

/* Where one block ends and another begins to check. */
static void repeat_index_between_pieces(exchange_endpoint *at) {
    uint32_t *list = exchange_list(at, SENDER);
    list[TAM_PIECE] = list[TAM_PIECE - 1];
    exchange_reseal(at, SENDER);
}

static void point_past_the_end(exchange_endpoint *at) {
    *last_index(at) = (uint32_t)at->trial->n;
    exchange_reseal(at, SENDER);
}

static uint32_t part_of(const tam_grid *grid, uint32_t index) {
    uint32_t t = 0;
    while (grid->tiles[t].begin + grid->tiles[t].length <= index)
        t++;
    return grid->tiles[t].part;
}

/* One index that is not the sender's, the order intact; the last for which there is room. */
static void take_from_others(exchange_endpoint *at) {
    const tam_grid *grid = &at->division.grid;
    uint32_t *list = exchange_list(at, SENDER), end = (uint32_t)grid->n;
    for (uint32_t i = exchange_header(at, SENDER)->count; i-- > 0; end = list[i])
        for (uint32_t index = i > 0 ? list[i - 1] + 1 : 0; index < end; index++)
            if (part_of(grid, index) != part_of(grid, list[i])) {
                list[i] = index;
                exchange_reseal(at, SENDER);
                return;
            }
}

/* Codes of a packed list. */
static void flip_code(exchange_endpoint *at) {
    exchange_list(at, SENDER)[0] ^= 1;
}

static void add_entry_to_bitmap(exchange_endpoint *at) {
    unsigned char *bits = (unsigned char *)exchange_list(at, SENDER);
    *bits = (unsigned char)(*bits == 0xff ? 0xfe : 0xff);
    exchange_reseal(at, SENDER);
}

static void flip_shard(exchange_endpoint *at) {
    at->buffers->shards[SENDER * at->buffers->shard_bytes] ^= 4;
}

static void flip_sum(exchange_endpoint *at) {
    at->buffers->sums[SENDER * at->buffers->sum_bytes] ^= 4;
}

/* -- faults that all ranks learn of in the same step ------------------------------------------ */

typedef struct fault {
    const char *what, *scheme;
    void (*damage)(exchange_endpoint *at);
    exchange_phase phase;
    uint32_t victims;
    uint32_t refused; /* by the victims */
    const char *words;
    size_t n; /* 0: usual */
} fault;

static const fault faults[] = {
    {"packets given up", "tamis", NULL, PHASE_PACKETS, ALL, TAM_REFUSED_MISSING, "did not arrive",
     0},
    {"packets given up, pairs", PAIRS, NULL, PHASE_PACKETS, ALL, TAM_REFUSED_MISSING,
     "did not arrive", 0},
    {"packets given up on one rank", "topk", NULL, PHASE_PACKETS, ONE, TAM_REFUSED_MISSING,
     "did not arrive", 0},
    {"a packet is lost", "tamis", lose, PHASE_PACKETS, ONE, TAM_REFUSED_MISSING, "did not arrive",
     0},
    {"half a packet", "topk", break_off, PHASE_PACKETS, ONE, TAM_REFUSED_CHECKSUM, "checksum", 0},
    {"another rank", "topk", mistake_rank, PHASE_PACKETS, NOT_SENDER, TAM_REFUSED_CHECKSUM,
     "checksum", 0},
    {"another configuration", "topk", change_config, PHASE_PACKETS, NOT_SENDER, TAM_REFUSED_CONFIG,
     "configuration", 0},
    {"another step", "tamis", repeat, PHASE_PACKETS, ONE, TAM_REFUSED_STEP, "another step", 0},
    {"one entry too many", "topk", raise_count, PHASE_PACKETS, NOT_SENDER, TAM_REFUSED_COUNT,
     "exceeds the size of the packet", 0},
    {"far too many entries", "topk", raise_count_to_nonsense, PHASE_PACKETS, ONE, TAM_REFUSED_COUNT,
     "exceeds the size of the packet", 0},
    {"fewer bytes than indices", "topk", shorten_indices, PHASE_PACKETS, NOT_SENDER,
     TAM_REFUSED_BYTES, "impossible number of bytes", 0},
    {"an index", "topk", flip_index, PHASE_PACKETS, ONE, TAM_REFUSED_CHECKSUM, "checksum", 0},
    {"a count that is only told", "topk", flip_deferred, PHASE_PACKETS, ONE, TAM_REFUSED_CHECKSUM,
     "checksum", 0},
    {"entries that are not finite", "topk", flip_nonfinite, PHASE_PACKETS, ONE,
     TAM_REFUSED_CHECKSUM, "checksum", 0},
    {"a sum of squares", "tamis", flip_mean, PHASE_PACKETS, ONE, TAM_REFUSED_CHECKSUM, "checksum",
     0},
    {"neighbours", "tamis", exchange_neighbours, PHASE_PACKETS, NOT_SENDER, TAM_REFUSED_ORDER,
     "are not ascending", 0},
    {"an index twice", "topk", repeat_index, PHASE_PACKETS, NOT_SENDER, TAM_REFUSED_ORDER,
     "are not ascending", 0},
    {"an index twice, in a long list", "topk", repeat_index_between_pieces, PHASE_PACKETS, ONE,
     TAM_REFUSED_ORDER, "are not ascending", 50001},
    {"an index past the end", "topk", point_past_the_end, PHASE_PACKETS, NOT_SENDER,
     TAM_REFUSED_ORDER, "past the end", 0},
    {"a foreign index", "tamis", take_from_others, PHASE_PACKETS, NOT_SENDER, TAM_REFUSED_OWNER,
     "its rank does not own", 0},
    {"a foreign index, ranges", "rotate+global+exact+union", take_from_others, PHASE_PACKETS, ONE,
     TAM_REFUSED_OWNER, "its rank does not own", 40001},
    {"values given up", "tamis", NULL, PHASE_VALUES, ALL, TAM_REFUSED_ABSENT, WORDS_ABSENT, 0},
    {"values given up on one rank", "topk", NULL, PHASE_VALUES, ONE, TAM_REFUSED_ABSENT,
     WORDS_ABSENT, 0},
    {"a value", "topk", flip_shard, PHASE_VALUES, ONE, TAM_REFUSED_ABSENT, WORDS_ABSENT, 0},
    {"a value, shards of several pieces", "topk", flip_shard, PHASE_VALUES, ONE, TAM_REFUSED_ABSENT,
     WORDS_ABSENT, 50001},
    {"sums given up", "topk", NULL, PHASE_SUMS, ALL, TAM_REFUSED_ABSENT, WORDS_ABSENT, 0},
};

static const fault *now; /* set by the main thread between runs */

/* How entries travel. */
static tamis_index_codec index_codec;
static tamis_value_codec value_codec;

static exchange_trial trial_of(const fault *f, uint32_t step) {
    exchange_trial t = exchange_usual();
    t.index_codec = index_codec;
    t.value_codec = value_codec;
    t.scheme = f->scheme;
    t.n = f->n > 0 ? f->n : t.n;
    t.damage = f->damage;
    t.phase = f->phase;
    t.victims = f->victims;
    t.fault_step = step;
    t.direct = step == DIRECT;
    test_context("%s, in step %u", f->what, step);
    return t;
}

static bool is_victim(const exchange_endpoint *s) {
    return s->trial->victims >> s->self->id & 1;
}

/* A rank refuses the first packet that is wrong; nobody refuses his own. */
static void check_refused(exchange_endpoint *s) {
    uint32_t rank = s->trial->damage ? SENDER : s->self->id == 0 ? 1 : 0;
    if (is_victim(s) && now->refused != TAM_REFUSED_ABSENT)
        exchange_check_kept(s, now->refused, rank, now->words);
    else
        exchange_check_kept(s, TAM_REFUSED_ABSENT, s->self->id, WORDS_ABSENT);
}

/* All that was kept goes into the next step. The graph is still the old one; the configuration is
 * read from memory. */
static void start_again(exchange_endpoint *s) {
    exchange_reload(s, EXCHANGE_CONFIG + (value_codec == TAMIS_VALUE_AUTO));
    if (exchange_failed(s))
        return;
    exchange_step(s, s->self->id == 0);
    exchange_follow(s, true);
    exchange_go_on(s, 1);
}

static void step_on_fault(exchange_endpoint *s) {
    exchange_go_on(s, s->trial->fault_step);
    for (int i = 0; i < 2 && !exchange_failed(s); i++) {
        exchange_step(s, 0);
        check_refused(s);
    }
    if (!exchange_failed(s))
        start_again(s);
}

static void run_fault(uint32_t step) {
    exchange_trial t = trial_of(now, step);
    fake_cuda_reset();
    exchange_run(&t, step_on_fault);
    assert_int_equal(fake_cuda_calls("cudaGraphLaunch"), t.direct ? 0 : (step + 4) * t.nranks);
}

static void test_a_fault_is_refused_by_all_and_costs_nothing(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++) {
        now = &faults[i];
        if (i % 3 == 0) /* the kernels are the same */
            run_fault(DIRECT);
        if (i % 3 != 0 || test_stride(2) == 1)
            run_fault(REPLAYED);
    }
}

typedef struct codec_fault {
    fault what;
    tamis_index_codec index_codec;
    tamis_value_codec value_codec;
} codec_fault;

static void use_codecs(tamis_index_codec f, tamis_value_codec w) {
    index_codec = f;
    value_codec = w;
}

static void test_a_fault_in_what_is_packed_or_rounded_is_refused_by_all(void **state) {
    static const codec_fault all[] = {
        {{"packets given up, packed", "tamis", NULL, PHASE_PACKETS, ALL, TAM_REFUSED_MISSING,
          "did not arrive", 0},
         TAMIS_INDEX_BLOCK16,
         TAMIS_VALUE_AUTO},
        {{"a code", "tamis", flip_code, PHASE_PACKETS, ONE, TAM_REFUSED_CHECKSUM, "checksum", 0},
         TAMIS_INDEX_BLOCK16,
         TAMIS_VALUE_AUTO},
        {{"a code, rice", "topk", flip_code, PHASE_PACKETS, ONE, TAM_REFUSED_CHECKSUM, "checksum",
          0},
         TAMIS_INDEX_RICE,
         TAMIS_VALUE_FP2},
        {{"codes of other lists", "topk", add_entry_to_bitmap, PHASE_PACKETS, NOT_SENDER,
          TAM_REFUSED_CODE, "cannot be decoded", 0},
         TAMIS_INDEX_BITMAP,
         TAMIS_VALUE_AUTO},
        {{"far too many entries", "topk", raise_count_to_nonsense, PHASE_PACKETS, ONE,
          TAM_REFUSED_COUNT, "exceeds the size of the packet", 0},
         TAMIS_INDEX_GAP8,
         TAMIS_VALUE_AUTO},
        {{"values given up, rounded", "tamis", NULL, PHASE_VALUES, ALL, TAM_REFUSED_ABSENT,
          WORDS_ABSENT, 0},
         TAMIS_INDEX_AUTO,
         TAMIS_VALUE_BFLOAT16},
        {{"values given up on one rank, rounded", "topk", NULL, PHASE_VALUES, ONE,
          TAM_REFUSED_ABSENT, WORDS_ABSENT, 5000},
         TAMIS_INDEX_AUTO,
         TAMIS_VALUE_FP4},
        {{"a value, rounded", "topk", flip_shard, PHASE_VALUES, ONE, TAM_REFUSED_ABSENT,
          WORDS_ABSENT, 9000},
         TAMIS_INDEX_AUTO,
         TAMIS_VALUE_INT8},
        {{"sums given up, rounded", "topk", NULL, PHASE_SUMS, ALL, TAM_REFUSED_ABSENT, WORDS_ABSENT,
          0},
         TAMIS_INDEX_AUTO,
         TAMIS_VALUE_FP2},
    };
    (void)state;
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        now = &all[i].what;
        use_codecs(all[i].index_codec, all[i].value_codec);
        run_fault(i % 2 ? DIRECT : REPLAYED);
    }
    use_codecs(TAMIS_INDEX_AUTO, TAMIS_VALUE_AUTO);
}

static void step_on_fault_in_graph(exchange_endpoint *s) {
    exchange_go_on(s, s->trial->fault_step);
    for (int i = 0; i < 2 && !exchange_failed(s); i++) {
        exchange_step_by_graph(s);
        check_refused(s);
    }
    if (exchange_failed(s))
        return;
    exchange_step(s, 0);
    check_refused(s);
    if (!exchange_failed(s))
        start_again(s);
}

static void test_a_fault_in_a_graph_of_the_caller_is_refused_by_all(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i += 7) {
        now = &faults[i];
        exchange_trial t = trial_of(now, 2);
        t.output = i % 2 ? TAMIS_OUTPUT_SPARSE : TAMIS_OUTPUT_DENSE;
        t.by_segment = i == 7;
        exchange_run(&t, step_on_fault_in_graph);
    }
}

/* -- faults that the others learn of one step later ------------------------------------------- */

/* Pairs have one collective, and after the sums there is none. The rank that refused stands still,
 * and the others see that its packet is of another step. */
static void step_on_late(exchange_endpoint *s) {
    exchange_go_on(s, s->trial->fault_step);
    if (exchange_failed(s))
        return;
    exchange_step(s, 0);
    if (is_victim(s)) {
        uint32_t rank = now->phase == PHASE_PACKETS ? SENDER : s->self->id;
        exchange_check_kept(s, now->refused, rank, now->words);
    }
    exchange_follow(s, !is_victim(s));
    for (int i = 0; i < 2 && !exchange_failed(s); i++) {
        exchange_step(s, 0);
        if (!is_victim(s)) {
            exchange_check_kept(s, TAM_REFUSED_STEP, 1, "another step");
            continue;
        }
        s->number--;
        exchange_check_kept(s, now->refused, now->phase == PHASE_PACKETS ? SENDER : s->self->id,
                            now->words);
        s->number++;
    }
}

static void test_a_fault_that_one_rank_sees_is_refused_by_all_one_step_later(void **state) {
    static const fault late[] = {
        {"a packet is lost, pairs", PAIRS, lose, PHASE_PACKETS, ONE, TAM_REFUSED_MISSING,
         "did not arrive", 0},
        {"an index, pairs", PAIRS, flip_index, PHASE_PACKETS, ONE, TAM_REFUSED_CHECKSUM, "checksum",
         0},
        {"a value, pairs", PAIRS, flip_value, PHASE_PACKETS, ONE, TAM_REFUSED_CHECKSUM, "checksum",
         0},
        {"neighbours, pairs", PAIRS, exchange_neighbours, PHASE_PACKETS, ONE, TAM_REFUSED_ORDER,
         "are not ascending", 0},
        {"sums given up on one rank", "tamis", NULL, PHASE_SUMS, ONE, TAM_REFUSED_ABSENT,
         WORDS_ABSENT, 0},
        {"a sum", "topk", flip_sum, PHASE_SUMS, ONE, TAM_REFUSED_ABSENT, WORDS_ABSENT, 50001},
    };
    static const fault sum = {"a sum, rounded",   "topk",       flip_sum, PHASE_SUMS, ONE,
                              TAM_REFUSED_ABSENT, WORDS_ABSENT, 9000};
    (void)state;
    for (size_t i = 0; i < sizeof late / sizeof late[0]; i++) {
        now = &late[i];
        exchange_trial t = trial_of(now, i % 2 ? DIRECT : REPLAYED);
        exchange_run(&t, step_on_late);
    }
    use_codecs(TAMIS_INDEX_AUTO, TAMIS_VALUE_BFLOAT16);
    now = &sum;
    exchange_trial t = trial_of(now, REPLAYED);
    exchange_run(&t, step_on_late);
    use_codecs(TAMIS_INDEX_AUTO, TAMIS_VALUE_AUTO);
}

static void check_result_refused(exchange_endpoint *s) {
    exchange_check_kept(s, TAM_REFUSED_RESULT, is_victim(s) ? 0 : 1, "result of the previous step");
}

/* What no check has found, or a state that is not of the same run. */
static void remember_another_result(exchange_endpoint *s) {
    tam_cuda_past past;
    RANK_OK(s->self, tam_cuda_step_save(s->step, &past));
    past.last_result ^= is_victim(s);
    RANK_OK(s->self, tam_cuda_step_load(s->step, EXCHANGE_CONFIG, &past));
}

static void step_on_other_result(exchange_endpoint *s) {
    exchange_go_on(s, s->trial->fault_step);
    if (!exchange_failed(s))
        remember_another_result(s);
    if (exchange_failed(s))
        return;
    for (int i = 0; i < 2 && !exchange_failed(s); i++) {
        exchange_step(s, 0);
        check_result_refused(s);
    }
    if (!exchange_failed(s))
        start_again(s);
}

static void test_results_that_differ_are_refused_in_the_next_step(void **state) {
    static const fault other = {"a result",         "tamis",  NULL, PHASES, ONE,
                                TAM_REFUSED_RESULT, "result", 0};
    (void)state;
    for (uint32_t step = DIRECT; step <= REPLAYED; step += REPLAYED) {
        exchange_trial t = trial_of(&other, step);
        exchange_run(&t, step_on_other_result);
    }
}

/* After another refusal, whose reason must be forgotten. */
static void load_differently(exchange_endpoint *s) {
    bool odd = s->self->id == 1;
    exchange_go_on(s, s->trial->fault_step);
    if (exchange_failed(s))
        return;
    exchange_step(s, 0);
    check_refused(s);
    exchange_reload(s, odd ? EXCHANGE_CONFIG + 7 : EXCHANGE_CONFIG);
    for (int i = 0; i < 2 && !exchange_failed(s); i++) {
        exchange_step(s, 0);
        exchange_check_kept(s, TAM_REFUSED_CONFIG, odd ? 0 : 1, "configuration");
    }
    if (!exchange_failed(s))
        start_again(s);
}

static void test_ranks_that_loaded_differently_refuse_each_other(void **state) {
    (void)state;
    now = &faults[0];
    exchange_trial t = trial_of(now, REPLAYED);
    test_context("another configuration on one rank");
    exchange_run(&t, load_differently);
}

static void test_every_refusal_has_its_case_and_its_words(void **state) {
    uint32_t seen = 1u << TAM_REFUSED_NOTHING | 1u << TAM_REFUSED_RESULT; /* see above */
    seen |= 1u << TAM_REFUSED_LEADER;                                     /* the host's alone */
    seen |= 1u << TAM_REFUSED_CODE;                                       /* of packed lists */
    seen |= 1u << TAM_REFUSED_GRADIENT; /* of nodes: test_nodes_life.c */
    (void)state;
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++)
        seen |= 1u << faults[i].refused;
    assert_int_equal(seen, (1u << TAM_REFUSALS) - 1);
    for (uint32_t i = 0; i < TAM_REFUSALS; i++)
        for (uint32_t other = 0; other < i; other++)
            assert_string_not_equal(tam_refusal_words(i), tam_refusal_words(other));
    assert_string_equal(tam_refusal_words(TAM_REFUSALS), "unknown reason");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_fault_is_refused_by_all_and_costs_nothing),
        cmocka_unit_test(test_a_fault_in_what_is_packed_or_rounded_is_refused_by_all),
        cmocka_unit_test(test_a_fault_in_a_graph_of_the_caller_is_refused_by_all),
        cmocka_unit_test(test_a_fault_that_one_rank_sees_is_refused_by_all_one_step_later),
        cmocka_unit_test(test_results_that_differ_are_refused_in_the_next_step),
        cmocka_unit_test(test_ranks_that_loaded_differently_refuse_each_other),
        cmocka_unit_test(test_every_refusal_has_its_case_and_its_words),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
