/* SPDX-License-Identifier: MIT
 *
 * The schedule of a pipeline: every stage's order by itself, then all stages together in rounds in
 * which every pass takes one, and the division of layers against all divisions there are.
 */
#include "bench/train/schedule.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

enum { STAGES = 6, MICROS = 12, NEVER = -1 };

typedef void (*shape_check)(uint32_t nstages, uint32_t micros);

static void each_shape(shape_check check) {
    for (uint32_t nstages = 1; nstages <= STAGES; nstages++) {
        for (uint32_t micros = 1; micros <= MICROS; micros++)
            check(nstages, micros);
    }
}

/* -- one stage -------------------------------------------------------------------------------- */

/* When each pass is made, by its place in the stage's order; each is made once. */
static void places(uint32_t stage, uint32_t nstages, uint32_t micros, int out[2][MICROS]) {
    memset(out, 0xff, 2 * MICROS * sizeof(int)); /* NEVER */
    for (uint32_t i = 0; i < 2 * micros; i++) {
        schedule_pass pass = schedule_1f1b(stage, nstages, micros, i);
        assert_in_range(pass.micro, 0, micros - 1);
        assert_int_equal(out[pass.backward][pass.micro], NEVER);
        out[pass.backward][pass.micro] = (int)i;
    }
}

static void check_order(uint32_t nstages, uint32_t micros) {
    int at[2][MICROS];
    for (uint32_t stage = 0; stage < nstages; stage++) {
        places(stage, nstages, micros, at);
        for (uint32_t m = 0; m < micros; m++) {
            assert_true(at[false][m] < at[true][m]);
            assert_true(m == 0 || at[false][m - 1] < at[false][m]);
            assert_true(m == 0 || at[true][m - 1] < at[true][m]);
        }
    }
}

static void test_every_pass_once_and_forward_first(void **state) {
    (void)state;
    each_shape(check_order);
}

static void check_in_flight(uint32_t nstages, uint32_t micros) {
    for (uint32_t stage = 0; stage < nstages; stage++) {
        uint32_t now = 0, most = 0, bound = schedule_in_flight(stage, nstages, micros);
        for (uint32_t i = 0; i < 2 * micros; i++) {
            now += schedule_1f1b(stage, nstages, micros, i).backward ? UINT32_MAX : 1;
            most = now > most ? now : most;
        }
        assert_int_equal(now, 0);
        assert_int_equal(most, bound);
        assert_int_equal(bound, micros < nstages - stage ? micros : nstages - stage);
    }
}

static void test_few_micro_batches_are_in_flight(void **state) {
    (void)state;
    each_shape(check_in_flight);
}

/* -- all stages ------------------------------------------------------------------------------- */

/* Rounds in which passes were made. */
typedef struct course {
    uint32_t nstages, micros;
    uint32_t next[STAGES]; /* place in the stage's order */
    int round[STAGES][2][MICROS];
} course;

/* What a pass needs of a neighbour arrived in an earlier round. As messages carry no labels, the
 * micro-batch that is awaited must be the one the neighbour sends next. */
static bool has_arrived(const course *c, uint32_t stage, schedule_pass pass, int round) {
    if (stage == (pass.backward ? c->nstages - 1 : 0))
        return true;
    const int *sent = c->round[pass.backward ? stage + 1 : stage - 1][pass.backward];
    for (uint32_t m = 0; m < pass.micro; m++)
        assert_true(sent[m] != NEVER && (sent[pass.micro] == NEVER || sent[m] < sent[pass.micro]));
    return sent[pass.micro] != NEVER && sent[pass.micro] < round;
}

/* @return whether any stage could do anything */
static bool make_round(course *c, int round) {
    bool any = false;
    for (uint32_t stage = 0; stage < c->nstages; stage++) {
        if (c->next[stage] == 2 * c->micros)
            continue;
        schedule_pass pass = schedule_1f1b(stage, c->nstages, c->micros, c->next[stage]);
        if (!has_arrived(c, stage, pass, round))
            continue;
        c->round[stage][pass.backward][pass.micro] = round;
        c->next[stage]++;
        any = true;
    }
    return any;
}

