/* SPDX-License-Identifier: MIT
 *
 * tamis/lists.h - the tables that programs print: statuses, presets, settings, options, refusals
 * and features. Each is read from index 0 on, until a call returns 0:
 *
 *     tamis_setting s = TAMIS_SETTING_INIT;
 *     for (size_t i = 0; tamis_setting_list(i, &s); i++)
 *         printf("%s=%s\n", s.name, s.value);
 *
 * Lifetime     Strings are the library's. They stay, but the reason of a feature only until the
 *              same thread lists features again.
 * Threads      Any.
 */
#ifndef TAMIS_LISTS_H
#define TAMIS_LISTS_H

#include <tamis/tamis.h>

#ifdef __cplusplus
extern "C" {
#endif

/** The index-th status of the table behind docs/errors.md. @return 0 past its end, else 1. */
TAMIS_API int tamis_status_list(size_t index, tamis_status *out);

/** A preset: its name, its four policies and where it comes from. */
typedef struct tamis_scheme_info {
    size_t size;
    const char *name, *ownership, *budget, *threshold, *exchange, *source;
} tamis_scheme_info;

#define TAMIS_SCHEME_INFO_INIT TAMIS_INIT(tamis_scheme_info, )

/** The index-th preset; `out` is set by its _INIT macro. @return 0 past the end, else 1. */
TAMIS_API int tamis_scheme_list(size_t index, tamis_scheme_info *out);

/** One environment variable that the library reads. docs/environment.md is made from these. */
typedef struct tamis_setting {
    size_t size;
    const char *name, *values, *fallback, *help;
    const char *value;  /* in force */
    const char *origin; /* "default" or "environment" */
} tamis_setting;

#define TAMIS_SETTING_INIT TAMIS_INIT(tamis_setting, )

/** The index-th setting; `out` is set by its _INIT macro. @return 0 past the end, else 1. */
TAMIS_API int tamis_setting_list(size_t index, tamis_setting *out);

/** A field of tamis_reducer_config or tamis_update that is a number or a word. docs/options.md is
 * made from these, and so are the options of Python's Reducer. */
typedef struct tamis_option {
    size_t size;
    const char *of;    /* "config" or "update" */
    const char *name;  /* of the field */
    size_t offset;     /* of the field in its struct, in bytes */
    const char *kind;  /* "double", "uint32_t", "uint64_t"; "word": an enum */
    const char *range; /* in words; empty: any; a word: its values from 0 on, separated by '|' */
    const char *same;  /* what must have the same value: "rank": nothing else; "ranks": all ranks;
                          "state": all ranks, and a state that is loaded */
    const char *help;
    double fallback; /* as the _INIT macro sets it */
} tamis_option;

#define TAMIS_OPTION_INIT TAMIS_INIT(tamis_option, )

/** The index-th option; `out` is set by its _INIT macro. @return 0 past the end, else 1. */
TAMIS_API int tamis_option_list(size_t index, tamis_option *out);

/** A combination that `call` refuses with UNSUPPORTED. docs/options.md is made from these, too. */
typedef struct tamis_refusal {
    size_t size;
    const char *call;  /* the one that refuses */
    const char *asked; /* options, or a policy of a scheme */
    const char *with;  /* what they cannot be combined with */
    const char *why;   /* and what to do */
} tamis_refusal;

#define TAMIS_REFUSAL_INIT TAMIS_INIT(tamis_refusal, )

/** The index-th refusal; `out` is set by its _INIT macro. @return 0 past the end, else 1. */
TAMIS_API int tamis_refusal_list(size_t index, tamis_refusal *out);

/** A part of the library that may be missing: "mpi", "openmp", "cuda", "nccl", "portable", "avx2",
 * "avx512", "neon"; of kernels those for this kind of processor. */
typedef struct tamis_feature {
    size_t size;
    const char *name;
    int available;
    const char *reason; /* why it is there or why not */
} tamis_feature;

#define TAMIS_FEATURE_INIT TAMIS_INIT(tamis_feature, )

/** The index-th feature; `out` is set by its _INIT macro. @return 0 past the end, else 1. */
TAMIS_API int tamis_feature_list(size_t index, tamis_feature *out);

#ifdef __cplusplus
}
#endif

#endif
