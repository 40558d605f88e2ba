/* SPDX-License-Identifier: MIT
 *
 * Host path on a fake runtime (with the kernels on the CPU below it): how many kernels and
 * collectives a step runs that the device drives by itself. What is demanded stands in the tables
 * of docs/cuda.md, TEST_TABLES:
 *
 *     node              moves              usual shared ...
 *     collect           ...                    1      1
 *     -- all-gather --  ...                    1      1       a collective
 *     all               ...                   14     15       must be the sum of the others
 *
 * test: release
 */
#include "tests/cuda/fake.h"
#include "tests/cuda/rank.h"
#include "tests/support/data.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tamis/nccl.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

enum { RANKS = 2, SEGMENTS = 3, LENGTH = 700, N = SEGMENTS * LENGTH, WARM = 2, WORDS = 32 };

/* -- the tables ------------------------------------------------------------------------------- */

/* Launches of a step of one bucket. */
typedef struct column {
    unsigned kernels, collectives;
    unsigned control; /* of the kernels: once for all buckets */
    unsigned all;     /* as the table says */
} column;

static size_t split(char *line, char *words[WORDS]) {
    size_t count = 0;
    for (char *word = strtok(line, " \n"); word && count < WORDS; word = strtok(NULL, " \n"))
        words[count++] = word;
    return count;
}

/* Where a column stands, counted from the end of a row; 0: it is not in this table. */
static size_t find_place(char *const words[], size_t count, const char *name) {
    for (size_t i = 2; i < count; i++)
        if (strcmp(words[i], name) == 0)
            return count - i;
    return 0;
}

static void add_row(char *const words[], size_t count, size_t place, column *out) {
    unsigned number = 0;
    if (count < place || sscanf(words[count - place], "%u", &number) != 1)
        return;
    if (strcmp(words[0], "all") == 0)
        out->all = number;
    else if (strcmp(words[0], "--") == 0)
        out->collectives += number;
    else
        out->kernels += number;
    if (strcmp(words[0], "control") == 0)
        out->control = number;
}

static column read_column(const char *name) {
    char line[256], *words[WORDS];
    size_t place = 0;
    column found = {0};
    FILE *file = fopen(TEST_TABLES, "r");
    assert_non_null(file);
    while (found.all == 0 && fgets(line, sizeof line, file)) {
        size_t count = split(line, words);
        if (count == 0)
            place = 0;
        else if (strcmp(words[0], "node") == 0)
            place = find_place(words, count, name);
        else if (place > 0)
            add_row(words, count, place, &found);
    }
    fclose(file);
    if (found.all == 0 || found.all != found.kernels)
        fail_msg("docs/cuda.md, column %s: the sum is %u, not %u", name, found.kernels, found.all);
    return found;
}

/* -- steps ------------------------------------------------------------------------------------ */

typedef struct kind {
    const char *columns[2]; /* the second: what it adds to the usual */
    tamis_reducer_config config;
    bool captured;    /* by the caller */
    unsigned buckets; /* of one segment each; 0: one of all segments */
    unsigned more;    /* kernels, beside the table */
    column expected;  /* of a rank */
} kind;

static tamis_reducer_config config_of(const char *scheme, tamis_index_codec index) {
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    config.scheme = scheme;
    config.density = 0.05;
    config.device = TAMIS_DEVICE_CUDA;
    config.index_codec = index;
    return config;
}

static tamis_reducer_config rounded(tamis_reducer_config config) {
    config.value_codec = TAMIS_VALUE_BFLOAT16;
    return config;
}

static void expect(kind *k) {
    column usual = read_column("usual"), first = read_column(k->columns[0]);
    k->expected = first;
    if (k->columns[1]) {
        column second = read_column(k->columns[1]);
        k->expected.kernels += second.kernels - usual.kernels;
        k->expected.collectives += second.collectives - usual.collectives;
    }
    if (k->buckets > 0) {
        k->expected.kernels = k->buckets * (first.kernels - first.control) + first.control;
        k->expected.collectives *= k->buckets;
    }
    k->expected.kernels += k->more;
}

typedef struct stand {
    tamis_comm *comm;
    tamis_reducer *reducer;
    cudaStream_t stream;
    float *grad; /* device memory */
    tamis_step step;
} stand;

static void open_stand(test_rank *self, const kind *k, stand *out) {
    float grad[N];
    *out = (stand){.step = TAMIS_STEP_INIT};
    RANK_CUDA(self, cudaSetDevice((int)self->id));
    RANK_OK(self, tamis_comm_create_nccl(self->comm, NULL, &out->comm));
    RANK_OK(self, k->buckets
                      ? data_even_reducer(out->comm, SEGMENTS, LENGTH, &k->config, &out->reducer)
                      : data_reducer(out->comm, N, &k->config, &out->reducer));
    RANK_CUDA(self, cudaStreamCreateWithFlags(&out->stream, cudaStreamNonBlocking));
    RANK_CUDA(self, cudaMalloc((void **)&out->grad, sizeof grad));
    data_fill_real(self->id, 0, N, grad);
    RANK_CUDA(self, cudaMemcpy(out->grad, grad, sizeof grad, cudaMemcpyHostToDevice));
    out->step.grad = out->grad;
    out->step.stream = out->stream;
}

static void close_stand(stand *s) {
    tamis_reducer_destroy(s->reducer);
    tamis_comm_destroy(s->comm);
    cudaStreamDestroy(s->stream);
    cudaFree(s->grad);
}

static void take_step(test_rank *self, stand *s) {
    RANK_OK(self, tamis_reducer_start(s->reducer, &s->step));
    RANK_OK(self, tamis_reducer_wait(s->reducer));
}

