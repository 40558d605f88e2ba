/* SPDX-License-Identifier: MIT
 *
 * The options of a reducer as a table. A row describes everything about an option but its use. The
 * check of its range, what ranks compare, what a state belongs to, the keywords of Python and
 * docs/options.md follow from it. A new option is a field at the end of its struct, a row here, and
 * its use.
 */
#ifndef TAM_BASE_OPTIONS_H
#define TAM_BASE_OPTIONS_H

#include <float.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <tamis/tamis.h>

typedef enum tam_option_kind {
    TAM_OPTION_REAL, /* double */
    TAM_OPTION_U32,
    TAM_OPTION_U64,
    TAM_OPTION_WORD /* an enum, from 0 */
} tam_option_kind;

/** What must have the same value. */
typedef enum tam_option_scope {
    TAM_SCOPE_RANK,  /* nothing: each rank may have its own */
    TAM_SCOPE_RANKS, /* all ranks */
    TAM_SCOPE_STATE  /* all ranks, and a state that is loaded */
} tam_option_scope;

typedef struct tam_option {
    const char *name; /* of the field */
    tam_option_kind kind;
    tam_option_scope scope;
    size_t offset;           /* of the field */
    double low, high, other; /* all but U64: from low to high, or `other` */
    const char *range;       /* the same as words; WORD: its values, separated by '|' */
    const char *help;
} tam_option;

#define TAM_OPTION_WORD_OF(NAME, name, ...) "|" #name

/* row(field, kind, scope, low, high, other, range, help) of tamis_reducer_config. Combinations that
 * are refused: collectives/reducer/refuse.c. */
/* clang-format off */
#define TAM_CONFIG_OPTIONS(row) \
    row(density, REAL, STATE, DBL_TRUE_MIN, 1, 0, "in (0, 1] or 0 (open)", \
        "share of the entries that are sent; 0: what suits the update") \
    row(output, WORD, STATE, 0, 1, NAN, "dense|sparse", "form of the result") \
    row(op, WORD, STATE, 0, 1, NAN, "mean|sum", "reduction over ranks") \
    row(nonfinite, WORD, STATE, 0, 2, NAN, "error|skip|drop", "what happens on NaN and Inf") \
    row(block, U32, STATE, 0, 65536, NAN, "0 or a multiple of 32 up to 65536", \
        "elements per ownership block; 0: by length") \
    row(overselect, REAL, STATE, 1.1, 8, 0, "0 or 1.1 to 8", \
        "target number of candidates, in units of k; 0: 1.5") \
    row(capacity, REAL, STATE, 0.1, 1e6, 0, "0 or 0.1 to 1e6", \
        "packet size for learned counts, in units of k / ranks; 0: packets grow") \
    row(rows_capacity, U32, STATE, 0, UINT32_MAX, NAN, "", \
        "rows of a segment that a rank lists in a step, at most; 0: all that it touched") \
    row(threshold, REAL, STATE, 1e-38, 1e38, 0, "0 or a positive magnitude", \
        "first threshold, or the fixed one; 0: as published") \
    row(bucket_length, U64, STATE, 0, 0, NAN, "", "elements per bucket; 0: one bucket") \
    row(link_latency_us, REAL, RANKS, 1e-3, 1e7, 0, "0 or 0.001 to 1e7", \
        "latency of an empty message; 0: 50, over nccl as its links, on CPUs auto measures") \
    row(link_gbit, REAL, RANKS, 1e-6, 1e6, 0, "0 or 1e-6 to 1e6", \
        "bandwidth of one rank; 0: 1, over nccl that of its links, on CPUs auto measures") \
    row(bucket_budget, WORD, STATE, 0, 1, NAN, "norm|length", "how k is divided over the buckets") \
    row(density_max, REAL, STATE, DBL_TRUE_MIN, 1, 0, "0 or from density to 1", \
        "largest density that may be set later; 0: density") \
    row(ranks_per_node, U32, STATE, 0, UINT32_MAX, NAN, "", \
        "ranks per node of the hierarchical exchange; 0: flat exchange") \
    row(residual_decay, REAL, STATE, 0, 1, -1, "0 to 1 or -1 (open)", \
        "factor on the residual in every step; -1: what suits the update") \
    row(device, WORD, RANK, 0, 1, NAN, "cpu|cuda", "memory that holds the gradients") \
    row(grad_dtype, WORD, RANKS, 0, 2, NAN, "float32|float16|bfloat16", \
        "element type of gradients") \
    row(index_codec, WORD, RANKS, 0, TAMIS_INDEX_END - 1, NAN, \
        "auto" TAMIS_INDEX_CODECS(TAM_OPTION_WORD_OF), \
        "encoding of indices on the wire") \
    row(value_codec, WORD, RANKS, 0, TAMIS_VALUE_END - 1, NAN, \
        "auto" TAMIS_VALUE_CODECS(TAM_OPTION_WORD_OF), "encoding of values on the wire") \
    row(sum_codec, WORD, RANKS, 0, TAMIS_VALUE_END - 1, NAN, \
        "auto" TAMIS_VALUE_CODECS(TAM_OPTION_WORD_OF), \
        "encoding of sums of values on the wire") \
    row(sum_order, WORD, RANKS, 0, 1, NAN, "tree|transport", \
        "order in which scheme dense adds over ranks; transport: that of ncclAllReduce") \
    row(threads, U32, RANK, 0, 256, NAN, "0 to 256", \
        "threads of the CPU kernels; 0: TAMIS_THREADS") \
    row(worker, WORD, RANK, 0, 1, NAN, "caller|thread", \
        "thread that makes the pass over the gradient") \
    row(byte_share, REAL, RANKS, 1e-6, 1, 0, "1e-6 to 1 or 0 (open)", \
        "most bytes of a step, as a share of a dense ring's; 0: as the density gives") \
    row(slowdown, REAL, RANKS, 1e-3, 10, 0, "0.001 to 10 or 0 (off)", \
        "time that steps may wait for the exchange, in units of their computing; density follows")

