/* SPDX-License-Identifier: MIT */
#include "lib/base/flight.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

static atomic_uint made;

tam_flight *tam_flight_open(uint32_t rank, uint32_t nranks) {
    tam_flight *f = tam_alloc(sizeof *f);
    if (!f)
        return NULL;
    f->rank = rank;
    f->nranks = nranks;
    f->group = atomic_fetch_add(&made, 1);
    f->transport = f->plan = "";
    return f;
}

void tam_flight_join(tam_flight *f, uint32_t group) {
    unsigned now = atomic_load(&made);
    f->group = group;
    while (now <= group && !atomic_compare_exchange_weak(&made, &now, group + 1))
        ;
}

void tam_flight_close(tam_flight *f) {
    tam_free(f);
}

/* -- events ----------------------------------------------------------------------------------- */

/* After what was written before, */
static void flight_put(atomic_uint_fast64_t *word, uint64_t value) {
    atomic_store_explicit(word, value, memory_order_release);
}

/* and before what is read next. */
static uint64_t flight_get(const atomic_uint_fast64_t *word) {
    return atomic_load_explicit(word, memory_order_acquire);
}

/* Which time round the ring an event is of; 0: none was written. */
static uint64_t round_of(uint64_t nth) {
    return nth / TAM_FLIGHT_EVENTS % UINT16_MAX + 1;
}

/* The last word says that all are there. */
void tam_flight_record(tam_flight *f, const tam_event *e) {
    if (!f)
        return;
    uint64_t nth = atomic_fetch_add_explicit(&f->next, 1, memory_order_relaxed);
    atomic_uint_fast64_t *w = f->words[nth % TAM_FLIGHT_EVENTS];
    flight_put(&w[0], tam_clock_ns());
    flight_put(&w[1], e->bytes);
    flight_put(&w[2], e->step);
    flight_put(&w[3], (uint64_t)e->number << 32 | e->other);
    flight_put(&w[4], (uint64_t)e->kind | (uint64_t)e->call << 8 | round_of(nth) << 16 |
                          (uint64_t)(uint32_t)e->status << 32);
}

/* @return false: it is not complete yet, or not there any more */
static bool flight_take(const tam_flight *f, uint64_t nth, uint64_t w[TAM_FLIGHT_WORDS]) {
    const atomic_uint_fast64_t *from = f->words[nth % TAM_FLIGHT_EVENTS];
    for (uint32_t i = TAM_FLIGHT_WORDS; i-- > 0;)
        w[i] = flight_get(&from[i]);
    return (w[4] >> 16 & UINT16_MAX) == round_of(nth) &&
           atomic_load(&f->next) <= nth + TAM_FLIGHT_EVENTS;
}

/* -- text ------------------------------------------------------------------------------------- */

/* What snprintf would do, which must not be called in a signal handler. */
typedef struct sink {
    int fd, error;
    size_t length;
    char bytes[4096];
} sink;

static void flush(sink *s) {
    for (size_t at = 0; at < s->length && s->error == 0;) {
        ssize_t wrote = write(s->fd, s->bytes + at, s->length - at);
        if (wrote > 0)
            at += (size_t)wrote;
        else if (errno != EINTR)
            s->error = wrote == 0 ? EIO : errno;
    }
    s->length = 0;
}

static void add_text(sink *s, const char *text) {
    for (; *text; text++) {
        if (s->length == sizeof s->bytes)
            flush(s);
        s->bytes[s->length++] = *text;
    }
}

static void add_digits(sink *s, uint64_t value) {
    char digits[24];
    size_t at = sizeof digits - 1;
    digits[at] = '\0';
    do
        digits[--at] = (char)('0' + value % 10);
    while ((value /= 10) > 0);
    add_text(s, digits + at);
}

static void add_number(sink *s, const char *key, uint64_t value) {
    add_text(s, ",\"");
    add_text(s, key);
    add_text(s, "\":");
    add_digits(s, value);
}

static void add_name(sink *s, const char *key, const char *value) {
    add_text(s, ",\"");
    add_text(s, key);
    add_text(s, "\":\"");
    add_text(s, value);
    add_text(s, "\"");
}

