/* SPDX-License-Identifier: MIT
 *
 * Ranks that were configured differently: every rank gets TAMIS_E_MISMATCH with a message that
 * names the field and a rank, no rank hangs, and the communicator still works.
 */
#include "tests/support/data.h"
#include "tests/support/ranks.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

enum { NRANKS = 3 };

/* What one rank asks for. */
struct wish {
    tamis_segment segments[2];
    size_t nsegments;
    tamis_reducer_config config;
    bool no_layout;
};

struct difference {
    const char *name;
    const char *words; /* the message must hold one of these, separated by '|' */
    const char *scheme;
    void (*change)(struct wish *wish);
    tamis_status status; /* on all ranks */
};

struct scene {
    const struct difference *difference;
    uint32_t odd_rank;
};

static struct wish usual_wish(const char *scheme) {
    struct wish usual = {.segments = {{"first", 600}, {"second", 400}},
                         .nsegments = 2,
                         .config = TAMIS_REDUCER_CONFIG_INIT};
    usual.config.scheme = scheme;
    usual.config.density = 0.1;
    return usual;
}

static tamis_status create(test_rank *self, const struct wish *wish, tamis_reducer **out) {
    tamis_layout *layout = NULL;
    tamis_status status = TAMIS_OK;
    if (!wish->no_layout)
        status = tamis_layout_create(wish->segments, wish->nsegments, &layout);
    if (status != TAMIS_OK)
        return status;
    status = tamis_reducer_create(self->comm, layout, &wish->config, out);
    tamis_layout_destroy(layout);
    return status;
}

static void run_step(test_rank *self, tamis_reducer *reducer) {
    float gradient[1000];
    tamis_step step = TAMIS_STEP_INIT;
    data_fill(DATA_HEAVY, self->id, 0, 1000, gradient);
    step.grad = gradient;
    RANK_OK(self, tamis_reducer_start(reducer, &step));
    RANK_OK(self, tamis_reducer_wait(reducer));
}

static void check_sentence(test_rank *self) {
    const struct scene *scene = self->shared;
    const char *sentence = tamis_last_error();
    bool odd = self->id == scene->odd_rank;
    char name[16];
    snprintf(name, sizeof name, "rank %u", scene->odd_rank);
    RANK_CHECK(self, strlen(sentence) > 10, "no sentence");
    RANK_CHECK(self, has_word(sentence, scene->difference->words), "\"%s\" does not name %s",
               sentence, scene->difference->words);
    /* the others are compared with rank 0, so the message may name another rank than rank 0 */
    const char *named = scene->odd_rank == 0 ? "rank " : name;
    RANK_CHECK(self,
               (odd && scene->difference->status != TAMIS_E_MISMATCH) || strstr(sentence, named),
               "\"%s\" does not name %s", sentence, named);
}

static void run_scene(test_rank *self) {
    const struct scene *scene = self->shared;
    const struct difference *difference = scene->difference;
    bool odd = self->id == scene->odd_rank;
    tamis_reducer *reducer = NULL;
    struct wish usual = usual_wish(difference->scheme), mine = usual;
    if (odd)
        difference->change(&mine);
    uint64_t before = now_ms();
    RANK_STATUS(self, difference->status, create(self, &mine, &reducer));
    RANK_CHECK(self, now_ms() - before < test_long_ms() / 2, "it took %llu ms",
               (unsigned long long)(now_ms() - before));
    RANK_CHECK(self, reducer == NULL, "the output was written");
    check_sentence(self);
    if (self->failure[0])
        return;
    /* nothing is lost */
    RANK_OK(self, tamis_comm_status(self->comm));
    RANK_OK(self, create(self, &usual, &reducer));
    run_step(self, reducer);
    tamis_reducer_destroy(reducer);
}

static void change_length(struct wish *wish) {
    wish->segments[1].length = 401;
}
static void change_border(struct wish *wish) {
    wish->segments[0].length = 601;
    wish->segments[1].length = 399;
}
static void change_segments(struct wish *wish) {
    wish->segments[0].length = 1000;
    wish->nsegments = 1;
}
static void change_density(struct wish *wish) {
    wish->config.density = 0.1000001;
}
static void change_scheme(struct wish *wish) {
    wish->config.scheme = "topk";
}
static void change_output(struct wish *wish) {
    wish->config.output = TAMIS_OUTPUT_SPARSE;
}
static void change_average(struct wish *wish) {
    wish->config.op = TAMIS_OP_SUM;
}
static void change_nonfinite(struct wish *wish) {
    wish->config.nonfinite = TAMIS_NONFINITE_DROP;
}
static void change_block(struct wish *wish) {
    wish->config.block = 32;
}
static void change_over(struct wish *wish) {
    wish->config.overselect = 3;
}
static void change_capacity(struct wish *wish) {
    wish->config.capacity = 2;
}
static void change_rows_capacity(struct wish *wish) {
    wish->config.rows_capacity = 5;
}
static void change_threshold(struct wish *wish) {
    wish->config.threshold = 0.5;
}
static void change_no_layout(struct wish *wish) {
    wish->no_layout = true;
}
static void change_bad_density(struct wish *wish) {
    wish->config.density = -1;
}
static void change_bad_scheme(struct wish *wish) {
    wish->config.scheme = "sieve";
}
static void change_bad_size(struct wish *wish) {
    wish->config.size = 3;
}

