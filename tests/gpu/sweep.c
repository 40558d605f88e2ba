/* SPDX-License-Identifier: MIT
 *
 * gpu_sweep PARAMETER CASES NOW=LIBRARY VALUE=LIBRARY... [small]: steps of libraries that differ in
 * one parameter of the device path (sweep.txt), in one process, by turns. CASES: `step`, a sparse
 * one, `dense`, or both with a comma between. The first library is how things are now; it also runs
 * against itself, which shows how far to believe the rest. One JSON line for each value and case:
 *
 *     ratio    of medians, VALUE / NOW
 *     same     whether results have the bits of NOW's
 *
 * One rank over NCCL, so the device runs the steps and nothing travels. `small`: for a device that
 * is emulated.
 */
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tamis/lists.h>
#include <tamis/nccl.h>

#include "tests/gpu/timing.h"

enum { MOST = 8, BUFFERS = 4, ROUNDS = 25, TIMEOUT_MS = 20000, SKIPPED = 77 };

typedef struct effort {
    uint64_t n[2]; /* 0: none */
    double density[2];
    uint32_t segments;
    int warmup, rounds; /* each a step on every buffer */
} effort;

static const effort full = {{138000000, 25000000}, {0.01, 0.001}, 161, 10, ROUNDS};
static const effort small = {{70000, 0}, {0.01, 0}, 5, 0, 2};

/* -- libraries -------------------------------------------------------------------------------- */

#define CALLS(X)                                                                                   \
    X(feature_list)                                                                                \
    X(comm_create_local)                                                                           \
    X(comm_create_nccl)                                                                            \
    X(comm_destroy)                                                                                \
    X(layout_create)                                                                               \
    X(layout_destroy)                                                                              \
    X(reducer_create)                                                                              \
    X(reducer_destroy)                                                                             \
    X(reducer_start)                                                                               \
    X(reducer_join)                                                                                \
    X(reducer_wait)                                                                                \
    X(reducer_result)                                                                              \
    X(last_error)

typedef struct library {
#define FIELD(name) __typeof__(tamis_##name) *name;
    CALLS(FIELD)
} library;

static library open_library(const char *path) {
    library l;
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!handle) {
        fprintf(stderr, "%s\n", dlerror());
        exit(1);
    }
