/* SPDX-License-Identifier: MIT
 *
 * Every workload on a small shape: its loss is that of the slow reference in double precision, and
 * the gradient of every parameter is the central difference of that. Differences over 2e-6 are
 * exact to 1e-9 here (rounding: 1e-16 / 1e-6; the third derivative is divided by 1e12), and small
 * enough that no ReLU and no maximum turns over within. What is left is the rounding of the
 * model in 24 bits: sums of up to some hundred terms, some layers deep, so 2e-5 of the largest
 * entry of a tensor.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

#include "bench/common/random.h"
#include "bench/train/images.h"
#include "tests/train/reference.h"

enum { BATCH = 3, SAMPLES = 8 };

static const double width = 1e-6, bound = 2e-5;

/* What is tested, and its reference with the samples that are in the slot. */
typedef struct subject {
    const workload_kind *kind;
    train_settings settings;
    workload_data data;
    workload work;
    uint8_t images[BATCH * IDX_PIXELS], labels[BATCH];
    uint8_t windows[1024];
    size_t vocabulary;
} subject;

static double slow_loss(const subject *s, const double *p, size_t rows) {
    if (s->kind == &workload_mlp)
        return reference_mlp(&s->settings, p, s->images, s->labels, rows);
    if (s->kind == &workload_cnn)
        return reference_cnn(&s->settings, p, s->images, s->labels, rows);
    return reference_lm(&s->settings, p, s->vocabulary, s->windows, rows);
}

/* -- data ------------------------------------------------------------------------------------- */

static void make_images(subject *s) {
    idx_set *sets = calloc(2, sizeof *sets);
    for (size_t set = 0; set < 2; set++) {
        sets[set].count = SAMPLES;
        sets[set].images = malloc(SAMPLES * IDX_PIXELS);
        sets[set].labels = malloc(SAMPLES);
        for (size_t i = 0; i < SAMPLES * IDX_PIXELS; i++)
            sets[set].images[i] = (uint8_t)bench_random(set, i);
        for (size_t i = 0; i < SAMPLES; i++)
            sets[set].labels[i] = (uint8_t)(bench_random(9 + set, i) % IDX_CLASSES);
    }
    s->data = (workload_data){.count = {SAMPLES, SAMPLES}, .content = sets};
}

/* Letters out of order and with gaps: a token is the place of a letter among those that occur. */
static const char letters[] = "bdzac x";
static const uint8_t token_of[] = {2, 4, 6, 1, 3, 0, 5};

enum { TEXT = 400 };

static size_t letter_at(size_t i) {
    return (size_t)(bench_random(3, i) % (sizeof letters - 1));
}

static void make_text(subject *s) {
    char path[] = "/tmp/tamis_text_XXXXXX", error[400] = "";
    FILE *file = fdopen(mkstemp(path), "wb");
    for (size_t i = 0; i < TEXT; i++)
        fputc(letters[letter_at(i)], file);
    fclose(file);
    s->settings.data = path;
    bool loaded = s->kind->load(&s->settings, &s->data, error, sizeof error);
    unlink(path);
    if (!loaded)
        fail_msg("%s", error);
    s->settings.data = NULL;
    s->vocabulary = sizeof letters - 1;
}

/* Take samples into the slot and for the reference. */
static void take(subject *s, workload_set set, const uint32_t *order, size_t first, size_t rows) {
    const idx_set *images = s->data.content;
    size_t length = s->settings.context + 1, kept = TEXT / 10, begin = set ? TEXT - kept : 0;
    s->kind->take(&s->work, 0, set, order, first, rows);
    for (size_t r = 0; r < rows; r++) {
        size_t sample = order ? order[r] : first + r;
        if (s->kind == &workload_lm) {
            size_t from = begin + sample * s->settings.context;
            for (size_t i = 0; i < length; i++)
                s->windows[r * length + i] = token_of[letter_at(from + i)];
            continue;
        }
        memcpy(s->images + r * IDX_PIXELS, images[set].images + sample * IDX_PIXELS, IDX_PIXELS);
        s->labels[r] = images[set].labels[sample];
    }
}

static void open_subject(const workload_kind *kind, const train_settings *settings, subject *s) {
    memset(s, 0, sizeof *s);
    s->kind = kind;
    s->settings = *settings;
    if (kind == &workload_lm)
        make_text(s);
    else
        make_images(s);
    uint64_t lengths[64];
    uint32_t layers = kind->layers ? kind->layers(settings, lengths) : 1;
    workload_part part = {0, layers, BATCH, 1};
    workload_open(kind, &s->settings, &s->data, &part, &s->work);
}

static void close_subject(subject *s) {
    workload_close(&s->work);
    s->kind->unload(&s->data);
}

/* -- rules ------------------------------------------------------------------------------------ */

typedef struct listener {
    const workload *work;
    const float *grad;
    float *heard; /* the gradient of each layer when it was said to be complete */
    size_t next;  /* layer that must come, plus 1 */
} listener;

static void hear(void *context, size_t layer) {
    listener *l = context;
    const workload *w = l->work;
    assert_int_equal(layer + 1, l->next);
    l->next = layer;
    for (size_t i = 0, at = 0; i < w->nsegments; at += w->segments[i].length, i++) {
        if (i >= w->layer_first[layer] && i < w->layer_first[layer + 1])
            memcpy(l->heard + at, l->grad + at, w->segments[i].length * sizeof(float));
    }
}

