/* SPDX-License-Identifier: MIT
 *
 * One case: an operation at one size and density, on all ranks.
 */
#ifndef TAMIS_PERF_PERF_H
#define TAMIS_PERF_PERF_H

#include "bench/common/energy.h"
#include "bench/common/report.h"
#include "bench/perf/gradients.h"
#include "bench/perf/settings.h"

typedef struct perf_case {
    bench_group *group;
    const perf_settings *settings;
    perf_shape shape;
    bench_scheme scheme;
    double density;
    tamis_device device;
    tamis_dtype type;
    const char *index_codec; /* of the reducer that is timed; "none": scheme dense */
    size_t grad_bytes;
    tamis_energy *meter;        /* during the repetitions of perf_loop, else NULL */
    tamis_energy_totals joules; /* of all repetitions */
} perf_case;

/** Phases of joules beside those of the reducer. */
enum { PERF_AXPY = TAMIS_ENERGY_USER, PERF_BASELINE = TAMIS_ENERGY_USER + 1 };

/** One repetition. Seconds; each figure is the largest of all ranks. */
typedef struct perf_sample {
    double axpy, dense, step;
    double accumulate, exact; /* exact: accumulate + select */
    double select, exchange, apply;
    double wire_bytes, wire_model; /* sent by the rank that sends most; the formulas' estimate */
    double sent, selected, target, rescans;
    double copy;                    /* CUDA: time of a copy of as many bytes */
    double host, blocking, queries; /* CUDA over nccl: the host's time and calls in a step */
} perf_sample;

/** A reducer for the case, or for the scheme `dense`; ends all ranks if it cannot be made. */
tamis_reducer *perf_reducer(const perf_case *c, const char *scheme, tamis_output output,
                            tamis_device device);

/** Start and wait. */
void perf_step(const perf_case *c, tamis_reducer *reducer, void *grad);

/** Memory traffic of the accumulate pass. */
double perf_pass_bytes(const perf_case *c);

/** Gradient of `stream` in the case's type and its device's memory. */
void perf_gradient_put(const perf_case *c, uint64_t stream, float *scratch, void *out);

/** loop.c: the timed repetitions; the same samples, and joules, on all ranks. Free with free(). */
perf_sample *perf_loop(perf_case *c);

/** Replace each figure of each repetition by the largest of all ranks. */
void perf_take_slowest(const perf_case *c, perf_sample *samples, size_t count);

/** replay.c: whether a step runs on the device without the host; perf_loop for such steps. */
bool perf_replays(const perf_case *c);
perf_sample *perf_replay(const perf_case *c);

/** check.c: number of wrong elements in some steps, over all ranks. */
double perf_check(const perf_case *c);

/** parity.c: the same for steps on a CUDA device, compared with the CPU bit for bit. */
double perf_parity(const perf_case *c);

/** model.c: bytes that a rank sends, without headers, from the most entries of a rank and the size
 * of the union. */
double perf_wire_model(const perf_case *c, double sent, double selected);

/** table.c */
void perf_table_header(const perf_settings *settings, const bench_group *group);
void perf_table_row(const perf_case *c, perf_sample *samples, double wrong);

#endif
