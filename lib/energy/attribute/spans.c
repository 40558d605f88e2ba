/* SPDX-License-Identifier: MIT
 *
 * Exposure of phases as cumulative sums over the times at which a phase begins or ends:
 *
 *     events   |    |         |      |        level   threads that are in the phase, afterwards
 *     level  0   1       2        1      0    ns      exposure until the event
 *
 * A late span shifts the events behind it: cheap for the usual some hundred, bounded by
 * EVENTS_MAX. The track of IDLE holds the begins and ends of all phases, and sums the time in
 * which there is any.
 */
#include "lib/energy/attribute/attribute.h"

enum {
    TRACKS = TAMIS_ENERGY_PHASES,
    BUSY = TAMIS_ENERGY_IDLE, /* the track of all phases together */
    EVENTS_FIRST = 256,
    EVENTS_MAX = 1 << 16 /* 1.5 MiB; of 2000 spans per second the last 16 s */
};

typedef struct event {
    uint64_t at_ns;
    uint64_t ns;
    uint64_t level;
} event;

typedef struct track {
    event *events; /* [capacity], of which [first, first + count) */
    uint32_t first, count, capacity;
    bool as_union; /* sum the time in which the level is not 0, not the level */
    uint32_t nopen;
    uint64_t open_ns[TAM_MARKS_THREADS]; /* begins of what was under way at the last drain */
} track;

struct tam_spans {
    uint64_t known_ns, dropped;
    uint32_t phases;
    track tracks[TRACKS];
};

tamis_status tam_spans_open(tam_spans **out) {
    tam_spans *spans = tam_alloc(sizeof *spans);
    if (!spans)
        return tam_fail(TAMIS_E_NOMEM, "no memory for phase spans");
    spans->tracks[BUSY].as_union = true;
    spans->phases = 1u << BUSY;
    *out = spans;
    return TAMIS_OK;
}

void tam_spans_close(tam_spans *spans) {
    if (!spans)
        return;
    for (uint32_t i = 0; i < TRACKS; i++)
        tam_free(spans->tracks[i].events);
    tam_free(spans);
}

/* -- events ----------------------------------------------------------------------------------- */

static event *events_of(const track *t) {
    return t->events + t->first;
}

/* Exposure until a time behind event `e`, before the next. */
static uint64_t upto(const track *t, const event *e, uint64_t at_ns) {
    return e->ns + (t->as_union ? e->level > 0 : e->level) * (at_ns - e->at_ns);
}