static void capture_step(test_rank *self, stand *s, cudaGraphExec_t *out) {
    cudaGraph_t graph;
    RANK_CUDA(self, cudaStreamBeginCapture(s->stream, cudaStreamCaptureModeThreadLocal));
    RANK_OK(self, tamis_reducer_start(s->reducer, &s->step));
    RANK_OK(self, tamis_reducer_join(s->reducer, s->stream));
    RANK_CUDA(self, cudaStreamEndCapture(s->stream, &graph));
    RANK_CUDA(self, cudaGraphInstantiate(out, graph, 0));
    RANK_CUDA(self, cudaGraphDestroy(graph));
}

/* All ranks count all that runs, so they wait for each other. */
static void count_step(test_rank *self) {
    const kind *k = self->shared;
    cudaGraphExec_t graph = NULL;
    stand s;
    open_stand(self, k, &s);
    for (int i = 0; i < WARM && !self->failure[0]; i++)
        take_step(self, &s);
    if (k->captured && !self->failure[0])
        capture_step(self, &s, &graph);
    RANK_BARRIER(self);
    uint64_t kernels = fake_cuda_runs("kernel"), collectives = fake_cuda_runs("nccl"),
             cleared = fake_cuda_runs("memset");
    RANK_BARRIER(self);
    if (graph) {
        RANK_CUDA(self, cudaGraphLaunch(graph, s.stream));
        RANK_CUDA(self, cudaStreamSynchronize(s.stream));
    } else {
        take_step(self, &s);
    }
    RANK_BARRIER(self);
    kernels = fake_cuda_runs("kernel") - kernels;
    collectives = fake_cuda_runs("nccl") - collectives;
    RANK_CHECK(self, kernels == RANKS * k->expected.kernels, "%g kernels of a rank, not %u",
               (double)kernels / RANKS, k->expected.kernels);
    RANK_CHECK(self, collectives == RANKS * k->expected.collectives, "%g collectives, not %u",
               (double)collectives / RANKS, k->expected.collectives);
    RANK_CHECK(self, fake_cuda_runs("memset") == cleared, "memory was cleared");
    RANK_BARRIER(self);
    if (graph)
        RANK_CUDA(self, cudaGraphExecDestroy(graph));
    close_stand(&s);
}

static void run(kind k) {
    expect(&k);
    test_context("%s %s", k.columns[0], k.columns[1] ? k.columns[1] : "");
    ranks_run(RANKS, 0, count_step, &k);
}

/* -- what is in the tables -------------------------------------------------------------------- */

static tamis_reducer_config usual(void) {
    return config_of("tamis", TAMIS_INDEX_U32);
}

static void test_a_step_runs_what_its_column_says(void **state) {
    (void)state;
    run((kind){.columns = {"usual"}, .config = usual()});
    run((kind){.columns = {"shared"}, .config = config_of("topk", TAMIS_INDEX_U32)});
    run((kind){.columns = {"packed"}, .config = config_of("tamis", TAMIS_INDEX_GAP8)});
    run((kind){.columns = {"packed"}, .config = config_of("tamis", TAMIS_INDEX_BITMAP)});
    run((kind){.columns = {"block16"}, .config = config_of("tamis", TAMIS_INDEX_BLOCK16)});
    run((kind){.columns = {"rice"}, .config = config_of("tamis", TAMIS_INDEX_RICE)});
    run((kind){.columns = {"rounded"}, .config = rounded(usual())});
    run((kind){.columns = {"dense"}, .config = config_of("dense", TAMIS_INDEX_AUTO)});
    kind nodes = {.columns = {"nodes"}, .config = usual()};
    nodes.config.ranks_per_node = RANKS; /* so nothing travels between nodes */
    run(nodes);
}

static void test_columns_add_up(void **state) {
    (void)state;
    run((kind){.columns = {"pairs", "shared"},
               .config = config_of("all+global+exact+pairs", TAMIS_INDEX_U32)});
    run((kind){.columns = {"rounded", "block16"},
               .config = rounded(config_of("tamis", TAMIS_INDEX_BLOCK16))});
}

static void test_updates_and_graphs_of_the_caller_run_the_same(void **state) {
    const tamis_update open = TAMIS_UPDATE_INIT; /* values are fp4 */
    tamis_update update = TAMIS_UPDATE_INIT;
    kind updates = {.columns = {"usual"}, .config = usual()};
    kind left_open = {.columns = {"rounded"}, .config = usual()};
    (void)state;
    left_open.config.update = &open;
    run(left_open);
    update.scale = 1.0;
    updates.config.update = &update;
    run(updates);
    run((kind){.columns = {"usual"}, .config = usual(), .captured = true});
    run((kind){
        .columns = {"dense"}, .config = config_of("dense", TAMIS_INDEX_AUTO), .captured = true});
}

/* By norms, k is known only after a first launch of the control. */
static void test_several_buckets_run_their_nodes_and_one_control(void **state) {
    static const tamis_bucket_budget shares[] = {TAMIS_BUCKET_BUDGET_LENGTH,
                                                 TAMIS_BUCKET_BUDGET_NORM};
    (void)state;
    for (unsigned i = 0; i < 2; i++) {
        kind k = {.columns = {"usual"}, .config = usual(), .buckets = SEGMENTS, .more = i};
        k.config.bucket_length = LENGTH;
        k.config.bucket_budget = shares[i];
        run(k);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_step_runs_what_its_column_says),
        cmocka_unit_test(test_columns_add_up),
        cmocka_unit_test(test_updates_and_graphs_of_the_caller_run_the_same),
        cmocka_unit_test(test_several_buckets_run_their_nodes_and_one_control),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