/* Options of tamis_update; rule momentum has only the rows before beta2. */
#define TAM_UPDATE_OPTIONS(row) \
    row(rule, WORD, STATE, 0, 2, NAN, "adam|momentum|step", "update rule") \
    row(beta1, REAL, STATE, 0, 1 - DBL_EPSILON / 2, NAN, "in [0, 1) or -1 (open)", \
        "decay of the first moment; -1: 0.9, adam below 3.5 % 0") \
    row(scale, REAL, RANKS, 1e-6, 1e6, 0, "1e-6 to 1e6 or 0 (open)", \
        "factor on the result; 0: by norms, for momentum by density") \
    row(beta2, REAL, STATE, 0, 1 - DBL_EPSILON / 2, NAN, "in [0, 1)", \
        "decay of the second moment") \
    row(epsilon, REAL, STATE, 1e-38, 1e38, NAN, "1e-38 to 1e38", \
        "added to the root of the second moment") \
    row(norm_matching, REAL, RANKS, 0.01, 100, 0, "0.01 to 100 or 0 (open)", \
        "norm of a step, in units of that of a rank's own; 0: by density, or by scale")
/* clang-format on */

#define TAM_OPTION_ENUMERATOR(name, ...) TAM_CONFIG_##name,
enum { TAM_CONFIG_OPTIONS(TAM_OPTION_ENUMERATOR) TAM_CONFIG_COUNT };
#undef TAM_OPTION_ENUMERATOR
#define TAM_OPTION_ENUMERATOR(name, ...) TAM_UPDATE_##name,
enum { TAM_UPDATE_OPTIONS(TAM_OPTION_ENUMERATOR) TAM_UPDATE_COUNT };
#undef TAM_OPTION_ENUMERATOR

extern const tam_option tam_config_options[TAM_CONFIG_COUNT];
extern const tam_option tam_update_options[TAM_UPDATE_COUNT];

/** ARGUMENT names the first field out of its range. @param whose  "tamis_update" */
tamis_status tam_options_check(const char *whose, const tam_option *rows, uint32_t count,
                               const void *fields);

/** A value in the form that ranks compare, and that form as words. */
uint64_t tam_option_bits(const tam_option *option, const void *fields);
void tam_option_print(const tam_option *option, uint64_t bits, char *text, size_t size);

#endif
