/* SPDX-License-Identifier: MIT
 *
 * Shared by host code and kernels: plain data in device memory and the launchers that work on it.
 * C11 and CUDA C++17.
 *
 * Nothing here waits. A launcher enqueues on a stream. Kernels read all that changes between steps
 * (ownership, number of entries, thresholds) from device memory, so that a captured step can be
 * replayed. CUDA grids are fixed at open; every kernel gives the same bits for every grid.
 *
 *     tam_launch_accumulate   acc = decay * acc + scale * grad, or + what an optimizer makes of it;
 *                             candidates into a pool; sums per chunk
 *     tam_launch_collect      pool -> ordered list; sums per group
 *     tam_launch_select       list, or else the own chunks -> exactly k indices, ascending
 *     tam_launch_collect_counted, _search, _emit     both, with a launch less, where both are known
 *     tam_launch_gather/apply/put     walks over chosen indices
 */
#ifndef TAM_CUDA_VIEW_H
#define TAM_CUDA_VIEW_H

#include "kernels/cuda/parameters.h"
#include "lib/contracts/device.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    TAM_CHUNK = 512, /* elements that a warp takes at a time; the chunk of kernels/cpu/tile.h */
    TAM_BLOCK_THREADS = 256, /* of every kernel */
    TAM_BLOCK_WARPS = TAM_BLOCK_THREADS / 32,
    /* Blocks that must fit a multiprocessor, of kernels that would spill: left to itself nvcc takes
     * 40 registers for six blocks; four leave 64. */
    TAM_UNSPILLED = 4,
    TAM_DIGITS = 2048, /* 11 bits of a key at a time */
    TAM_BATCH = 512    /* entries of the pool that a warp reserves at a time */
};

/** A run of at most TAM_CHUNK elements inside one tile. Every tile begins a new chunk. */
typedef struct tam_cuda_chunk {
    uint32_t begin, length;
    uint32_t group;
    uint32_t part; /* of its tile */
} tam_cuda_chunk;

/** The grid of the reducer, in device memory. */
typedef struct tam_cuda_grid {
    uint64_t n;
    uint32_t nchunks, ntiles, ngroups;
    const tam_cuda_chunk *chunks;
    const uint32_t *tile_chunks; /* [ntiles + 1] first chunk of each tile */
    const tam_group *groups;     /* [ngroups] */
    uint32_t blocks;             /* CUDA blocks of every kernel that walks the chunks */
    uint32_t run, nruns;         /* run r of the pass: chunks [run * r, run * (r + 1)) */
} tam_cuda_grid;

/** Blocks of the pass take runs as they come; each run is counted by itself, so lists joined by run
 * ascend, whichever block took it. Block b of any other walk takes chunks [nchunks * b / blocks,
 * nchunks * (b + 1) / blocks): these ascend with b. nruns >= blocks. */

/** Parameters that change from step to step. In device memory; the control kernel writes them, or
 * the host in stream order. */
typedef struct tam_cuda_params {
    uint64_t step;
    uint32_t mine;   /* part to select in, or TAM_PART_ALL */
    uint32_t k;      /* TOTAL: entries to select; ALL: at most so many */
    uint32_t floor;  /* TOTAL: the list is complete for keys at or above these bits */
    uint32_t listed; /* 1: the candidates of this step may be used */
    uint32_t broken; /* a tamis_status: the exchange is over; only accumulate still works */
    uint32_t zero;
} tam_cuda_params;

/** Candidates of the own chunks. First scattered over the pool, chunk by chunk, then listed. */
typedef struct tam_cuda_candidates {
    uint32_t capacity;        /* of the list; with more candidates it is incomplete */
    uint32_t pool_capacity;   /* enough: 2 * capacity + TAM_BATCH * (warps of the walk + 1), or
                                  TAM_CHUNK * nchunks */
    uint32_t *pool_index;     /* [pool_capacity] */
    uint32_t *pool_magnitude; /* [pool_capacity] */
    uint32_t *chunk_offset;   /* [nchunks] where a chunk's candidates begin in the pool */
    uint32_t *chunk_count;    /* [nchunks] written for own chunks only */
    uint32_t *run_count;      /* [nruns] */
    uint32_t *index;          /* [capacity] the list, ascending */
    uint32_t *magnitude;      /* [capacity] */
    uint32_t *group;          /* [capacity] */
} tam_cuda_candidates;