static uint64_t clock_of(clockid_t id) {
    struct timespec now;
    clock_gettime(id, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Both clocks, so that files of several hosts can be laid side by side. */
static void flight_add_header(sink *s, const tam_flight *f, uint64_t events) {
    add_text(s, "{\"record\":\"flight\"");
    add_number(s, "version", (uint64_t)tamis_version());
    add_number(s, "communicator", f->group);
    add_number(s, "rank", f->rank);
    add_number(s, "ranks", f->nranks);
    add_name(s, "transport", f->transport);
    add_name(s, "plan", f->plan);
    add_number(s, "clock_ns", tam_clock_ns());
    add_number(s, "unix_ns", clock_of(CLOCK_REALTIME));
    add_number(s, "events", events);
    add_text(s, "}\n");
}

static const char *const kinds[TAM_FLIGHT_KINDS] = {"start", "wait", "done", "begin",
                                                    "end",   "late", "lost"};
static const char *const calls[TAM_FLIGHT_CALLS] = {"none",       "all-gather", "sum",
                                                    "all-to-all", "scatter",    "spread"};

static void add_event(sink *s, const uint64_t w[TAM_FLIGHT_WORDS]) {
    uint32_t kind = w[4] & 0xff, call = w[4] >> 8 & 0xff, other = (uint32_t)w[3];
    if (kind >= TAM_FLIGHT_KINDS || call >= TAM_FLIGHT_CALLS)
        return;
    add_text(s, "{\"record\":\"event\"");
    add_number(s, "at_ns", w[0]);
    add_name(s, "event", kinds[kind]);
    if (w[2] > 0)
        add_number(s, "step", w[2] - 1);
    if (w[3] >> 32 > 0) {
        add_number(s, "collective", w[3] >> 32);
        add_name(s, "call", calls[call]);
    }
    if (kind == TAM_FLIGHT_BEGIN && other > 0)
        add_number(s, "bucket", other - 1);
    if (kind == TAM_FLIGHT_BEGIN)
        add_number(s, "bytes", w[1]);
    if (kind == TAM_FLIGHT_LATE) {
        add_number(s, "waits_for", other);
        add_number(s, "waited_ns", w[1]);
    }
    if (kind == TAM_FLIGHT_END || kind == TAM_FLIGHT_DONE || kind == TAM_FLIGHT_LOST)
        add_name(s, "status", tamis_status_name((tamis_status)(int32_t)(w[4] >> 32)));
    add_text(s, "}\n");
}

/* Events that others record meanwhile overwrite the oldest, which are then left out. */
static void add_events(sink *s, const tam_flight *f, uint64_t next) {
    uint64_t first = next > TAM_FLIGHT_EVENTS ? next - TAM_FLIGHT_EVENTS : 0;
    for (uint64_t nth = first; nth < next; nth++) {
        uint64_t w[TAM_FLIGHT_WORDS];
        if (flight_take(f, nth, w))
            add_event(s, w);
    }
}

/* Behind what the sink holds. @param  writer  of a file that is not complete; 0: it is */
static const char *name_file(sink *s, const tam_flight *f, const char *folder, uint32_t writer) {
    const char *name = s->bytes + s->length;
    add_text(s, folder);
    add_text(s, "/flight-");
    add_digits(s, f->group);
    add_text(s, "-");
    add_digits(s, f->rank);
    add_text(s, "-");
    add_digits(s, (uint64_t)getpid());
    add_text(s, ".jsonl");
    if (writer > 0) {
        add_text(s, ".");
        add_digits(s, writer);
    }
    s->bytes[s->length++] = '\0';
    return name;
}

static void write_file(sink *s, const tam_flight *f, const char *name) {
    s->fd = open(name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    s->length = 0;
    if (s->fd < 0) {
        s->error = errno;
        return;
    }
    uint64_t next = atomic_load(&f->next);
    flight_add_header(s, f, next);
    add_events(s, f, next);
    flush(s);
    if (close(s->fd) != 0 && s->error == 0)
        s->error = errno;
}

/* Others may write the same file at the same time, a signal handler in the midst of this one, and
 * the process may be killed: so it gets its name when it is complete. */
int tam_flight_write(const tam_flight *f, const char *folder) {
    enum { NAME = 128 };
    static atomic_uint writers;
    uint32_t writer = atomic_fetch_add(&writers, 1) % UINT16_MAX + 1;
    sink s = {0}; /* of a signal handler's stack it takes the most */
    if (strlen(folder) > sizeof s.bytes / 2 - NAME)
        return ENAMETOOLONG;
    write_file(&s, f, name_file(&s, f, folder, writer));
    s.length = 0;
    const char *part = name_file(&s, f, folder, writer), *name = name_file(&s, f, folder, 0);
    if (s.error == 0 && rename(part, name) != 0)
        s.error = errno;
    if (s.error != 0)
        unlink(part);
    return s.error;
}
