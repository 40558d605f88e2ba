/* SPDX-License-Identifier: MIT
 *
 * tamis.h - sparse gradient exchange for data-parallel training.
 *
 * A tamis is a drum sieve: it lets the fine through and keeps what is large. Every rank keeps a
 * residual. In every step the ranks send only the largest entries of the accumulated gradient; the
 * rest stays in the residual for later steps. Nothing is lost, it is only late.
 *
 *     static void check(tamis_status status) {                       every call returns one
 *         if (status != TAMIS_OK)
 *             leave(tamis_last_error());                             print it and end all ranks
 *     }
 *     ...
 *     check(tamis_comm_create_mpi(MPI_COMM_WORLD, NULL, &comm));     who      (tamis/mpi.h)
 *     check(tamis_layout_create(segments, nsegments, &layout));      what
 *     tamis_reducer_config cfg = TAMIS_REDUCER_CONFIG_INIT;          how: scheme "tamis"
 *     check(tamis_reducer_create(comm, layout, &cfg, &red));
 *     check(tamis_comm_check_equal(comm, params, n * sizeof *params));    all ranks start equal
 *     for (int i = 0; i < steps; i++) {
 *         backward(grads);
 *         tamis_step step = TAMIS_STEP_INIT;
 *         step.grad = grads;
 *         check(tamis_reducer_start(red, &step));
 *         check(tamis_reducer_wait(red));       grads now holds the mean of the chosen entries
 *         optimizer(params, grads);            and zero elsewhere, the same bits on all ranks
 *     }
 *
 * examples/data_parallel.c is the whole program.
 *
 * You may stop reading after any section: 1 rules, 2 status, 3 communicators, 4 layouts,
 * 5 reducers, 6 steps, 7 results. What not every program needs is in headers that include this one:
 *
 *     mpi.h, nccl.h, callback.h    communicators over MPI, NCCL and the caller's own network
 *     cuda.h                       steps in the order of a CUDA stream
 *     overlap.h                    buckets, readiness, micro-batches
 *     stats.h                      figures of the last step, flight recorder
 *     state.h                      states in files and in memory
 *     elastic.h                    going on after a loss
 *     lists.h                      the tables that programs print: settings, options, features
 *     energy.h                     joules
 *
 * Stable          these: names and meanings stay within a major version
 * Experimental    may still change or be removed: nodes (config.ranks_per_node), tamis/pipeline.h
 *                 and tamis/governor.h, all available only if TAMIS_EXPERIMENTAL is defined before
 *                 including; and the exchange balanced-pairs, which needs no macro
 *
 *
 * 1. Rules, stated once
 *
 * Ownership    Whoever creates an object destroys it. Destroy accepts NULL and cannot fail. A
 *              reducer borrows its communicator and copies what it needs from its layout: destroy
 *              reducers before their communicator; a layout may go once the reducer exists.
 * Outputs      Output arguments come last and are written only on TAMIS_OK.
 * Threads      One thread at a time per handle, with two exceptions: any thread may call
 *              tamis_comm_abort, and one thread may call tamis_reducer_ready while another is
 *              inside tamis_reducer_wait.
 * Collective   All ranks make the calls marked "collective", in the same order on all reducers of
 *              one communicator.
 * Buffers      What a step points to belongs to the library from start until wait returns, or
 *              until the joined stream has passed the join.
 * Errors       A call with a wrong argument has no effect. Statuses are grouped by what is lost:
 *              nothing, the step, or the communicator (section 2). tamis_last_error() holds one
 *              sentence, which is also logged unless TAMIS_LOG is off. Compilers warn of calls
 *              that ignore a status (TAMIS_CHECKED).
 * Deadlines    No call blocks longer than the communicator's timeout (plus one second). Waits for
 *              a CUDA device that the host drives, and destroy calls, take at most
 *              TAMIS_TIMEOUT_MS.
 * Process      The library never exits, aborts, raises a signal or writes to stdout. Messages go
 *              to stderr or a log file, by default only warnings and errors.
 *              In a child that was forked, calls that exchange or wait say STATE on what its parent
 *              made, and a communicator or reducer is not freed by destroy.
 * Structs      Set every struct that has a `size` field by its _INIT macro, even if the library
 *              fills it in. Fields are only ever added at the end, so a program built with an
 *              older header keeps working.
 * Memory       On TAMIS_DEVICE_CPU every pointer is to host memory. On TAMIS_DEVICE_CUDA
 *              gradients, residual and results are device memory.
 * Numbers      Residuals are IEEE binary32, gradients binary32, binary16 or bfloat16. Sums over
 *              ranks are added by one binary tree over ranks, ((0 + 1) + (2 + 3)) + (4 + 5) of 6
 *              (docs/exchange.md, "Order of sums"): all ranks, all runs, all transports and all
 *              devices give the same bits.
 *              This holds even if a rank uses another rounding mode or flushes denormals
 *              (fesetround, torch.set_flush_denormal, a library linked with -ffast-math): the
 *              library computes in the default floating-point environment and restores the
 *              caller's.
 * Exceptions   On a CPU no call ends in SIGFPE, whatever the numbers, even if floating-point
 *              exceptions are enabled (feenableexcept: invalid, division by zero, overflow): NaN
 *              and Inf are reported by status. The caller's all-gather (callback.h) also runs with
 *              traps off. Flags and traps are restored afterwards.
 * Network      The exchange is as trusted as its transport: use it on networks you trust.
 */
#ifndef TAMIS_TAMIS_H
#define TAMIS_TAMIS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define TAMIS_API __attribute__((visibility("default")))
#else
#define TAMIS_API
#endif

/* A function whose status must be checked: compilers that can, warn of calls that ignore it. */
#if (defined(__cplusplus) && __cplusplus >= 201703L) ||                                            \
    (defined(__STDC_VERSION__) && __STDC_VERSION__ >= 202311L)
#define TAMIS_NODISCARD [[nodiscard]]
#elif defined(__GNUC__)
#define TAMIS_NODISCARD __attribute__((warn_unused_result))
#else
#define TAMIS_NODISCARD
#endif
#define TAMIS_CHECKED TAMIS_NODISCARD TAMIS_API

/* An _INIT macro sets the size of its struct and the fields whose default is not 0. C uses
 * designated initialisers; C++ has none before C++20, so there the fields are assigned. */
#if defined(__cplusplus)
#define TAMIS_INIT(type, sets)                                                                     \
    [] {                                                                                           \
        type own = type();                                                                         \
        own.size = sizeof own;                                                                     \
        sets return own;                                                                           \
    }()