static void check_segment(const subject *s, size_t index, size_t at, double *p, const float *grad) {
    size_t length = s->work.segments[index].length;
    double largest = 0.0, worst = 0.0;
    for (size_t i = at; i < at + length; i++) {
        double kept = p[i];
        p[i] = kept + width;
        double above = slow_loss(s, p, BATCH);
        p[i] = kept - width;
        double slope = (above - slow_loss(s, p, BATCH)) / (2.0 * width);
        p[i] = kept;
        largest = fmax(largest, fabs(slope));
        worst = fmax(worst, fabs(slope - (double)grad[i]));
    }
    if (!(worst <= bound * largest + 1e-9) || largest == 0.0)
        fail_msg("%s %s: gradients up to %g are off by %g", s->kind->name, s->work.names[index],
                 largest, worst);
}

/* A backward pass that adds to what is there, as for micro-batches, doubles it. */
static void check_addition(subject *s, const float *params, const float *grad) {
    float *twice = malloc(s->work.length * sizeof *twice);
    memcpy(twice, grad, s->work.length * sizeof *twice);
    s->kind->forward(&s->work, params, 0);
    s->kind->loss(&s->work, 0);
    s->kind->backward(&s->work, params, 0, true, twice, NULL, NULL);
    for (size_t i = 0; i < s->work.length; i++) {
        if (!(fabs(twice[i] - 2.0 * grad[i]) <= 1e-6 + 1e-4 * fabs(grad[i])))
            fail_msg("%s: %g twice is %g", s->kind->name, (double)grad[i], (double)twice[i]);
    }
    free(twice);
}

static void check_score(subject *s, const float *params, const double *p) {
    workload_score sums = {0.0, 0.0};
    take(s, WORKLOAD_VALIDATE, NULL, 1, 2);
    s->kind->forward(&s->work, params, 0);
    s->kind->score(&s->work, 0, 2, &sums);
    assert_float_equal(sums.loss / 2, slow_loss(s, p, 2), 1e-5);
    assert_true(s->kind->metric_is_loss ? sums.correct == 0.0
                                        : sums.correct >= 0.0 && sums.correct <= 2.0);
}

static void check_gradients(const workload_kind *kind, const train_settings *settings) {
    const uint32_t order[BATCH] = {5, 0, 3};
    static subject s;
    open_subject(kind, settings, &s);
    size_t n = s.work.length;
    float *params = malloc(n * sizeof *params), *grad = malloc(n * sizeof *grad);
    float *heard = calloc(n, sizeof *heard);
    double *p = malloc(n * sizeof *p);
    listener l = {&s.work, grad, heard, s.work.nlayers};
    kind->init(&s.work, 1, params);
    for (size_t i = 0; i < n; i++) { /* biases that are not 0, weights of norms that are not 1 */
        params[i] += 0.2f * (float)bench_normal(21, i);
        grad[i] = NAN; /* what a pass leaves out stays NaN */
        p[i] = params[i];
    }
    take(&s, WORKLOAD_TRAIN, order, 0, BATCH);
    kind->forward(&s.work, params, 0);
    assert_float_equal(kind->loss(&s.work, 0), slow_loss(&s, p, BATCH), 1e-5);
    kind->backward(&s.work, params, 0, false, grad, hear, &l);
    assert_int_equal(l.next, 0);
    assert_memory_equal(heard, grad, n * sizeof *grad);
    for (size_t i = 0, at = 0; i < s.work.nsegments; at += s.work.segments[i].length, i++)
        check_segment(&s, i, at, p, grad);
    check_addition(&s, params, grad);
    check_score(&s, params, p);
    free(p);
    free(heard);
    free(grad);
    free(params);
    close_subject(&s);
}

static void mlp_gradient_is_the_difference(void **state) {
    (void)state;
    check_gradients(&workload_mlp, &(train_settings){.hidden = 3, .depth = 2});
}

static void cnn_gradient_is_the_difference(void **state) {
    (void)state;
    check_gradients(&workload_cnn, &(train_settings){.channels = 2});
}

static const train_settings small_lm = {.layers = 2, .width = 8, .heads = 2, .context = 5};

static void lm_gradient_is_the_difference(void **state) {
    (void)state;
    check_gradients(&workload_lm, &small_lm);
}

static void lm_gradient_of_one_block_with_one_head(void **state) {
    (void)state;
    train_settings s = small_lm;
    s.layers = 1;
    s.heads = 1;
    check_gradients(&workload_lm, &s);
}

/* GPT-2's count: 12 D^2 and 13 D of a block, two embeddings, the last norm. */
static void lm_has_the_parameters_of_its_shape(void **state) {
    (void)state;
    static subject s;
    const size_t d = 8, v = sizeof letters - 1, t = 5;
    open_subject(&workload_lm, &small_lm, &s);
    assert_int_equal(s.work.length, 2 * (12 * d * d + 13 * d) + v * d + t * d + 2 * d);
    assert_int_equal(s.work.nsegments, 2 + 2 * 12 + 2);
    assert_string_equal(s.work.names[0], "embedding.token");
    assert_string_equal(s.work.names[4], "block0.attention.qkv.weight");
    assert_string_equal(s.work.names[s.work.nsegments - 1], "norm.bias");
    assert_int_equal(s.work.columns[0], d);
    assert_int_equal(s.work.columns[4], d);
    assert_int_equal(s.work.columns[5], 0);
    close_subject(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mlp_gradient_is_the_difference),
        cmocka_unit_test(cnn_gradient_is_the_difference),
        cmocka_unit_test(lm_gradient_is_the_difference),
        cmocka_unit_test(lm_gradient_of_one_block_with_one_head),
        cmocka_unit_test(lm_has_the_parameters_of_its_shape),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