/* Stage s begins s rounds after the first stage and ends s rounds before it: its window. */
static void check_course(uint32_t nstages, uint32_t micros) {
    course c = {.nstages = nstages, .micros = micros};
    memset(c.round, 0xff, sizeof c.round); /* NEVER */
    int rounds = 0;
    while (make_round(&c, rounds))
        rounds++;
    assert_int_equal(rounds, 2 * (micros + nstages - 1));
    for (uint32_t stage = 0; stage < nstages; stage++) {
        assert_int_equal(c.next[stage], 2 * micros);
        assert_int_equal(c.round[stage][false][0], stage);
        assert_int_equal(c.round[stage][true][micros - 1], rounds - 1 - (int)stage);
    }
}

static void test_all_stages_together_end_in_the_fewest_rounds(void **state) {
    (void)state;
    each_shape(check_course);
}

/* -- layers ----------------------------------------------------------------------------------- */

static double squares(const uint64_t *lengths, const uint32_t *first, uint32_t nstages) {
    double total = 0.0;
    for (uint32_t s = 0; s < nstages; s++) {
        double sum = 0.0;
        for (uint32_t l = first[s]; l < first[s + 1]; l++)
            sum += (double)lengths[l];
        total += sum * sum;
    }
    return total;
}

/* Every set of boundaries between layers is a division. */
static double fewest_squares(const uint64_t *lengths, uint32_t nlayers, uint32_t nstages) {
    double best = -1.0;
    for (uint32_t set = 0; set < 1u << (nlayers - 1); set++) {
        uint32_t first[SCHEDULE_LAYERS + 1] = {0}, parts = 1;
        for (uint32_t l = 1; l < nlayers; l++) {
            if (set >> (l - 1) & 1)
                first[parts++] = l;
        }
        first[parts] = nlayers;
        double here = squares(lengths, first, parts);
        if (parts == nstages && (best < 0 || here < best))
            best = here;
    }
    return best;
}

static void check_division(const uint64_t *lengths, uint32_t nlayers, uint32_t nstages) {
    uint32_t first[SCHEDULE_LAYERS + 1];
    schedule_layers(lengths, nlayers, nstages, first);
    assert_int_equal(first[0], 0);
    assert_int_equal(first[nstages], nlayers);
    for (uint32_t s = 0; s < nstages; s++)
        assert_true(first[s] < first[s + 1]);
    if (nlayers <= 8)
        assert_true(squares(lengths, first, nstages) == fewest_squares(lengths, nlayers, nstages));
}

static void test_layers_are_divided_most_evenly(void **state) {
    (void)state;
    const uint64_t cases[][8] = {
        {200960, 65792, 65792, 65792, 65792, 65792, 65792, 2570},
        {1, 1, 1, 1, 1, 1, 1, 1},
        {1, 2, 4, 8, 16, 32, 64, 128},
        {128, 1, 128, 1, 1, 128, 1, 128},
        {7, 1, 8, 2, 8, 1, 8, 2},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        for (uint32_t nlayers = 1; nlayers <= 8; nlayers++) {
            for (uint32_t nstages = 1; nstages <= nlayers; nstages++)
                check_division(cases[i], nlayers, nstages);
        }
    }
}

static void test_as_many_layers_as_are_allowed(void **state) {
    (void)state;
    uint64_t lengths[SCHEDULE_LAYERS];
    for (uint32_t l = 0; l < SCHEDULE_LAYERS; l++)
        lengths[l] = (uint64_t)1 << 32;
    for (uint32_t nstages = 1; nstages <= SCHEDULE_LAYERS; nstages++)
        check_division(lengths, SCHEDULE_LAYERS, nstages);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_pass_once_and_forward_first),
        cmocka_unit_test(test_few_micro_batches_are_in_flight),
        cmocka_unit_test(test_all_stages_together_end_in_the_fewest_rounds),
        cmocka_unit_test(test_layers_are_divided_most_evenly),
        cmocka_unit_test(test_as_many_layers_as_are_allowed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