#define TAMIS_SET(field, value) own.field = value;
#else
#define TAMIS_INIT(type, sets)                                                                     \
    { .size = sizeof(type), sets }
#define TAMIS_SET(field, value) .field = value,
#endif

#define TAMIS_VERSION_MAJOR 0
#define TAMIS_VERSION_MINOR 1
#define TAMIS_VERSION_PATCH 0
#define TAMIS_VERSION                                                                              \
    (TAMIS_VERSION_MAJOR * 10000 + TAMIS_VERSION_MINOR * 100 + TAMIS_VERSION_PATCH)

/** Version of the linked library, as TAMIS_VERSION. Compare it with the header's. */
TAMIS_API int tamis_version(void);

/* ------------------------------------------------------------------------------------------- */
/* 2. Status                                                                                    */

/** What a call returns. Numbers are frozen. */
typedef enum tamis_status {
    TAMIS_OK = 0,

    /* Nothing is lost: the call had no effect; put it right and call again. */
    TAMIS_E_ARGUMENT = 1,    /* an argument is NULL, out of range, misaligned or overlapping */
    TAMIS_E_STATE = 2,       /* the call came out of order (wait without start, start twice) */
    TAMIS_E_NOMEM = 3,       /* memory could not be allocated */
    TAMIS_E_UNSUPPORTED = 4, /* a valid request that this build or combination does not support */
    TAMIS_E_MISMATCH = 5,    /* the ranks were configured differently; all ranks get it */
    TAMIS_E_IO = 6,          /* a file could not be read or written */
    TAMIS_E_FORMAT = 7,      /* a state file is damaged, truncated, or belongs to something else */

    /* The step is lost: nothing was applied; residuals are finite; continue with the next step. */
    TAMIS_E_NONFINITE = 32, /* NaN or Inf in the gradient of at least one rank; on all ranks */

    /* The communicator is lost: every later call on it returns the same status. Save the state
     * of the reducers (no communication is needed) and leave, or go on with the ranks that are
     * left: tamis_comm_shrink (elastic.h). */
    TAMIS_E_TIMEOUT = 64,   /* a rank did not answer before the deadline */
    TAMIS_E_TRANSPORT = 65, /* the transport below (MPI, NCCL, a callback) reported an error */
    TAMIS_E_PROTOCOL = 66,  /* a message was refused (wrong step, wrong hash, damaged), or the
                               ranks were found to hold different results */
    TAMIS_E_ABORTED = 67,   /* tamis_comm_abort was called here, or another rank reported so */
    TAMIS_E_DEVICE = 68     /* the accelerator reported an error */
} tamis_status;

/** What a status costs. */
typedef enum tamis_loss {
    TAMIS_LOST_NOTHING = 0,
    TAMIS_LOST_STEP = 1,
    TAMIS_LOST_COMM = 2
} tamis_loss;

/** Name of a status ("TAMIS_E_TIMEOUT"); "unknown status" for other numbers. Never NULL. */
TAMIS_API const char *tamis_status_name(tamis_status status);

/** One sentence on what a status means. Never NULL. */
TAMIS_API const char *tamis_status_text(tamis_status status);

/** One sentence on what to do about a status. Never NULL. */
TAMIS_API const char *tamis_status_remedy(tamis_status status);

/** What is lost with a status. Unknown numbers count as TAMIS_LOST_COMM. */
TAMIS_API tamis_loss tamis_status_loss(tamis_status status);

/**
 * The sentence of the last call that failed on this thread: what, where and, if it matters, on
 * which rank. tamis_status_remedy says what to do.
 *
 * Lifetime: until the next failing call on the same thread. Never NULL; "" if none failed yet.
 */
TAMIS_API const char *tamis_last_error(void);

/* ------------------------------------------------------------------------------------------- */
/* 3. Communicators: who takes part                                                             */

typedef struct tamis_comm tamis_comm;

/** Options of every communicator. Pass NULL for the defaults. */
typedef struct tamis_comm_config {
    size_t size;
    uint32_t timeout_ms; /* deadline of every wait; 0: TAMIS_TIMEOUT_MS, else 300,000 */
} tamis_comm_config;

#define TAMIS_COMM_CONFIG_INIT TAMIS_INIT(tamis_comm_config, )

/**
 * Make the communicators of `nranks` ranks that are threads of this process.
 *
 * For tests and for training on one machine. One thread uses each communicator. Together they take
 * 448 bytes for each pair of ranks: 0.5 GB at 1024 ranks, 7.5 GB at 4096.
 *
 * @param  nranks  [in]   1 to 4096
 * @param  comms   [out]  tamis_comm *[nranks]; comms[r] is rank r; all or none are set
 *
 * Lifetime:   the shared part is freed with the last communicator
 * Errors:     ARGUMENT, NOMEM; nothing is lost
 */
TAMIS_CHECKED tamis_status tamis_comm_create_local(uint32_t nranks, const tamis_comm_config *config,
                                                   tamis_comm **comms);

/** Rank of this communicator, 0 to nranks - 1; 0 for NULL. */
TAMIS_API uint32_t tamis_comm_rank(const tamis_comm *comm);

/** Number of ranks; 0 for NULL. */
TAMIS_API uint32_t tamis_comm_nranks(const tamis_comm *comm);

/** Name of the transport: "local", "mpi", "callback", "nccl"; "" for NULL. */
TAMIS_API const char *tamis_comm_transport(const tamis_comm *comm);

/** In which stages its ranks exchange what all need: radices, near to far, as "8x8x4", and behind a
 * slash the bytes up to which a part of a sum crosses the last stage once, as "8x8x4/1024"
 * (docs/exchange.md). A single number: all with all. Over MPI it is measured which plan suits the
 * network when the communicator is created; the environment variable TAMIS_PLAN fixes it. */
TAMIS_API const char *tamis_comm_plan(const tamis_comm *comm);

/** TAMIS_OK, or the status that poisoned the communicator. Any thread. */
TAMIS_CHECKED tamis_status tamis_comm_status(const tamis_comm *comm);

/** How threads wait for other ranks. It changes times and energy, never results. */
typedef enum tamis_waiting {
    TAMIS_WAITING_AUTO = 0, /* poll for a moment, then sleep an eighth of the time waited so far,
                               2 to 200 us. Polling lasts 15 us on the library's thread, 50 while
                               the caller waits for that thread, 400 on a thread of the caller */
    TAMIS_WAITING_SPIN = 1, /* never yield the processor: keeps a core busy and delays whatever
                               shares it, perhaps the rank that is being waited for */
    TAMIS_WAITING_SLEEP = 2 /* sleep from the first poll on */
} tamis_waiting;

