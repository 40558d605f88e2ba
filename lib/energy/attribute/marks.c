/* SPDX-License-Identifier: MIT
 *
 * A ring of spans per thread: the thread fills it, the meter's thread empties it. What has begun
 * and not ended stands beside the ring, so that a full ring loses whole spans and never one end of
 * one.
 */
#include "lib/energy/attribute/attribute.h"

#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

enum { LINE = 64, NOBODY = 0 }; /* no thread has the number 0 */

typedef struct ring {
    _Alignas(LINE) _Atomic uint64_t head; /* written by the thread */
    uint64_t tail_seen;
    uint32_t depth[TAMIS_ENERGY_PHASES];
    _Atomic uint64_t open_ns[TAMIS_ENERGY_PHASES]; /* begin of what is under way; 0: it is not */
    _Atomic uint64_t dropped;
    _Alignas(LINE) _Atomic uint64_t tail;   /* written by who drains, */
    uint64_t ended_ns[TAMIS_ENERGY_PHASES]; /* for whom this is the begin of the last that ended:
                                               its thread may not have come to clear open_ns yet */
    tam_span spans[TAM_MARKS_DEPTH];
} ring;

struct tam_marks {
    pthread_key_t key;         /* a thread's ring; its destructor sees threads end */
    tam_marks *next;           /* of the open ones, under the lock */
    _Atomic uint64_t homeless; /* marks of threads that found no ring */
    _Atomic(ring *) rings[TAM_MARKS_THREADS];
    _Atomic pthread_t owners[TAM_MARKS_THREADS]; /* a free ring may hold spans */
};

/* Taken by threads that end and by meters that open and close; marks never take it. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static tam_marks *first;

/* Never without a deadline: in the child of a fork the lock may be held by nobody that lives. */
static bool take_lock(void) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 1;
    return pthread_mutex_timedlock(&lock, &until) == 0;
}

/* Only its own thread writes the count. */
static void count_dropped(ring *r) {
    atomic_store_explicit(&r->dropped, atomic_load_explicit(&r->dropped, memory_order_relaxed) + 1,
                          memory_order_release);
}

/* @return false: the ring is full, and the span has to be counted as dropped */
static bool marks_push(ring *r, uint32_t phase, bool nested, uint64_t begin_ns, uint64_t end_ns) {
    uint64_t head = atomic_load_explicit(&r->head, memory_order_relaxed);
    if (head - r->tail_seen >= TAM_MARKS_DEPTH)
        r->tail_seen = atomic_load_explicit(&r->tail, memory_order_acquire);
    if (head - r->tail_seen >= TAM_MARKS_DEPTH)
        return false;
    r->spans[head % TAM_MARKS_DEPTH] = (tam_span){phase, nested, begin_ns, end_ns};
    atomic_store_explicit(&r->head, head + 1, memory_order_release);
    return true;
}

/* -- threads come and go ---------------------------------------------------------------------- */

static void close_phase(ring *r, uint32_t phase, uint64_t now_ns) {
    uint64_t begin_ns = atomic_load_explicit(&r->open_ns[phase], memory_order_relaxed);
    r->depth[phase] = 0;
    if (begin_ns == 0)
        return;
    bool kept = now_ns <= begin_ns || marks_push(r, phase, true, begin_ns, now_ns);
    /* After the span: who drains sees it as under way, as ended, or as both, never as neither.
     * Before the count: what has been counted as dropped is no longer under way. */
    atomic_store_explicit(&r->open_ns[phase], 0, memory_order_release);
    if (!kept)
        count_dropped(r);
}

/* Phases under way end with their thread. */
static void marks_leave(tam_marks *marks, uint32_t i) {
    ring *r = atomic_load_explicit(&marks->rings[i], memory_order_relaxed);
    uint64_t now_ns = tam_clock_ns();
    for (uint32_t phase = 0; phase < TAMIS_ENERGY_PHASES; phase++)
        close_phase(r, phase, now_ns);
    atomic_store_explicit(&marks->owners[i], NOBODY, memory_order_release);
}

/* Its meter may have closed meanwhile, and another one have a ring in the same place: only what an
 * open meter knows as this thread's is touched. */
static void thread_ends(void *own) {
    if (!take_lock())
        return;
    for (tam_marks *m = first; m; m = m->next) {
        for (uint32_t i = 0; i < TAM_MARKS_THREADS; i++) {
            if (atomic_load(&m->owners[i]) == pthread_self() && atomic_load(&m->rings[i]) == own)
                marks_leave(m, i);
        }
    }
    pthread_mutex_unlock(&lock);
}

static ring *claim_slot(tam_marks *marks, uint32_t i) {
    pthread_t nobody = NOBODY;
    if (!atomic_compare_exchange_strong(&marks->owners[i], &nobody, pthread_self()))
        return NULL;
    ring *r = atomic_load_explicit(&marks->rings[i], memory_order_relaxed);
    if (!r && (r = tam_alloc(sizeof *r)))
        atomic_store_explicit(&marks->rings[i], r, memory_order_release);
    if (r && pthread_setspecific(marks->key, r) == 0)
        return r;
    atomic_store_explicit(&marks->owners[i], NOBODY, memory_order_release);
    return NULL;
}

