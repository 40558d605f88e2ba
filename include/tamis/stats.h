/* SPDX-License-Identifier: MIT
 *
 * tamis/stats.h - figures of the last step, and the flight recorder of a communicator.
 *
 *     tamis_reducer_wait(red);
 *     tamis_stats stats = TAMIS_STATS_INIT;
 *     tamis_reducer_stats(red, &stats);
 *
 * Threads      tamis_reducer_stats as every call on a reducer: one at a time. Any thread may call
 *              tamis_comm_write_flight.
 */
#ifndef TAMIS_STATS_H
#define TAMIS_STATS_H

#include <tamis/tamis.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Figures of the last finished step, of this rank unless said otherwise. Times are monotonic. */
typedef struct tamis_stats {
    size_t size;
    uint64_t steps;      /* steps finished, those before a loaded state included */
    uint64_t length;     /* n */
    uint64_t target;     /* k = max(1, floor(density * n)); dense buckets count whole. This and the
                            following counts exclude segments that have rows; tamis_result.count
                            includes them */
    uint64_t selected;   /* entries in the result, the same on all ranks */
    uint64_t sent;       /* entries this rank sent; excludes groups of scheme `deft` that all ranks
                               take whole, unsent */
    uint64_t sent_max;   /* the most any rank sent */
    uint64_t deferred;   /* entries that did not fit a packet and stay in the residual, all ranks;
                            those of rows that did not (config.rows_capacity) included */
    uint64_t candidates; /* entries over the threshold, all ranks, of buckets that counted them */
    uint64_t rescans;    /* ranks that had to search their part again in this step */
    uint64_t rescans_total; /* the same, summed over all steps */
    uint64_t nonfinite;     /* bad entries, all ranks: those dropped from each rank's gradients, and
                               those of the result that would not be finite. Buckets that are summed
                               whole count the latter, and those of micro-batches; buckets whose
                               turn comes when the step is skipped already count none */
    uint64_t skipped;       /* 1 if nothing was applied because of them */
    double density;         /* selected / n */
    double threshold;       /* smallest magnitude this rank sent; with budget norm in units of its
                               group's level */
    double acc_norm;        /* L2 norm of this rank's accumulated gradient */
    double residual_norm;   /* L2 norm of what stayed */
    uint64_t wire_bytes;    /* sent by this rank in this step, headers and rows included */
    uint64_t wire_bytes_total;
    double accumulate_s; /* wall time of each phase on this rank; 0 if the device runs the step by
                            itself, where the host cannot measure it */
    double select_s;
    double exchange_s;       /* transport calls, waiting for others included, and the union */
    double apply_s;          /* write back, control */
    double wait_s;           /* inside tamis_reducer_wait; may include the phases above */
    double exchange_s_total; /* of all steps since the reducer was made */
    double lag_s;       /* how much later the last gradient was ready on the slowest rank than here,
                           both counted from the end of the previous step's last exchange; 0 if
                           unknown: scheme dense, the first step, or a device runs the steps */
    uint32_t straggler; /* that rank; UINT32_MAX if unknown */
    double skew_s;      /* part of exchange_s: waiting for other ranks to begin the
                           exchanges of the buckets; 0 if unknown. The rest is the transfer */
    double update_scale; /* factor on the result, update mode; else 1 */
} tamis_stats;

#define TAMIS_STATS_INIT TAMIS_INIT(tamis_stats, TAMIS_SET(straggler, UINT32_MAX))

/** Read the figures of the last finished step into a struct set by TAMIS_STATS_INIT. */
TAMIS_CHECKED tamis_status tamis_reducer_stats(tamis_reducer *reducer, tamis_stats *out);

/**
 * Write the flight recorder of this rank: its last 1024 events, steps and collectives, as JSON
 * Lines, for tamis_info --flight (docs/flight.md). With TAMIS_FLIGHT a rank that loses its
 * communicator does so by itself.
 *
 * @param  folder  for its file, which is named after communicator, rank and process; NULL: that of
 *                 TAMIS_FLIGHT
 * Threads:    any, also while a step is under way, and in a signal handler: open, write, close and
 *             rename are all it calls, unless it fails, and errno stays. The file is always
 *             complete
 * Errors:     ARGUMENT, IO; nothing is lost
 */
TAMIS_API tamis_status tamis_comm_write_flight(const tamis_comm *comm, const char *folder);

#ifdef __cplusplus
}
#endif

#endif