/**
 * Choose how this rank waits, from the next exchange on. Any thread. Until then: TAMIS_WAIT.
 *
 * With AUTO and SLEEP, a rank that had to wait in each of the last 16 steps takes longer sleeps
 * until shortly before the shortest of these waits has passed.
 *
 * This matters only for mpi, which polls for messages. Over local a waiting rank sleeps in the
 * kernel; over callback the callback decides.
 *
 * Errors:     ARGUMENT: no effect
 */
TAMIS_CHECKED tamis_status tamis_comm_set_waiting(tamis_comm *comm, tamis_waiting waiting);

/**
 * Check that all ranks hold the same bytes, e.g. their parameters.
 *
 * Data parallelism needs three things that no gradient shows and nothing else here checks:
 *
 *     equal parameters at the start    broadcast them, then check them; check again every few
 *                                      hundred steps: ranks that apply the same results stay equal
 *     different samples                each rank its own shard, or P ranks do the work of one
 *     equal numbers of steps           or the rank with more steps times out
 *
 * The ranks exchange a hash of the bytes (XXH3, 128 bits), never the bytes.
 *
 * @param  data   [in]  host memory; NULL with bytes = 0: this rank has nothing
 *
 * Collective: yes, between steps
 * Cost:       one pass over the bytes and one all-gather; no allocation
 * Errors:     MISMATCH: the sentence, the same on all ranks, names those that differ from the
 *             majority, or from rank 0 if there is none; ranks that are in another collective call
 *             get it, too. ARGUMENT on all ranks if data is NULL on any. Nothing is lost by these.
 *             Other errors lose the comm
 */
TAMIS_CHECKED tamis_status tamis_comm_check_equal(tamis_comm *comm, const void *data, size_t bytes);

/**
 * Bytes of every rank to all ranks: of the caller's own, beside steps.
 *
 * @param  send  [in]   [bytes]           host memory; the same number on all ranks
 * @param  recv  [out]  [nranks * bytes]  rank r's at r * bytes; does not overlap send
 *
 * Collective: yes, between steps
 * Cost:       up to 320 bytes one all-gather, no allocation; else in pieces, through 4 MiB of
 *             memory
 * Errors:     ARGUMENT, NOMEM, MISMATCH (another number of bytes), on all ranks: nothing is lost.
 *             Other errors lose the comm; recv is then undefined
 */
TAMIS_CHECKED tamis_status tamis_comm_allgather(tamis_comm *comm, const void *send, size_t bytes,
                                                void *recv);

/**
 * Copy the bytes of one rank to all: parameters at the start, or for ranks that join.
 *
 * @param  data  [in,out]  host memory
 *
 * Collective: yes, between steps
 * Cost:       every rank sends and receives about as many bytes, the root twice as many; memory as
 *             for tamis_comm_allgather
 * Errors:     as of tamis_comm_allgather; MISMATCH also where ranks name another root
 */
TAMIS_CHECKED tamis_status tamis_comm_broadcast(tamis_comm *comm, uint32_t root, void *data,
                                                size_t bytes);

/** XXH3, 64 bits: to compare much at once, by check_equal of many hashes. NULL: of nothing. */
TAMIS_API uint64_t tamis_hash(const void *data, size_t bytes);

/**
 * Abandon the communicator, from any thread: calls in progress return TAMIS_E_ABORTED soon.
 *
 * The other ranks notice at once (local) or at their deadline (MPI, NCCL, callback).
 */
TAMIS_API tamis_status tamis_comm_abort(tamis_comm *comm);

/**
 * Destroy a communicator. Its reducers must be gone. NULL is fine.
 *
 * Not collective, except over MPI (see mpi.h). A poisoned communicator does not free what the
 * transport may still access.
 */
TAMIS_API void tamis_comm_destroy(tamis_comm *comm);

/* ------------------------------------------------------------------------------------------- */
/* 4. Layouts: the meaning of the flat gradient                                                 */

typedef struct tamis_layout tamis_layout;

/** One parameter tensor ("layer"): a run of the flat gradient. Segments follow each other. */
typedef struct tamis_segment {
    const char *name; /* for messages; copied; NULL gives "segment <i>" */
    uint64_t length;  /* elements, at least 1 */
} tamis_segment;

/**
 * Make a layout of `nsegments` consecutive segments.
 *
 * @param  segments   [in]  tamis_segment[nsegments]; borrowed for the call
 * @param  nsegments  [in]  at least 1
 *
 * Shape:      n = sum of the lengths, at most 2^32 - 2^16 (indices travel as 32 bits; use several
 *             reducers beyond that)
 * Errors:     ARGUMENT, NOMEM; nothing is lost
 */
TAMIS_CHECKED tamis_status tamis_layout_create(const tamis_segment *segments, size_t nsegments,
                                               tamis_layout **out);

/**
 * Declare that the gradient of a segment is zero except in few rows, as in an embedding, where a
 * batch touches only the rows of its words. The segment is a row-major matrix.
 *
 * Such a segment is exchanged separately and exactly, whatever the scheme: the ranks exchange which
 * rows have a non-zero entry, and every row that any rank touched is summed whole, in float32. None
 * of its entries are selected or late; density, k and the statistics of entries count only the
 * other segments. If a rank touched so many rows that their list costs more than it saves, the
 * whole segment is summed in that step. The result holds all entries of the rows that were summed.
 *
 * With config.rows_capacity a rank lists at most so many rows of a segment in a step. If it touched
 * more, it lists rows_capacity of them from a start row that advances by rows_capacity each step
 * and wraps around; the rest stays in its residual unless another rank lists the same row, counts
 * as deferred and is sent later: of R rows each within R / rows_capacity steps, rounded up, if none
 * is skipped. So messages have a bound, and the whole segment is not summed at once.
 *
 * The residual includes the segment; that part is zero after every applied step, but for what was
 * deferred. It never decays. Micro-batches add up there, and the gradient of a failed or skipped
 * step stays there for the next step.
 *
 * Affects reducers created afterwards. All ranks must set the same.
 *
 * @param  row_length  [in]  elements of a row, a divisor of the segment's length; 0: an ordinary
 *                           segment, as at first
 *
 * Shape:      each such segment is a bucket of its own (overlap.h). tamis_reducer_create refuses
 *             more than 64 buckets, runs of other segments between them included (UNSUPPORTED). A
 *             reducer takes 12 bytes for each element of the segment, residual included, 20 if
 *             there are several buckets, and some 4 ranks + 5 for each row. With CUDA, 8 or 16 of
 *             these bytes are on the host where that drives the steps
 * Errors:     ARGUMENT: no effect
 */
