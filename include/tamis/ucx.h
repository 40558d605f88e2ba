/* SPDX-License-Identifier: MIT
 *
 * tamis/ucx.h - communicators over UCX, however the ranks were started. Only in libraries built
 * with TAMIS_UCX. The header is C11 and C++17; calls are described as in tamis.h.
 *
 *     tamis_callbacks rendezvous = TAMIS_CALLBACKS_INIT;
 *     rendezvous.rank = rank;
 *     rendezvous.nranks = nranks;
 *     rendezvous.allgather = my_allgather;           any network, for a few hundred bytes
 *     tamis_comm_create_ucx(&rendezvous, NULL, &comm);
 *
 *     tamis_comm_create_ucx(NULL, NULL, &comm);      or with TAMIS_RENDEZVOUS=host:port, and RANK
 *                                                    and WORLD_SIZE, or what launchers set
 */
#ifndef TAMIS_UCX_H
#define TAMIS_UCX_H

#include <tamis/callback.h>
#include <tamis/tamis.h>

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Make a communicator over UCX: shared memory, TCP, InfiniBand, whatever it finds between two
 * ranks.
 *
 * The ranks need no launcher that knows them: `rendezvous` gathers their addresses, by any way,
 * while this call lasts. Without it rank 0 listens at TAMIS_RENDEZVOUS, an address of its host,
 * while the others come; rank and number are those of RANK and WORLD_SIZE, or of mpirun or srun.
 *
 * Exchanges go as over MPI, with the same bits: a library thread drives them while the caller
 * computes, in stages that more than 2 ranks measure here (tamis_comm_plan).
 *
 * A rank that dies is noticed at once, as TRANSPORT, and tamis_comm_shrink goes on with those that
 * live: the first of them collects the others, and decides. Whoever has not come by three quarters
 * of the deadline is left behind, and told so. Ranks whose network was cut in two may go on as two
 * jobs; their number is in the log, and in tamis_migration. Between hosts a death is noticed when
 * its connections end: children that the rank has forked hold them open, so the others wait until
 * their deadline. tamis_comm_destroy says goodbye to the other ranks, and waits up to a second for
 * theirs; a rank that ends without it has died, to the others. tamis_comm_abort and failures of one
 * rank reach all, with the sentence.
 *
 * UCX is loaded when this is first called (libucp.so.0; 1.13 to 1.22 were tried), by the loader's
 * search path, so a program that does not call it does not need UCX. Its handlers of signals
 * (crashes, SIGHUP) are taken out again unless the program had loaded it before, and what it says
 * in calls of this library is logged at level info. Its environment counts: UCX_TLS and
 * UCX_NET_DEVICES choose among networks (UCX_NET_DEVICES=eth0), UCX_LOG_LEVEL=info with
 * TAMIS_LOG=info shows what it found. Where they are not set, UCX_MM_ERROR_HANDLING is y, without
 * which ranks of one host would send by TCP, and UCX_RNDV_THRESH 64k. What is said in
 * tamis_comm_shrink takes any network that UCX finds, whatever UCX_TLS says. The networks of UCX
 * know no passwords: use it where others cannot reach its ports.
 *
 * @param  rendezvous  [in]  rank, nranks, allgather and its context; post, test and cancel are
 *                           NULL. Called a few times, from this thread. NULL: by the environment
 *
 * Collective: yes; so is tamis_comm_destroy
 * Cost:       two workers of UCX, some 15 MiB
 * Errors:     ARGUMENT, UNSUPPORTED (UCX cannot be loaded), NOMEM, MISMATCH (nranks or TAMIS_PLAN
 *             differs), TRANSPORT, PROTOCOL, TIMEOUT; all ranks learn of the first one's. No
 *             communicator is made
 */
TAMIS_CHECKED tamis_status tamis_comm_create_ucx(const tamis_callbacks *rendezvous,
                                                 const tamis_comm_config *config, tamis_comm **out);

/**
 * Join a job that runs over UCX: wait until its ranks take this process in (tamis_comm_grow).
 *
 * The communicator is that of all of them, with this process among the last ranks
 * (tamis_comm_joined) and with their timeout. Before its first step a newcomer does what the others
 * do after tamis_comm_grow: tamis_reducer_migrate of each reducer, in their order, and the
 * broadcasts.
 *
 * @param  address  [in]  "host:port" of the job; NULL: TAMIS_RENDEZVOUS
 * @param  config   [in]  its timeout is that of this call. NULL: the usual one
 *
 * Cost:       as of tamis_comm_create_ucx. May be called before the job has begun
 * Errors:     ARGUMENT, UNSUPPORTED, NOMEM, MISMATCH (TAMIS_PLAN); TIMEOUT: no job took this
 *             process in; TRANSPORT, PROTOCOL, ABORTED: three attempts failed. No communicator is
 *             made
 */
TAMIS_CHECKED tamis_status tamis_comm_join_ucx(const char *address, const tamis_comm_config *config,
                                               tamis_comm **out);

#ifdef __cplusplus
}
#endif

#endif
