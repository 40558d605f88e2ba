/* SPDX-License-Identifier: MIT
 *
 * Kernels on the CPU and host path on a fake runtime: scheme dense on the device, in many small
 * pieces and below the reducer. Collectives are copies between ranks that are threads, in stream
 * order, so that one of them can be left out or held up.
 *
 * test: release
 */
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/step.h"
#include "kernels/cuda/view.h"
#include "lib/base/half.h"
#include "lib/policy/grid.h"
#include "tests/cuda/fake.h"
#include "tests/cuda/rank.h"
#include "tests/support/data.h"
#include <cuda_runtime_api.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

enum { N = 5203, RANKS = 3, PIECE = 700, NOWHERE = -1 };

#define SCALE 0.37f

/* How the host launches a step. */
typedef enum launch { DIRECTLY, AS_GRAPH, IN_GRAPH_OF_CALLER, LAUNCHES } launch;

/* One trial, the same for all ranks. */
typedef struct trial {
    launch how;
    tamis_sum_order order;
    tamis_dtype type;
    bool by_segment;
    uint32_t shift; /* of every gradient, in elements: misaligned */
    float scale;
    tamis_nonfinite policy;
    int lost_piece; /* its collective `lost` brings nothing to rank 1; NOWHERE: all is well */
    tam_cuda_comm_phase lost;
    bool held; /* the second piece stays on the wire until the first one was added */
} trial;

typedef struct endpoint {
    test_rank *self;
    trial *trial;
    tamis_layout *layout;
    tam_division division;
    void *device;
    tam_cuda_step *step;
    cudaStream_t stream;
    char *memory; /* device: segments one after another, each `shift` after a multiple of 16 */
    void *grads[DATA_SEGMENTS_MOST];
    char *expected;                 /* [N] in the gradient's type */
    cudaGraphExec_t graph;          /* IN_GRAPH_OF_CALLER: the step; NULL: not yet */
    int sent[TAM_CUDA_COMM_PHASES]; /* collectives of each kind that were enqueued for the step */
    tam_cuda_comm_buffers buffers;  /* of the piece that is sent */
    atomic_bool over;               /* nothing is lost any more */
    atomic_bool added;              /* the first piece, in the step */
    atomic_bool alone;              /* nothing ran beside a collective that was held */
} endpoint;

static endpoint endpoints[RANKS]; /* streams of a rank that failed may still use its own */

/* -- an endpoint ------------------------------------------------------------------------------ */

static size_t capacity_of(size_t count) {
    return (count * 4 + 64) & ~(size_t)15;
}

enum { AROUND = 0xa5, MEMORY = N * 4 + DATA_SEGMENTS_MOST * 64 };

static uint32_t gradients_of(const endpoint *s) {
    return s->trial->by_segment ? s->layout->nsegments : 1;
}

static size_t length_of(const endpoint *s, uint32_t gradient) {
    return s->trial->by_segment ? tam_segment_length(s->layout, gradient) : N;
}

/* Gradients by segment lie apart; a flat one is a single segment. */
static void lay_out_gradients(endpoint *s) {
    size_t at = 0, bytes = tam_type_bytes(s->trial->type);
    memset(s->memory, AROUND, MEMORY);
    for (uint32_t i = 0; i < gradients_of(s); i++) {
        s->grads[i] = s->memory + at + s->trial->shift * bytes;
        at += capacity_of(length_of(s, i));
    }
}

/* What lies behind the gradients is nobody's to write. */
static void check_around(const endpoint *s) {
    size_t bytes = tam_type_bytes(s->trial->type);
    for (uint32_t i = 0; i < gradients_of(s); i++) {
        const unsigned char *end = (unsigned char *)s->grads[i] + length_of(s, i) * bytes;
        size_t left = capacity_of(length_of(s, i)) - (length_of(s, i) + s->trial->shift) * bytes;
        for (size_t b = 0; b < left; b++)
            RANK_CHECK(s->self, end[b] == AROUND, "type %d: byte %zu behind gradient %u is written",
                       (int)s->trial->type, b, i);
    }
}

static void *element(const endpoint *s, size_t index) {
    size_t bytes = tam_type_bytes(s->trial->type);
    uint32_t i = 0;
    if (!s->trial->by_segment)
        return (char *)s->grads[0] + index * bytes;
    while (i + 1 < s->layout->nsegments && s->layout->begins[i + 1] <= index)
        i++;
    return (char *)s->grads[i] + (index - s->layout->begins[i]) * bytes;
}

