/* SPDX-License-Identifier: MIT
 *
 * Rolling back a step whose sums were not finite: it applied nothing, or left some entries out. Two
 * ranks; rank 1 did not complete the step, rank 0 did, and has added to its residual since.
 */
#include "lib/base/base.h"
#include "tests/support/data.h"
#include "tests/support/ranks.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <tamis/elastic.h>
#include <tamis/overlap.h>
#include <tamis/state.h>
#include <tamis/stats.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

enum { N = 64, BAD = 3, FULL = 5 };

typedef struct resync_case {
    const char *scheme;
    tamis_nonfinite nonfinite;
    tamis_value_codec value_codec;
    float decay; /* of the residual; then two micro-batches come since; 0: 1, and one */
    bool fills;  /* what comes since leaves no room for what is taken back */
} resync_case;

static tamis_status make(tamis_comm *comm, const resync_case *c, tamis_reducer **out) {
    static const tamis_segment segment = {"w", N};
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    tamis_layout *layout = NULL;
    config.scheme = c->scheme;
    config.density = 0.25;
    config.nonfinite = c->nonfinite;
    config.value_codec = c->value_codec;
    config.residual_decay = c->decay > 0.0f ? (double)c->decay : 1.0;
    tamis_status status = tamis_layout_create(&segment, 1, &layout);
    if (status == TAMIS_OK)
        status = tamis_reducer_create(comm, layout, &config, out);
    tamis_layout_destroy(layout);
    return status;
}

/* Whole numbers, so that sums are exact; odd and above 256, so that bfloat16 rounds them. */
static void fill(uint32_t number, float *grad) {
    for (size_t i = 0; i < N; i++)
        grad[i] = (float)(601 + 2 * ((i * 37 + number * 11) % 200));
}

static tamis_status one_step(tamis_reducer *r, float *grad) {
    const tamis_step step = data_step(grad);
    tamis_status status = tamis_reducer_start(r, &step);
    return status == TAMIS_OK ? tamis_reducer_wait(r) : status;
}

static void add(float decay, const float *grad, float *sums) {
    for (size_t i = 0; i < N; i++)
        sums[i] = (decay > 0.0f ? decay : 1.0f) * sums[i] + grad[i];
}

/* Run the step that will be rolled back. @param sums  [in,out]  the residual as if it had not been
 * applied */
static void run_bad_step(test_rank *self, tamis_reducer *r, float *sums) {
    const resync_case *c = self->shared;
    bool told = c->nonfinite == TAMIS_NONFINITE_ERROR;
    float grad[N];
    fill(1, grad);
    grad[BAD] = 3e38f;
    if (c->fills)
        grad[FULL] = self->id == 0 ? 3e38f : 0.0f;
    add(c->decay, grad, sums);
    RANK_STATUS(self, told ? TAMIS_E_NONFINITE : TAMIS_OK, one_step(r, grad));
}

/* What rank 0 does before it must roll the step back. */
static void go_on(test_rank *self, tamis_reducer *r, float *sums) {
    const resync_case *c = self->shared;
    float grad[N];
    const tamis_step step = data_step(grad);
    fill(2, grad);
    grad[BAD] = 0.0f;
    grad[FULL] = c->fills ? 3e38f : grad[FULL];
    sums[FULL] = c->fills ? 0.0f : sums[FULL];
    add(c->decay, grad, sums);
    RANK_OK(self, tamis_reducer_accumulate(r, &step));
    if (c->decay == 0.0f)
        return;
    fill(4, grad);
    grad[BAD] = 0.0f;
    add(1.0f, grad, sums);
    RANK_OK(self, tamis_reducer_accumulate(r, &step));
}

static void check_residual(test_rank *self, tamis_reducer *r, const float *sums) {
    float residual[N];
    RANK_OK(self, tamis_reducer_save_residual(r, residual));
    for (size_t i = 0; i < N; i++)
        RANK_CHECK(self, residual[i] == sums[i], "entry %zu is %g in place of %g", i,
                   (double)residual[i], (double)sums[i]);
}

static void check_next_step(test_rank *self, tamis_reducer *r) {
    const resync_case *c = self->shared;
    tamis_stats stats = TAMIS_STATS_INIT;
    float grad[N];
    fill(3, grad);
    RANK_OK(self, one_step(r, grad));
    RANK_OK(self, tamis_reducer_stats(r, &stats));
    RANK_CHECK(self, stats.nonfinite == c->fills, "%llu entries were lost",
               (unsigned long long)stats.nonfinite);
}

