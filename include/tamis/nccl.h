/* SPDX-License-Identifier: MIT
 *
 * nccl.h - communicators over NCCL. Only in libraries built with TAMIS_NCCL. The header is C11 and
 * C++17 and needs no vendor header; calls are described as in tamis.h.
 */
#ifndef TAMIS_NCCL_H
#define TAMIS_NCCL_H

#include <tamis/tamis.h>

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Make a communicator over NCCL, of the ranks of an existing communicator.
 *
 * It works on device memory in stream order, so a reducer with TAMIS_DEVICE_CUDA keeps the whole
 * step on the device. It belongs to the CUDA device that is current on the calling thread. Every
 * rank needs a device of its own, and each device one communicator.
 *
 *     tamis_comm_create_mpi(MPI_COMM_WORLD, NULL, &bootstrap);      or local, or callback
 *     cudaSetDevice(local_rank);
 *     tamis_comm_create_nccl(bootstrap, NULL, &comm);
 *     tamis_comm_destroy(bootstrap);                                no longer needed
 *
 * When the communicator is lost (TAMIS_E_TIMEOUT and worse), the library aborts all enqueued work:
 * streams continue, and the results of that step are void. NCCL's own abort may hang. After five
 * more seconds the library abandons it, with its memory, and logs a warning; then end the process
 * with _exit. The other ranks learn of an abort at their deadline, or when NCCL notices.
 *
 * To go on when a rank is gone, keep `bootstrap`: it finds out who is left.
 *
 *     tamis_comm_shrink(bootstrap, NULL, &smaller);                 over mpi: with ULFM
 *     tamis_comm_create_nccl(smaller, NULL, &next);
 *     tamis_reducer_migrate(reducer, next, NULL, &migrated);
 *
 * Who knows the ranks that are left by other means needs no bootstrap: tamis_comm_shrink of the
 * communicator itself, with a list. NCCL must then be able to revoke it (ncclCommRevoke, 2.28.7):
 * that ends what has been launched, but not what a graph launches later. So where steps were
 * captured, by the library (TAMIS_GRAPHS, on by default) or by the caller, work is aborted instead,
 * and tamis_comm_shrink answers UNSUPPORTED.
 *
 * @param  bootstrap  [in]  carries some 250 bytes a rank, twice; may be destroyed afterwards
 * @param  config     [in]  NULL: the defaults. NCCL gets half of the timeout to find all ranks
 *
 * Collective: yes, over `bootstrap`; so is tamis_comm_destroy
 * Threads:    a library thread drives exchanges from host memory
 * Shape:      pinned host memory and device memory, up to 16 MiB each, at least 4 KiB a rank;
 *             NCCL's own comes on top
 * Errors:     ARGUMENT, NOMEM, UNSUPPORTED (no device, NCCL older than 2.18), DEVICE, TRANSPORT
 *             (in NCCL's own words), TIMEOUT. If one rank fails, all fail, with a sentence that
 *             names it, and no communicator is made. If `bootstrap` itself failed, it is lost
 */
TAMIS_CHECKED tamis_status tamis_comm_create_nccl(tamis_comm *bootstrap,
                                                  const tamis_comm_config *config,
                                                  tamis_comm **out);

#ifdef __cplusplus
}
#endif

#endif
