/* SPDX-License-Identifier: MIT
 *
 * Host path on a fake runtime (with the kernels on the CPU below it): steps that the device runs by
 * itself and that go wrong. Whatever fails is named and loses nothing: the residual can be saved,
 * or the last file stays.
 *
 * test: waits release
 */
#include "tests/cuda/fake.h"
#include "tests/cuda/endpoint.h"
#include "tests/support/data.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <tamis/overlap.h>
#include <tamis/state.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

enum { RANKS = 3 };

/* A deadline that a step in good order keeps also under a sanitizer, beside other tests. */
static uint32_t short_ms(void) {
    return test_stretch_ms(3000);
}

static bool open_impatient(test_rank *self, endpoint *out) {
    endpoint_order order = {.timeout_ms = short_ms()};
    return endpoint_open(self, &order, out);
}

/* -- ranks that do not come ------------------------------------------------------------------- */

/* A failed step leaves its gradient in the residual, which can be saved. */
static void check_kept(test_rank *self, endpoint *s) {
    char path[SCRATCH_PATH];
    const float *residual = NULL;
    endpoint_path(self, "silent", path);
    RANK_OK(self, tamis_reducer_save(s->reducer, path));
    RANK_OK(self, tamis_reducer_residual(s->reducer, &residual));
    RANK_CHECK(self, memcmp(residual, s->given, ENDPOINT_BYTES) == 0,
               "the residual does not hold the gradient");
}

static void wait_for_silent(test_rank *self, endpoint *s) {
    tamis_step step = endpoint_step(s);
    uint64_t begin_ms = now_ms();
    endpoint_put(self, s, 0);
    RANK_OK(self, tamis_reducer_start(s->reducer, &step));
    self->where = "wait for a silent rank";
    tamis_status status = tamis_reducer_wait(s->reducer);
    uint64_t took_ms = now_ms() - begin_ms;
    RANK_CHECK(self, status == TAMIS_E_TIMEOUT, "%s", tamis_status_name(status));
    RANK_CHECK(self, took_ms <= short_ms() + test_grace_ms(), "%llu ms",
               (unsigned long long)took_ms);
    RANK_STATUS(self, TAMIS_E_TIMEOUT, tamis_reducer_start(s->reducer, &step));
    check_kept(self, s);
}

static void stay_silent(test_rank *self) {
    endpoint s;
    if (!open_impatient(self, &s))
        return;
    RANK_BARRIER(self);
    if (self->id != 1) /* which is there, but never starts */
        wait_for_silent(self, &s);
    RANK_BARRIER(self);
    endpoint_close(&s);
}

static void test_a_silent_rank_is_a_timeout_and_nothing_is_lost(void **state) {
    (void)state;
    ranks_run(RANKS, short_ms(), stay_silent, NULL);
}

/* One segment is marked and no more, after a step that ended well. */
static void forget_segments(test_rank *self) {
    endpoint s;
    if (!open_impatient(self, &s))
        return;
    tamis_step step = endpoint_step(&s);
    RANK_BARRIER(self);
    endpoint_wait(self, &s, 0, 1);
    RANK_OK(self, tamis_reducer_ready(s.reducer, 0, &step));
    uint64_t begin_ms = now_ms();
    self->where = "wait for segments that are never ready";
    RANK_STATUS(self, TAMIS_E_TIMEOUT, tamis_reducer_wait(s.reducer));
    RANK_CHECK(self, now_ms() - begin_ms <= short_ms() + test_grace_ms(), "%llu ms",
               (unsigned long long)(now_ms() - begin_ms));
    RANK_SAYS(self, "segments are missing");
    RANK_BARRIER(self);
    endpoint_close(&s);
}

static void test_a_segment_never_ready_is_a_timeout(void **state) {
    (void)state;
    ranks_run(1, short_ms(), forget_segments, NULL);
}

/* Rank 0 goes on for some steps, rank 1 for one. */
static void start_apart(test_rank *self, endpoint *s) {
    tamis_step step = endpoint_step(s);
    for (uint32_t i = 0; i < (self->id == 0 ? 4 : 1); i++) {
        tamis_status status = tamis_reducer_start(s->reducer, &step);
        RANK_CHECK(self, status == TAMIS_OK || (i > 0 && status == TAMIS_E_PROTOCOL), "%s",
                   tamis_last_error());
        if (status == TAMIS_OK)
            RANK_OK(self, tamis_reducer_join(s->reducer, s->stream));
    }
}

/* Rank 1 goes on from another step than the others believe; rank 0 is steps ahead by then. What
 * rank 0 has enqueued never finds its partners, and must not keep it from saving. */