/* Also the reference for the CPU: element by element, as it is given. */
static void fill_gradients(endpoint *s, uint32_t step, char *flat) {
    size_t bytes = tam_type_bytes(s->trial->type);
    float *values = malloc(N * sizeof *values);
    data_fill_real(s->self->id, step, N, values);
    tam_narrow(values, N, s->trial->type, flat);
    for (size_t i = 0; i < N; i++)
        memcpy(element(s, i), flat + i * bytes, bytes);
    free(values);
}

/* -- collectives ------------------------------------------------------------------------------ */

typedef struct ticket {
    endpoint *endpoint;
    tam_cuda_comm_buffers buffers;
    tam_cuda_comm_phase phase;
    int piece;
} ticket;

static float value_of(const endpoint *s, size_t i) {
    return ((const float *)(const void *)s->buffers.values)[i];
}

/* In the order of the tree over three ranks, so that the bits are those of the CPU. */
static void add_up(const tam_cuda_comm_buffers *mine) {
    float *sums = (float *)(void *)mine->shards;
    for (size_t i = 0; i < RANKS * mine->shard_bytes / sizeof sums[0]; i++)
        sums[i] =
            value_of(&endpoints[0], i) + value_of(&endpoints[1], i) + value_of(&endpoints[2], i);
}

static void copy(const endpoint *s, tam_cuda_comm_phase phase) {
    const tam_cuda_comm_buffers *mine = &s->buffers;
    uint32_t own = s->self->id;
    if (phase == TAM_CUDA_VALUES)
        add_up(mine);
    for (uint32_t r = 0; r < RANKS; r++) {
        const tam_cuda_comm_buffers *from = &endpoints[r].buffers;
        size_t bytes = mine->shard_bytes, packet = r * mine->packet_bytes;
        if (phase == TAM_CUDA_SHARDS)
            memcpy(mine->shards + r * bytes, from->values + own * bytes, bytes);
        else if (phase == TAM_CUDA_SUMS && r != own)
            memcpy(mine->sums + r * bytes, from->sums + r * bytes, bytes);
        else if (phase == TAM_CUDA_PACKETS && r != own)
            memcpy(mine->packets + packet, from->packets + packet, mine->packet_bytes);
    }
}

static bool is_lost(const endpoint *s, const ticket *t) {
    return !atomic_load(&s->over) && t->piece == s->trial->lost_piece &&
           t->phase == s->trial->lost && s->self->id == 1;
}

/* Until kernels of the first piece have run, beside this collective of the second. */
static void await_kernels(endpoint *s) {
    uint64_t end = now_ms() + test_long_ms() / 2;
    while (!atomic_load(&s->added) && now_ms() < end)
        sleep_ms(1);
    atomic_store(&s->alone, !atomic_load(&s->added));
}

/* On the thread of a stream. */
static void run_comm(void *context) {
    const ticket *t = context;
    endpoint *s = t->endpoint;
    s->buffers = t->buffers;
    if (s->trial->held && t->phase == TAM_CUDA_SHARDS && t->piece == 1)
        await_kernels(s);
    if (!rank_barrier(s->self))
        return;
    if (!is_lost(s, t))
        copy(s, t->phase);
    (void)rank_barrier(s->self);
}

static void record_added(void *context) {
    endpoint *s = context;
    atomic_store(&s->added, true);
}

static tamis_status enqueue_comm(void *context, const tam_cuda_comm_buffers *buffers,
                                 tam_cuda_comm_phase phase) {
    endpoint *s = context;
    ticket *t = malloc(sizeof *t);
    int piece = s->sent[phase]++;
    if (!t)
        return TAMIS_E_NOMEM;
    *t = (ticket){s, *buffers, phase, piece};
    if (fake_cuda_enqueue(buffers->stream, "collective", run_comm, t, free))
        return TAMIS_E_TRANSPORT;
    if (phase != TAM_CUDA_SUMS || piece > 0)
        return TAMIS_OK;
    return fake_cuda_enqueue(s->step->group->comm_stream, "record", record_added, s, NULL)
               ? TAMIS_E_TRANSPORT
               : TAMIS_OK;
}

