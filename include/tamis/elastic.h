/* SPDX-License-Identifier: MIT
 *
 * tamis/elastic.h - when ranks are gone, and when more come.
 *
 *     status = tamis_reducer_wait(red);
 *     if (tamis_status_loss(status) == TAMIS_LOST_COMM) {
 *         tamis_comm_shrink(comm, NULL, &smaller);                  those that are left
 *         tamis_migration report = TAMIS_MIGRATION_INIT;
 *         tamis_reducer_migrate(red, smaller, &report, &migrated);  every reducer
 *         tamis_reducer_destroy(red);
 *         tamis_comm_destroy(comm);
 *         ... parameters and data of report.step; ranks anew by tamis_comm_rank(smaller) ...
 *     }
 *
 *     tamis_comm_grow(comm, NULL, &larger);                 between steps: who waits to join?
 *     if (larger) { ... the same with larger, and tamis_comm_broadcast of the parameters ... }
 *
 * A job that ends instead saves its states (tamis/state.h). When it has loaded them,
 * tamis_reducer_resync brings its ranks to the same step. docs/errors.md says what a loss leaves.
 *
 * Threads      One at a time per communicator.
 */
#ifndef TAMIS_ELASTIC_H
#define TAMIS_ELASTIC_H

#include <tamis/callback.h>
#include <tamis/tamis.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Who is left, for tamis_comm_shrink. */
typedef struct tamis_shrink {
    size_t size;
    const uint32_t *ranks; /* [nranks] of the old communicator, ascending, this rank among them.
                              NULL: the transport finds out who is left */
    uint32_t nranks;
    const tamis_callbacks *callbacks; /* callback only, where it must be given: the network of the
                                         ranks that are left */
} tamis_shrink;

#define TAMIS_SHRINK_INIT TAMIS_INIT(tamis_shrink, )

/**
 * A rank is gone: make a communicator of those that are left, in their old order.
 *
 * Works on a lost communicator, and on a healthy one, which is lost by it (ABORTED): over local,
 * UCX and MPI all its ranks notice. Then migrate the reducers (tamis_reducer_migrate), destroy the
 * old ones, and destroy the old communicator. Timeout and waiting (tamis_comm_set_waiting) stay as
 * they were.
 *
 *     local      without a list: waits for all, and whoever has not come by the deadline, counted
 *                from the first call, is dead. A rank for which the others have already waited in
 *                vain (TIMEOUT) has a tenth of it, and at least a second; ranks that have destroyed
 *                their communicator are not waited for. With a list: waits for these alone, and all
 *                of them must come. Ranks that come later get TIMEOUT and never join
 *     callback   `ranks` and `callbacks` must be given; the new rank is the index in the list. All
 *                ranks of the new network compare their lists over it
 *     ucx        whoever lives and comes by three quarters of the deadline; a rank that has stopped
 *                is left behind then. With a list: these alone, and all of them must come
 *     mpi        needs an MPI with ULFM (Open MPI 5, mpirun --with-ft ulfm); see mpi.h
 *     nccl       `ranks` must be given, and all of them must come; lists that differ give TIMEOUT,
 *                and NCCL has no second try. Needs NCCL 2.28.7, and steps that were not captured as
 *                graphs (TAMIS_GRAPHS=off). Without these conditions: see nccl.h
 *
 * After an error nothing was made, and the call may be repeated (not over nccl), unless the others
 * have gone on without this rank. Ranks that die afterwards: shrink the smaller communicator in
 * turn.
 *
 * @param  how  [in]  NULL: the transport finds out
 *
 * Collective: yes, of the ranks that are left; no call on the old communicator is under way
 * Errors:     ARGUMENT, UNSUPPORTED: no effect. MISMATCH, on all: they do not name the same ranks.
 *             TIMEOUT: a rank of the list did not come, or this rank came too late. NOMEM,
 *             TRANSPORT, PROTOCOL, ABORTED. After each of these the old communicator is lost
 */
TAMIS_CHECKED tamis_status tamis_comm_shrink(tamis_comm *comm, const tamis_shrink *how,
                                             tamis_comm **smaller);

/**
 * Take in processes that wait to join (tamis_comm_join_ucx in ucx.h): make a communicator of all
 * ranks, in their order, and of these behind them.
 *
 * A rank listens from the first call on, as long as communicators that are made of this one live:
 * one whose host has the address; when none does any more, all try again. Then migrate the reducers
 * (tamis_reducer_migrate), broadcast what the newcomers need (tamis_comm_broadcast), destroy the
 * old reducers, and destroy the old communicator, which stays usable until then. Newcomers that die
 * or stop on the way cost the time of the attempt, at most a quarter of the deadline, nor more than
 * 30 s; they are logged, and the job goes on without.
 *
 *     ucx      at most 32 at once
 *     others   UNSUPPORTED
 *
 * @param  address  [in]   "host:port" where newcomers come, the same text on all ranks, those that
 *                         have joined among them; a host's name, or 0.0.0.0 for every host of the
 *                         job. NULL: TAMIS_RENDEZVOUS
 * @param  larger   [out]  NULL: nobody waits, or could be taken in
 *
 * Collective: yes, between steps
 * Cost:       one all-gather of 448 bytes a rank if nobody waits
 * Errors:     ARGUMENT (at the first call also: no rank can listen there), UNSUPPORTED, NOMEM,
 *             MISMATCH: on all ranks, nothing is lost. TIMEOUT, TRANSPORT, PROTOCOL, ABORTED: the
 *             comm
 */
