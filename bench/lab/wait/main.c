/* SPDX-License-Identifier: MIT */
#include "bench/lab/wait/wait.h"

#include <stdlib.h>
#include <tamis/stats.h>
#include <time.h>

#include "bench/common/measure.h"
#include "bench/common/random.h"
#include "bench/common/report.h"
#include "bench/common/start.h"

static double cpu_now_s(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* -- one step --------------------------------------------------------------------------------- */

/* Behave like a rank that has more to do: keep the core busy. */
static void compute(double seconds) {
    double until = bench_now_s() + seconds;
    while (bench_now_s() < until)
        ;
}

static void exchange(wait_run *run, const wait_variant *v, tamis_reducer *reducer) {
    tamis_step step = TAMIS_STEP_INIT;
    step.grad = run->grad;
    if (v->sum) {
        bench_mpi_sum(run->group, run->grad, run->sum, run->settings->elements);
        return;
    }
    bench_try(run->group, tamis_reducer_start(reducer, &step), "start of a step");
    bench_try(run->group, tamis_reducer_wait(reducer), "end of a step");
}

/* Values of many magnitudes, different in each step. */
static void fill(wait_run *run, uint64_t round) {
    uint64_t key = bench_key(1, run->group->rank, round);
    for (size_t i = 0; i < run->settings->elements; i++) {
        uint64_t bits = bench_random(key, i);
        run->grad[i] = (float)(bits % 2001) - 1000.0f;
    }
}

static wait_sample measure(wait_run *run, const wait_variant *v, bool late, uint64_t round) {
    clockid_t all =
        run->group->transport == BENCH_LOCAL ? CLOCK_THREAD_CPUTIME_ID : CLOCK_PROCESS_CPUTIME_ID;
    tamis_stats stats = TAMIS_STATS_INIT;
    wait_sample out = {0};
    bench_try(run->group, tamis_comm_set_waiting(run->group->comm, v->waiting), "way to wait");
    fill(run, round);
    bench_barrier(run->group);
    double begin = bench_now_s(), cpu = cpu_now_s(all), caller = cpu_now_s(CLOCK_THREAD_CPUTIME_ID);
    if (late && run->group->rank == run->group->nranks - 1)
        compute(1e-3 * run->settings->late_ms);
    exchange(run, v, run->reducers[late]);
    out.step = bench_now_s() - begin;
    out.cpu = cpu_now_s(all) - cpu;
    out.caller = cpu_now_s(CLOCK_THREAD_CPUTIME_ID) - caller;
    if (!v->sum) {
        bench_try(run->group, tamis_reducer_stats(run->reducers[late], &stats),
                  "statistics of a step");
        out.skew = stats.skew_s;
    }
    return out;
}

/* -- all rounds ------------------------------------------------------------------------------- */

static void open_variants(wait_run *run) {
    if (run->group->transport != BENCH_LOCAL) {
        run->variants[run->nvariants++] = (wait_variant){"mpi", true, TAMIS_WAITING_AUTO};
        run->variants[run->nvariants++] = (wait_variant){"spin", false, TAMIS_WAITING_SPIN};
    }
    run->variants[run->nvariants++] = (wait_variant){"auto", false, TAMIS_WAITING_AUTO};
    run->variants[run->nvariants++] = (wait_variant){"sleep", false, TAMIS_WAITING_SLEEP};
}

static void open_run(bench_group *group, const wait_settings *s, wait_run *out) {
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    tamis_segment segment = {"gradient", s->elements};
    tamis_layout *layout;
    *out = (wait_run){.group = group, .settings = s};
    open_variants(out);
    out->grad = bench_alloc(s->elements, sizeof *out->grad);
    out->sum = bench_alloc(s->elements, sizeof *out->sum);
    out->measured = bench_alloc(2 * out->nvariants * s->rounds, sizeof *out->measured);
    config.density = s->density;
    bench_try(group, tamis_layout_create(&segment, 1, &layout), "cannot create a layout");
    for (int i = 0; i < 2; i++)
        bench_try(group, tamis_reducer_create(group->comm, layout, &config, &out->reducers[i]),
                  "cannot create a reducer");
    tamis_layout_destroy(layout);
}

static void close_run(wait_run *run) {
    tamis_reducer_destroy(run->reducers[0]);
    tamis_reducer_destroy(run->reducers[1]);
    free(run->measured);
    free(run->sum);
    free(run->grad);
}

/* The variants take turns in being first. */
static void play_round(wait_run *run, uint64_t round) {
    uint64_t warmup = run->settings->warmup;
    for (int late = 0; late < 2; late++) {
        for (size_t i = 0; i < run->nvariants; i++) {
            size_t at = (i + round) % run->nvariants;
            wait_sample sample = measure(run, &run->variants[at], late, round);
            if (round >= warmup)
                wait_samples(run, late, at)[round - warmup] = sample;
        }
    }
}

static double larger(double a, double b) {
    return a > b ? a : b;
}

static void reduce_samples(wait_run *run) {
    size_t count = 2 * run->nvariants * run->settings->rounds;
    uint32_t nranks = run->group->nranks;
    wait_sample *all = bench_alloc(nranks * count, sizeof *all);
    bench_allgather(run->group, run->measured, count * sizeof *all, all);
    for (size_t i = 0; i < count; i++) {
        wait_sample *out = &run->measured[i];
        *out = (wait_sample){.step = all[(nranks - 1) * count + i].step};
        for (uint32_t r = 0; r < nranks - 1; r++) {
            const wait_sample *one = &all[r * count + i];
            out->step = larger(out->step, one->step);
            out->cpu = larger(out->cpu, one->cpu);
            out->caller = larger(out->caller, one->caller);
            out->skew = larger(out->skew, one->skew);
        }
    }
    free(all);
}

static int play(bench_group *group, void *context) {
    const wait_settings *s = context;
    wait_run run;
    if (group->nranks < 2)
        bench_fail(group, "at least two ranks are needed: mpirun -np 2");
    open_run(group, s, &run);
    for (uint64_t round = 0; round < s->warmup + s->rounds; round++)
        play_round(&run, round);
    reduce_samples(&run);
    if (group->rank == 0)
        wait_report(&run);
    close_run(&run);
    return 0;
}

int main(int argc, char **argv) {
    static wait_settings settings;
    wait_settings_read(argc, argv, &settings);
    int status = bench_launch((bench_transport)settings.transport, TAMIS_DEVICE_CPU,
                              (uint32_t)settings.ranks, play, &settings);
    return bench_report_close(settings.report, status);
}
