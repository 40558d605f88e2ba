/* SPDX-License-Identifier: MIT
 *
 * The barrier of local communicators (collectives/transport/local.c), under all interleavings: each
 * rank makes CALLS collectives, of which every one is
 *
 *     post   barrier(reads)   read what the others posted   barrier
 *
 * and then closes. Any wait may end by its deadline, and any rank may be aborted by another thread
 * at any time. What is done with the lock held is one step. To be shown:
 *
 *     all ranks return, and the hub is freed once, by the last
 *     who reads a posting reads that of the same collective, of a rank that is still in its call
 *     a barrier is passed by all ranks or by none
 *
 * FAULT leaves a line of the code out, which must be found:
 *     1  a rank that fails does not stay until all have read
 *     2  a rank does not say that it has read before it arrives at the next barrier
 */
#ifndef RANKS
#define RANKS 3
#endif
#ifndef CALLS
#define CALLS 2
#endif
#ifndef FAULT
#define FAULT 0
#endif

byte users = RANKS, arrived, generation, reads_left, ended;
bool broken, freed;
bool aborts[RANKS];      /* an abort is still to come from another thread of the rank */
byte posted[RANKS];      /* number of the collective whose posting lies there, from 1 */
bool inside[RANKS];      /* its memory is valid: the rank is in a call */
byte passed_by[2 * CALLS + 1];

inline barrier(own, reads) {
    atomic {
        assert(!freed);
        if
        :: is_reading -> is_reading = false; if :: FAULT != 2 -> reads_left-- :: else fi
        :: else
        fi;
        seen = generation;
        if
        :: !broken ->
            arrived++;
            if
            :: arrived == RANKS ->
                arrived = 0; generation++;
                reads_left = (reads -> RANKS : 0)
            :: else
            fi
        :: else
        fi
    };
    if
    :: atomic { generation != seen || broken -> skip }
    :: atomic { generation == seen && !broken -> broken = true } /* its deadline has passed */
    fi;
    atomic {
        passed = generation != seen;
        is_reading = passed && reads;
        if :: passed -> passed_by[seen]++ :: else fi
    };
    if
    :: passed || FAULT == 1
    :: else -> reads_left == 0
    fi
}

proctype rank(byte own) {
    byte seen, call = 1, other;
    bool is_reading, passed;
    do
    :: call > CALLS -> break
    :: else ->
        inside[own] = true;
        posted[own] = call; /* without the lock */
        barrier(own, true);
        if
        :: passed ->
            other = 0;
            do
            :: other == RANKS -> break
            :: else ->
                assert(inside[other]);
                assert(posted[other] == call);
                other++
            od;
            barrier(own, false)
        :: else
        fi;
        inside[own] = false;
        posted[own] = 0;
        if :: !passed -> break :: else fi;
        call++
    od;
    atomic { /* close */
        assert(!freed);
        aborts[own] = false; /* nobody may abort what is being destroyed */
        broken = true
    };
    atomic { users--; if :: users == 0 -> assert(!freed); freed = true :: else fi };
    ended++
}

active proctype aborter() {
    byte which = 0;
end:
    do
    :: which < RANKS -> which++
    :: atomic { which < RANKS && aborts[which] -> aborts[which] = false; assert(!freed); broken = true }
    :: which == RANKS -> break
    od
}

init {
    byte i = 0;
    atomic {
        do
        :: i == RANKS -> break
        :: else -> aborts[i] = true; run rank(i); i++
        od
    };
    ended == RANKS;
    assert(freed && users == 0);
    i = 0;
    do
    :: i == 2 * CALLS -> break
    :: else -> assert(passed_by[i] == 0 || passed_by[i] == RANKS); i++
    od
}