TAMIS_CHECKED tamis_status tamis_comm_grow(tamis_comm *comm, const char *address,
                                           tamis_comm **larger);

/** How many ranks, the last ones, were newcomers when this communicator was made; 0 where it was
 * not made by tamis_comm_grow or tamis_comm_join_ucx, or NULL. */
TAMIS_API uint32_t tamis_comm_joined(const tamis_comm *comm);

/** Which rank of the communicator that was shrunk has become `rank` of this one; `rank` itself if
 * this one was not made by tamis_comm_shrink. 0 for NULL or a rank that does not exist. */
TAMIS_API uint32_t tamis_comm_rank_before(const tamis_comm *comm, uint32_t rank);

/** What tamis_reducer_migrate found. */
typedef struct tamis_migration {
    size_t size;
    uint64_t step; /* number of the next step, from 0: the same on all ranks */
    uint32_t gone; /* ranks that did not come along: their residuals are lost */

    /* Squared L2 norms of residuals: the sum over the ranks that are here, and an ESTIMATE of what
     * was lost, as if each rank that is gone had held the mean of those. The share of the residual
     * that is lost is lost / (kept + lost), the same as gone / (ranks before). */
    double kept_square, lost_square;
} tamis_migration;

#define TAMIS_MIGRATION_INIT TAMIS_INIT(tamis_migration, )

/**
 * Go on with fewer ranks, or with more: make a reducer on the other communicator that continues
 * this one. Not with ranks_per_node.
 *
 * It has the same options, buckets, residual, moments, step number, density and, where the groups
 * are the same, thresholds; what is divided among ranks is divided anew. Exchange auto chooses
 * anew. The mean is then that of the other ranks: with op MEAN residuals are multiplied by new /
 * old ranks, so that what waits keeps its part. Ranks whose last exchange failed while
 * others applied the step agree on the earlier step, as by tamis_reducer_resync and with its
 * limits: where that is needed, `reducer` itself goes back. Otherwise it stays as it is, and must
 * be destroyed by the caller, before its communicator; after an error it can be migrated again.
 * Parameters, optimizer state and position in the data must be those of report->step: a rank that
 * had made one step more is ahead with them.
 *
 * What the ranks that are gone held in their residuals and moments is lost, and nothing can replace
 * it: rank 0 logs how many they were, and an estimate of their share.
 *
 * A newcomer (tamis_comm_joined) gives a reducer of the same layout and options that it has made
 * over a communicator of its own, of one rank. It takes the step number, the density and the
 * thresholds of rank 0; its residual is zero, its moments are the mean of the others'.
 *
 * @param  reducer  [in]   between steps: after a failure, call tamis_reducer_wait first
 * @param  other    [in]   from tamis_comm_shrink, tamis_comm_grow or tamis_comm_join_ucx, or made
 *                         over a smaller one (nccl.h). Several reducers migrate in the same order
 *                         on all ranks
 * @param  report   [out]  set by TAMIS_MIGRATION_INIT; NULL: not wanted
 *
 * Collective: yes, on the other communicator
 * Cost:       that of tamis_reducer_create, and float32[n] of host memory for the time of the call
 * Errors:     STATE, UNSUPPORTED (ranks_per_node; no rollback), MISMATCH (more than one step apart,
 *             another reducer), NOMEM: on all ranks, nothing is lost; TIMEOUT, TRANSPORT, PROTOCOL,
 *             ABORTED: the other comm; DEVICE
 */
TAMIS_CHECKED tamis_status tamis_reducer_migrate(tamis_reducer *reducer, tamis_comm *other,
                                                 tamis_migration *report, tamis_reducer **migrated);

/**
 * After loading or restoring: bring all ranks to the same step.
 *
 * If the last exchange of a step fails on one rank only, the others apply that step and this one
 * does not; the states that they then save are one step apart. Ranks that are ahead roll back their
 * last step: what they sent returns to their residual, and their thresholds to what they were. The
 * run continues bit for bit as if the step had failed on all ranks. If such a rank had begun the
 * next step, what it has added to its residual stays there, as from a micro-batch; with a
 * value_codec that quantizes, entries that were sent may then differ in their last bits.
 *
 * Parameters, optimizer state and position in the data must be those of the returned step. A rank
 * that has not applied the last step has saved them; since parameters are equal on all ranks, those
 * of any rank that saved at that step serve for all.
 *
 * Only one step can be rolled back, and only once. It cannot be if a CUDA device ran it by itself,
 * if the residual was restored without its control part, or if a state was loaded that was saved
 * after a step that sent more than four times its target. Scheme dense, which keeps nothing, only
 * sets the step number back; so do dense buckets of exchange auto. Moments of rule Adam stay as
 * they are.
 *
 * @param  step  [out]  number of the next step, from 0: the same on all ranks
 *
 * Collective: yes
 * Errors:     ARGUMENT, STATE, NOMEM, MISMATCH (more than one step apart), UNSUPPORTED (no way
 *             back), on all ranks: no effect; TIMEOUT, TRANSPORT: the comm; DEVICE: the reducer is
 *             unusable
 */
TAMIS_CHECKED tamis_status tamis_reducer_resync(tamis_reducer *reducer, uint64_t *step);

#ifdef __cplusplus
}
#endif

#endif