static tamis_status enqueue(void *context, tam_cuda_step *step) {
    endpoint *s = context;
    memset(s->sent, 0, sizeof s->sent);
    return tam_cuda_dense_reduce(step, enqueue_comm, s);
}

/* -- life of an endpoint ---------------------------------------------------------------------- */

static void open_endpoint(test_rank *self, endpoint **out) {
    trial *what = self->shared;
    tam_scheme scheme;
    endpoint *s = *out = &endpoints[self->id];
    memset(s, 0, sizeof *s);
    s->self = self;
    s->trial = what;
    s->layout = data_layout(N);
    s->expected = malloc(N * 4);
    RANK_CHECK(self, s->layout && s->expected, "no memory");
    RANK_CUDA(self, cudaSetDevice((int)self->id));
    RANK_OK(self, tam_scheme_parse("dense", &scheme));
    RANK_OK(self, tam_division_open(s->layout, scheme, RANKS, 0, &s->division));
    RANK_OK(self, tam_device_cuda.open(&s->division.grid, 0, 1, &s->device));
    RANK_CUDA(self, cudaStreamCreateWithFlags(&s->stream, cudaStreamNonBlocking));
    RANK_CUDA(self, cudaMalloc((void **)&s->memory, MEMORY));
    tam_cuda_plan plan = {
        .grid = &s->division.grid,
        .rank = self->id,
        .nranks = RANKS,
        .type = what->type,
        .divisor = RANKS,
        .nonfinite = what->policy,
        .sum_order = what->order,
    };
    RANK_OK(self, tam_cuda_dense_open(s->device, &plan, PIECE, &s->step));
    RANK_OK(self, tam_cuda_step_load(s->step, 0, &(tam_cuda_past){.number = 7}));
    if (what->how == AS_GRAPH)
        RANK_OK(self, tam_cuda_step_capture(s->step, enqueue, s));
    lay_out_gradients(s);
}

static void close_endpoint(endpoint *s) {
    if (s->graph)
        cudaGraphExecDestroy(s->graph);
    tam_cuda_step_close(s->step);
    cudaFree(s->memory);
    cudaStreamDestroy(s->stream);
    tam_device_cuda.close(s->device);
    tam_division_close(&s->division);
    tamis_layout_destroy(s->layout);
    free(s->expected);
}

/* -- a step ----------------------------------------------------------------------------------- */

static tamis_status start(endpoint *s, float scale, uint64_t *serial) {
    tam_accumulate target = {
        .grad = s->trial->by_segment ? NULL : s->grads[0],
        .grads = s->grads,
        .type = s->trial->type,
        .scale = scale,
    };
    TAM_TRY(tam_cuda_step_run(s->step, &target, s->stream, enqueue, s, serial));
    return tam_cuda_step_join(s->step, s->stream);
}

/* The scale stays that of the first step. */
static tamis_status launch_graph(endpoint *s, float scale, uint64_t *serial) {
    cudaGraph_t graph;
    if (!s->graph) {
        if (cudaStreamBeginCapture(s->stream, cudaStreamCaptureModeThreadLocal) != cudaSuccess)
            return TAMIS_E_DEVICE;
        TAM_TRY(start(s, scale, serial));
        if (cudaStreamEndCapture(s->stream, &graph) != cudaSuccess ||
            cudaGraphInstantiate(&s->graph, graph, 0) != cudaSuccess)
            return TAMIS_E_DEVICE;
        cudaGraphDestroy(graph);
    }
    if (cudaGraphLaunch(s->graph, s->stream) != cudaSuccess ||
        cudaStreamSynchronize(s->stream) != cudaSuccess)
        return TAMIS_E_DEVICE;
    return TAMIS_OK;
}

static tamis_status run(endpoint *s, float scale, tam_cuda_report *out) {
    bool done = false;
    uint64_t serial = 0, since = now_ms();
    atomic_store(&s->added, false);
    if (s->trial->how == IN_GRAPH_OF_CALLER)
        TAM_TRY(launch_graph(s, scale, &serial));
    else
        TAM_TRY(start(s, scale, &serial));
    while (!done && now_ms() - since < test_long_ms())
        TAM_TRY(tam_cuda_step_poll(s->step, serial, &done, out));
    return done ? TAMIS_OK : TAMIS_E_TIMEOUT;
}

