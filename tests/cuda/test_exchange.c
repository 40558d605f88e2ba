/* SPDX-License-Identifier: MIT
 *
 * Kernels on the CPU and host path on a fake runtime: sums over many ranks, an exchange on the
 * device that finds numbers that are not finite, and the ways in which its steps are enqueued. What
 * it refuses is test_refusal.c's, whole steps in good health are test_whole_step.c's.
 */
#include "tests/cuda/exchange_world.h"
#include "tests/cuda/fake.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

#define PAIRS "all+global+exact+pairs"

/* -- the order of sums ------------------------------------------------------------------------ */

static void go_on(exchange_endpoint *s) {
    exchange_go_on(s, 2);
}

/* Some in registers, some from a stack; with virtual ranks without a real one, and without such. */
static void test_sums_over_many_ranks_have_the_bits_of_the_cpu(void **state) {
    static const uint32_t nranks[] = {5, 8, 13, 16};
    exchange_trial t = exchange_usual();
    (void)state;
    fake_cuda_devices(16);
    t.n = 900;
    t.real = true;
    for (size_t i = 0; i < 8; i++) {
        t.scheme = i % 2 ? PAIRS : "tamis";
        t.nranks = nranks[i / 2];
        t.density = i % 2 ? 0.3 : 0.1; /* so that lists overlap */
        test_context("%u ranks, %s", t.nranks, t.scheme);
        exchange_run(&t, go_on);
    }
    fake_cuda_reset();
}

/* -- numbers that are not finite -------------------------------------------------------------- */

enum { BAD_STEP = 1, LAST = 2 };

/* In the gradient of the last rank, whose header tells. The second is what stands for "absent". */
static void put_nan(uint32_t rank, uint32_t step, size_t n, float *grad) {
    const uint32_t absent = TAM_CUDA_ABSENT;
    if (step != BAD_STEP || rank != LAST)
        return;
    grad[0] = INFINITY;
    memcpy(&grad[n / 2], &absent, sizeof absent);
    grad[n - 1] = NAN;
}

/* Finite on every rank; the sums are not. */
static void put_large(uint32_t rank, uint32_t step, size_t n, float *grad) {
    (void)rank;
    for (size_t i = 0; step == BAD_STEP && i < n; i += 97)
        grad[i] = i % 2 ? 3e38f : -3e38f;
}

static void step_on_bad_numbers(exchange_endpoint *s) {
    bool in_sums = s->trial->touch == put_large;
    for (int i = 0; i < 4 && !exchange_failed(s); i++) {
        exchange_step(s, 0);
        exchange_follow(s, true);
        const tam_cuda_report *r = &s->report;
        bool refused = i == BAD_STEP && s->trial->policy != TAMIS_NONFINITE_DROP;
        RANK_CHECK(s->self, i < BAD_STEP || i > BAD_STEP || r->nonfinite > 0, "nothing was found");
        RANK_CHECK(s->self, (r->status == TAMIS_E_NONFINITE) == refused, "step %d: %s", i,
                   tamis_status_name((tamis_status)r->status));
        RANK_CHECK(s->self, r->in_sums == (refused && in_sums), "step %d: in_sums %u", i,
                   r->in_sums);
        RANK_CHECK(s->self, r->rank == (refused && !in_sums ? LAST : 0), "step %d: rank %u", i,
                   r->rank);
    }
}

static void test_bad_numbers_are_found_as_on_the_cpu(void **state) {
    static const char *const schemes[] = {"tamis", PAIRS};
    exchange_trial t = exchange_usual();
    (void)state;
    t.real = true;
    for (int policy = TAMIS_NONFINITE_ERROR; policy <= TAMIS_NONFINITE_DROP; policy++)
        for (int i = 0; i < 4; i++) {
            t.scheme = schemes[i % 2];
            t.policy = (tamis_nonfinite)policy;
            t.touch = i < 2 ? put_nan : put_large;
            t.value_codec =
                (tamis_value_codec)(TAMIS_VALUE_AUTO + (i + 4 * policy) % TAMIS_VALUE_END);
            test_context("%s, policy %d, %s, value codec %d", t.scheme, policy,
                         i < 2 ? "NaN" : "large sums", t.value_codec);
            exchange_run(&t, step_on_bad_numbers);
        }
}

/* -- how steps are enqueued ------------------------------------------------------------------- */

static void take_turns(exchange_endpoint *s) {
    for (const char *place = "ABABAAABBBABA"; *place && !exchange_failed(s); place++) {
        exchange_step(s, *place == 'B');
        exchange_follow(s, true);
    }
}