static void change_index_codec(struct wish *wish) {
    wish->config.index_codec = TAMIS_INDEX_BLOCK16;
}

static void change_value_codec(struct wish *wish) {
    wish->config.value_codec = TAMIS_VALUE_BFLOAT16;
}

static void change_sum_codec(struct wish *wish) {
    wish->config.sum_codec = TAMIS_VALUE_INT8;
}

static void change_sum_order(struct wish *wish) {
    wish->config.sum_order = TAMIS_SUM_ORDER_TRANSPORT;
}

static void change_to_no_value_codec(struct wish *wish) {
    wish->config.value_codec = TAMIS_VALUE_END;
}

static const struct difference differences[] = {
    {"length", "\"second\" of length 401", "tamis", change_length, TAMIS_E_MISMATCH},
    {"segment border", "\"first\" of length 601", "tamis", change_border, TAMIS_E_MISMATCH},
    {"number of segments", "\"first\" of length 1000", "tamis", change_segments, TAMIS_E_MISMATCH},
    {"density", "density", "tamis", change_density, TAMIS_E_MISMATCH},
    {"scheme", "scheme|ownership", "tamis", change_scheme, TAMIS_E_MISMATCH},
    {"output", "output", "tamis", change_output, TAMIS_E_MISMATCH},
    {"op", "op", "tamis", change_average, TAMIS_E_MISMATCH},
    {"nonfinite", "nonfinite", "tamis", change_nonfinite, TAMIS_E_MISMATCH},
    {"block", "block", "tamis", change_block, TAMIS_E_MISMATCH},
    {"overselect", "overselect", "tamis", change_over, TAMIS_E_MISMATCH},
    {"capacity", "capacity", "micro", change_capacity, TAMIS_E_MISMATCH},
    {"rows", "rows_capacity", "tamis", change_rows_capacity, TAMIS_E_MISMATCH},
    {"threshold", "threshold", "micro", change_threshold, TAMIS_E_MISMATCH},
    {"index codec", "index_codec", "tamis", change_index_codec, TAMIS_E_MISMATCH},
    {"value codec", "value_codec", "tamis", change_value_codec, TAMIS_E_MISMATCH},
    {"value codec of sums", "sum_codec", "tamis", change_sum_codec, TAMIS_E_MISMATCH},
};

/* One rank is refused for its own reason; the others get that reason and status. */
static const struct difference refusals[] = {
    {"no layout", "layout|rank 0|rank 2", "tamis", change_no_layout, TAMIS_E_ARGUMENT},
    {"bad density", "density|rank 0|rank 2", "tamis", change_bad_density, TAMIS_E_ARGUMENT},
    {"bad scheme", "scheme|rank 0|rank 2", "tamis", change_bad_scheme, TAMIS_E_ARGUMENT},
    {"bad size", "size|rank 0|rank 2", "tamis", change_bad_size, TAMIS_E_ARGUMENT},
    {"no value codec", "value_codec|rank 0|rank 2", "tamis", change_to_no_value_codec,
     TAMIS_E_ARGUMENT},
    {"dense in 16 bits", "residual|rank 0|rank 2", "dense", change_value_codec,
     TAMIS_E_UNSUPPORTED},
    {"order of sparse sums", "other than dense|rank 0|rank 2", "tamis", change_sum_order,
     TAMIS_E_UNSUPPORTED},
    {"order of a host's sums", "the host drives|rank 0|rank 2", "dense", change_sum_order,
     TAMIS_E_UNSUPPORTED},
};

static void check_difference(const struct difference *difference) {
    for (uint32_t odd = 0; odd < NRANKS; odd += 2) {
        struct scene scene = {.difference = difference, .odd_rank = odd};
        test_context("%s differs on rank %u", difference->name, odd);
        ranks_run(NRANKS, 0, run_scene, &scene);
    }
}

static void test_every_field_must_agree(void **state) {
    (void)state;
    for (size_t d = 0; d < sizeof differences / sizeof differences[0]; d++)
        check_difference(&differences[d]);
}

static void test_nobody_waits_for_a_refused_rank(void **state) {
    (void)state;
    for (size_t d = 0; d < sizeof refusals / sizeof refusals[0]; d++)
        check_difference(&refusals[d]);
}

/* Threads do not change results, so ranks may differ in them. */
static void run_threads_differ(test_rank *self) {
    struct wish mine = usual_wish("tamis");
    tamis_reducer *reducer = NULL;
    mine.config.threads = 1 + self->id % 2;
    RANK_OK(self, create(self, &mine, &reducer));
    run_step(self, reducer);
    tamis_reducer_destroy(reducer);
}

static void test_threads_may_differ(void **state) {
    (void)state;
    test_context("threads differ");
    ranks_run(NRANKS, 0, run_threads_differ, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_field_must_agree),
        cmocka_unit_test(test_nobody_waits_for_a_refused_rank),
        cmocka_unit_test(test_threads_may_differ),
    };
    return cmocka_run_group_tests_name("handshake", tests, NULL, NULL);
}
