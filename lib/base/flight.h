/* SPDX-License-Identifier: MIT
 *
 * A flight recorder: the last events of one rank of a communicator, in fixed memory, for the day
 * when a job stops and nobody knows which rank did what. An event costs a clock and five stores;
 * any thread may record, and write, also while others record.
 *
 *     start, wait, done     of a step, by the caller
 *     begin, end            of a collective, whose number is the same on all ranks
 *     late                  a collective has waited for a rank for a tenth of its deadline
 *     lost                  the communicator was poisoned
 *
 * Written as JSON Lines, a file a rank (docs/flight.md), which tamis_info --flight reads. Ranks of
 * disjoint groups may have the same numbers, so a file is named after the process, too.
 */
#ifndef TAM_BASE_FLIGHT_H
#define TAM_BASE_FLIGHT_H

#include "lib/base/base.h"

#include <stdatomic.h>

enum { TAM_FLIGHT_EVENTS = 1024, TAM_FLIGHT_WORDS = 5 };

typedef enum tam_flight_kind {
    TAM_FLIGHT_START,
    TAM_FLIGHT_WAIT,
    TAM_FLIGHT_DONE,
    TAM_FLIGHT_BEGIN,
    TAM_FLIGHT_END,
    TAM_FLIGHT_LATE,
    TAM_FLIGHT_LOST,
    TAM_FLIGHT_KINDS
} tam_flight_kind;

typedef enum tam_flight_call {
    TAM_FLIGHT_NONE,
    TAM_FLIGHT_GATHER,
    TAM_FLIGHT_SUM,
    TAM_FLIGHT_RUNS,
    TAM_FLIGHT_SCATTER,
    TAM_FLIGHT_SPREAD,
    TAM_FLIGHT_CALLS
} tam_flight_call;

typedef struct tam_event {
    tam_flight_kind kind;
    tam_flight_call call;
    tamis_status status; /* end, done, lost */
    uint64_t step;       /* counted from 1; 0: none */
    uint32_t number;     /* of the collective, from 1; 0: none */
    uint32_t other;      /* begin: bucket, from 1, or 0; late: the first rank that is missing */
    uint64_t bytes;      /* begin: that this rank gives; late: ns waited so far */
} tam_event;

typedef struct tam_flight {
    uint32_t rank, nranks;
    uint32_t group;               /* of its communicator: how many were made in this process */
    const char *transport, *plan; /* of the communicator, which outlives its recorder */
    atomic_uint_fast64_t next;
    atomic_uint_fast64_t words[TAM_FLIGHT_EVENTS][TAM_FLIGHT_WORDS];
} tam_flight;

tam_flight *tam_flight_open(uint32_t rank, uint32_t nranks);
void tam_flight_close(tam_flight *flight);

/** Give it the number that its communicator has on other ranks, whose processes may have made more.
 * Later ones of this process get larger numbers. While nobody else knows the communicator. */
void tam_flight_join(tam_flight *flight, uint32_t group);

/** @param flight  NULL: nothing is recorded */
void tam_flight_record(tam_flight *flight, const tam_event *event);

/** Write FOLDER/flight-GROUP-RANK-PID.jsonl anew; it is always complete. Async-signal-safe:
 * allocates nothing, and formats by itself. @return 0; errno */
int tam_flight_write(const tam_flight *flight, const char *folder);

#endif