#define FIND(name)                                                                                 \
    if (!(*(void **)&l.name = dlsym(handle, "tamis_" #name))) {                                    \
        fprintf(stderr, "%s has no tamis_" #name "\n", path);                                      \
        exit(1);                                                                                   \
    }
    CALLS(FIND)
    return l;
}

/* -- competitors ------------------------------------------------------------------------------ */

typedef struct competitor {
    const char *value;
    library l;
    tamis_comm *local, *nccl;
    tamis_reducer *reducer;
    float ms[ROUNDS];
    bool same;
} competitor;

typedef struct sweep {
    const char *parameter;
    const effort *how;
    competitor all[MOST];
    int count;
    uint64_t n;
    double density;
    bool dense;
    float *grads[BUFFERS], *first; /* first: of grads[0], in host memory */
    cudaStream_t stream;
    cudaEvent_t begin, end;
} sweep;

static void check(const competitor *c, tamis_status status, const char *what) {
    if (status == TAMIS_OK)
        return;
    fprintf(stderr, "%s: %s: %s\n", c->value, what, c->l.last_error());
    exit(1);
}

static void connect(competitor *c) {
    tamis_comm_config config = TAMIS_COMM_CONFIG_INIT;
    config.timeout_ms = TIMEOUT_MS;
    check(c, c->l.comm_create_local(1, &config, &c->local), "local communicator");
    check(c, c->l.comm_create_nccl(c->local, &config, &c->nccl), "communicator");
}

static void open_reducer(const sweep *s, competitor *c) {
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    tamis_layout *layout;
    tamis_segment *segments = timing_host_array(s->how->segments, sizeof *segments);
    for (uint64_t i = 0, count = s->how->segments; i < count; i++)
        segments[i].length = s->n * (i + 1) / count - s->n * i / count;
    config.scheme = s->dense ? "dense" : "tamis";
    config.density = s->density;
    config.output = s->dense ? TAMIS_OUTPUT_DENSE : TAMIS_OUTPUT_SPARSE;
    config.device = TAMIS_DEVICE_CUDA;
    check(c, c->l.layout_create(segments, s->how->segments, &layout), "layout");
    check(c, c->l.reducer_create(c->nccl, layout, &config, &c->reducer), "reducer");
    c->l.layout_destroy(layout);
    free(segments);
}

/* -- rounds ----------------------------------------------------------------------------------- */

static void enqueue(const sweep *s, const competitor *c, int buffer) {
    tamis_step step = TAMIS_STEP_INIT;
    step.grad = s->grads[buffer];
    step.stream = s->stream;
    check(c, c->l.reducer_start(c->reducer, &step), "start");
    check(c, c->l.reducer_join(c->reducer, s->stream), "join");
}

/* What a step leaves to do behind its result must not reach into the next one's time. */
static float time_round(const sweep *s, const competitor *c) {
    float ms = 0;
    timing_try(cudaEventRecord(s->begin, s->stream), "event");
    for (int b = 0; b < BUFFERS; b++)
        enqueue(s, c, b);
    timing_try(cudaEventRecord(s->end, s->stream), "event");
    timing_try(cudaDeviceSynchronize(), "the device");
    timing_try(cudaEventElapsedTime(&ms, s->begin, s->end), "time");
    return ms / BUFFERS;
}

/* Each begins as often as any other. */
static void run_rounds(sweep *s) {
    for (int round = -s->how->warmup; round < s->how->rounds; round++) {
        for (int i = 0; i < s->count; i++) {
            competitor *c = &s->all[(i + s->how->warmup + round) % s->count];
            float ms = time_round(s, c);
            if (round >= 0)
                c->ms[round] = ms;
        }
    }
}

/* -- results ---------------------------------------------------------------------------------- */

static bool same_bytes(const void *a, const void *b, size_t bytes) {
    void *x = timing_host_array(bytes + 1, 1), *y = timing_host_array(bytes + 1, 1);
    timing_try(cudaMemcpy(x, a, bytes, cudaMemcpyDefault), "read");
    timing_try(cudaMemcpy(y, b, bytes, cudaMemcpyDefault), "read");
    bool same = memcmp(x, y, bytes) == 0;
    free(y);
    free(x);
    return same;
}

static tamis_result result_of(const competitor *c) {
    tamis_result result = TAMIS_RESULT_INIT;
    check(c, c->l.reducer_wait(c->reducer), "wait");
    check(c, c->l.reducer_result(c->reducer, &result), "result");
    return result;
}

/* One step more, of which the results are compared: an error in an earlier one would be in the
 * residuals by now. Dense ones are the gradient of the only rank, as it was. */
static void compare(sweep *s) {
    size_t known = s->n < TIMING_PERIOD ? (size_t)s->n : TIMING_PERIOD;
    tamis_result now = {0};
    for (int i = 0; i < s->count; i++) {
        competitor *c = &s->all[i];
        tamis_step step = TAMIS_STEP_INIT;
        step.grad = s->grads[0];
        step.stream = s->stream;
        check(c, c->l.reducer_start(c->reducer, &step), "start");
        tamis_result r = result_of(c);
        now = i == 0 ? r : now;
        if (s->dense)
            c->same = same_bytes(s->grads[0], s->first, known * sizeof(float));
        else
            c->same = r.count == now.count && r.count > 0 &&
                      same_bytes(r.indices, now.indices, r.count * sizeof *r.indices) &&
                      same_bytes(r.values, now.values, r.count * sizeof *r.values);
    }
}

static int report(sweep *s) {
    int bad = 0;
    size_t rounds = (size_t)s->how->rounds;
    double now_us = 1e3 * timing_median(s->all[0].ms, rounds);
    for (int i = 1; i < s->count; i++) {
        competitor *c = &s->all[i];
        double us = 1e3 * timing_median(c->ms, rounds);
        printf("{\"record\":\"sweep\",\"parameter\":\"%s\",\"value\":\"%s\",\"now\":\"%s\","
               "\"case\":\"%s\",\"n\":%llu,\"density\":%g,\"same\":%s,\"ratio\":%.4f,"
               "\"time_us\":{\"median\":%.2f},\"now_us\":{\"median\":%.2f}}\n",
               s->parameter, c->value, s->all[0].value, s->dense ? "dense" : "step",
               (unsigned long long)s->n, s->density, c->same ? "true" : "false", us / now_us, us,
               now_us);
        bad |= !c->same;
    }
    fflush(stdout);
    return bad;
}

/* -- cases ------------------------------------------------------------------------------------ */

static void open_gradients(sweep *s) {
    size_t bytes = TIMING_PERIOD * sizeof(float);
    s->first = timing_host_array(TIMING_PERIOD, sizeof *s->first);
    for (int b = BUFFERS - 1; b >= 0; b--) {
        for (uint64_t i = 0; i < TIMING_PERIOD; i++)
            s->first[i] = timing_tail((uint64_t)b, i);
        s->grads[b] = timing_repeat(s->first, bytes, s->n * sizeof(float));
    }
}

static int run_case(sweep *s) {
    open_gradients(s);
    for (int i = 0; i < s->count; i++)
        open_reducer(s, &s->all[i]);
    run_rounds(s);
    compare(s);
    int bad = report(s);
    for (int i = 0; i < s->count; i++)
        s->all[i].l.reducer_destroy(s->all[i].reducer);
    for (int b = 0; b < BUFFERS; b++)
        cudaFree(s->grads[b]);
    free(s->first);
    return bad;
}

static int run(sweep *s, const char *cases) {
    int bad = 0;
    timing_try(cudaStreamCreateWithFlags(&s->stream, cudaStreamNonBlocking), "stream");
    timing_try(cudaEventCreate(&s->begin), "event");
    timing_try(cudaEventCreate(&s->end), "event");
    for (int i = 0; i < s->count; i++)
        connect(&s->all[i]);
    for (int at = 0; at < 2 && s->how->n[at]; at++) {
        s->n = s->how->n[at];
        s->density = s->how->density[at];
        for (int dense = 0; dense < 2; dense++) {
            s->dense = dense;
            if (strstr(cases, dense ? "dense" : "step"))
                bad |= run_case(s);
        }
    }
    for (int i = s->count - 1; i >= 0; i--) {
        s->all[i].l.comm_destroy(s->all[i].nccl);
        s->all[i].l.comm_destroy(s->all[i].local);
    }
    cudaEventDestroy(s->end);
    cudaEventDestroy(s->begin);
    cudaStreamDestroy(s->stream);
    return bad;
}

static bool has_device(const library *l) {
    tamis_feature feature = TAMIS_FEATURE_INIT;
    for (size_t i = 0; l->feature_list(i, &feature); i++) {
        if (strcmp(feature.name, "cuda") != 0)
            continue;
        if (!feature.available)
            printf("no CUDA here: %s\n", feature.reason);
        return feature.available;
    }
    return false;
}

/* @return false: it is not VALUE=LIBRARY */
static bool add(sweep *s, char *word) {
    char *path = strchr(word, '=');
    if (!path || s->count == MOST)
        return false;
    *path++ = '\0';
    s->all[s->count++] = (competitor){.value = word, .l = open_library(path)};
    if (s->count == 1)
        s->all[s->count++] = s->all[0];
    return true;
}

int main(int argc, char **argv) {
    static sweep s;
    bool good = argc >= 5;
    s.how = &full;
    for (int i = 3; good && i < argc; i++) {
        if (i == argc - 1 && strcmp(argv[i], "small") == 0)
            s.how = &small;
        else
            good = add(&s, argv[i]);
    }
    if (!good || s.count < 3) {
        fprintf(stderr, "usage: gpu_sweep PARAMETER step|dense|step,dense NOW=LIBRARY "
                        "VALUE=LIBRARY... [small]\n");
        return 2;
    }
    s.parameter = argv[1];
    return has_device(&s.all[0].l) ? run(&s, argv[2]) : SKIPPED;
}