static void test_one_graph_serves_every_buffer(void **state) {
    exchange_trial t = exchange_usual();
    (void)state;
    t.nranks = 2;
    for (int i = 0; i < 3; i++) {
        t.by_segment = i == 1;
        t.direct = i == 2;
        test_context("two buffers in turn, %d", i);
        fake_cuda_reset();
        exchange_run(&t, take_turns);
        assert_int_equal(fake_cuda_calls("cudaGraphInstantiate"), t.direct ? 0 : t.nranks);
        assert_int_equal(fake_cuda_calls("cudaGraphLaunch"), t.direct ? 0 : 13 * t.nranks);
    }
}

static void step_by_both(exchange_endpoint *s) {
    /* h, H: by the host, on one or the other gradient; g: the graph, which works on the first */
    for (const char *how = "hhHgggHghgHHg"; *how && !exchange_failed(s); how++) {
        if (*how == 'g')
            exchange_step_by_graph(s);
        else
            exchange_step(s, *how == 'H');
        exchange_follow(s, true);
    }
}

static void test_steps_of_the_host_and_of_a_graph_of_the_caller_mix(void **state) {
    exchange_trial t = exchange_usual();
    (void)state;
    for (int i = 0; i < 3; i++) {
        t.scheme = i == 2 ? PAIRS : "tamis";
        t.by_segment = i == 1;
        test_context("captured by the caller, %s, %d", t.scheme, i);
        exchange_run(&t, step_by_both);
    }
}

static const char *failing;

/* The call that fails is named, and the step is none the worse. */
static void capture_and_fail(exchange_endpoint *s) {
    test_rank *self = s->self;
    fake_cuda_fail(failing, 1, cudaErrorStreamCaptureUnsupported);
    RANK_STATUS(self, TAMIS_E_DEVICE, tam_cuda_step_capture(s->step, exchange_enqueue, s));
    RANK_CHECK(self, has_word(tamis_last_error(), "TAMIS_GRAPHS=off"), "%s", tamis_last_error());
    exchange_go_on(s, 3);
}

static void test_a_step_that_cannot_be_captured_says_so(void **state) {
    static const char *const calls[] = {"cudaStreamBeginCapture", "cudaGraphInstantiate"};
    exchange_trial t = exchange_usual();
    (void)state;
    t.nranks = 1;
    t.direct = true;
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        failing = calls[i];
        test_context("%s fails", failing);
        fake_cuda_reset();
        exchange_run(&t, capture_and_fail);
        assert_int_equal(fake_cuda_calls("cudaGraphLaunch"), 0);
    }
    fake_cuda_reset();
}

static void ask_wrongly(exchange_endpoint *s) {
    test_rank *self = s->self;
    cudaGraph_t graph = NULL;
    tam_cuda_report report;
    bool done = false;
    exchange_go_on(s, TAM_CUDA_STEPS + 1);
    if (exchange_failed(s))
        return;
    RANK_STATUS(self, TAMIS_E_STATE, tam_cuda_step_poll(s->step, 1, &done, &report));
    RANK_CHECK(self, has_word(tamis_last_error(), "overwritten"), "%s", tamis_last_error());
    RANK_CHECK(self, !cudaStreamBeginCapture(s->stream, cudaStreamCaptureModeThreadLocal), "begin");
    RANK_STATUS(self, TAMIS_E_STATE, tam_cuda_step_join(s->step, s->stream));
    RANK_CHECK(self, has_word(tamis_last_error(), "both"), "%s", tamis_last_error());
    RANK_CHECK(self, !cudaStreamEndCapture(s->stream, &graph), "the capture was disturbed");
    cudaGraphDestroy(graph);
    exchange_go_on(s, 1);
}

static void test_calls_out_of_order_are_named_and_do_nothing(void **state) {
    exchange_trial t = exchange_usual();
    (void)state;
    t.nranks = 1;
    t.by_segment = true;
    test_context("calls out of order");
    exchange_run(&t, ask_wrongly);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sums_over_many_ranks_have_the_bits_of_the_cpu),
        cmocka_unit_test(test_bad_numbers_are_found_as_on_the_cpu),
        cmocka_unit_test(test_one_graph_serves_every_buffer),
        cmocka_unit_test(test_steps_of_the_host_and_of_a_graph_of_the_caller_mix),
        cmocka_unit_test(test_a_step_that_cannot_be_captured_says_so),
        cmocka_unit_test(test_calls_out_of_order_are_named_and_do_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