/* `expected` becomes what the CPU makes of it. */
static void reduce_on_cpu(endpoint *s) {
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    tamis_reducer *reducer = NULL;
    tamis_step step = TAMIS_STEP_INIT;
    config.scheme = "dense";
    config.grad_dtype = s->trial->type;
    config.nonfinite =
        s->trial->policy == TAMIS_NONFINITE_ERROR ? TAMIS_NONFINITE_SKIP : s->trial->policy;
    config.op = TAMIS_OP_MEAN;
    step.grad = s->expected;
    step.scale = s->trial->scale;
    RANK_OK(s->self, tamis_reducer_create(s->self->comm, s->layout, &config, &reducer));
    RANK_OK(s->self, tamis_reducer_start(reducer, &step));
    RANK_OK(s->self, tamis_reducer_wait(reducer));
    tamis_reducer_destroy(reducer);
}

static void compare(endpoint *s) {
    size_t bytes = tam_type_bytes(s->trial->type);
    for (size_t i = 0; i < N; i++)
        RANK_CHECK(s->self, memcmp(element(s, i), s->expected + i * bytes, bytes) == 0,
                   "type %d, shift %u: element %zu differs from the CPU's", (int)s->trial->type,
                   s->trial->shift, i);
    check_around(s);
}

static void reduce(test_rank *self) {
    endpoint *s;
    tam_cuda_report report;
    open_endpoint(self, &s);
    if (self->failure[0])
        return;
    RANK_CHECK(self, tam_cuda_dense_pieces(s->step) > N / PIECE, "too few pieces");
    for (uint32_t step = 0; step < 2 && !self->failure[0]; step++) {
        fill_gradients(s, step, s->expected);
        RANK_OK(self, run(s, s->trial->scale, &report));
        RANK_CHECK(self,
                   report.status == TAMIS_OK && report.selected == N && report.step == 7 + step,
                   "status %u, %u entries, step %u", report.status, report.selected,
                   (unsigned)report.step);
        RANK_CHECK(self, !s->alone, "no kernel ran while a piece was on the wire");
        reduce_on_cpu(s);
        if (!self->failure[0])
            compare(s);
    }
    close_endpoint(s);
}

static trial usual(void) {
    return (trial){.scale = SCALE, .lost_piece = NOWHERE};
}

static void test_pieces_of_every_type_give_the_bits_of_the_cpu(void **state) {
    (void)state;
    for (int type = 0; type < 3; type++) {
        for (uint32_t shape = 0; shape < 4; shape++) {
            trial what = usual();
            if (!test_drawn(3))
                continue;
            what.type = (tamis_dtype)type;
            what.by_segment = shape & 1;
            what.shift = shape / 2;
            what.scale = shape == 3 ? 1.0f : SCALE;
            what.how = (launch)((shape + (uint32_t)type) % LAUNCHES);
            what.order = shape % 3 == 1 ? TAMIS_SUM_ORDER_TRANSPORT : TAMIS_SUM_ORDER_TREE;
            ranks_run(RANKS, 0, reduce, &what);
        }
    }
}

static void test_kernels_of_a_piece_run_beside_collectives_of_another(void **state) {
    trial what = usual();
    (void)state;
    what.held = true;
    ranks_run(RANKS, 0, reduce, &what);
}

/* -- not finite ------------------------------------------------------------------------------- */

static void put(endpoint *s, size_t index, uint32_t bits) {
    size_t bytes = tam_type_bytes(s->trial->type);
    memcpy(element(s, index), &bits, bytes); /* the lower half, on the machines that have CUDA */
    memcpy(s->expected + index * bytes, &bits, bytes);
}

