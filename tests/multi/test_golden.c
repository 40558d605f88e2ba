/* SPDX-License-Identifier: MIT
 *
 * Every sparse preset selects what its formulas, or its authors' public code, select: the files
 * tests/golden/<preset>.txt, written by make.py without the library's code. Their headers say how
 * gradients are made and what the lines mean. Indices, counts, sums and residuals are compared
 * exactly, thresholds to 1e-12 of their value, levels, which are the library's own logarithms, to
 * 1e-9.
 */
#include "collectives/exchange/ok_topk.h"
#include "collectives/reducer/reducer.h"
#include "tests/support/data.h"
#include "tests/support/ranks.h"
#include "tests/support/scratch.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tamis/lists.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

enum {
    N_MOST = 20000,
    UNION_MOST = 4096,
    STEPS_MOST = 140,
    SEGMENTS_MOST = 8,
    SCALES_MOST = 8,
    NUMBERS_MOST = 16
};

typedef struct golden_numbers {
    size_t count;
    double of[NUMBERS_MOST];
} golden_numbers;

typedef struct golden_step {
    golden_numbers thresholds, levels, borders, sent;
    uint64_t residuals[NUMBERS_MOST];
    size_t count; /* of the union */
    uint32_t indices[UNION_MOST];
    double sums[UNION_MOST];
} golden_step;

typedef struct golden_case {
    const char *scheme; /* in the text of the file */
    golden_numbers segments, scales[SCALES_MOST];
    uint32_t nranks, block, steps, tail, nscales, nread;
    int unit;
    uint64_t seed;
    double density, threshold;
    bool brief; /* only the count of the union is given */
    size_t n;
    golden_step step[STEPS_MOST];
} golden_case;

/* -- reading ---------------------------------------------------------------------------------- */

static golden_numbers read_numbers(char *text) {
    golden_numbers numbers = {0};
    char *rest = NULL;
    for (char *word = strtok_r(text, " ", &rest); word; word = strtok_r(NULL, " ", &rest)) {
        assert_true(numbers.count < NUMBERS_MOST);
        numbers.of[numbers.count++] = strtod(word, NULL);
    }
    return numbers;
}

static void read_union(char *text, golden_step *out) {
    char *rest = NULL;
    for (char *word = strtok_r(text, " ", &rest); word; word = strtok_r(NULL, " ", &rest)) {
        assert_true(out->count < UNION_MOST);
        out->indices[out->count] = (uint32_t)strtoul(word, &word, 10);
        assert_int_equal(*word, ':');
        out->sums[out->count++] = strtod(word + 1, NULL);
    }
}

static void read_hashes(char *text, golden_step *out) {
    char *rest = NULL;
    size_t count = 0;
    for (char *word = strtok_r(text, " ", &rest); word; word = strtok_r(NULL, " ", &rest))
        out->residuals[count++ % NUMBERS_MOST] = strtoull(word, NULL, 16);
}

static void read_step_line(golden_case *c, const char *word, char *rest) {
    golden_step *s = &c->step[c->nread - 1];
    if (strcmp(word, "threshold") == 0)
        s->thresholds = read_numbers(rest);
    else if (strcmp(word, "levels") == 0)
        s->levels = read_numbers(rest);
    else if (strcmp(word, "borders") == 0)
        s->borders = read_numbers(rest);
    else if (strcmp(word, "picks") == 0)
        s->sent = read_numbers(rest);
    else if (strcmp(word, "union") == 0)
        read_union(rest, s);
    else if (strcmp(word, "count") == 0)
        s->count = strtoul(rest, NULL, 10);
    else if (strcmp(word, "residual") == 0)
        read_hashes(rest, s);
    else
        fail_msg("unknown word %s in a step", word);
}

static void read_segments(golden_case *c, char *rest) {
    c->segments = read_numbers(rest);
    for (size_t i = 0; i < c->segments.count; i++)
        c->n += (size_t)c->segments.of[i];
    assert_true(c->n <= N_MOST && c->segments.count <= SEGMENTS_MOST);
}

static void read_header_line(golden_case *c, const char *word, char *rest) {
    double number = strtod(rest, NULL);
    if (strcmp(word, "ranks") == 0)
        c->nranks = (uint32_t)number;
    else if (strcmp(word, "segments") == 0)
        read_segments(c, rest);
    else if (strcmp(word, "density") == 0)
        c->density = number;
    else if (strcmp(word, "first_threshold") == 0)
        c->threshold = number;
    else if (strcmp(word, "block") == 0)
        c->block = (uint32_t)number;
    else if (strcmp(word, "steps") == 0)
        c->steps = (uint32_t)number;
    else if (strcmp(word, "tail") == 0)
        c->tail = (uint32_t)number;
    else if (strcmp(word, "unit") == 0)
        c->unit = (int)number;
    else if (strcmp(word, "seed") == 0)
        c->seed = (uint64_t)number;
    else if (strcmp(word, "brief") == 0)
        c->brief = number != 0.0;
    else if (strcmp(word, "scale") == 0 && c->nscales < SCALES_MOST)
        c->scales[c->nscales++] = read_numbers(rest);
    else
        fail_msg("unknown word %s in a header", word);
}

