/* SPDX-License-Identifier: MIT
 *
 * One fault in one MPI call of one rank, put between the library and MPI by MPI's profiling
 * interface. The environment says which, as FAULT=CALL:RANK:NTH:ACTION[:ARGUMENT]
 *
 *     CALL     a call of collectives/transport/mpi*.c without "MPI_", see shim_calls
 *     NTH      from 1; of Testsome those that complete something, as polls are without number
 *     delay    the call is made ARGUMENT ms later
 *     error    it returns MPI_ERR_OTHER and does nothing; completions of a Testsome are lost
 *     status   Testsome: a completed message is reported as failed
 *     kill     SIGKILL to this process; stop: SIGSTOP
 *     flip     Isend: bit ARGUMENT, modulo the length, of what is sent differs
 *     cut      Isend: the message is shorter by ARGUMENT bytes, at most by all
 *     longer   Isend: the message has ARGUMENT more bytes at its end
 *     drop     Isend: the message is never sent; double: it is sent twice
 *     down     the cable of this rank's host passes nothing for ARGUMENT ms, 0: any more; mute:
 *              nothing that it sends; deaf: nothing that it receives. CABLES: cluster_cable's FIFO
 *
 * The buffers of the caller stay as they are: what is damaged is a copy.
 */
#ifndef TEST_FAULTS_SHIM_H
#define TEST_FAULTS_SHIM_H

#include <stdbool.h>
#include <stdint.h>

enum {
    SHIM_ISEND,
    SHIM_IRECV,
    SHIM_TESTSOME,
    SHIM_GET_COUNT,
    SHIM_COMM_IDUP,
    SHIM_TEST,
    SHIM_CALLS
};

extern const char *const shim_calls[SHIM_CALLS];

/** Read FAULT anew and count from 0; "" or none: no fault.  @return false: it cannot be read */
bool shim_arm(void);

/** No fault from now on; counts and whether it has happened stay. */
void shim_disarm(void);

/** Calls since it was armed, until it was disarmed. */
uint64_t shim_count(int call);

/** Whether the fault has happened. */
bool shim_fired(void);

#endif