/* One rank has an Inf, or what marks absent values; or all have 2^127 or what else overflows. */
static void step_on_bad(test_rank *self) {
    static const uint32_t one[] = {0xffa51edfu, 0x7c00, 0x7f80},
                          all[] = {0x7f000000u, 0x7c00, 0x7f00};
    endpoint *s;
    tam_cuda_report report;
    open_endpoint(self, &s);
    if (self->failure[0])
        return;
    bool drop = s->trial->policy == TAMIS_NONFINITE_DROP;
    fill_gradients(s, 0, s->expected);
    if (self->id == 2)
        put(s, 40, one[s->trial->type]);
    put(s, N - 1, all[s->trial->type]);
    RANK_OK(self, run(s, s->trial->scale, &report));
    RANK_CHECK(self, report.nonfinite == 2, "%u bad entries", (unsigned)report.nonfinite);
    RANK_CHECK(self, report.status == (drop ? TAMIS_OK : TAMIS_E_NONFINITE), "status %u",
               report.status);
    RANK_CHECK(self, report.selected == (drop ? N : 0), "%u entries", report.selected);
    reduce_on_cpu(s);
    if (!self->failure[0])
        compare(s);
    close_endpoint(s);
}

static void test_sums_that_are_not_finite_are_treated_as_on_the_cpu(void **state) {
    static const tamis_nonfinite policies[] = {TAMIS_NONFINITE_ERROR, TAMIS_NONFINITE_SKIP,
                                               TAMIS_NONFINITE_DROP};
    (void)state;
    for (size_t i = 0; i < 9; i++) {
        trial what = usual();
        if (!test_drawn(2))
            continue;
        what.policy = policies[i / 3];
        what.type = (tamis_dtype)(i % 3);
        what.by_segment = i % 2;
        what.scale = 1.0f;
        what.how = (launch)(i / 3);
        what.order = (tamis_sum_order)(i % 2);
        ranks_run(RANKS, 0, step_on_bad, &what);
    }
}

/* -- collectives that are given up ------------------------------------------------------------ */

/* Rank 1 must refuse; whoever needs its sums too. Then nobody reduces anything any more. What was
 * refused is not counted. */
static void lose_one(test_rank *self) {
    endpoint *s;
    tam_cuda_report report;
    open_endpoint(self, &s);
    if (self->failure[0])
        return;
    bool affected = self->id == 1 || s->trial->lost < TAM_CUDA_SUMS;
    fill_gradients(s, 0, s->expected);
    RANK_OK(self, run(s, s->trial->scale, &report));
    RANK_CHECK(self, report.status == (affected ? TAMIS_E_PROTOCOL : TAMIS_OK), "status %u",
               report.status);
    RANK_CHECK(self, !affected || report.selected == 0, "%u entries", report.selected);
    fill_gradients(s, 1, s->expected);
    s->over = true;
    RANK_OK(self, run(s, 2.0f, &report));
    RANK_CHECK(self, report.status == TAMIS_E_PROTOCOL && report.step == (affected ? 7 : 8),
               "status %u, step %u", report.status, (unsigned)report.step);
    compare(s);
    close_endpoint(s);
}

/* Entries that are dropped must not hide it. */
static void test_a_collective_that_is_given_up_is_noticed(void **state) {
    static const struct {
        tam_cuda_comm_phase lost;
        int piece;
        tamis_sum_order order;
    } cases[] = {
        {TAM_CUDA_PACKETS, 0, TAMIS_SUM_ORDER_TREE},
        {TAM_CUDA_PACKETS, 0, TAMIS_SUM_ORDER_TRANSPORT},
        {TAM_CUDA_SHARDS, 0, TAMIS_SUM_ORDER_TREE},
        {TAM_CUDA_SHARDS, 7, TAMIS_SUM_ORDER_TREE},
        {TAM_CUDA_SUMS, 0, TAMIS_SUM_ORDER_TREE},
        {TAM_CUDA_SUMS, 7, TAMIS_SUM_ORDER_TREE},
        {TAM_CUDA_VALUES, 0, TAMIS_SUM_ORDER_TRANSPORT},
        {TAM_CUDA_VALUES, 7, TAMIS_SUM_ORDER_TRANSPORT},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        trial what = usual();
        what.how = (launch)(i % LAUNCHES);
        what.order = cases[i].order;
        what.policy = TAMIS_NONFINITE_DROP;
        what.lost_piece = cases[i].piece;
        what.lost = cases[i].lost;
        ranks_run(RANKS, 0, lose_one, &what);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pieces_of_every_type_give_the_bits_of_the_cpu),
        cmocka_unit_test(test_kernels_of_a_piece_run_beside_collectives_of_another),
        cmocka_unit_test(test_sums_that_are_not_finite_are_treated_as_on_the_cpu),
        cmocka_unit_test(test_a_collective_that_is_given_up_is_noticed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