static ring *marks_claim(tam_marks *marks) {
    ring *r = NULL;
    for (uint32_t i = 0; i < TAM_MARKS_THREADS && !r; i++)
        r = claim_slot(marks, i);
    return r;
}

static inline ring *marks_ring_of(tam_marks *marks) {
    ring *r = pthread_getspecific(marks->key);
    return r ? r : marks_claim(marks);
}

/* -- open and close --------------------------------------------------------------------------- */

tamis_status tam_marks_open(tam_marks **out) {
    tam_marks *marks = tam_alloc(sizeof *marks);
    if (!marks)
        return tam_fail(TAMIS_E_NOMEM, "no memory for phase marks");
    if (pthread_key_create(&marks->key, thread_ends) != 0) {
        tam_free(marks);
        return tam_fail(TAMIS_E_NOMEM, "phase marks: the process has no thread key left");
    }
    if (!take_lock()) {
        pthread_key_delete(marks->key);
        tam_free(marks);
        return tam_fail(TAMIS_E_STATE, "phase marks: their lock is held by a thread that does not "
                                       "exist; open the meter before the process forks");
    }
    marks->next = first;
    first = marks;
    pthread_mutex_unlock(&lock);
    *out = marks;
    return TAMIS_OK;
}

void tam_marks_close(tam_marks *marks) {
    if (!marks || !take_lock()) /* better some bytes lost than a list that two change */
        return;
    tam_marks **link = &first;
    while (*link != marks)
        link = &(*link)->next;
    *link = marks->next;
    pthread_mutex_unlock(&lock);
    pthread_key_delete(marks->key);
    for (uint32_t i = 0; i < TAM_MARKS_THREADS; i++)
        tam_free(atomic_load(&marks->rings[i]));
    tam_free(marks);
}

/* -- marks ------------------------------------------------------------------------------------ */

static bool markable(uint32_t phase) {
    return phase < TAMIS_ENERGY_IDLE;
}

static void count_lost(tam_marks *marks) {
    atomic_fetch_add_explicit(&marks->homeless, 1, memory_order_relaxed);
}

void tam_marks_begin(tam_marks *marks, uint32_t phase, uint64_t now_ns) {
    ring *r = marks_ring_of(marks);
    if (!r)
        count_lost(marks);
    else if (markable(phase) && r->depth[phase]++ == 0)
        atomic_store_explicit(&r->open_ns[phase], now_ns ? now_ns : 1, memory_order_relaxed);
}

void tam_marks_end(tam_marks *marks, uint32_t phase, uint64_t now_ns) {
    ring *r = marks_ring_of(marks);
    if (!r)
        count_lost(marks);
    else if (markable(phase) && r->depth[phase] > 0 && --r->depth[phase] == 0)
        close_phase(r, phase, now_ns);
}

void tam_marks_span(tam_marks *marks, uint32_t phase, uint64_t begin_ns, uint64_t end_ns) {
    ring *r = marks_ring_of(marks);
    if (!r)
        count_lost(marks);
    else if (markable(phase) && end_ns > begin_ns && !marks_push(r, phase, false, begin_ns, end_ns))
        count_dropped(r);
}

/* -- what they come to ------------------------------------------------------------------------ */

uint64_t tam_marks_dropped(const tam_marks *marks) {
    uint64_t sum = atomic_load_explicit(&marks->homeless, memory_order_relaxed);
    for (uint32_t i = 0; i < TAM_MARKS_THREADS; i++) {
        const ring *r = atomic_load_explicit(&marks->rings[i], memory_order_acquire);
        sum += r ? atomic_load_explicit(&r->dropped, memory_order_acquire) : 0;
    }
    return sum;
}

static void drain(ring *r, void (*take)(void *context, const tam_span *span), void *context) {
    uint64_t open_ns[TAMIS_ENERGY_PHASES];
    for (uint32_t phase = 0; phase < TAMIS_ENERGY_PHASES; phase++) {
        open_ns[phase] = atomic_load_explicit(&r->open_ns[phase], memory_order_acquire);
        if (open_ns[phase] == r->ended_ns[phase])
            open_ns[phase] = 0; /* it has ended before, and was told */
    }

    uint64_t head = atomic_load_explicit(&r->head, memory_order_acquire);
    uint64_t tail = atomic_load_explicit(&r->tail, memory_order_relaxed);
    for (; tail != head; tail++) {
        const tam_span *span = &r->spans[tail % TAM_MARKS_DEPTH];
        take(context, span);
        if (!span->nested)
            continue;
        r->ended_ns[span->phase] = span->begin_ns;
        if (span->begin_ns == open_ns[span->phase])
            open_ns[span->phase] = 0; /* it has ended meanwhile */
    }
    atomic_store_explicit(&r->tail, tail, memory_order_release);

    for (uint32_t phase = 0; phase < TAMIS_ENERGY_PHASES; phase++) {
        if (open_ns[phase])
            take(context, &(tam_span){phase, true, open_ns[phase], TAM_SPAN_OPEN});
    }
}

void tam_marks_drain(tam_marks *marks, void (*take)(void *context, const tam_span *span),
                     void *context) {
    for (uint32_t i = 0; i < TAM_MARKS_THREADS; i++) {
        ring *r = atomic_load_explicit(&marks->rings[i], memory_order_acquire);
        if (r)
            drain(r, take, context);
    }
}
