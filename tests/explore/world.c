/* SPDX-License-Identifier: MIT
 *
 * Whose turn it is. The thread that has the turn runs the library until that has nothing to do: it
 * has paused some times in a row. Only then, and where it crashes or sleeps, the turn goes on:
 * ranks share nothing but messages, and these are brought to a rank when it gets the turn. So no
 * other place to change threads could show more.
 *
 * Time is virtual, and passes only when all ranks wait for it.
 */
#include "tests/explore/net.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tamis/elastic.h>
#include <time.h>

/* As often as a waiting rank polls before it looks at the clock (collectives/coll/staged.c). */
enum { PAUSES = 16, LINES_MOST = GENERATIONS * RANKS * 2, OVERDUE_MS = 1000, HANG_S = 300 };

#define MS UINT64_C(1000000)

static _Thread_local actor *own; /* of this thread; NULL: none */

/* -- the clock, in place of that of libc (--wrap) --------------------------------------------- */

int __real_clock_gettime(clockid_t id, struct timespec *now);
int __real_nanosleep(const struct timespec *length, struct timespec *left);
int __real_sched_yield(void);
int __wrap_clock_gettime(clockid_t id, struct timespec *now);
int __wrap_nanosleep(const struct timespec *length, struct timespec *left);
int __wrap_sched_yield(void);

int __wrap_clock_gettime(clockid_t id, struct timespec *now) {
    if (!own)
        return __real_clock_gettime(id, now);
    own->world->now_ns += 100;
    *now = (struct timespec){(time_t)(own->world->now_ns / (1000 * MS)),
                             (long)(own->world->now_ns % (1000 * MS))};
    return 0;
}

static int pause_turn(void) {
    if (++own->pauses >= PAUSES)
        world_idle(own);
    return 0;
}

int __wrap_nanosleep(const struct timespec *length, struct timespec *left) {
    return own ? pause_turn() : __real_nanosleep(length, left);
}

int __wrap_sched_yield(void) {
    return own ? pause_turn() : __real_sched_yield();
}

/* -- what is recorded ------------------------------------------------------------------------- */

void world_trace(const world *w, const char *format, ...) {
    va_list arguments;
    if (!w->traced)
        return;
    fprintf(stderr, "%7.1f ms %4u  ", (double)w->now_ns / (double)MS - 1000.0, w->ndecisions);
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
}

void world_fail(actor *self, const char *format, ...) {
    world *w = self->world;
    va_list arguments;
    if (w->broken || self->leaving)
        return;
    int used = snprintf(w->failure, sizeof w->failure, "rank %u, network %u, %.1f ms: ", self->id,
                        self->generation, (double)w->now_ns / (double)MS - 1000.0);
    va_start(arguments, format);
    vsnprintf(w->failure + used, sizeof w->failure - (size_t)used, format, arguments);
    va_end(arguments);
    w->broken = true;
    world_trace(w, "BROKEN %s", w->failure);
}

uint32_t world_decide(world *w, uint32_t nfaults, uint32_t ndeviations) {
    uint32_t at = w->ndecisions, option = 0;
    if (w->broken || at == DECISIONS_MOST)
        return 0;
    if (w->open)
        w->decisions[at] = (decision){(uint8_t)nfaults, (uint8_t)ndeviations};
    if (w->next < w->nchoices && w->choices[w->next].at == at)
        option = w->choices[w->next++].option;
    if (option > w->decisions[at].faults + w->decisions[at].deviations) {
        fprintf(stderr, "decision %u has no option %u\n", at, option);
        abort();
    }
    if (option > 0 && option <= nfaults)
        w->seen.faults[option]++;
    w->ndecisions++;
    return option;
}

/* -- who is next ------------------------------------------------------------------------------ */

static bool is_over(const world *w) {
    bool over = true;
    for (uint32_t r = 0; r < RANKS; r++)
        over = over && (w->ranks[r].state == DONE || w->ranks[r].state == DEAD);
    return over || w->broken;
}

static uint32_t count_lines(const world *w, uint32_t id) {
    uint32_t count = 0;
    for (uint32_t g = 0; g < w->generations; g++)
        count += net_count(w->nets[g], id);
    return count;
}

static bool can_run(const world *w, const actor *r) {
    switch (r->state) {
    case READY:
        return !r->postponed;
    case IDLE:
        return !r->postponed && (r->woken || count_lines(w, r->id) > 0);
    case SLEEPING:
        return w->now_ns >= r->until_ns;
    default:
        return false;
    }
}