TAMIS_CHECKED tamis_status tamis_layout_set_rows(tamis_layout *layout, size_t segment,
                                                 uint64_t row_length);

/** Elements of the whole gradient; 0 for NULL. */
TAMIS_API uint64_t tamis_layout_length(const tamis_layout *layout);

TAMIS_API void tamis_layout_destroy(tamis_layout *layout);

/* ------------------------------------------------------------------------------------------- */
/* 5. Reducers: how, and the state                                                              */

typedef struct tamis_reducer tamis_reducer;

/** Where a reducer computes. */
typedef enum tamis_device {
    TAMIS_DEVICE_CPU = 0,
    TAMIS_DEVICE_CUDA = 1 /* the CUDA device that is current on the thread that creates it */
} tamis_device;

/** Elements of a gradient. */
typedef enum tamis_dtype {
    TAMIS_DTYPE_FLOAT32 = 0,
    TAMIS_DTYPE_FLOAT16 = 1, /* IEEE binary16; a result that exceeds it becomes infinite */
    TAMIS_DTYPE_BFLOAT16 = 2 /* a result that exceeds it becomes its largest number, 3.39e38 */
} tamis_dtype;

/** What wait leaves behind (section 7). */
typedef enum tamis_output {
    TAMIS_OUTPUT_DENSE = 0, /* in step.grad: the result at the chosen entries, zero elsewhere */
    TAMIS_OUTPUT_SPARSE = 1 /* only tamis_reducer_result; step.grad is read and left as it is */
} tamis_output;

/** Whether the result is the mean or the sum over ranks. */
typedef enum tamis_op { TAMIS_OP_MEAN = 0, TAMIS_OP_SUM = 1 } tamis_op;

/** What all ranks do when any rank finds NaN or Inf. The residual stays finite in each case: an
 * entry that would make it non-finite is dropped, the others are accumulated. A sum over ranks that
 * is not finite, or would not be with all factors (mean, update.scale), counts as a bad entry, too:
 * only finite values are applied. Scheme "dense" checks the sums only. */
typedef enum tamis_nonfinite {
    TAMIS_NONFINITE_ERROR = 0, /* apply nothing, wait returns TAMIS_E_NONFINITE on all ranks */
    TAMIS_NONFINITE_SKIP = 1,  /* apply nothing, wait returns TAMIS_OK, stats.skipped is 1 */
    TAMIS_NONFINITE_DROP = 2   /* drop the bad entries and continue */
} tamis_nonfinite;

/** The order in which scheme "dense" adds values over ranks.
 *
 *     TREE       by one binary tree over ranks: the same bits in every run, over every transport,
 *                on every device
 *     TRANSPORT  that of ncclAllReduce, which promises none: the same bits on all ranks, but
 *                perhaps others when the same step is run again. Only for steps that a CUDA device
 *                runs by itself over nccl (docs/cuda.md)
 */
typedef enum tamis_sum_order {
    TAMIS_SUM_ORDER_TREE = 0,
    TAMIS_SUM_ORDER_TRANSPORT = 1
} tamis_sum_order;

/** How the k entries of a step are divided among several buckets (overlap.h).
 *
 *     NORM     by the norms of the layers in the previous step; a bucket gets between half of what
 *              its length would give it and that and a tenth of the mean. With an update of rule
 *              Adam, which divides layers by their scale: by length
 *     LENGTH   by length: constant counts
 */
typedef enum tamis_bucket_budget {
    TAMIS_BUCKET_BUDGET_NORM = 0,
    TAMIS_BUCKET_BUDGET_LENGTH = 1
} tamis_bucket_budget;

/** Which thread runs the accumulate pass of a step that the host drives. */
typedef enum tamis_worker {
    TAMIS_WORKER_CALLER = 0, /* the one that calls start or ready */
    TAMIS_WORKER_THREAD = 1  /* the library's, if the communicator has one (mpi); else the one that
                                waits. ready then only marks the segment */
} tamis_worker;

/** Index codecs: how indices are encoded in messages, row(NAME, name, number):
 *
 *     u32       4 bytes each
 *     block16   2 bytes each, and a count for every 65,536 entries
 *     gap8      a byte each, and one for every 255 entries
 *     bitmap    a bit for every entry
 *     rice      gaps in bits: 8.5 for 1 % of the entries, 5.4 for 8 %
 */
#define TAMIS_INDEX_CODECS(row)                                                                    \
    row(U32, u32, 1) row(BLOCK16, block16, 2) row(GAP8, gap8, 3) row(BITMAP, bitmap, 4)            \
        row(RICE, rice, 5)

/** How indices are encoded (docs/exchange.md). The results are the same. AUTO chooses for each
 * bucket, from the counts known at creation, a codec that takes few bytes (gap8 only if it takes a
 * third less than the others, since it is slower to read). With exchange auto, which knows the
 * link, it is the codec expected to take the least time. Where a CUDA device runs the steps it is
 * u32 or block16, and rice with values of 8 bits or fewer. */
#define TAMIS_INDEX_ENUMERATOR(NAME, name, number) TAMIS_INDEX_##NAME = number,
typedef enum tamis_index_codec {
    TAMIS_INDEX_AUTO = 0,
    TAMIS_INDEX_CODECS(TAMIS_INDEX_ENUMERATOR) TAMIS_INDEX_END /* one more than the last */
} tamis_index_codec;
#undef TAMIS_INDEX_ENUMERATOR

/** Value codecs: how values are encoded in messages, row(NAME, name, number, bits of a value, bytes
 * of scales for each 256 values, NAME of the codec of their sums):
 *
 *     float32    4 bytes each
 *     bfloat16   2 bytes each
 *     int8       a byte each: multiples of 1/127 of the largest of 256 values
 *     fp4        4 bits each: a sign and one of 0, 2^-6, ..., 2^-1, 1 of the largest of 256 values
 *     fp2        2 bits each: a sign and one of two magnitudes, means of 256 values
 */
#define TAMIS_VALUE_CODECS(row)                                                                    \
    row(FLOAT32, float32, 1, 32, 0, FLOAT32) row(BFLOAT16, bfloat16, 2, 16, 0, BFLOAT16)           \
        row(INT8, int8, 3, 8, 2, INT8) row(FP4, fp4, 4, 4, 2, INT8) row(FP2, fp2, 5, 2, 4, FP4)

/** How values travel (docs/exchange.md). Rounding errors stay in a residual: late, not lost.
 * AUTO is what suits the update (tamis_update), else float32. For a sum AUTO is what costs little
 * beside the values: int8 for fp4, fp4 for fp2, else their own type. */
