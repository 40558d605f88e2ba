/* SPDX-License-Identifier: MIT
 *
 * Decisions as functions of plain data: division, ownership, budgets, thresholds, schemes.
 */
#include "lib/policy/budget.h"
#include "lib/policy/control.h"
#include "lib/policy/grid.h"
#include "lib/policy/rules.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <tamis/lists.h>

#include <cmocka.h>

static tamis_layout *make_layout(const uint64_t *lengths, size_t count) {
    tamis_segment segments[16];
    tamis_layout *layout;
    for (size_t i = 0; i < count; i++)
        segments[i] = (tamis_segment){NULL, lengths[i]};
    assert_int_equal(tamis_layout_create(segments, count, &layout), TAMIS_OK);
    return layout;
}

static void logarithm_and_power_are_inverse_and_near_libm(void **state) {
    (void)state;
    for (double x = 1e-300; x < 1e300; x *= 1.37e3) {
        assert_true(fabs(tam_log2(x) - log2(x)) < 1e-6);
        assert_true(fabs(tam_exp2(tam_log2(x)) / x - 1.0) < 1e-6);
    }
    assert_true(tam_log2(1.0) == 0.0);
    assert_true(tam_exp2(0.0) == 1.0);
    assert_true(tam_exp2(-1.0) == 0.5);
    assert_true(fabs(tam_log2(5e-324) + 1074.0) < 1e-6);
}

/* On every processor, compiler and version: thresholds of ranks must agree. */
static void logarithm_and_power_have_these_bits(void **state) {
    (void)state;
    static const double logarithms[][2] = {
        {0x1p-1074, -0x1.0c8p+10},
        {0x1.56e1fc2f8f359p-997, -0x1.f24a09f1a8b89p+9},
        {0x1.a9fbe76c8b439p-7, -0x1.90fb67c6d8434p+2},
        {0x1.6666666666666p-1, -0x1.0776228967d13p-1},
        {0x1.8p+1, 0x1.95c01a39fbd68p+0},
        {0x1.e42d130773b76p+1023, 0x1.fff5ae814b531p+9},
    };
    static const double powers[][2] = {
        {-0x1.f4p+9, 0x1p-1000},
        {-0x1.abd70a3d70a3dp+3, 0x1.8c2d382bb2f2ep-14},
        {-0x1.0624dd2f1a9fcp-10, 0x1.ffa52de61bfe3p-1},
        {0x1.3333333333333p-2, 0x1.3b2c47bff8329p+0},
        {0x1.36ccccccccccdp+6, 0x1.9fdf8bcce534ap+77},
        {0x1.f3cp+9, 0x1.6a09e667f3bcep+999},
    };
    for (size_t i = 0; i < 6; i++) {
        assert_true(tam_log2(logarithms[i][0]) == logarithms[i][1]);
        assert_true(tam_exp2(powers[i][0]) == powers[i][1]);
    }
}

static void sort_orders_by_key_then_value(void **state) {
    (void)state;
    tam_pair pairs[97];
    for (uint64_t i = 0; i < 97; i++)
        pairs[i] = (tam_pair){i * 7919 % 13, i * 31 % 97};
    tam_sort(pairs, 97);
    for (size_t i = 1; i < 97; i++) {
        assert_true(pairs[i - 1].key <= pairs[i].key);
        if (pairs[i - 1].key == pairs[i].key)
            assert_true(pairs[i - 1].value < pairs[i].value);
    }
}

/* -- schemes ---------------------------------------------------------------------------------- */

