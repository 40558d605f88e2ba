/* SPDX-License-Identifier: MIT
 *
 * Whole steps on a CUDA device beside the same steps on the CPU. Everything that a step leaves
 * behind must have the same bits: result, residual, gradient, counts.
 */
#ifndef TAMIS_GPU_COMPARE_H
#define TAMIS_GPU_COMPARE_H

#include <stdbool.h>
#include <stdint.h>
#include <tamis/tamis.h>

/** How all steps but the last are finished; the last one is waited for. */
typedef enum compare_mode {
    COMPARE_WAIT,
    COMPARE_JOIN,   /* host far ahead; the library may replay graphs of its own */
    COMPARE_CAPTURE /* the step is part of a graph of the caller's, replayed */
} compare_mode;

/** What is accumulated. */
typedef enum compare_update {
    COMPARE_GRADIENTS,
    COMPARE_ADAM,    /* with a scale that follows norms */
    COMPARE_MOMENTUM /* masked where it was sent */
} compare_update;

typedef struct compare_case {
    const char *scheme;
    double density, capacity;
    compare_update update;
    uint32_t rows; /* config.rows_capacity: the last segment has rows; 0: none has */
    bool nodes;    /* of two ranks, if they are even in number, else of all */
    tamis_dtype type;
    tamis_index_codec index_codec; /* as in the configuration, also the next */
    tamis_value_codec value_codec;
    tamis_output output;
    tamis_nonfinite nonfinite;
    uint64_t n;
    unsigned steps;
    uint64_t bucket_length; /* 0: one bucket */
    bool by_segment;        /* a pointer per segment, the second one misaligned to 16 bytes */
    bool poison;            /* put NaN and Inf into the gradient of rank 0 at step 2 */
    compare_mode mode;
} compare_case;

/** The index-th case of the list that every test goes through; `small` for slow devices: an
 * emulated one, or one under a checker. @return false past its end */
bool compare_list(unsigned index, bool small, compare_case *out);

/** Whether the case belongs to a short list that has every scheme once. */
bool compare_brief(unsigned index);

/** Words for a case, valid until the next call. */
const char *compare_name(const compare_case *c);

/** Whether there is a CUDA device that can be used. Else a reason is printed. */
bool compare_device(void);

/** Choose the device of this thread. @return false if it cannot be; the error is printed */
bool compare_choose(int device);

/**
 * Run a case.
 *
 * @param  cuda, cpu  [in]  communicators of the same ranks
 * @return elements that differ, or UINT64_MAX if a call failed (its sentence is printed)
 */
uint64_t compare_run(tamis_comm *cuda, tamis_comm *cpu, const compare_case *c);

#endif