/* -- gradients -------------------------------------------------------------------------------- */

static uint64_t random_of(uint64_t key, uint64_t counter) {
    return data_mix(key + counter * 0x9e3779b97f4a7c15u);
}

static double factor_at(const golden_case *c, uint32_t step, size_t i) {
    double factor = 1.0;
    for (uint32_t s = 0; s < c->nscales; s++) {
        const double *line = c->scales[s].of;
        if (step >= line[0] && step < line[1] && (double)i >= line[2] && (double)i < line[3])
            factor *= line[4];
    }
    return factor;
}

static void fill(const golden_case *c, uint32_t rank, uint32_t step, float *out) {
    uint64_t key = random_of(random_of(c->seed, rank), step);
    for (size_t i = 0; i < c->n; i++) {
        uint64_t x = random_of(key, i);
        int e = __builtin_ctzll(x >> 4 | UINT64_C(1) << c->tail);
        uint64_t whole = (UINT64_C(1) << e) + (x >> 40 & ((UINT64_C(1) << e) - 1));
        double value = (x >> 1) % 8 ? (double)whole * factor_at(c, step, i) : 0.0;
        out[i] = (float)ldexp(x & 1 ? -value : value, c->unit);
    }
}

/* -- comparing -------------------------------------------------------------------------------- */

static uint64_t hash_residual(const golden_case *c, const float *residual) {
    uint64_t hash = 0;
    for (size_t i = 0; i < c->n; i++)
        hash += (uint64_t)(int64_t)ldexp((double)residual[i], -c->unit) * random_of(0, i);
    return hash;
}

static bool near(double a, double b, double relative) {
    return fabs(a - b) <= relative * fabs(b);
}

/* The threshold that the rank used. @param before  the threshold that was set for the step */
static double threshold_of(const tamis_reducer *r, double before) {
    switch (r->scheme.threshold) {
    case TAM_THRESHOLD_STEP:
    case TAM_THRESHOLD_FIXED:
        return before;
    case TAM_THRESHOLD_SAGE:
        return r->buckets[0].control.state.threshold;
    case TAM_THRESHOLD_REUSE:
        return r->buckets[0].control.reused;
    default:
        return r->stats.threshold;
    }
}

static void compare_thresholds(test_rank *self, const tamis_reducer *r, uint32_t number,
                               double before) {
    const golden_step *s = &((const golden_case *)self->shared)->step[number];
    double expected = s->thresholds.of[s->thresholds.count > 1 ? self->id : 0];
    double got = threshold_of(r, before);
    RANK_CHECK(self, near(got, expected, 1e-12), "step %u: threshold %.17g, not %.17g", number, got,
               expected);
    RANK_CHECK(self, (double)r->stats.sent == s->sent.of[self->id], "step %u: sent %llu, not %g",
               number, (unsigned long long)r->stats.sent, s->sent.of[self->id]);
}

static void compare_result(test_rank *self, const tamis_reducer *r, uint32_t number) {
    const golden_case *c = self->shared;
    const golden_step *s = &c->step[number];
    const float *residual = NULL;
    tamis_result result = TAMIS_RESULT_INIT;
    RANK_OK(self, tamis_reducer_result(r, &result));
    RANK_OK(self, tamis_reducer_residual(r, &residual));
    RANK_CHECK(self, result.count == s->count, "step %u: %zu entries, not %zu", number,
               result.count, s->count);
    for (size_t i = 0; i < s->count && !c->brief; i++) {
        double sum = ldexp((double)result.values[i], -c->unit);
        RANK_CHECK(self, result.indices[i] == s->indices[i], "step %u: index %zu is %u, not %u",
                   number, i, result.indices[i], s->indices[i]);
        RANK_CHECK(self, sum == s->sums[i], "step %u: the sum at %u is %g, not %g", number,
                   s->indices[i], sum, s->sums[i]);
    }
    uint64_t hash = hash_residual(c, residual);
    RANK_CHECK(self, hash == s->residuals[self->id], "step %u: the residual differs", number);
}

static void compare_levels(test_rank *self, const tamis_reducer *r, uint32_t number) {
    const golden_numbers *levels = &((const golden_case *)self->shared)->step[number].levels;
    for (size_t g = 0; g < levels->count; g++) {
        double level = r->buckets[0].control.levels[g];
        RANK_CHECK(self, fabs(level - levels->of[g]) < 1e-9,
                   "step %u: level %zu is %.17g, not %.17g", number, g, level, levels->of[g]);
    }
}