static void every_preset_is_its_four_policies(void **state) {
    (void)state;
    tamis_scheme_info info = TAMIS_SCHEME_INFO_INIT;
    for (size_t i = 0; tamis_scheme_list(i, &info); i++) {
        tam_scheme by_name, by_words;
        char words[80];
        snprintf(words, sizeof words, "%s+%s+%s+%s", info.ownership, info.budget, info.threshold,
                 info.exchange);
        assert_int_equal(tam_scheme_parse(info.name, &by_name), TAMIS_OK);
        if (strcmp(info.exchange, "dense") == 0 || strcmp(info.exchange, "quantized") == 0)
            continue;
        assert_int_equal(tam_scheme_parse(words, &by_words), TAMIS_OK);
        assert_memory_equal(&by_name, &by_words, sizeof by_name);
    }
    tam_scheme fallback, tamis;
    assert_int_equal(tam_scheme_parse(NULL, &fallback), TAMIS_OK);
    assert_int_equal(tam_scheme_parse("tamis", &tamis), TAMIS_OK);
    assert_memory_equal(&fallback, &tamis, sizeof tamis);
}

static void a_scheme_that_means_nothing_is_refused_with_a_reason(void **state) {
    (void)state;
    static const struct {
        const char *text;
        tamis_status status;
        const char *reason;
    } cases[] = {
        {"", TAMIS_E_ARGUMENT, "ownership"},
        {"tamiss", TAMIS_E_ARGUMENT, "preset"},
        {"cyclic+norm+predict", TAMIS_E_ARGUMENT, "word 3 must be followed by the exchange"},
        {"cyclic+norm+guess+union", TAMIS_E_ARGUMENT, "threshold (exact"},
        {"cyclic+norm+predict+union+more", TAMIS_E_ARGUMENT, "nothing may follow word 4"},
        {"all+global+exact+dense", TAMIS_E_UNSUPPORTED, "preset dense"},
        {"all+global+exact+quantized", TAMIS_E_UNSUPPORTED, "preset quantized"},
        {"bins+global+exact+union", TAMIS_E_UNSUPPORTED, "bins"},
        {"bins+norm+exact+pairs", TAMIS_E_UNSUPPORTED, "union"},
        {"rotate+norm+step+union", TAMIS_E_UNSUPPORTED, "budget global"},
        {"all+norm+fixed+union", TAMIS_E_UNSUPPORTED, "budget global"},
        {"all+norm+sage+union", TAMIS_E_UNSUPPORTED, "budget global"},
        {"all+norm+reuse+union", TAMIS_E_UNSUPPORTED, "budget global"},
        {"cyclic+global+reuse+union", TAMIS_E_UNSUPPORTED, "use ownership all"},
        {"cyclic+norm+predict+balanced-pairs", TAMIS_E_UNSUPPORTED, "use ownership all"},
        {"balanced+global+exact+union", TAMIS_E_UNSUPPORTED, "use step, fixed or sage"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        tam_scheme scheme;
        assert_int_equal(tam_scheme_parse(cases[i].text, &scheme), cases[i].status);
        assert_non_null(strstr(tamis_last_error(), cases[i].reason));
    }
}

/* -- division and ownership ------------------------------------------------------------------- */

static const char *const divided[] = {"tamis", "micro",  "deft",
                                      "cltk",  "exdyna", "cyclic+global+exact+union"};

static void check_division(const tamis_layout *layout, const char *name, uint32_t nranks) {
    tam_scheme scheme;
    tam_division d;
    assert_int_equal(tam_scheme_parse(name, &scheme), TAMIS_OK);
    assert_int_equal(tam_division_open(layout, scheme, nranks, 0, &d), TAMIS_OK);
    uint64_t at = 0;
    for (uint32_t t = 0; t < d.grid.ntiles; t++) {
        const tam_tile *tile = &d.grid.tiles[t];
        const tam_group *group = &d.grid.groups[tile->group];
        assert_int_equal(tile->begin, at);
        assert_true(tile->length > 0 && tile->length <= d.block);
        assert_true(tile->begin >= group->begin);
        assert_true(tile->begin + tile->length <= group->begin + group->length);
        assert_true(t >= group->first_tile && t < group->first_tile + group->ntiles);
        assert_true(tile->part < nranks);
        at += tile->length;
    }
    assert_int_equal(at, layout->length);
    tam_division_close(&d);
}

static void tiles_cover_every_element_once(void **state) {
    (void)state;
    static const uint64_t shapes[][4] = {
        {1, 0, 0, 0}, {2, 0, 0, 0}, {7, 1, 1, 0}, {200704, 256, 2560, 10}, {4096, 4096, 1, 4095}};
    for (size_t s = 0; s < 5; s++) {
        size_t count = 0;
        while (count < 4 && shapes[s][count])
            count++;
        tamis_layout *layout = make_layout(shapes[s], count);
        for (uint32_t nranks = 1; nranks <= 9; nranks++) {
            for (size_t i = 0; i < sizeof divided / sizeof divided[0]; i++)
                check_division(layout, divided[i], nranks);
        }
        tamis_layout_destroy(layout);
    }
}

static void ownership_is_exclusive_and_visits_every_rank(void **state) {
    (void)state;
    tamis_layout *layout = make_layout((uint64_t[]){1000, 24}, 2);
    static const char *const names[] = {"tamis", "cltk", "exdyna"};
    tam_scheme scheme;
    tam_division d;
    for (uint32_t i = 0; i < 21; i++) {
        uint32_t nranks = 1 + i % 7;
        assert_int_equal(tam_scheme_parse(names[i / 7], &scheme), TAMIS_OK);
        assert_int_equal(tam_division_open(layout, scheme, nranks, 32, &d), TAMIS_OK);
        for (uint32_t part = 0; part < nranks; part++) {
            uint32_t visited = 0;
            for (uint64_t step = 0; step < nranks; step++) {
                uint32_t owner = tam_owner_of(&d, step, part);
                assert_int_equal(tam_part_of(&d, step, owner), part);
                visited |= 1u << owner;
            }
            assert_int_equal(visited, (1u << nranks) - 1);
        }
        tam_division_close(&d);
    }
    tamis_layout_destroy(layout);
}

static void budgets_sum_to_k_and_never_exceed_what_is_owned(void **state) {
    (void)state;
    static const uint64_t lengths[] = {1, 7, 33, 1000, 20011};
    static const char *const names[] = {"tamis", "rotate+global+exact+union", "cltk"};
    for (size_t i = 0; i < 5; i++) {
        tamis_layout *layout = make_layout(&lengths[i], 1);
        for (uint32_t nranks = 1; nranks <= 8; nranks++) {
            for (size_t s = 0; s < 3; s++) {
                tam_scheme scheme;
                tam_division d;
                assert_int_equal(tam_scheme_parse(names[s], &scheme), TAMIS_OK);
                assert_int_equal(tam_division_open(layout, scheme, nranks, 0, &d), TAMIS_OK);
                for (uint64_t k = 1; k <= lengths[i]; k += 1 + k / 3) {
                    for (uint64_t step = 0; step < nranks; step++) {
                        uint64_t sum = 0;
                        for (uint32_t r = 0; r < nranks; r++) {
                            size_t budget = tam_budget_of(&d, step, r, k);
                            assert_true(budget <= d.part_sizes[tam_part_of(&d, step, r)]);
                            assert_true(budget <= tam_budget_max(&d, k));
                            sum += budget;
                        }
                        assert_int_equal(sum, k);
                    }
                }
                tam_division_close(&d);
            }
        }
        tamis_layout_destroy(layout);
    }
}

static void the_leader_of_step_t_is_rank_t_mod_p_and_takes_all_of_k(void **state) {
    (void)state;
    tamis_layout *layout = make_layout((uint64_t[]){1000}, 1);
    tam_scheme scheme;
    tam_division d;
    assert_int_equal(tam_scheme_parse("cltk", &scheme), TAMIS_OK);
    assert_int_equal(tam_division_open(layout, scheme, 5, 0, &d), TAMIS_OK);
    for (uint64_t step = 0; step < 12; step++) {
        for (uint32_t r = 0; r < 5; r++)
            assert_int_equal(tam_budget_of(&d, step, r, 70), r == step % 5 ? 70 : 0);
        assert_int_equal(tam_owner_of(&d, step, d.grid.tiles[0].part), step % 5);
    }
    tam_division_close(&d);
    tamis_layout_destroy(layout);
}

/* DEFT: a tensor with more than n/P elements is divided into exactly P pieces, the first longer. */
static void deft_divides_large_tensors_into_one_piece_per_rank(void **state) {
    (void)state;
    tamis_layout *layout = make_layout((uint64_t[]){10, 3, 2}, 3);
    tam_scheme scheme;
    tam_division d;
    assert_int_equal(tam_scheme_parse("deft", &scheme), TAMIS_OK);
    assert_int_equal(tam_division_open(layout, scheme, 4, 0, &d), TAMIS_OK);
    static const uint32_t expected[] = {3, 3, 2, 2, 3, 2};
    assert_int_equal(d.grid.ngroups, 6);
    for (uint32_t g = 0; g < 6; g++)
        assert_int_equal(d.grid.groups[g].length, expected[g]);
    tam_division_close(&d);
    tamis_layout_destroy(layout);
}

/* As docs/algorithm.md says it: 64 blocks a rank, and below 512 elements 8. */
static uint32_t block_in_words(uint64_t n, uint32_t nranks) {
    uint32_t block = 4096;
    while (block > 512 && n / block < 64 * (uint64_t)nranks)
        block /= 2;
    while (block > 32 && block <= 512 && n / block < 8 * (uint64_t)nranks)
        block /= 2;
    return block;
}

static const uint32_t numbers_of_ranks[] = {1, 2, 3, 8, 64, 95, 96, 1000, 1024, 4096, 65536};

static void blocks_are_long_and_many_and_where_they_are_few_at_least_eight(void **state) {
    (void)state;
    static const struct {
        uint64_t n;
        uint32_t nranks, block;
    } cases[] = {
        {1, 4, 32},
        {1000, 1, 64},
        {8192, 2, 512},
        {8191, 2, 256},
        {25000000, 4, 4096},
        {25000000, 95, 4096},
        {25000000, 96, 2048},
        {25000000, 1024, 512},
        {25000000, 4096, 512},
        {16777216, 4096, 512},
        {16777215, 4096, 256},
        {1000000, 4096, 32},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        assert_int_equal(tam_block_of(cases[i].n, cases[i].nranks), cases[i].block);
    for (size_t i = 0; i < sizeof numbers_of_ranks / sizeof numbers_of_ranks[0]; i++) {
        uint32_t nranks = numbers_of_ranks[i];
        uint64_t before = 1;
        for (uint64_t n = 1; n <= UINT32_MAX; n += 1 + n / 97) {
            uint64_t wished = tam_blocks_wished(n, nranks);
            uint32_t block = tam_block_of(n, nranks);
            assert_int_equal(block, block_in_words(n, nranks));
            assert_true(wished >= before); /* or a longer vector might seem to cost less */
            assert_true((n + block - 1) / block >= wished);
            before = wished;
        }
    }
}

static void a_division_has_the_blocks_of_the_rule_unless_others_are_asked_for(void **state) {
    (void)state;
    tamis_layout *layout = make_layout((uint64_t[]){100000}, 1);
    tam_scheme scheme;
    tam_division d;
    assert_int_equal(tam_scheme_parse("tamis", &scheme), TAMIS_OK);
    for (uint32_t nranks = 1; nranks <= 4096; nranks *= 8) {
        assert_int_equal(tam_division_open(layout, scheme, nranks, 0, &d), TAMIS_OK);
        assert_int_equal(d.block, block_in_words(100000, nranks));
        assert_int_equal(d.grid.ntiles, (100000 + d.block - 1) / d.block);
        tam_division_close(&d);
        assert_int_equal(tam_division_open(layout, scheme, nranks, 96, &d), TAMIS_OK);
        assert_int_equal(d.block, 96);
        tam_division_close(&d);
    }
    tamis_layout_destroy(layout);
}

/* -- budgets ---------------------------------------------------------------------------------- */

typedef struct budget_case {
    tam_group groups[5];
    tam_grid grid;
    tam_pair order[5];
} budget_case;

static budget_case *make_groups(budget_case *c, const uint32_t *lengths, uint32_t count) {
    memset(c, 0, sizeof *c);
    for (uint32_t g = 0; g < count; g++)
        c->groups[g].length = lengths[g];
    c->grid.groups = c->groups;
    c->grid.ngroups = count;
    return c;
}

/* Worked by hand: K = 100, N = 10. Norm 5: floor(50) but the group has 20. K = 80, N = 5. Norm 4:
 * floor(64). K = 16, N = 1. Norm 0.9: floor(14.4) = 14. K = 2, N = 0.1: norm 0.1 gets 2. */
static void budgets_follow_norms_and_surplus_flows_on(void **state) {
    (void)state;
    budget_case c;
    uint32_t budgets[4];
    make_groups(&c, (uint32_t[]){100, 20, 100, 100}, 4);
    tam_budget_norm(100, (double[]){4.0, 5.0, 0.9, 0.1}, &c.grid, c.order, budgets);
    assert_int_equal(budgets[0], 64);
    assert_int_equal(budgets[1], 20);
    assert_int_equal(budgets[2], 14);
    assert_in_range(budgets[3], 1, 2);
}

static void budgets_are_at_least_one_even_without_norms(void **state) {
    (void)state;
    budget_case c;
    uint32_t budgets[3];
    make_groups(&c, (uint32_t[]){5, 1, 9}, 3);
    tam_budget_norm(2, (double[]){0.0, 0.0, 0.0}, &c.grid, c.order, budgets);
    for (int g = 0; g < 3; g++)
        assert_int_equal(budgets[g], 1);
}

/* Costs n log2 k: 100*2 = 200, 90*2 = 180, 50*1 = 50, 40 (k = 1); group 4 is taken whole. */
static void bins_take_the_costliest_into_the_lightest(void **state) {
    (void)state;
    budget_case c;
    uint32_t parts[5];
    double loads[2];
    make_groups(&c, (uint32_t[]){50, 100, 90, 40, 3}, 5);
    tam_bins_pack((uint32_t[]){2, 4, 4, 1, 3}, &c.grid, 2, c.order, loads, parts);
    assert_int_equal(parts[1], 0);
    assert_int_equal(parts[2], 1);
    assert_int_equal(parts[0], 1);
    assert_int_equal(parts[3], 0);
    assert_int_equal(parts[4], TAM_PART_COMMON);
}

/* -- thresholds ------------------------------------------------------------------------------- */

static void micro_threshold_moves_by_the_published_factors(void **state) {
    (void)state;
    budget_case c;
    tam_control control;
    tam_scheme scheme;
    make_groups(&c, (uint32_t[]){10000}, 1);
    assert_int_equal(tam_scheme_parse("micro", &scheme), TAMIS_OK);
    assert_int_equal(tam_control_open(scheme, &c.grid, 100, 2.0, 0.0, &control), TAMIS_OK);
    assert_true(control.state.threshold == 0.05); /* 1 / (2 sqrt(100)) */
    static const struct {
        uint64_t selected;
        double factor;
    } steps[] = {{111, 1.005}, {110, 1.00125}, {101, 1.00125}, {100, 0.9987},
                 {92, 0.9987}, {90, 0.995},    {0, 0.995}};
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        double before = control.state.threshold;
        tam_control_update(&control, &(tam_observed){.selected = steps[i].selected});
        assert_true(fabs(control.state.threshold / before - steps[i].factor) < 1e-12);
        assert_int_equal(control.thresholds[0], tam_bits((float)control.state.threshold));
    }
    tam_control_close(&control);
}

static void a_fixed_threshold_stays(void **state) {
    (void)state;
    budget_case c;
    tam_control control;
    tam_scheme scheme;
    make_groups(&c, (uint32_t[]){10000}, 1);
    assert_int_equal(tam_scheme_parse("threshold", &scheme), TAMIS_OK);
    assert_int_equal(tam_control_open(scheme, &c.grid, 100, 2.0, 0.0, &control), TAMIS_OK);
    for (uint64_t selected = 0; selected < 10000; selected += 999) {
        assert_true(control.state.threshold == 0.05);
        assert_int_equal(control.thresholds[0], tam_bits(0.05f));
        tam_control_update(&control, &(tam_observed){.selected = selected});
        tam_control_set_target(&control, 100 + selected);
    }
    tam_control_close(&control);
}

/* Ok-Topk: found in step 0 for 31 more steps, but not for another k. */
static void a_reused_threshold_is_of_one_k(void **state) {
    (void)state;
    budget_case c;
    tam_control control;
    tam_scheme scheme;
    make_groups(&c, (uint32_t[]){10000}, 1);
    assert_int_equal(tam_scheme_parse("oktopk", &scheme), TAMIS_OK);
    assert_int_equal(tam_control_open(scheme, &c.grid, 100, 2.0, 0.0, &control), TAMIS_OK);
    control.reused = 0.25;
    tam_control_update(&control, &(tam_observed){.found = 100});
    assert_int_equal(control.state.primed, TAM_REUSE_STEPS - 1);
    assert_int_equal(control.thresholds[0], tam_bits(0.25f) + 1);
    tam_control_set_target(&control, 100);
    assert_int_equal(control.state.primed, TAM_REUSE_STEPS - 1);
    tam_control_set_target(&control, 50);
    assert_int_equal(control.state.primed, 0);
    assert_int_equal(control.thresholds[0], TAM_INFINITE_BITS);
    tam_control_close(&control);
}

/* Count of entries over x of a power-law tail: k (x / level)^-slope. */
static void prediction_finds_level_and_slope_of_a_steady_tail(void **state) {
    (void)state;
    const double level = 0.013, slope = 12.0, k = 1000.0;
    budget_case c;
    tam_control control;
    tam_scheme scheme;
    make_groups(&c, (uint32_t[]){100000}, 1);
    assert_int_equal(tam_scheme_parse("cyclic+global+predict+union", &scheme), TAMIS_OK);
    assert_int_equal(tam_control_open(scheme, &c.grid, 1000, 2.0, 0.0, &control), TAMIS_OK);
    assert_int_equal(control.thresholds[0], TAM_INFINITE_BITS); /* the first step searches */
    for (int step = 0; step < 60; step++) {
        tam_observed seen = {.selected = 1000, .min_keys = (double[]){log2(level)}, .nmin_keys = 1};
        double threshold = tam_float(control.thresholds[0]);
        if (control.state.primed)
            seen.candidates = (uint64_t)(k * pow(threshold / level, -slope));
        tam_control_update(&control, &seen);
    }
    double candidates = k * pow(tam_float(control.thresholds[0]) / level, -slope);
    assert_true(fabs(tam_control_slope(&control) - slope) < 0.5);
    assert_true(fabs(candidates / k - 2.0) < 0.1);
    tam_control_close(&control);
}

/* Slow waves of the smallest keys, a group that wakes in step 10, a jump of all in step 25. */
static void learn_step(tam_control *control, uint32_t step) {
    double wave = step % 7 * 0.05 - 0.2, scale = step < 25 ? 1e-3 : 1e-6;
    tam_observed seen = {
        .selected = 700,
        .candidates = step % 5 ? 1000 + 31 * step : 0,
        .min_keys = (double[]){wave, 0.5 * wave, step == 25 ? -5.0 : 0.01},
        .nmin_keys = 3,
        .group_sums = (double[]){71.0 * scale, 0.3 * scale, step > 9 ? scale : 0.0},
        .group_selected = (uint32_t[]){600 + step, 90 - step, step > 9 ? step % 4 : 0},
    };
    tam_control_update(control, &seen);
}

/* A saved state must lead on to the same thresholds in every later version. */
static void prediction_ends_a_history_with_these_bits(void **state) {
    (void)state;
    budget_case c;
    tam_control control;
    tam_scheme scheme;
    make_groups(&c, (uint32_t[]){70000, 300, 9}, 3);
    assert_int_equal(tam_scheme_parse("tamis", &scheme), TAMIS_OK);
    assert_int_equal(tam_control_open(scheme, &c.grid, 700, 1.5, 0.0, &control), TAMIS_OK);
    for (uint32_t step = 0; step < 40; step++)
        learn_step(&control, step);
    assert_true(control.state.drift == -0x1.1b2e4988dd82fp-6);
    assert_true(control.state.spread == 0x1.a860f68bb136ap-8);
    assert_true(control.state.fit_xx == 0x1.163049d8d79ecp-4);
    assert_true(control.state.fit_xy == 0x1.9730abe4a0575p-2);
    assert_true(control.state.margin == -0x1.ee6932a7d4384p-3);
    assert_true(control.floor_key == 0x1.b11d2cp-1f);
    static const struct {
        double level;
        uint32_t threshold, weight, budget;
    } expected[] = {
        {-0x1.5b4e28576f75dp+3, 0x39efbc33, 0x44e73f3a, 591},
        {-0x1.b6a77341ce3aap+3, 0x388492cb, 0x46511593, 99},
        {-0x1.8446b825605cdp+3, 0x3945659d, 0x458c6c38, 9},
    };
    for (int g = 0; g < 3; g++) {
        assert_true(control.levels[g] == expected[g].level);
        assert_int_equal(control.thresholds[g], expected[g].threshold);
        assert_int_equal(tam_bits(control.weights[g]), expected[g].weight);
        assert_int_equal(control.budgets[g], expected[g].budget);
    }
    tam_control_close(&control);
}

/* What is prepared follows from the state alone, whatever the state before was. */
static void a_new_beginning_forgets_the_floor(void **state) {
    (void)state;
    budget_case c;
    tam_control control;
    tam_scheme scheme;
    make_groups(&c, (uint32_t[]){70000, 300, 9}, 3);
    assert_int_equal(tam_scheme_parse("tamis", &scheme), TAMIS_OK);
    assert_int_equal(tam_control_open(scheme, &c.grid, 700, 1.5, 0.0, &control), TAMIS_OK);
    tam_control_state first = control.state;
    assert_true(control.floor_key == 0.0f);
    learn_step(&control, 0);
    assert_true(control.floor_key > 0.0f);
    control.state = first;
    tam_control_prepare(&control);
    assert_true(control.floor_key == 0.0f);
    assert_true(control.weights[0] == 1.0f);
    assert_int_equal(control.thresholds[0], TAM_INFINITE_BITS);
    tam_control_close(&control);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logarithm_and_power_are_inverse_and_near_libm),
        cmocka_unit_test(logarithm_and_power_have_these_bits),
        cmocka_unit_test(sort_orders_by_key_then_value),
        cmocka_unit_test(every_preset_is_its_four_policies),
        cmocka_unit_test(a_scheme_that_means_nothing_is_refused_with_a_reason),
        cmocka_unit_test(tiles_cover_every_element_once),
        cmocka_unit_test(ownership_is_exclusive_and_visits_every_rank),
        cmocka_unit_test(budgets_sum_to_k_and_never_exceed_what_is_owned),
        cmocka_unit_test(the_leader_of_step_t_is_rank_t_mod_p_and_takes_all_of_k),
        cmocka_unit_test(deft_divides_large_tensors_into_one_piece_per_rank),
        cmocka_unit_test(blocks_are_long_and_many_and_where_they_are_few_at_least_eight),
        cmocka_unit_test(a_division_has_the_blocks_of_the_rule_unless_others_are_asked_for),
        cmocka_unit_test(budgets_follow_norms_and_surplus_flows_on),
        cmocka_unit_test(budgets_are_at_least_one_even_without_norms),
        cmocka_unit_test(bins_take_the_costliest_into_the_lightest),
        cmocka_unit_test(micro_threshold_moves_by_the_published_factors),
        cmocka_unit_test(a_fixed_threshold_stays),
        cmocka_unit_test(a_reused_threshold_is_of_one_k),
        cmocka_unit_test(prediction_finds_level_and_slope_of_a_steady_tail),
        cmocka_unit_test(prediction_ends_a_history_with_these_bits),
        cmocka_unit_test(a_new_beginning_forgets_the_floor),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