#define TAMIS_VALUE_ENUMERATOR(NAME, name, number, ...) TAMIS_VALUE_##NAME = number,
typedef enum tamis_value_codec {
    TAMIS_VALUE_AUTO = 0,
    TAMIS_VALUE_CODECS(TAMIS_VALUE_ENUMERATOR) TAMIS_VALUE_END /* one more than the last */
} tamis_value_codec;
#undef TAMIS_VALUE_ENUMERATOR

/** What a reducer does. Phases of one bucket follow each other; WAIT is on the caller's side. */
typedef enum tamis_phase {
    TAMIS_PHASE_ACCUMULATE = 0,
    TAMIS_PHASE_SELECT = 1,
    TAMIS_PHASE_EXCHANGE = 2, /* transport calls, and the union between them, less SKEW */
    TAMIS_PHASE_APPLY = 3,    /* of all buckets, at the end of the step */
    TAMIS_PHASE_WAIT = 4,     /* a thread of the caller is blocked: exposed time */
    TAMIS_PHASE_DEVICE = 5,   /* a step that a CUDA device runs by itself, as the host sees it */
    TAMIS_PHASE_SKEW = 6,     /* waiting in the exchange for the last rank to begin it; reported
                                 when the exchange has ended. If it is unknown (scheme dense,
                                 the first exchange), EXCHANGE includes it */
    TAMIS_PHASES
} tamis_phase;

/** "accumulate", "select", ..., "skew"; "" for other numbers. */
TAMIS_API const char *tamis_phase_name(tamis_phase phase);

#define TAMIS_NO_BUCKET UINT32_MAX

/** A phase that has ended. */
typedef struct tamis_phase_event {
    size_t size;
    tamis_phase phase;
    uint32_t rank;
    uint32_t bucket; /* TAMIS_NO_BUCKET: of the whole step */
    uint64_t step;
    uint64_t begin_ns, end_ns; /* CLOCK_MONOTONIC */
} tamis_phase_event;

/** What a rank adds to its residual in update mode; g is scale * its own gradient, m and v are
 * float32[n] each and start at 0, and t counts passes from 1. */
typedef enum tamis_update_rule {
    TAMIS_UPDATE_ADAM = 0,     /* m = beta1 m + (1 - beta1) g, v = beta2 v + (1 - beta2) g^2, and
                                 u = (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + epsilon).
                                 With beta1 = 0 there is no m: u = g / (sqrt(...) + epsilon) */
    TAMIS_UPDATE_MOMENTUM = 1, /* m = beta1 m + g, u = m; m is cleared where it was applied:
                                  momentum correction and factor masking of Deep Gradient
                                  Compression. It is not where the reducer is created with a density
                                  of 40 % or more: there it is SGD's momentum. With beta1 = 0 there
                                  is no m: u = g */
    TAMIS_UPDATE_STEP = 2      /* u = g: the caller gives the step of an optimizer of its own, in
                                  units of the learning rate, in place of a gradient. No moments */
} tamis_update_rule;

/**
 * Update mode: the residual accumulates the step that each rank's own optimizer would make, not the
 * gradient. Adam suffers from sparse means of gradients (docs/fidelity.md says why); here the
 * result is a step already. The caller only applies it:
 *
 *     tamis_update update = TAMIS_UPDATE_INIT;
 *     cfg.update = &update;
 *     ...
 *     for every parameter:  p -= lr * weight_decay * p;  p -= lr * grads[i];      plain SGD, lr as
 *                                                                                 for dense AdamW
 * Parameters stay identical on all ranks; m and v differ from rank to rank, and belong to the
 * state.
 *
 * An entry that is not finite, or whose square is not, changes neither m nor v nor the residual,
 * and counts as a bad one. The finite entries of a step that is then skipped have changed them.
 *
 * What is left open is what suits the rule (docs/fidelity.md has the figures):
 *
 *     rule                    density  value, sum codec  residual_decay  scale
 *     none: gradients         30 %     fp4, int8         1               1               (1)
 *     adam, step              30 %     fp4, int8         0               by norms        (2)
 *     adam with beta1 = 0     3.3 %    fp2, fp2          0.98            1.25            (3)
 *     momentum                30 %     fp2, fp2          1               by density      (4)
 *
 * 1. With the default policies. Where a density or another scheme is given: 1 %, float32.
 * 2. Below 25 %: fp2, fp2. These need exchange union and an open sum_codec; else values are fp4.
 * 3. The residual is the momentum. Below 3.5 %, where beta1 is open, it is 0: entries whose
 *    momentum is never among the surest would hardly move.
 * 4. With which the rate of a dense run suits: 1 from 40 % on, 5.0 at 30 %, 2.4 at 10 %, 1.1 at
 *    1 %.
 *
 * By norms: the step is as long as norm_matching times a rank's own step. With few entries it must
 * be longer, for the largest hold but a part of that: norm_matching is 1 at a density of 1, 1.25 at
 * 30 %, 2 at 8 %, 2.5 at 3.3 %, 3 from 1 % down, and between these linear in the density's
 * logarithm; it follows tamis_reducer_set_density. With schemes that send every element it is 1,
 * and the residual keeps what rounding takes (residual_decay 1). A reducer that is created with a
 * density of 1, or a given scale without norms, sends float32.
 *
 * Memory:      m and v on the device, 4 bytes per element each (beta1 = 0: no m; momentum: no v;
 *              step: neither)
 * Cost:        one pass, 28 bytes per element (32 with dense output, 8 less without m or v)
 * Unsupported: scheme dense, segments with rows, tamis_reducer_accumulate: add micro-batches up in
 *              the gradient. With exchange auto all buckets are union
 * Source:      Adam: arXiv 1412.6980; momentum: arXiv 1712.01887
 */
typedef struct tamis_update {
    size_t size;
    tamis_update_rule rule;
    double beta1;   /* in [0, 1); -1: 0.9, adam below 3.5 % 0; not for rule step */
    double beta2;   /* in [0, 1); adam only */
    double epsilon; /* 1e-38 to 1e38; adam only */
    double scale;   /* 1e-6 to 1e6: factor on the result, since the few chosen entries need a larger
                       step than a dense optimizer would make on them. 0: by norms, or as below */
    /* c from 0.01 to 100: the scale follows from norms, and `scale`, if it is not 0, is the most
     * that it may be: c sqrt(E |u|^2 / max(E |q|^2, |q|^2)), u the residual that a rank selects
     * from, q what is applied, before the scale; E is over ranks, and over steps with weight 0.05;
     * |q| alone of this step. So no step is longer than c times a rank's own. 0: `scale`, or if
     * that is 0, too, c by the density (above). adam and step */
    double norm_matching;
} tamis_update;

