/* SPDX-License-Identifier: MIT
 *
 * What each call of the library costs one rank, by the number of segments and of elements: nothing
 * may grow faster than these.
 *
 *     tamis_calls            10^2 to 10^6 segments of 4 elements, then one segment of 1 to 2^28
 *     tamis_calls --large    also 2^30 elements: 16 GiB of memory
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tamis/elastic.h>
#include <tamis/overlap.h>
#include <tamis/state.h>
#include <tamis/stats.h>
#include <unistd.h>

#include "bench/common/measure.h"
#include "bench/common/random.h"

enum { SHORT = 4, NAME = 16, FRESH = 1 << 20 };

typedef struct calls {
    uint32_t nsegments;
    uint64_t length; /* of a segment */
    tamis_comm *comm;
    tamis_layout *layout;
    tamis_reducer *reducer;
    float *memory; /* two gradients, one behind the other */
    void **grads;  /* [nsegments] */
} calls;

static void check(tamis_status status) {
    if (status == TAMIS_OK)
        return;
    fprintf(stderr, "tamis_calls: %s\n", tamis_last_error());
    exit(1);
}

static void *allocate(size_t count, size_t size) {
    void *memory = calloc(count, size);
    if (memory)
        return memory;
    fprintf(stderr, "tamis_calls: no memory for %zu times %zu bytes\n", count, size);
    exit(1);
}

/* Time of a call, in us. */
#define COST(call) (begin_s = bench_now_s(), check(call), 1e6 * (bench_now_s() - begin_s))

static tamis_status create_layout(const calls *c, tamis_layout **out) {
    tamis_segment *segments = allocate(c->nsegments, sizeof *segments);
    char *names = allocate(c->nsegments, NAME);
    for (uint32_t s = 0; s < c->nsegments; s++) {
        snprintf(names + (size_t)NAME * s, NAME, "s%u", s);
        segments[s] = (tamis_segment){.name = names + (size_t)NAME * s, .length = c->length};
    }
    tamis_status status = tamis_layout_create(segments, c->nsegments, out);
    free(names);
    free(segments);
    return status;
}

/* @param which  of two places for the gradients, which then move */
static tamis_step place(calls *c, int which) {
    tamis_step step = TAMIS_STEP_INIT;
    uint64_t n = c->nsegments * c->length;
    float *grad = c->memory + (size_t)which * n;
    for (uint64_t i = 0; i < n; i++) /* all differ: ties and zeros cost more */
        grad[i] = i < FRESH ? (float)((double)(int64_t)bench_random(1, i) * 0x1p-63)
                            : grad[i - FRESH] * 1.0001f;
    for (uint32_t s = 0; s < c->nsegments; s++)
        c->grads[s] = grad + s * c->length;
    step.grads = c->grads;
    return step;
}

/* In the order of a backward pass. @return us of one call */
static double mark_all(calls *c, const tamis_step *step) {
    double begin_s = bench_now_s();
    for (uint32_t s = c->nsegments; s-- > 0;)
        check(tamis_reducer_ready(c->reducer, s, step));
    return 1e6 * (bench_now_s() - begin_s) / c->nsegments;
}

static double step_by_ready(calls *c, int which, double *ready_us) {
    tamis_step step = place(c, which);
    double begin_s = bench_now_s();
    *ready_us = mark_all(c, &step);
    check(tamis_reducer_wait(c->reducer));
    return 1e6 * (bench_now_s() - begin_s);
}

static double step_by_start(calls *c, int which) {
    tamis_step step = place(c, which);
    double begin_s = bench_now_s();
    check(tamis_reducer_start(c->reducer, &step));
    check(tamis_reducer_wait(c->reducer));
    return 1e6 * (bench_now_s() - begin_s);
}

static void measure(uint32_t nsegments, uint64_t length, const char *path) {
    calls c = {.nsegments = nsegments, .length = length};
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    tamis_stats stats = TAMIS_STATS_INIT;
    double begin_s, moved_us, usual_us;
    uint64_t number;
    c.memory = allocate(2 * nsegments * length, sizeof *c.memory);
    c.grads = allocate(nsegments, sizeof *c.grads);
    check(tamis_comm_create_local(1, NULL, &c.comm));
    double layout_us = COST(create_layout(&c, &c.layout));
    double create_us = COST(tamis_reducer_create(c.comm, c.layout, &config, &c.reducer));
    double first_us = step_by_start(&c, 0);
    double start_us = step_by_start(&c, 0);
    double step_us = step_by_ready(&c, 0, &usual_us);
    step_by_ready(&c, 1, &moved_us);
    double stats_us = COST(tamis_reducer_stats(c.reducer, &stats));
    double save_us = COST(tamis_reducer_save(c.reducer, path));
    double load_us = COST(tamis_reducer_load(c.reducer, path));
    double resync_us = COST(tamis_reducer_resync(c.reducer, &number));
    begin_s = bench_now_s();
    tamis_reducer_destroy(c.reducer);
    double destroy_us = 1e6 * (bench_now_s() - begin_s);
    printf("%9u %11llu %9.0f %9.0f %9.0f %9.0f %8.3f %8.3f %6.2f %6.1f %9.0f %9.0f %8.1f %9.0f\n",
           nsegments, (unsigned long long)(nsegments * length), layout_us, create_us, first_us,
           start_us, usual_us, moved_us, step_us / start_us, stats_us, save_us, load_us, resync_us,
           destroy_us);
    tamis_layout_destroy(c.layout);
    tamis_comm_destroy(c.comm);
    free(c.grads);
    free(c.memory);
}

int main(int argc, char **argv) {
    char path[] = "/tmp/tamis-calls-XXXXXX";
    int power = argc > 1 && strcmp(argv[1], "--large") == 0 ? 30 : 28;
    int file = mkstemp(path);
    if (file < 0)
        return 1;
    printf("# us of each call of one rank; ready: of one segment, where gradients come to where "
           "they were, and where all have moved; ratio: a step by ready to one by start\n"
           "%9s %11s %9s %9s %9s %9s %8s %8s %6s %6s %9s %9s %8s %9s\n",
           "segments", "elements", "layout", "create", "first", "start", "ready", "moved", "ratio",
           "stats", "save", "load", "resync", "destroy");
    for (uint32_t nsegments = 100; nsegments <= 1000000; nsegments *= 10)
        measure(nsegments, SHORT, path);
    for (int p = 0; p <= power; p += p < 28 ? 4 : 2)
        measure(1, UINT64_C(1) << p, path);
    unlink(path);
    return 0;
}
