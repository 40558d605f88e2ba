/* SPDX-License-Identifier: MIT
 *
 * mpi.h - communicators over MPI. Only in libraries built with TAMIS_MPI. The header is C11 and
 * C++17; calls are described as in tamis.h.
 */
#ifndef TAMIS_MPI_H
#define TAMIS_MPI_H

#include <mpi.h>
#include <tamis/tamis.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The MPI of the mpi.h above. MPIs of one name share their handles: programs and a library that are
 * built with different ones of them work together. */
#if defined(OPEN_MPI)
#define TAMIS_MPI_BUILT_WITH "Open MPI"
#elif defined(MPI_ABI_VERSION)
#define TAMIS_MPI_BUILT_WITH "MPI's standard ABI"
#elif defined(MPICH_NAME) || defined(MPICH_VERSION) || defined(MPICH_NUMVERSION)
#define TAMIS_MPI_BUILT_WITH "MPICH"
#else
#define TAMIS_MPI_BUILT_WITH "" /* not compared */
#endif

/** Not to be called: tamis_comm_create_mpi, with the name of the MPI of its caller. */
TAMIS_CHECKED tamis_status tamis_comm_create_mpi_of(const char *built_with, const void *parent,
                                                    const tamis_comm_config *config,
                                                    tamis_comm **out);

/**
 * Make a communicator of the ranks of an MPI communicator.
 *
 * The library duplicates the MPI communicator, so its traffic never mixes with the caller's. With
 * MPI_THREAD_MULTIPLE, a library thread drives the exchange while the caller computes. With a
 * lower thread level, the exchange runs inside tamis_reducer_wait, on the caller's thread.
 *
 * More than 2 ranks measure their network here and choose the stages in which they exchange
 * (tamis_comm_plan): results are the same for all stages. TAMIS_PLAN fixes them.
 *
 * Initialise MPI first, and do not finalise it before tamis_comm_destroy: calls that exchange or
 * wait say STATE then. After the communicator is lost (TAMIS_E_TIMEOUT and worse) do not call
 * MPI_Finalize, which may hang: end the process with MPI_Abort or _exit, and keep gradient buffers
 * allocated until then.
 *
 * Where MPI tolerates faults (ULFM: Open MPI 5, started by mpirun --with-ft ulfm; found when the
 * library is configured), a process that dies is noticed at once, as TRANSPORT, and
 * tamis_comm_shrink goes on with those that live. It waits for all that live: one that has stopped
 * must be ended first, else TIMEOUT; the call may then be repeated, and continues where it was. A
 * list of ranks is only compared with what MPI finds. As long as such a communicator is open, and
 * for good once one was lost, errors of MPI_COMM_WORLD and MPI_COMM_SELF return if they were fatal
 * (the default), because a death may be reported there; communicators of your own need
 * MPI_ERRORS_RETURN too. Of Open MPI 5.0.11 was seen: MPI_Finalize waits forever after a second
 * death, so end such processes by _exit; and processes crash inside MPIX_Comm_shrink if another
 * dies in that moment (14 of some 2,300 runs with one or two deaths; sandialabs/Fenix issue 136 has
 * that trace too).
 *
 * A program that was built or runs with another MPI than the library (Open MPI, or MPICH and its
 * relatives) gets UNSUPPORTED: their handles mean nothing to each other. A process that is alone in
 * MPI_COMM_WORLD while its launcher announces several (an mpirun of another MPI, a plain srun,
 * torchrun) would train alone: that is logged as a warning.
 *
 * Collective: yes, over `parent`; so is tamis_comm_destroy, which frees the duplicate
 * Threads:    the calling thread must be one that may call MPI
 * Errors:     ARGUMENT, STATE (MPI not initialised), UNSUPPORTED, NOMEM, MISMATCH (TAMIS_PLAN
 *             differs), TRANSPORT, PROTOCOL, TIMEOUT (a rank did not join): no communicator is made
 */
TAMIS_NODISCARD static inline tamis_status
tamis_comm_create_mpi(MPI_Comm parent, const tamis_comm_config *config, tamis_comm **out) {
    return tamis_comm_create_mpi_of(TAMIS_MPI_BUILT_WITH, &parent, config, out);
}

#ifdef __cplusplus
}
#endif

#endif