/* How many events lie at or before `at_ns`. */
static uint32_t spans_find(const track *t, uint64_t at_ns) {
    const event *events = events_of(t);
    uint32_t low = 0, high = t->count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (events[middle].at_ns <= at_ns)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static void spans_forget(track *t, uint64_t before_ns) {
    uint32_t past = spans_find(t, before_ns);
    if (past <= 1)
        return; /* the last event before is kept: it holds level and sum */
    t->first += past - 1;
    t->count -= past - 1;
}

void tam_spans_forget(tam_spans *spans, uint64_t before_ns) {
    if (before_ns <= spans->known_ns)
        return;
    spans->known_ns = before_ns;
    for (uint32_t i = 0; i < TRACKS; i++)
        spans_forget(&spans->tracks[i], before_ns);
}

static bool grow(track *t) {
    uint32_t capacity = t->capacity ? 2 * t->capacity : EVENTS_FIRST;
    event *events = capacity <= EVENTS_MAX ? tam_alloc_array(capacity, sizeof *events) : NULL;
    if (!events)
        return false;
    if (t->count)
        memcpy(events, events_of(t), t->count * sizeof *events);
    tam_free(t->events);
    t->events = events;
    t->capacity = capacity;
    t->first = 0;
    return true;
}

/* For two more events. What has been forgotten leaves its place, if that is worth the move. */
static bool spans_reserve(track *t) {
    if (t->first + t->count + 2 <= t->capacity)
        return true;
    if (t->first < 2 || t->first < t->capacity / 8)
        return grow(t);
    memmove(t->events, events_of(t), t->count * sizeof *t->events);
    t->first = 0;
    return true;
}

/* A track that cannot grow lets go of its older half, and so do all others: exposures of different
 * phases are compared. */
static bool ensure_capacity(tam_spans *spans, track *t) {
    if (spans_reserve(t))
        return true;
    if (t->count < 4)
        return false;
    spans->dropped += t->count / 4;
    tam_spans_forget(spans, events_of(t)[t->count / 2].at_ns);
    return spans_reserve(t);
}

/* @return its place */
static uint32_t spans_insert(track *t, uint64_t at_ns) {
    uint32_t place = spans_find(t, at_ns);
    event *events = events_of(t);
    memmove(events + place + 1, events + place, (t->count - place) * sizeof *events);
    events[place] = (event){.at_ns = at_ns};
    if (place > 0)
        events[place] = (event){at_ns, upto(t, &events[place - 1], at_ns), events[place - 1].level};
    t->count++;
    return place;
}

static void insert_span(track *t, uint64_t begin_ns, uint64_t end_ns) {
    uint32_t begin = spans_insert(t, begin_ns), end = spans_insert(t, end_ns);
    event *events = events_of(t);
    for (uint32_t i = begin; i < t->count; i++) {
        events[i].level += i < end;
        if (i > begin)
            events[i].ns = upto(t, &events[i - 1], events[i].at_ns);
    }
}

void tam_spans_add(tam_spans *spans, uint32_t phase, uint64_t begin_ns, uint64_t end_ns) {
    if (phase >= BUSY || end_ns <= begin_ns)
        return;
    track *own = &spans->tracks[phase], *busy = &spans->tracks[BUSY];
    if (!ensure_capacity(spans, own) || !ensure_capacity(spans, busy) ||
        end_ns <= spans->known_ns) {
        spans->dropped++;
        return;
    }
    spans->phases |= 1u << phase;
    begin_ns = begin_ns > spans->known_ns ? begin_ns : spans->known_ns;
    insert_span(own, begin_ns, end_ns);
    insert_span(busy, begin_ns, end_ns);
}

/* -- from the marks --------------------------------------------------------------------------- */

static void add_open(track *t, uint64_t begin_ns) {
    if (t->nopen < TAM_MARKS_THREADS)
        t->open_ns[t->nopen++] = begin_ns;
}

static void spans_take(void *context, const tam_span *span) {
    tam_spans *spans = context;
    if (span->end_ns != TAM_SPAN_OPEN) {
        tam_spans_add(spans, span->phase, span->begin_ns, span->end_ns);
        return;
    }
    track *busy = &spans->tracks[BUSY];
    spans->phases |= 1u << span->phase;
    add_open(&spans->tracks[span->phase], span->begin_ns);
    if (busy->nopen == 0)
        add_open(busy, span->begin_ns);
    else if (span->begin_ns < busy->open_ns[0])
        busy->open_ns[0] = span->begin_ns; /* from the first on there is one under way */
}

void tam_spans_drain(tam_spans *spans, tam_marks *marks) {
    for (uint32_t i = 0; i < TRACKS; i++)
        spans->tracks[i].nopen = 0;
    tam_marks_drain(marks, spans_take, spans);
}

/* -- questions -------------------------------------------------------------------------------- */

uint32_t tam_spans_phases(const tam_spans *spans) {
    return spans->phases;
}

uint64_t tam_spans_known_ns(const tam_spans *spans) {
    return spans->known_ns;
}

uint64_t tam_spans_dropped(const tam_spans *spans) {
    return spans->dropped;
}

/* Exposure of what has ended. `past` events lie at or before. What lies before the oldest event has
 * been forgotten: there nothing is added to what it began with. */
static uint64_t closed(const track *t, uint32_t past, uint64_t at_ns) {
    const event *first = events_of(t);
    if (past > 0)
        return upto(t, &first[past - 1], at_ns);
    return t->count > 0 ? first->ns : 0;
}

static uint64_t still_open(const track *t, uint64_t at_ns) {
    uint64_t sum = 0;
    for (uint32_t i = 0; i < t->nopen; i++)
        sum += at_ns > t->open_ns[i] ? at_ns - t->open_ns[i] : 0;
    return sum;
}

static void spans_walk(const track *t, const uint64_t *at_ns, uint32_t count, uint32_t phase,
                       tam_exposure *out) {
    /* Behind its first open phase the track of all is busy, whatever ended there. */
    uint64_t until_ns = t->as_union && t->nopen ? t->open_ns[0] : UINT64_MAX;
    uint32_t past = spans_find(t, at_ns[0] < until_ns ? at_ns[0] : until_ns);
    for (uint32_t i = 0; i < count; i++) {
        uint64_t ended_ns = at_ns[i] < until_ns ? at_ns[i] : until_ns;
        while (past > 0 && events_of(t)[past - 1].at_ns > ended_ns)
            past--;
        out[i].ns[phase] = closed(t, past, ended_ns) + still_open(t, at_ns[i]);
    }
}

void tam_spans_until(const tam_spans *spans, const uint64_t *at_ns, uint32_t count,
                     tam_exposure *out) {
    memset(out, 0, count * sizeof *out);
    for (uint32_t phase = 0; phase < TRACKS && count; phase++) {
        if (spans->phases >> phase & 1)
            spans_walk(&spans->tracks[phase], at_ns, count, phase, out);
    }
    for (uint32_t i = 0; i < count; i++)
        out[i].ns[BUSY] = at_ns[i] - out[i].ns[BUSY];
}

void tam_spans_seconds(const tam_spans *spans, uint64_t begin_ns, uint64_t end_ns,
                       double seconds[TAMIS_ENERGY_PHASES]) {
    tam_exposure ends[2];
    memset(seconds, 0, TAMIS_ENERGY_PHASES * sizeof seconds[0]);
    if (end_ns <= begin_ns)
        return;
    tam_spans_until(spans, (uint64_t[]){end_ns, begin_ns}, 2, ends);
    for (uint32_t phase = 0; phase < TAMIS_ENERGY_PHASES; phase++)
        seconds[phase] = (double)(ends[0].ns[phase] - ends[1].ns[phase]) * 1e-9;
}