/** Results of accumulate and collect. Device memory; the caller of tam_launch_accumulate clears it
 * by tam_launch_start or _reset before every step. */
typedef struct tam_cuda_found {
    uint64_t nonfinite;
    uint64_t total;     /* candidates, including those that did not fit */
    uint32_t pool_used; /* cursor */
    uint32_t complete;  /* set by collect: total <= capacity, and the pool held them */
    uint32_t count;     /* set by collect: entries in the list, 0 if incomplete */
    uint32_t taken;     /* runs of the pass, while it runs; else 0 */
} tam_cuda_found;

/** Address and scale of a step's gradient, and what an optimizer needs in this pass. In device
 * memory, written in stream order: a captured step can be replayed with another gradient. */
typedef struct tam_cuda_source {
    void *grad;         /* flat, or NULL */
    void *const *grads; /* device array of one pointer per segment, or NULL */
    float scale, decay;
    tam_optimizer optimizer; /* if tam_cuda_accumulate.update */
} tam_cuda_source;

/** A number of this step, and where it goes. */
typedef struct tam_cuda_agreed {
    uint64_t *to; /* NULL: nowhere */
    uint64_t value;
} tam_cuda_agreed;

typedef struct tam_cuda_accumulate {
    tam_cuda_grid grid;
    float *acc;
    const tam_cuda_source *source; /* NULL: there is no gradient to write a result to */
    const uint32_t *seg_begin;     /* device array */
    tamis_dtype type;              /* of the gradient */
    bool clear;
    const tam_cuda_params *params;
    const uint32_t *thresholds; /* [ngroups] */
    tam_cuda_candidates candidates;
    tam_cuda_found *found;
    float *chunk_sums;  /* [nchunks] */
    double *group_sums; /* [ngroups] by collect */
    bool update;        /* the gradient is added as source->optimizer makes it */
} tam_cuda_accumulate;

static inline tam_optimizer tam_cuda_optimizer(const tam_accumulate *job) {
    tam_optimizer none = {};
    return job->optimizer ? *job->optimizer : none;
}

/** Result of a selection, in device memory. */
typedef struct tam_cuda_select_result {
    uint64_t checksum;   /* TAM_SUM_INDICES over the indices */
    uint32_t count;      /* indices written */
    uint32_t deferred;   /* ALL: over the threshold but beyond k */
    uint32_t candidates; /* considered */
    uint32_t key;        /* bits of the smallest key chosen; 0 if none */
    uint32_t rescanned;
    uint32_t zero;
} tam_cuda_select_result;

/** What a selection chooses from. */
enum { TAM_FROM_NOTHING, TAM_FROM_LIST, TAM_FROM_CHUNKS };

/** State between the passes of a selection. */
typedef struct tam_cuda_search {
    uint32_t ticket[4]; /* blocks that have finished a pass */
    uint32_t source;    /* TAM_FROM_... */
    uint32_t reach;     /* entries of the list whose key is at or over the floor */
    uint32_t key;       /* the digits found so far; in the end the cutoff */
    uint32_t rank;      /* of the cutoff among keys with these digits; in the end: ties to take */
} tam_cuda_search;

/** Scratch of a selection. A selection from the chunks also overwrites the candidates' chunk_offset
 * and chunk_count. */
typedef struct tam_cuda_select {
    uint32_t *histogram;  /* [3 * TAM_DIGITS] one per digit, cleared with the search */
    uint32_t *block_more; /* [blocks] entries over the cutoff */
    uint32_t *block_ties; /* [blocks] entries equal to it */
    tam_cuda_search *search;
} tam_cuda_select;