#define TAMIS_UPDATE_INIT                                                                          \
    TAMIS_INIT(tamis_update, TAMIS_SET(rule, TAMIS_UPDATE_ADAM) TAMIS_SET(beta1, -1.0)             \
                                 TAMIS_SET(beta2, 0.99) TAMIS_SET(epsilon, 1e-8))

#define TAMIS_BUCKETS_PLANNED UINT64_MAX

/**
 * Options of a reducer. All ranks must give the same values, except for `threads`, `worker`,
 * `on_phase` and, where the host drives the steps, `device` (not with scheme dense or auto).
 *
 * TAMIS_DEVICE_CUDA works over every communicator. Over nccl a step runs on the device alone, with
 * no host synchronisation, if the sizes of its messages follow from the density: with every preset
 * with an exact count (tamis, topk, cltk), dense, `step` and `fixed` with `capacity` (not with
 * ownership `balanced`, whose parts move, nor with exchange `balanced-pairs`); of segments with
 * rows, with `rows_capacity`. In all other cases the host drives the step and moves k entries
 * (dense and nodes: the gradient; rows: those touched) through pinned memory.
 *
 * A scheme is four policies, joined by '+': ownership (who selects where), budget (how many per
 * segment), threshold (how they are found), exchange (how they travel):
 *
 *     ownership   all | rotate | bins | cyclic | leader | balanced
 *     budget      global | norm
 *     threshold   exact | step | predict | fixed | sage | reuse
 *     exchange    union | pairs | balanced-pairs | auto
 *
 * The presets `dense` and `quantized` select nothing: every element travels in every step, whatever
 * `density` says. dense sums gradients as they are. quantized (1-bit SGD's error feedback, Seide et
 * al., Interspeech 2014) sends the residual in `value_codec`, of which auto is then fp4, and keeps
 * what rounding takes.
 *
 * A preset is a row of four: see lists.h. Combinations that have no meaning are refused
 * with a sentence. docs/algorithm.md describes each policy.
 *
 * With exchange auto each bucket is union or dense, whichever a model (docs/exchange.md) expects to
 * be faster. The choice is made when the reducer is created, from numbers that all ranks share. If
 * link_latency_us and link_gbit are both given, the model knows nothing else of the machine, and
 * the choice is the same in every run. Otherwise times are measured, once per communicator, in some
 * 80 ms; the choice, and with it the bits, may then differ between runs. Dense buckets are summed
 * in the gradient, in float32, whatever value_codec is: an error that loses the communicator leaves
 * their gradients partly reduced, and a step that is skipped for NaN or Inf loses their gradients,
 * as with scheme dense. Their micro-batches wait in the residual and are sent with the step. With
 * TAMIS_OUTPUT_SPARSE and on a CUDA device all buckets are union.
 *
 * With ranks_per_node = G > 1 the exchange is hierarchical. Ranks a G to a G + G - 1 form node a,
 * which sums its gradients, so that only selected sums travel between nodes. Rank g of a node
 * holds shard g, some n/G elements; its residual is that of the node's sum. The ranks g of all
 * nodes run the scheme on their shard; each node gathers the results (docs/exchange.md). G must
 * divide the number of ranks. For schemes with an exact count, exclusive ownership and exchange
 * union (tamis, cltk); no segment has rows. The exchange reads the gradient, whatever `worker` is,
 * so the gradient belongs to the library until wait; an error before the node's sum is complete
 * leaves it unchanged. Bad entries are counted in the sums of a node; tamis_reducer_accumulate is
 * refused. Over nccl devices run such steps by themselves, also the sums inside nodes.
 */
typedef struct tamis_reducer_config {
    size_t size;
    const char *scheme;        /* preset or "ownership+budget+threshold+exchange"; NULL: "tamis",
                                  with an update of rule Adam "tamis-update" */
    double density;            /* share of the entries that travel, in (0, 1]; k = max(1, floor).
                                  0: what suits the update (below) */
    tamis_output output;       /* dense */
    tamis_op op;               /* mean */
    tamis_nonfinite nonfinite; /* error */
    uint32_t block;            /* unit of cyclic and balanced ownership, elements: multiple of 32,
                                  <= 65536; 0: a power of two, 32 to 4096, by length and ranks
                                  (docs/algorithm.md); balanced: 1024 blocks, as published */
    double overselect;         /* predict: candidates aimed at, in units of k; 1.1 to 8; 0: 1.5 */
    double capacity;           /* step, fixed, sage: packet size in units of k / ranks (ownership
                                  `all`, `leader`: of k; reuse: of k); what does not fit stays in
                                  the residual. 0: as published: packets grow to the longest list,
                                  those of reuse have room for 4 k */
    double threshold;          /* step, sage: the first threshold, fixed: the threshold; 0:
                                  1 / (2 sqrt(k)), as published */
    uint32_t threads;          /* of the CPU kernels; 0: TAMIS_THREADS, else 1 */
    tamis_device device;       /* cpu */
    tamis_dtype grad_dtype;    /* float32 */
    uint64_t bucket_length;    /* elements of a bucket (overlap.h). 0: all segments are one bucket;
                                  TAMIS_BUCKETS_PLANNED: as the link below and the number of
                                  ranks suggest; else segments
                                  are joined until they have so many. At most 64 or k buckets */
    tamis_bucket_budget bucket_budget; /* norm */
    tamis_worker worker;               /* caller */
    double density_max;     /* the most that tamis_reducer_set_density may ask; 0: density */
    double link_latency_us; /* time of an empty message. 0: not known; planned buckets are then as
                               for 50, over nccl for what lies between the ranks (docs/overlap.md),
                               exchange auto measures */
    double link_gbit;       /* 10^9 bits a second of one rank. 0: not known; as for 1, over nccl
                               that of its links, or measured */
    /* Called at the end of every phase, on the thread that ran it, which may be the library's. It
     * must return soon and must not call the library. NULL: not called. */
    void (*on_phase)(void *context, const tamis_phase_event *event);
    void *on_phase_context;
    tamis_index_codec index_codec; /* auto */
    tamis_value_codec value_codec; /* of values that a rank sends */
    tamis_value_codec sum_codec;   /* of their sums, exchange union */
#ifdef TAMIS_EXPERIMENTAL
    uint32_t ranks_per_node; /* G: hierarchical exchange, above. 0 and 1: no nodes */
#else
    uint32_t experimental_ranks_per_node; /* leave it as it is */
#endif
    double residual_decay;      /* in [0, 1]: factor on the residual once a step, before
                                anything is added. 1 keeps all; less forgets what has waited long,
                                so that mass is no longer conserved. Not for scheme dense. -1: what
                                suits the update */
    const tamis_update *update; /* NULL: residuals accumulate gradients. Copied */
    tamis_sum_order sum_order;  /* tree */
    uint32_t rows_capacity;     /* most rows that a rank lists of a segment in a step; what does not
                                fit stays in the residual (tamis_layout_set_rows). 0: all that it
                                touched. Not for scheme dense */
    double byte_share;          /* in place of a density: the most bytes that a step may send, as a
                                   share of those of a dense ring of float32. Codecs that are left
                                   open are chosen with it. 0: open. For schemes of exclusive
                                   owners, exact counts and exchange union, as the defaults are.
                                   It counts indices, values and sums; headers come on top, of
                                   each bucket, and partial sums where ranks exchange in stages.
                                   tamis_reducer_options returns the density that was found */
    double slowdown;            /* time that a step may wait for the exchange, as a share of its
                                   computing. The density falls towards the least that suits the
                                   update while steps wait longer, and rises again up to `density`,
                                   or what tamis_reducer_set_density gave, while they do not: every
                                   40 steps, by times of all ranks, which headers carry. So bits
                                   depend on times. 0: it stays as it is */
} tamis_reducer_config;