static void fall_out_of_step(test_rank *self) {
    endpoint s;
    char path[SCRATCH_PATH];
    if (!endpoint_open(self, NULL, &s))
        return;
    tamis_step step = endpoint_step(&s);
    endpoint_path(self, "ahead", path);
    endpoint_wait(self, &s, 0, 1);
    RANK_OK(self, tamis_reducer_save(s.reducer, path));
    endpoint_wait(self, &s, 1, 2);
    if (self->id == 1)
        RANK_OK(self, tamis_reducer_load(s.reducer, path));
    start_apart(self, &s);
    uint64_t begin_ms = now_ms();
    self->where = "save after a refusal";
    RANK_OK(self, tamis_reducer_save(s.reducer, path));
    RANK_CHECK(self, now_ms() - begin_ms < test_long_ms() / 2, "saving took %llu ms",
               (unsigned long long)(now_ms() - begin_ms));
    RANK_STATUS(self, TAMIS_E_PROTOCOL, tamis_reducer_start(s.reducer, &step));
    RANK_BARRIER(self);
    endpoint_close(&s);
}

static void test_a_rank_ahead_of_a_refusal_can_save(void **state) {
    (void)state;
    ranks_run(2, 0, fall_out_of_step, NULL);
}

/* -- devices that fail ------------------------------------------------------------------------ */

typedef struct launch {
    const char *what;
    unsigned nth;
} launch;

/* A launch that fails leaves the device as it is: the residual can be saved. */
static void fail_to_launch(test_rank *self) {
    const launch *fails = self->shared;
    const float *residual = NULL;
    char path[SCRATCH_PATH];
    endpoint s;
    if (!open_impatient(self, &s))
        return;
    tamis_step step = endpoint_step(&s);
    RANK_BARRIER(self);
    if (self->id == 0)
        fake_cuda_fail(fails->what, fails->nth, cudaErrorLaunchOutOfResources);
    RANK_BARRIER(self);
    endpoint_put(self, &s, 0);
    self->where = "a step in which a launch fails";
    tamis_status status = endpoint_try(&s);
    RANK_CHECK(self, tamis_status_loss(status) == TAMIS_LOST_COMM, "%s: %s",
               tamis_status_name(status), tamis_last_error());
    RANK_STATUS(self, tamis_comm_status(s.comm), tamis_reducer_start(s.reducer, &step));
    endpoint_path(self, "launch", path);
    RANK_OK(self, tamis_reducer_save(s.reducer, path));
    RANK_OK(self, tamis_reducer_residual(s.reducer, &residual));
    for (size_t i = 0; i < ENDPOINT_N; i++)
        RANK_CHECK(self, residual[i] + s.grad[i] == s.given[i], "entry %zu is lost", i);
    RANK_BARRIER(self);
    endpoint_close(&s);
}

static void test_a_failing_launch_is_named_and_the_state_saved(void **state) {
    /* Launches of both ranks together: each launches two kernels beside its graph. */
    static launch launches[] = {
        {"kernel", 1}, {"kernel", 3}, {"kernel", 4}, {"cudaGraphLaunch", 1}};
    (void)state;
    for (size_t i = 0; i < sizeof launches / sizeof launches[0]; i++) {
        if (!test_drawn(2))
            continue;
        ranks_run(2, short_ms(), fail_to_launch, &launches[i]);
        fake_cuda_reset();
    }
}

/* Rank 0's device is broken. */
static void step_on_broken(test_rank *self, endpoint *s) {
    self->where = "a step on a broken device";
    tamis_status status = endpoint_try(s);
    bool named =
        self->id == 0 ? status == TAMIS_E_DEVICE : tamis_status_loss(status) == TAMIS_LOST_COMM;
    RANK_CHECK(self, named, "%s: %s", tamis_status_name(status), tamis_last_error());
}

/* After a fault in a kernel CUDA gives nothing back: the file of before stays. */
static void break_device(test_rank *self) {
    endpoint s;
    char path[SCRATCH_PATH];
    size_t before = 0, after = 0;
    if (!open_impatient(self, &s))
        return;
    endpoint_path(self, "broken", path);
    endpoint_wait(self, &s, 0, 1);
    RANK_OK(self, tamis_reducer_save(s.reducer, path));
    free(scratch_read(path, &before));
    RANK_BARRIER(self);
    if (self->id == 0)
        fake_cuda_break(0, cudaErrorIllegalAddress);
    RANK_BARRIER(self);
    step_on_broken(self, &s);
    RANK_STATUS(self, self->id == 0 ? TAMIS_E_DEVICE : TAMIS_OK,
                tamis_reducer_save(s.reducer, path));
    free(scratch_read(path, &after));
    RANK_CHECK(self, before > 0 && after == before, "the file has changed");
    RANK_BARRIER(self);
    endpoint_close(&s);
}

