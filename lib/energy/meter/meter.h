/* SPDX-License-Identifier: MIT
 *
 * A meter from inside. Samplers read counters, one thread each; the meter's own thread takes what
 * they gained and what the marks say, and closes chunk after chunk of time:
 *
 *     gains    |----y1----|----y2----|----y3----|----y4---          of one domain
 *     marks      [compute ][exch][compute ]...
 *     chunks   ........|...............|..........|..........       ends: lines of the files, and
 *                     line           window     window's end        begins and ends of windows
 *
 * A chunk is closed when its phases have all been told (settle_s) and the counters have moved past
 * its end. Joules up to a time within a gain are those that its phases should have taken until
 * then. Every microjoule is in one chunk: what comes late is in the next one.
 */
#ifndef TAM_ENERGY_METER_H
#define TAM_ENERGY_METER_H

#include "lib/base/sync.h"
#include "lib/energy/attribute/attribute.h"
#include "lib/energy/cluster/ledger.h"
#include "lib/energy/log/log.h"
#include "lib/energy/source/sampler.h"

#include <stdatomic.h>
#include <tamis/governor.h>

enum {
    TAM_METER_SOURCES = 8,
    TAM_METER_GAINS = 512, /* of a domain, that no chunk has taken whole */
    TAM_METER_WINDOWS = 16,
    TAM_METER_STEPS = 512, /* moments at which steps are known, 20 ms apart or more */
    TAM_METER_NOTES = 16,  /* on their way into a file */
    TAM_METER_NOTE_BYTES = 1024,
    TAM_METER_SLACKS = 256 /* of the last steps */
};

#define TAM_METER_MEMORY_NS UINT64_C(5000000000) /* of spans, before the last chunk */

/** A domain and what has become of its joules. */
typedef struct tam_channel {
    tam_sampler *sampler;
    uint32_t index; /* of the sampler */
    tam_energy_domain now;
    tam_fit *fit;
    tam_energy_gain *gains;                 /* [TAM_METER_GAINS] oldest first */
    uint32_t ngains, fitted;                /* the first `fitted` have been taken by the fit */
    uint64_t passed_uj;                     /* of gains before those */
    uint64_t claimed_uj;                    /* by chunks */
    int64_t phases_uj[TAMIS_ENERGY_PHASES]; /* of claimed_uj */
    uint8_t methods[TAMIS_ENERGY_PHASES];   /* the least certain one so far */
    int64_t unattributed_uj, idle_uj;
    bool counted;
    tamis_energy_status told_status; /* in events, so far */
    uint32_t told_wraps, told_resets;
} tam_channel;

/** What steps had told by a time. */
typedef struct tam_steps {
    uint64_t at_ns, steps, wire_bytes, offered, sent;
} tam_steps;

/** How the joules of a stretch were found; joules themselves are differences of totals. */
typedef struct tam_seen {
    int known;
    uint8_t methods[TAMIS_ENERGY_PHASES];
    uint32_t groups[TAMIS_ENERGY_PHASES];
} tam_seen;

/** A moment between two chunks. */
typedef struct tam_past {
    uint64_t at_ns;
    tamis_energy_totals totals;
    uint64_t offered, sent;
    tam_seen seen; /* since then */
    struct tam_past_domain {
        uint64_t uj;
        int64_t unattributed_uj, idle_uj;
        uint32_t wraps, resets;
    } * domains; /* [nchannels] */
} tam_past;

typedef struct tam_window {
    bool open, ended, written;
    bool has_begin, has_end; /* chunks have been closed there */
    char name[64];
    uint64_t begin_ns, end_ns;
    tam_past begin;
    tamis_energy_totals end;
} tam_window;

/** What steps have told; training threads add to it. */
typedef struct tam_told {
    atomic_uint_fast64_t steps, wire_bytes, offered, sent;
    _Atomic double density, residual_norm;
    _Atomic double slacks[TAM_METER_SLACKS];
    _Atomic uint32_t straggler;
} tam_told;

/** What is about to be written; of the meter's thread alone. */
typedef struct tam_line {
    tam_energy_record record;
    char name[64];                /* of the record */
    tam_window *window;           /* whose line it is; NULL: none */
    tamis_energy_domain *domains; /* [nchannels] of the record */
    int64_t *unattributed_uj, *idle_uj;
    tam_past last; /* where the last line ended */
} tam_line;