typedef struct saved {
    void *control; /* to be freed */
    size_t bytes;
    float residual[N];
} saved;

/* A reducer, and its state after one step. */
static tamis_status save_first_step(test_rank *self, tamis_reducer **r, saved *out) {
    float grad[N];
    TAM_TRY(make(self->comm, self->shared, r));
    TAM_TRY(tamis_reducer_control_bytes(*r, &out->bytes));
    out->control = malloc(out->bytes);
    fill(0, grad);
    TAM_TRY(one_step(*r, grad));
    TAM_TRY(tamis_reducer_save_control(*r, out->control, out->bytes));
    return tamis_reducer_save_residual(*r, out->residual);
}

static tamis_status load(tamis_reducer *r, const saved *s) {
    return tamis_reducer_load_memory(r, s->control, s->bytes, s->residual);
}

static void go_back(test_rank *self) {
    tamis_reducer *r = NULL;
    saved first = {0};
    float sums[N];
    uint64_t agreed = 0;
    RANK_OK(self, save_first_step(self, &r, &first));
    memcpy(sums, first.residual, sizeof sums);
    run_bad_step(self, r, sums);
    if (self->id == 0)
        go_on(self, r, sums);
    else
        RANK_OK(self, load(r, &first));
    free(first.control);
    RANK_OK(self, tamis_reducer_resync(r, &agreed));
    RANK_CHECK(self, agreed == 1, "they agreed on step %llu", (unsigned long long)agreed);
    check_residual(self, r, self->id == 0 ? sums : first.residual);
    check_next_step(self, r);
    tamis_reducer_destroy(r);
}

/* Where each rank gives only its own entries, it does not have what was dropped from the
 * others'. */
static void refuse_to_go_back(test_rank *self) {
    tamis_reducer *r = NULL;
    saved first = {0};
    float sums[N] = {0};
    uint64_t agreed = 0;
    RANK_OK(self, save_first_step(self, &r, &first));
    run_bad_step(self, r, sums);
    if (self->id == 1)
        RANK_OK(self, load(r, &first));
    free(first.control);
    RANK_STATUS(self, TAMIS_E_UNSUPPORTED, tamis_reducer_resync(r, &agreed));
    RANK_CHECK(self, strstr(tamis_last_error(), "dropped sums that were not finite"), "it says: %s",
               tamis_last_error());
    tamis_reducer_destroy(r);
}

static void what_was_dropped_from_others_cannot_be_given_back(void **state) {
    resync_case c = {"all+global+exact+pairs", TAMIS_NONFINITE_DROP, TAMIS_VALUE_FLOAT32, 0.0f,
                     false};
    (void)state;
    test_context("one sum dropped");
    ranks_run(2, 0, refuse_to_go_back, &c);
}

static void run(const resync_case *c) {
    resync_case own = *c; /* for a void pointer */
    test_context("%s, nonfinite %d, values %d", c->scheme, (int)c->nonfinite, (int)c->value_codec);
    ranks_run(2, 0, go_back, &own);
}

static void what_is_added_back_is_what_was_sent(void **state) {
    static const char *const schemes[] = {"tamis", "deft", "micro", "all+global+exact+union"};
    static const tamis_value_codec value_codecs[] = {TAMIS_VALUE_FLOAT32, TAMIS_VALUE_BFLOAT16};
    (void)state;
    for (size_t i = 0; i < 4 * 3 * 2; i++)
        run(&(resync_case){schemes[i / 6], (tamis_nonfinite)(i / 2 % 3), value_codecs[i % 2], 0.0f,
                           false});
}

static void what_is_given_back_has_decayed_once(void **state) {
    (void)state;
    run(&(resync_case){"tamis", TAMIS_NONFINITE_ERROR, TAMIS_VALUE_FLOAT32, 0.5f, false});
    run(&(resync_case){"tamis", TAMIS_NONFINITE_DROP, TAMIS_VALUE_FLOAT32, 0.5f, false});
}

static void what_has_no_room_is_counted(void **state) {
    const resync_case c = {"tamis", TAMIS_NONFINITE_DROP, TAMIS_VALUE_FLOAT32, 0.0f, true};
    (void)state;
    run(&c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_added_back_is_what_was_sent),
        cmocka_unit_test(what_is_given_back_has_decayed_once),
        cmocka_unit_test(what_was_dropped_from_others_cannot_be_given_back),
        cmocka_unit_test(what_has_no_room_is_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
