/* SPDX-License-Identifier: MIT
 *
 * nccl.h - communicators over NCCL. Only in libraries built with TAMIS_NCCL; the header is C11 and
 * C++17 and needs no header of the vendor, the calls are described as in tamis.h.
 */
#ifndef TAMIS_NCCL_H
#define TAMIS_NCCL_H

#include <tamis/tamis.h>

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Make a communicator of the ranks of another one, which travels over NCCL.
 *
 * It works on device memory in the order of a stream, so a reducer with TAMIS_DEVICE_CUDA keeps
 * the whole step on the device. It belongs to the CUDA device that is current on the calling
 * thread: a device of its own for every rank, one communicator for each device.
 *
 *     tamis_comm_create_mpi(MPI_COMM_WORLD, NULL, &bootstrap);      or local, or callback
 *     cudaSetDevice(local_rank);
 *     tamis_comm_create_nccl(bootstrap, NULL, &comm);
 *     tamis_comm_destroy(bootstrap);                                no longer needed
 *
 * After a lost communicator (TAMIS_E_TIMEOUT and worse) what had been enqueued is aborted: the
 * streams run on, and the results of that step are void. NCCL's own abort may hang: after five
 * seconds more it is left alone, with its memory, and a warning says so. Then leave by _exit.
 * The other ranks learn of an abort at their deadline, or when NCCL notices.
 *
 * @param  bootstrap  [in]  carries some 250 bytes a rank, twice; may be destroyed afterwards
 * @param  config     [in]  NULL: the defaults. Half of the timeout is for NCCL to find all ranks
 *
 * Collective: yes, over `bootstrap`; so is tamis_comm_destroy
 * Threads:    a thread of the library drives what comes from host memory
 * Shape:      host (pinned) and device memory of up to 16 MiB each, at least 4 KiB a rank; and
 *             what NCCL takes
 * Errors:     ARGUMENT, NOMEM, UNSUPPORTED (no device, NCCL older than 2.18), DEVICE, TRANSPORT
 *             (NCCL's own words), TIMEOUT: one rank's failure is the failure of all, with a
 *             sentence that names it; there is no communicator then. If `bootstrap` failed it is
 *             lost
 */
TAMIS_CHECKED tamis_status tamis_comm_create_nccl(tamis_comm *bootstrap,
                                                  const tamis_comm_config *config,
                                                  tamis_comm **out);

#ifdef __cplusplus
}
#endif

#endif