static void compare_borders(test_rank *self, const tamis_reducer *r, uint32_t number) {
    const golden_numbers *borders = &((const golden_case *)self->shared)->step[number].borders;
    const tam_bucket *b = &r->buckets[0];
    const uint64_t *regions = borders->count > 0 ? b->exchange->state(b->exchanged) : NULL;
    for (size_t i = 0; i < borders->count; i++) {
        uint64_t end = regions[TAM_OK_TOPK_ENDS + i];
        RANK_CHECK(self, (double)end == borders->of[i], "step %u: region %zu ends at %llu, not %g",
                   number, i, (unsigned long long)end, borders->of[i]);
    }
}

static void run_step(test_rank *self, tamis_reducer *r, uint32_t number, float *grad) {
    tamis_step step = data_step(grad);
    double before = r->buckets[0].control.state.threshold;
    compare_levels(self, r, number);
    compare_borders(self, r, number);
    fill(self->shared, self->id, number, grad);
    RANK_OK(self, tamis_reducer_start(r, &step));
    RANK_OK(self, tamis_reducer_wait(r));
    compare_thresholds(self, r, number, before);
    if (!self->failure[0])
        compare_result(self, r, number);
}

static void run_rank(test_rank *self) {
    const golden_case *c = self->shared;
    tamis_segment segments[SEGMENTS_MOST];
    tamis_layout *layout = NULL;
    tamis_reducer *reducer = NULL;
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    float *grad = malloc(N_MOST * sizeof grad[0]);
    RANK_CHECK(self, grad, "no memory for %d entries", N_MOST);
    config.scheme = c->scheme;
    config.density = c->density;
    config.threshold = c->threshold;
    config.block = c->block;
    config.op = TAMIS_OP_SUM;
    for (size_t i = 0; i < c->segments.count; i++)
        segments[i] = (tamis_segment){NULL, (uint64_t)c->segments.of[i]};
    RANK_OK(self, tamis_layout_create(segments, c->segments.count, &layout));
    RANK_OK(self, tamis_reducer_create(self->comm, layout, &config, &reducer));
    tamis_layout_destroy(layout);
    for (uint32_t step = 0; step < c->steps && !self->failure[0]; step++)
        run_step(self, reducer, step, grad);
    tamis_reducer_destroy(reducer);
    free(grad);
}

/* -- the files -------------------------------------------------------------------------------- */

/* Run a case that has been read. */
static void run_case(golden_case *c, unsigned number) {
    assert_true(c->nread == c->steps && c->steps > 0 && c->nranks <= NUMBERS_MOST);
    test_context("%s, case %u", c->scheme, number);
    ranks_run(c->nranks, 0, run_rank, c);
}

static void read_line(golden_case *c, char *line) {
    char *rest = strchr(line, ' ');
    if (rest)
        *rest++ = '\0';
    if (strcmp(line, "step") == 0) {
        assert_true(c->nread < STEPS_MOST);
        c->nread++;
    } else if (c->nread > 0) {
        read_step_line(c, line, rest ? rest : line + strlen(line));
    } else {
        read_header_line(c, line, rest ? rest : line + strlen(line));
    }
}

/* @return cases in the file */
static unsigned run_lines(char *text) {
    static golden_case c;
    unsigned cases = 0;
    char *rest = NULL;
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        bool ended = strcmp(line, "end") == 0;
        if (!ended && strncmp(line, "scheme ", 7) != 0) {
            read_line(&c, line);
            continue;
        }
        if (cases > 0)
            run_case(&c, cases);
        if (ended)
            return cases;
        memset(&c, 0, sizeof c);
        c.scheme = line + 7;
        cases++;
    }
    fail_msg("the file does not end");
    return 0;
}

static void test_every_sparse_preset_selects_what_was_published(void **state) {
    tamis_scheme_info info = TAMIS_SCHEME_INFO_INIT;
    (void)state;
    for (size_t i = 0; tamis_scheme_list(i, &info); i++) {
        char path[SCRATCH_PATH];
        size_t bytes = 0;
        if (strstr("dense quantized auto", info.exchange)) /* these select nothing of their own */
            continue;
        snprintf(path, sizeof path, GOLDEN_FOLDER "/%s.txt", info.name);
        char *text = (char *)scratch_read(path, &bytes);
        if (!text)
            fail_msg("there are no golden vectors of %s: %s", info.name, path);
        text[bytes] = '\0';
        assert_true(run_lines(text) >= 2);
        free(text);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_sparse_preset_selects_what_was_published),
    };
    return cmocka_run_group_tests_name("golden", tests, NULL, NULL);
}