static bool release(world *w) {
    bool any = false;
    for (uint32_t r = 0; r < RANKS; r++) {
        any = any || w->ranks[r].postponed;
        w->ranks[r].postponed = false;
    }
    for (uint32_t g = 0; g < w->generations; g++)
        any = net_release(w->nets[g]) || any;
    return any;
}

static bool all_at_rendezvous(world *w) {
    uint32_t here = 0, dead = 0;
    for (uint32_t r = 0; r < RANKS; r++) {
        here += w->ranks[r].state == AT_RENDEZVOUS;
        dead += w->ranks[r].state == DEAD || w->ranks[r].expelled;
    }
    if (here == 0 || here + dead < RANKS)
        return false;
    check_rendezvous(w);
    for (uint32_t r = 0; r < RANKS; r++)
        if (w->ranks[r].state == AT_RENDEZVOUS)
            w->ranks[r].state = READY;
    return true;
}

/* Nobody can do anything: time passes. Whoever has not returned by its deadline never may. */
static void pass_time(world *w) {
    w->now_ns += QUANTUM_MS * MS;
    for (uint32_t i = 0; i < RANKS; i++) {
        actor *r = &w->ranks[i];
        r->woken = true;
        if (r->state == SLEEPING)
            r->asleep_ns += QUANTUM_MS * MS;
        uint64_t allowed_ns = r->call_begin_ns + r->asleep_ns + (TIMEOUT_MS + OVERDUE_MS) * MS;
        if (r->state == IDLE && r->call && w->now_ns > allowed_ns + QUANTUM_MS * MS)
            world_fail(r, "%s has not returned %d ms after its deadline", r->call, OVERDUE_MS);
    }
}

static void hold_line(world *w, actor *r, uint32_t nth) {
    for (uint32_t g = 0; g < w->generations; g++) {
        uint32_t count = net_count(w->nets[g], r->id);
        if (nth < count) {
            world_trace(w, "rank %u does not see yet what came, place %u", r->id, nth);
            net_hold(w->nets[g], r->id, nth);
            return;
        }
        nth -= count;
    }
}

static void fall(actor *r, fault what) {
    world *w = r->world;
    world_trace(w, "rank %u: %s", r->id, fault_name(what));
    r->state = what == CRASH ? DEAD : SLEEPING;
    r->expelled = r->expelled || what == EXPELLED;
    r->until_ns = w->now_ns + (what == SLEEP_HALF   ? TIMEOUT_MS / 2
                               : what == SLEEP_EDGE ? TIMEOUT_MS
                                                    : 2 * TIMEOUT_MS) *
                                  MS;
}

/* @return whether it gets the turn after all */
static bool offer(world *w, actor *r, bool others) {
    uint32_t lines = count_lines(w, r->id);
    uint32_t option = world_decide(w, FAULTS_OF_RANKS, lines + others);
    r->aborted = option == ABORTED;
    if (r->aborted)
        return true;
    if (option > 0 && option <= FAULTS_OF_RANKS) {
        fall(r, (fault)option);
        return false;
    }
    if (option > FAULTS_OF_RANKS + lines) {
        world_trace(w, "rank %u has its turn later", r->id);
        r->postponed = true;
        return false;
    }
    if (option > 0)
        hold_line(w, r, option - FAULTS_OF_RANKS - 1);
    return can_run(w, r);
}

static actor *find_next(world *w, bool *others) {
    actor *found = NULL;
    *others = false;
    for (uint32_t i = 1; i <= RANKS; i++) {
        actor *r = &w->ranks[(w->last + i) % RANKS];
        if (!can_run(w, r))
            continue;
        *others = found != NULL;
        found = found ? found : r;
    }
    return found;
}

/* When all is over, those that are not at their end are brought there, one after the other. */
static actor *next_to_leave(world *w) {
    for (uint32_t r = 0; r < RANKS; r++)
        if (w->ranks[r].state != DONE) {
            w->ranks[r].leaving = true;
            return &w->ranks[r];
        }
    return NULL;
}