static void test_a_broken_device_is_named_and_the_last_file_stays(void **state) {
    (void)state;
    ranks_run(2, short_ms(), break_device, NULL);
    fake_cuda_reset();
}

/* -- what is refused -------------------------------------------------------------------------- */

/* Creation while the nth call of a function fails. @return the status of it */
static tamis_status create_short(test_rank *self, tamis_comm *comm, const char *function,
                                 unsigned nth) {
    tamis_reducer_config config = endpoint_config(TAMIS_DEVICE_CUDA, NULL);
    tamis_reducer *reducer = NULL;
    fake_cuda_reset();
    fake_cuda_objects before = fake_cuda_alive();
    fake_cuda_fail(function, nth, cudaErrorMemoryAllocation);
    tamis_status status = data_reducer(comm, ENDPOINT_N, &config, &reducer);
    if ((status == TAMIS_OK) != (reducer != NULL))
        rank_fail(self, __FILE__, __LINE__, "an output was written");
    if (status != TAMIS_OK && status != TAMIS_E_NOMEM)
        rank_fail(self, __FILE__, __LINE__, "%s: %s", tamis_status_name(status),
                  tamis_last_error());
    tamis_reducer_destroy(reducer);
    fake_cuda_objects after = fake_cuda_alive();
    if (memcmp(&before, &after, sizeof before) != 0)
        rank_fail(self, __FILE__, __LINE__, "%s %u left something behind", function, nth);
    return self->failure[0] ? TAMIS_OK : status;
}

/* On one rank, for every allocation of a creation. */
static void run_out_of_memory(test_rank *self) {
    static const char *const functions[] = {"cudaMalloc", "cudaHostAlloc", "cudaMallocHost"};
    tamis_comm *comm = NULL;
    endpoint_connect(self, 0, &comm);
    for (size_t f = 0; f < 3 && !self->failure[0]; f++) {
        unsigned nth = 1;
        while (create_short(self, comm, functions[f], nth) == TAMIS_E_NOMEM)
            nth++;
    }
    fake_cuda_reset();
    tamis_comm_destroy(comm);
}

static void test_too_little_memory_is_a_clean_error(void **state) {
    (void)state;
    ranks_run(1, 0, run_out_of_memory, NULL);
}

static void give_host_memory(test_rank *self) {
    static float host[RANKS_MOST][ENDPOINT_N];
    endpoint s;
    if (!endpoint_open(self, NULL, &s))
        return;
    tamis_step step = endpoint_step(&s);
    step.grad = host[self->id];
    RANK_STATUS(self, TAMIS_E_ARGUMENT, tamis_reducer_start(s.reducer, &step));
    RANK_SAYS(self, "host memory");
    endpoint_wait(self, &s, 0, 3);
    endpoint_compare(self, NULL, 0, 3, s.got);
    endpoint_close(&s);
}

static void test_host_memory_is_refused_without_effect(void **state) {
    (void)state;
    ranks_run(2, 0, give_host_memory, NULL);
}

/* Rank 1 has another configuration; the sentence names what differs. */
static void refuse(test_rank *self, tamis_comm *comm, const tamis_reducer_config *config,
                   const char *word) {
    tamis_reducer *reducer = NULL;
    RANK_STATUS(self, TAMIS_E_MISMATCH, data_reducer(comm, ENDPOINT_N, config, &reducer));
    RANK_SAYS(self, word);
}

static void differ(test_rank *self) {
    tamis_reducer_config type = endpoint_config(TAMIS_DEVICE_CUDA, NULL), device = type;
    tamis_comm *comm = NULL;
    endpoint_connect(self, 0, &comm);
    if (self->id == 1) {
        type.grad_dtype = TAMIS_DTYPE_BFLOAT16;
        device.device = TAMIS_DEVICE_CPU;
    }
    refuse(self, comm, &type, "grad_dtype");
    refuse(self, comm, &device, "device");
    tamis_comm_destroy(comm);
}

static void test_ranks_that_differ_are_told_on_all(void **state) {
    (void)state;
    ranks_run(RANKS, 0, differ, NULL);
}

int main(void) {
    char path[SCRATCH_PATH];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_silent_rank_is_a_timeout_and_nothing_is_lost),
        cmocka_unit_test(test_a_segment_never_ready_is_a_timeout),
        cmocka_unit_test(test_a_rank_ahead_of_a_refusal_can_save),
        cmocka_unit_test(test_a_failing_launch_is_named_and_the_state_saved),
        cmocka_unit_test(test_a_broken_device_is_named_and_the_last_file_stays),
        cmocka_unit_test(test_too_little_memory_is_a_clean_error),
        cmocka_unit_test(test_host_memory_is_refused_without_effect),
        cmocka_unit_test(test_ranks_that_differ_are_told_on_all),
    };
    scratch_path("", path); /* before there are threads */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