typedef struct tam_cuda_select_job {
    tam_cuda_grid grid;
    const float *acc;
    tam_select_kind kind;            /* TOTAL or ALL; GROUPS is a row of TOTALs, one per group */
    uint32_t first_chunk, end_chunk; /* select in these */
    const tam_cuda_params *params;
    const uint32_t *thresholds; /* ALL: an entry must reach that of its group */
    const float *weights;       /* TOTAL: per group; NULL: all 1 */
    tam_cuda_candidates candidates;
    const tam_cuda_found *found;
    tam_cuda_select select;
    uint32_t *indices; /* room for params->k */
    tam_cuda_select_result *selected;
} tam_cuda_select_job;

/** Words of memory. */
typedef struct tam_cuda_words {
    uint32_t *words;
    uint32_t count;
} tam_cuda_words;

/** What counts from zero. */
typedef struct tam_cuda_fresh {
    tam_cuda_found *found; /* or NULL */
    tam_cuda_select select;
    tam_cuda_select_result *selected;
    tam_cuda_words scratch; /* or none */
    tam_cuda_agreed agreed; /* not cleared, but set */
} tam_cuda_fresh;

/** Clears found, histograms, search, selected and scratch: before every selection. */
int tam_launch_reset(const tam_cuda_fresh *fresh, void *stream);
int tam_launch_accumulate(const tam_cuda_accumulate *job, void *stream);
int tam_launch_collect(const tam_cuda_accumulate *job, void *stream);
int tam_launch_select(const tam_cuda_select_job *job, void *stream);

/** Both: the first pass of the selection counts the list while it is written; the next ones find
 * the cutoff; the last ones write the indices. A list that does not serve the selection is not
 * written. */
int tam_launch_collect_counted(const tam_cuda_accumulate *job, const tam_cuda_select_job *selection,
                               void *stream);
int tam_launch_search(const tam_cuda_select_job *job, void *stream);
int tam_launch_emit(const tam_cuda_select_job *job, void *stream);

/** *to = value. The value is part of the launch, and so of a graph that captures it. */
int tam_launch_source(tam_cuda_source *to, tam_cuda_source value, void *stream);

/** tam_launch_source and tam_launch_reset: how a step starts. */
int tam_launch_start(tam_cuda_source *to, tam_cuda_source value, const tam_cuda_fresh *fresh,
                     void *stream);

enum { TAM_POINTERS = 64 }; /* pointers that one launch carries */

/** to[i] = values[i]. The launch includes the values: the host may change them at once.
 * @param count  at most TAM_POINTERS */
int tam_launch_pointers(void **to, void *const *values, uint32_t count, void *stream);

/** *count += entries among the n of acc with magnitude bits >= `threshold`. `blocks`: of CUDA. */
int tam_launch_count_reaching(const float *acc, uint64_t n, uint32_t threshold, uint32_t blocks,
                              uint64_t *count, void *stream);

/** marks[r] = whether any of the `length` entries of row r of acc is not 0. */
int tam_launch_mark_rows(const float *acc, uint32_t length, uint32_t nrows, unsigned char *marks,
                         void *stream);

/** values[i] = acc[indices[i]]; count is in device memory. `most`: bound of the grid. */
int tam_launch_gather(const float *acc, const uint32_t *indices, const uint32_t *count,
                      uint32_t most, float *values, void *stream);
/** values[i] /= divisor; gradient (if given) at indices[i] = values[i], rounded to its type. */
int tam_launch_apply(const tam_cuda_accumulate *target, const uint32_t *indices,
                     const uint32_t *count, uint32_t most, float divisor, float *values,
                     void *stream);
/** acc[indices[i]] = values[i]; NULL: 0. */
int tam_launch_put(float *acc, const uint32_t *indices, const uint32_t *count, uint32_t most,
                   const float *values, void *stream);

#ifdef __cplusplus
}
#endif

#endif
