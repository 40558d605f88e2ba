/* SPDX-License-Identifier: MIT
 *
 * For tests: makes one operation of one rank go wrong. Not part of the library.
 */
#ifndef TAM_TRANSPORT_FAULTY_H
#define TAM_TRANSPORT_FAULTY_H

#include "collectives/transport/comm.h"

typedef enum tam_fault {
    TAM_FAULT_NONE,
    TAM_FAULT_ERROR,  /* returns TAMIS_E_TRANSPORT without doing anything */
    TAM_FAULT_DELAY,  /* sleeps `argument` milliseconds first */
    TAM_FAULT_SILENT, /* never joins; returns TAMIS_E_TIMEOUT at its deadline */
    TAM_FAULT_FLIP,   /* flips bit number `argument` (modulo the size) of what it received */
    TAM_FAULT_LATE,   /* makes the operation, returns TAMIS_E_TRANSPORT `argument` ms later */
    TAM_FAULT_SPOIL   /* as FLIP, but in what the rank sends to an all-gather or all-to-all */
} tam_fault;

/** Wrap the transport of a communicator: its operation number `nth` goes wrong, counted from 0 over
 * all-gathers, all-reduces and all-to-alls from now on. */
tamis_status tam_faulty_install(tamis_comm *comm, tam_fault fault, uint64_t nth, uint32_t argument);

/** Whether it has happened, to a communicator that was wrapped. */
bool tam_faulty_fired(const tamis_comm *comm);

#endif