static actor *choose(world *w) {
    bool others;
    while (!is_over(w)) {
        actor *r = find_next(w, &others);
        if (!r && !all_at_rendezvous(w) && !release(w))
            pass_time(w);
        if (!r || !offer(w, r, others))
            continue;
        for (uint32_t g = 0; g < w->generations; g++)
            net_bring(w->nets[g], r->id);
        r->state = READY;
        r->woken = false;
        w->last = r->id;
        world_trace(w, "rank %u has the turn", r->id);
        return r;
    }
    return next_to_leave(w);
}

/* As another thread of the rank may at any time. */
static void abort_comm(actor *self) {
    uint32_t g = GENERATIONS;
    while (g > 0 && !self->comms[g - 1])
        g--;
    self->aborted = false;
    world_trace(self->world, "rank %u: %s", self->id, fault_name(ABORTED));
    if (g > 0)
        tamis_comm_abort(self->comms[g - 1]);
}

static void pass_on(actor *self) {
    world *w = self->world;
    bool done = self->state == DONE;
    actor *next = choose(w);
    if (next != self) {
        sem_post(next ? &next->turn : &w->ended);
        while (!done && sem_wait(&self->turn) != 0)
            ;
    }
    if (self->aborted && !done)
        abort_comm(self);
}

/* -- what ranks call -------------------------------------------------------------------------- */

void world_idle(actor *self) {
    self->pauses = 0;
    if (self->leaving) {
        self->world->now_ns += QUANTUM_MS * MS;
        return;
    }
    self->state = IDLE;
    pass_on(self);
}

void world_compute(actor *self) {
    if (self->leaving)
        return;
    self->state = SLEEPING;
    self->until_ns = self->world->now_ns + COMPUTES_MS * MS;
    pass_on(self);
}

void world_rendezvous(actor *self) {
    if (self->leaving || self->expelled)
        return;
    self->state = AT_RENDEZVOUS;
    pass_on(self);
}

bool world_suffer(actor *self, fault what) {
    if (what == ABORTED) {
        abort_comm(self);
        return true;
    }
    fall(self, what);
    pass_on(self);
    return !self->leaving;
}

static void *run_rank(void *argument) {
    actor *self = argument;
    own = self;
    while (sem_wait(&self->turn) != 0)
        ;
    program_run(self);
    self->state = DONE;
    pass_on(self);
    return NULL;
}

/* -- an execution ----------------------------------------------------------------------------- */

/* A thread that never waits cannot be stopped. */
static void await_end(world *w) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += HANG_S;
    if (sem_timedwait(&w->ended, &until) == 0)
        return;
    fprintf(stderr, "HANG: rank %u runs without end%s%s; choices:", w->last,
            w->ranks[w->last].call ? " in " : "",
            w->ranks[w->last].call ? w->ranks[w->last].call : "");
    for (uint32_t i = 0; i < w->nchoices; i++)
        fprintf(stderr, " %u:%u", w->choices[i].at, w->choices[i].option);
    fputc('\n', stderr);
    _Exit(99);
}

static void open_world(world *w, const setting *set, const choice *choices, uint32_t nchoices,
                       bool traced) {
    static const uint32_t all[RANKS] = {0, 1, 2};
    memset(w, 0, sizeof *w);
    w->set = set;
    w->choices = choices;
    w->nchoices = nchoices;
    w->traced = traced;
    w->open = set->opens == 0;
    w->now_ns = 1000 * MS;
    w->last = RANKS - 1;
    w->nets[w->generations++] = net_create(w, 0, all, RANKS);
    sem_init(&w->ended, 0, 0);
    for (uint32_t r = 0; r < RANKS; r++) {
        w->ranks[r].world = w;
        w->ranks[r].id = r;
        sem_init(&w->ranks[r].turn, 0, 0);
        if (pthread_create(&w->ranks[r].thread, NULL, run_rank, &w->ranks[r]) != 0)
            abort();
    }
}

void world_run(world *w, const setting *set, const choice *choices, uint32_t nchoices,
               bool traced) {
    open_world(w, set, choices, nchoices, traced);
    sem_post(&choose(w)->turn);
    await_end(w);
    for (uint32_t r = 0; r < RANKS; r++) {
        pthread_join(w->ranks[r].thread, NULL);
        sem_destroy(&w->ranks[r].turn);
    }
    for (uint32_t g = 0; g < w->generations; g++)
        net_destroy(w->nets[g]);
    sem_destroy(&w->ended);
    w->seen.executions = 1;
    w->seen.decisions = w->ndecisions;
}
