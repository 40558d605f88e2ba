/* SPDX-License-Identifier: MIT
 *
 * Signals that ask a run to end: SIGTERM, SIGINT and SIGUSR1 (which mpirun forwards without ending
 * the job itself). The first one is recorded, and the run ends between two steps; another one, half
 * a second later or more, ends the process at once. Earlier ones are taken for the same: launchers
 * and the system often send one each.
 */
#ifndef TAMIS_TRAIN_STOP_H
#define TAMIS_TRAIN_STOP_H

#include <stdbool.h>
#include <stdint.h>
#include <tamis/tamis.h>

enum { STOP_STATUS = 3 }; /* of a run that a signal has ended, with its state saved */

/** Handle the signals from now on, in this process.
 * @param speak  whether this process says so when one arrives */
void stop_install(bool speak);

/** Ranks of this process whose flight recorders SIGUSR2 writes, where TAMIS_FLIGHT names a folder,
 * also while they wait in the library. @param comm  NULL: no longer */
void stop_watch(uint32_t rank, const tamis_comm *comm);

/** The signal that has arrived; 0: none. */
int stop_signal(void);

/** What the handler says; copied. For the thread that trains. */
void stop_set_message(const char *text);

#endif