/** Fields not named are 0, NULL, or the first of their enum. */
#define TAMIS_REDUCER_CONFIG_INIT TAMIS_INIT(tamis_reducer_config, TAMIS_SET(residual_decay, -1.0))

/**
 * Make a reducer: residual (zero), plan, buffers. All memory is taken here, none in a step.
 *
 * Collective: yes. The ranks exchange a descriptor (version, layout, scheme, density, ...); if one
 *             differs, ALL ranks get TAMIS_E_MISMATCH with a sentence naming field and rank. If
 *             one rank fails for another reason (memory, argument), all ranks get its status.
 * Shape:      residual float32[n] (ranks_per_node: of the shard, and as much for the node's sum);
 *             further buffers O(ranks * k) for exact counts, some 9 n floats for `step`, `fixed`
 *             and `sage` without capacity (ownership `all` and `leader`: 4 n for every rank,
 *             `balanced` up to three quarters of that), 2 n for `bins`
 * Errors:     ARGUMENT, NOMEM, UNSUPPORTED, MISMATCH: nothing lost; TIMEOUT, TRANSPORT, DEVICE:
 *             the comm
 */
TAMIS_CHECKED tamis_status tamis_reducer_create(tamis_comm *comm, const tamis_layout *layout,
                                                const tamis_reducer_config *config,
                                                tamis_reducer **out);

/** Destroy a reducer. Between start and wait this waits for the exchange first. NULL is fine. */
TAMIS_API void tamis_reducer_destroy(tamis_reducer *reducer);

/**
 * Change the density from the next step on.
 *
 * Collective: all ranks must ask the same before the same step; the step notices if they did not
 * Cost:       where a CUDA device runs the steps by itself, this waits for those before, unless k
 *             stays; and if k grows or shrinks by more than some percent, the next start waits for
 *             step.stream and the other ranks and captures its graphs anew (docs/cuda.md)
 * @param  density  [in]  in (0, config.density_max]
 * Errors:     ARGUMENT; STATE (a step is under way); UNSUPPORTED: scheme dense, and a step in a
 *             CUDA graph of the caller, which keeps the sizes of its messages: no effect. DEVICE
 */
TAMIS_CHECKED tamis_status tamis_reducer_set_density(tamis_reducer *reducer, double density);

/** The density of the next step, the same on all ranks: what was given last, what a state had, or
 * what config.slowdown made of it. Between steps. 1: every element is sent. NULL: 0. */
TAMIS_API double tamis_reducer_density(const tamis_reducer *reducer);

/* ------------------------------------------------------------------------------------------- */
/* 6. Steps                                                                                     */

/**
 * One step: where the gradient is. Exactly one of `grad` and `grads` is set. Each rank may choose
 * either; the result is the same.
 *
 * An update without moments (rule step, or momentum with beta1 0) takes the step of an optimizer
 * that the caller runs. With `before` the caller need not compute it: grads[i] are the parameters
 * after that step and before[i] a copy from before it, or what weight decay alone makes of that, if
 * it is apart from the gradient.
 *
 *     start     u = (before - grads) * (1 / rate), or 0 where the rate is; grads = before
 *     wait      grads = before - rate * x     where x, the result, is not 0
 *
 * Every operation is rounded, so that ranks with the same `before` end with the same bits. After a
 * step without result, and wherever the rate is 0, grads[i] is before[i]; if the communicator is
 * lost, it is that or, in buckets that were not begun, still what the step has made.
 */
typedef struct tamis_step {
    size_t size;
    void *grad;         /* [in,out] config.grad_dtype[n], aligned to an element */
    void *const *grads; /* [in,out] one pointer per segment, grad_dtype[length of the segment] */
    float scale;        /* factor on the gradient when it is accumulated (1) */
    void *stream;       /* CUDA: the cudaStream_t that produces the gradient; NULL: the default */
    const float *const *before; /* [in] NULL, or one pointer per segment, float32[length of the
                                   segment], apart from its gradient, only read. Needs an update
                                   without moments, device cpu, grad_dtype float32, dense output,
                                   `grads`, and scale 1 */
    const float *rates; /* [in] with before: the learning rate of each segment, 0 or a normal number
                           above 0, in the units of the optimizer. Compared as `agreed` is */
    uint64_t agreed; /* what all ranks must have in common in this step: a hash of learning rates,
                           say. A rank that gives another number gets PROTOCOL, as do those that
                           see it. Not compared in scheme dense, nor of a step in a CUDA graph of
                           the caller, which keeps that of its capture */
} tamis_step;

#define TAMIS_STEP_INIT TAMIS_INIT(tamis_step, TAMIS_SET(scale, 1.0f))

