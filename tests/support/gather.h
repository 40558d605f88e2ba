/* SPDX-License-Identifier: MIT
 *
 * An all-gather between threads, made of a board and a barrier, in the form that a caller passes to
 * tamis_comm_create_callback. A hook may corrupt what a rank receives.
 */
#ifndef TEST_GATHER_H
#define TEST_GATHER_H

#include <stddef.h>
#include <stdint.h>
#include <tamis/callback.h>
#include <tamis/tamis.h>

typedef struct gather gather;

/** Called after operation number `op` (from 0) on `rank`; may change `recv`. The all-gather returns
 * its status. */
typedef tamis_status (*gather_hook)(void *context, uint32_t rank, uint64_t op, void *recv,
                                    size_t bytes);

/** @param limit_ms  how long a rank waits for the others before it returns TIMEOUT */
gather *gather_create(uint32_t nranks, uint32_t limit_ms, gather_hook hook, void *context);
void gather_destroy(gather *board);

/** What `rank` of the board gives to tamis_comm_create_callback. */
tamis_callbacks gather_callbacks(gather *board, uint32_t rank);

/** Communicators over the board; fails the test if they cannot be made. Main thread. */
void gather_comms(gather *board, tamis_comm **comms);

/** A rank leaves: all-gathers of the others return TRANSPORT from now on. */
void gather_leave(gather *board);

#endif