struct tamis_energy {
    tam_sampler *samplers[TAM_METER_SOURCES];
    uint32_t nsamplers;
    tam_channel *channels; /* [nchannels] */
    uint32_t nchannels;
    tam_energy_domain *cover_domains; /* [nchannels] scratch */
    bool *cover_counted;              /* [nchannels] */
    tam_marks *marks;
    tam_spans *spans;
    tamis_carbon *carbon; /* NULL: unknown */
    tam_energy_log *log;  /* NULL: none */
    tam_line line;
    tam_ledger *ledger;
    uint64_t reported_ns; /* the last report, */
    int64_t reported_uj;  /* and what the cluster had come to */
    double reported_grams;
    uint64_t host;       /* hash of the boot id */
    double unix_minus_s; /* Unix time minus monotonic, at open */
    uint64_t open_ns, window_ns, settle_ns;
    double pue;
    int pid; /* a child that was forked has no threads */
    tam_told told;
    pthread_t thread;

    /* Of the meter's thread and the caller's, under the lock. */
    pthread_mutex_t lock;
    pthread_cond_t changed; /* a chunk was closed, a window ended, the meter closes */
    bool closing;
    uint64_t told_ns;                 /* phases up to here have been told: a window has ended */
    uint64_t claimed_ns;              /* end of the last chunk, */
    uint64_t offered, sent;           /* and elements until then */
    tam_steps steps[TAM_METER_STEPS]; /* a ring */
    uint64_t nsteps;
    uint64_t line_ns;            /* end of the next line */
    tamis_energy_totals totals;  /* of all chunks */
    tamis_energy_totals earlier; /* of the runs that this one goes on */
    tam_window windows[TAM_METER_WINDOWS];
    char (*notes)[TAM_METER_NOTE_BYTES]; /* [TAM_METER_NOTES] oldest first */
    uint32_t nnotes;
};

/** Unix time of a monotonic one. */
double tam_meter_unix(const tamis_energy *e, uint64_t at_ns);

/** chunk.c, with the lock held: take gains and marks; */
void tam_meter_take(tamis_energy *e, uint64_t now_ns);
/** close the next chunk if it can be. @param flush  nothing more will be told: close it at now
 * @return whether it was */
bool tam_meter_close_next(tamis_energy *e, uint64_t now_ns, bool flush);

/** line.c: files. */
tamis_status tam_meter_open_log(tamis_energy *e, const tam_energy_log_setup *setup);
void tam_meter_close_log(tamis_energy *e);
/** With the lock held: prepare the next line that the last chunk is the end of.
 * @return whether there is one */
bool tam_meter_line_next(tamis_energy *e, bool flush);
void tam_meter_line_write(tamis_energy *e);
/** With the lock held, after a line was written. */
void tam_meter_line_written(tamis_energy *e);
/** Write what callers have noted. */
void tam_meter_write_notes(tamis_energy *e);
/** With the lock held: note where things are. */
void tam_past_note(const tamis_energy *e, tam_past *past);
void tam_meter_summary(tamis_energy *e);
/** Say what has become of domains since the last call. */
void tam_meter_events(tamis_energy *e, uint64_t now_ns);

/** A domain as the caller sees it. @param now  of this channel */
void tam_channel_show(const tam_channel *c, const tam_energy_domain *now, tamis_energy_domain *out);

/** With the lock held: note what steps have told by now. */
void tam_meter_note_steps(tamis_energy *e, uint64_t now_ns);
/** Which domains count, and what is missing. */
void tam_meter_choose(tamis_energy *e, char missing[TAMIS_ENERGY_TEXT]);

/** totals.c: sums and differences of totals. */
void tam_totals_add(tamis_energy_totals *sum, const tamis_energy_totals *more);
/** What lies between two totals of one meter. */
void tam_totals_since(const tam_past *before, const tamis_energy_totals *after,
                      tamis_energy_totals *out);
void tam_seen_add(tam_seen *seen, const tamis_energy_totals *chunk);
/** Where nothing is known there is a reason. */
void tam_totals_explain(tamis_energy_totals *t, uint32_t ndomains);
bool tam_totals_sound(const tamis_energy_totals *t);

/** Add totals of another run, and keep what is missing in this one. */
void tam_totals_join(tamis_energy_totals *sum, const tamis_energy_totals *earlier);

#endif