/**
 * Begin a step: accumulate the gradient into the residual, and start the exchange.
 *
 * acc = residual_decay * residual + scale * grad, or u in place of the gradient in update mode,
 * multiplied and added with one rounding each. With TAMIS_OUTPUT_DENSE the same pass clears the
 * gradient: from here on its content is in the residual, even if the exchange fails.
 *
 * Collective: yes              Order:  returns when the gradient has been read (worker `caller`);
 *                                      the exchange runs on the library's thread (mpi) or inside
 *                                      wait (local, callback, MPI without THREAD_MULTIPLE). CUDA:
 *                                      returns at once if the communicator works in stream order
 *                                      (nccl) and messages have a fixed size (section 5); else it
 *                                      waits for the pass, whose input `stream` produced
 * Cost:       one pass, 12 bytes per element (16 with dense output, 20 with step.before; 2 and 4
 *             less for 16-bit gradients); no allocation
 * Errors:     ARGUMENT, STATE, UNSUPPORTED (a captured stream where the host must drive, or with
 *             updates of rule adam; step.before, see there): no effect; the comm's status if it is
 *             poisoned: no effect; DEVICE, TRANSPORT, TIMEOUT: the comm
 * Source:     error feedback as in Deep Gradient Compression (arXiv 1712.01887) without momentum
 *             correction; zeroing at the union after the exchange as in MiCRO (arXiv 2310.00967)
 */
TAMIS_CHECKED tamis_status tamis_reducer_start(tamis_reducer *reducer, const tamis_step *step);

/**
 * Finish the step that start began.
 *
 * On TAMIS_OK the result is in step.grad (dense output) and in tamis_reducer_result. On
 * TAMIS_E_NONFINITE the result is zero everywhere. On an error that loses the communicator the
 * residual holds everything that was accumulated: nothing was applied anywhere on this rank. Others
 * may have applied the step, if only its last exchange failed here: tamis_reducer_resync. Scheme
 * "dense" has no residual: such an error leaves its gradient partly reduced. The same holds for
 * buckets that exchange auto made dense.
 *
 * Collective: yes              Errors:  STATE: no effect; NONFINITE: the step;
 *                                       TIMEOUT, TRANSPORT, PROTOCOL, ABORTED, DEVICE: the comm
 */
TAMIS_CHECKED tamis_status tamis_reducer_wait(tamis_reducer *reducer);

/**
 * Finish the step in the order of a CUDA stream: work enqueued on `stream` after this call sees the
 * result of wait. The host does not wait, and may be up to eight steps ahead.
 *
 * The outcome is known later. The next start or wait returns an error that loses the communicator
 * (the gradient is then zero, its content in the residual). A step without result (NONFINITE) is
 * logged and sets tamis_stats.skipped. tamis_reducer_stats reports the last step that has ended. If
 * the host must drive the step (see start), join waits for it, as tamis_reducer_wait does.
 *
 * When `stream` is being captured, so is the step: start and join become part of the caller's
 * graph, on all ranks or on none; not in update mode with rule adam, whose bias corrections are
 * others in every pass (UNSUPPORTED). Replays are not supervised: they have no deadline, and the
 * next tamis_reducer_stats or tamis_reducer_save reports a failure.
 *
 * @param  stream  [in]  cudaStream_t; NULL: the default stream. Ignored on TAMIS_DEVICE_CPU
 *
 * Collective: yes              Errors:  as tamis_reducer_wait, of this or an earlier step
 */
TAMIS_CHECKED tamis_status tamis_reducer_join(tamis_reducer *reducer, void *stream);

/**
 * The outcome of a joined step: of the last one, or of the one `back` before it. Waits for its end.
 *
 * Ranks that ask after every join with the same `back` learn of a step without result in the same
 * place, and may stop or go on together. With back 1 the host is at most one step ahead of the
 * device. Asking again gives the same answer.
 *
 * @param  back     [in]   0 to 7
 * @param  applied  [out]  0: a gradient was not finite, so no rank applied that step; else 1, also
 *                         where there was no such step, where the host drives (wait returned it),
 *                         and
 *                         for steps captured by the caller
 *
 * Collective: no               Errors:  ARGUMENT, STATE (a step is under way); NONFINITE: that step
 *                                       had no result (config.nonfinite error); TIMEOUT, TRANSPORT,
 *                                       PROTOCOL, ABORTED, DEVICE: the comm
 */
TAMIS_CHECKED tamis_status tamis_reducer_outcome(tamis_reducer *reducer, uint32_t back,
                                                 int *applied);

/**
 * Who drives the steps: "device", where they need nothing of the host (docs/cuda.md), or "host".
 *
 * @param  why  [out]  what keeps the host at it; empty if the device drives, or if gradients are in
 *                     host memory. May be NULL
 *
 * Lifetime:   of the library   Errors:  none: "host" for NULL
 */
TAMIS_API const char *tamis_reducer_driver(const tamis_reducer *reducer, const char **why);

/**
 * The options of a reducer, with what was left open filled in.
 *
 * @param  config  [out]  TAMIS_REDUCER_CONFIG_INIT before; scheme is NULL, update is `update` or
 *                        NULL
 * @param  update  [out]  TAMIS_UPDATE_INIT before; norm_matching and scale for the density of now.
 *                        NULL: not wanted
 *
 * Collective: no   Errors:  ARGUMENT
 */
TAMIS_CHECKED tamis_status tamis_reducer_options(const tamis_reducer *reducer,
                                                 tamis_reducer_config *config,
                                                 tamis_update *update);

/* ------------------------------------------------------------------------------------------- */
/* 7. Results                                                                                   */

/** Sparse view of the last finished step: the same on all ranks. */
typedef struct tamis_result {
    size_t size;
    size_t count; /* entries; 0 after a skipped step; n for scheme "dense" (less rows that nobody
                     touched) */
    const uint32_t
        *indices;        /* ascending, no duplicates; NULL for scheme "dense", and where exchange
                                auto made any bucket dense */
    const float *values; /* mean or sum over ranks, times the scale of an update; NULL where indices
                            is */
    tamis_device memory; /* whose memory holds indices and values */
} tamis_result;

#define TAMIS_RESULT_INIT TAMIS_INIT(tamis_result, )

/**
 * Get pointers to the result of the last step.
 *
 * Lifetime:   until the next start, load or destroy         Errors:  ARGUMENT, STATE (no step was
 *                                                           waited for; a joined step has none)
 */
TAMIS_CHECKED tamis_status tamis_reducer_result(const tamis_reducer *reducer, tamis_result *out);

/**
 * The residual of this rank, float32[n], in memory of its device. NULL for scheme "dense", which
 * has none. With ranks_per_node float32[sum of tamis_bucket.residual_length], for the elements
 * given there. After a join it is complete in the order of the joined stream.
 *
 * Lifetime:   until the next start, load or destroy         Errors:  ARGUMENT, STATE
 */
TAMIS_CHECKED tamis_status tamis_reducer_residual(const tamis_reducer *reducer, const float **out);

#ifdef __cplusplus
}
#endif

#endif
