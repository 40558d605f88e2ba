/* SPDX-License-Identifier: MIT
 *
 * A job between the caller and the thread of a communicator (collectives/transport/comm.c), under
 * all interleavings. The thread runs JOBS jobs, each with two parts that change what belongs to the
 * caller: the gradient and the end of the step, each between commit and release. The caller submits
 * them, waits for each in turn, and gives up when its deadline has passed, at any time. Operations
 * on the job's state are atomic there, too. To be shown:
 *
 *     the thread changes nothing of the caller's before it is submitted or after the caller has
 *     returned, though the caller may return while the job runs
 *     a caller that was told of the end finds both parts done
 *     both end: no deadline is missed for ever, no job stays queued
 *
 * FAULT leaves a line of the code out, which must be found:
 *     1  the thread does not commit
 *     2  the caller abandons a committed job, too
 *     3  the thread says that it is done before it is
 */
#ifndef JOBS
#define JOBS 3
#endif
#ifndef FAULT
#define FAULT 0
#endif

mtype = { IDLE, QUEUED, RUNNING, COMMITTED, DONE, ABANDONED };

mtype state[JOBS] = IDLE;
bool lent[JOBS];    /* the caller's memory is the library's */
byte changed[JOBS]; /* parts done */
byte submitted;
bool closing, poisoned, ended_caller, ended_thread;

/* The thread changes memory of the caller in two steps, if it may. */
inline change(job) {
    may = false;
    if
    :: FAULT == 1 -> may = true
    :: FAULT != 1 -> atomic { if :: state[job] == RUNNING -> state[job] = COMMITTED; may = true :: else fi }
    fi;
    if
    :: may ->
        assert(lent[job]);
        skip; /* it writes */
        assert(lent[job]);
        changed[job]++;
        if :: FAULT != 1 -> atomic { if :: state[job] == COMMITTED -> state[job] = RUNNING :: else fi } :: else fi
    :: else
    fi
}

active proctype thread() {
    byte job = 0;
    bool may, failed;
    do
    :: atomic { job < submitted -> skip };
        atomic { may = state[job] == QUEUED; if :: may -> state[job] = RUNNING :: else fi };
        if
        :: may ->
            failed = poisoned;
            if :: FAULT == 3 -> state[job] = DONE :: else fi;
            if :: !failed -> change(job); failed = !may :: else fi;
            if :: !failed -> change(job) :: else fi;
            atomic { if :: state[job] == RUNNING || state[job] == COMMITTED -> state[job] = DONE :: else fi }
        :: else
        fi;
        job++
    :: closing && job == submitted -> break
    od;
    ended_thread = true
}

active proctype caller() {
    byte job = 0;
    bool told;
    do
    :: job == JOBS -> break
    :: job < JOBS ->
        lent[job] = true;
        state[job] = QUEUED;
        submitted++;
        job++
    od;
    job = 0;
    do
    :: job == JOBS -> break
    :: job < JOBS ->
        told = false;
        do
        :: state[job] == DONE -> told = true; break
        :: atomic { state[job] == QUEUED || state[job] == RUNNING -> state[job] = ABANDONED }; break
        :: atomic { FAULT == 2 && state[job] == COMMITTED -> state[job] = ABANDONED }; break
        od;
        if
        :: told -> assert(poisoned || changed[job] == 2)
        :: else -> poisoned = true
        fi;
        lent[job] = false;
        job++
    od;
    closing = true;
    ended_thread;
    ended_caller = true
}
