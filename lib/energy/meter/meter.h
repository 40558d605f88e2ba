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
    TAM_METER_SOURCES = 8, /* at most; tam_energy_sources_pick refuses more */
    TAM_METER_GAINS = 512, /* of a domain, that no chunk has taken whole */
    TAM_METER_WINDOWS = 16,
    TAM_METER_STEPS = 512, /* moments at which steps are known, 20 ms apart or more */
    TAM_METER_NOTES = 16,  /* on their way into a file */
    TAM_METER_NOTE_BYTES = 1024,
    TAM_METER_SLACKS = 256 /* of the last steps */
};

/** A domain and what has become of its joules. */
typedef struct tam_channel {
    tam_sampler *sampler;
    uint32_t index; /* of the sampler */
    tam_fit *fit;
    tam_energy_gain *gains;                 /* [TAM_METER_GAINS] oldest first */
    uint32_t ngains, fitted;                /* the first `fitted` have been taken by the fit */
    uint64_t passed_uj;                     /* of gains before those */
    uint64_t claimed_uj;                    /* by chunks */
    int64_t phases_uj[TAMIS_ENERGY_PHASES]; /* of claimed_uj */
    uint8_t methods[TAMIS_ENERGY_PHASES];   /* the least certain one so far */
    tamis_energy_status told_status;        /* in events, so far */
    uint32_t told_wraps, told_resets;
} tam_channel;

/** What steps had told by a time. */
typedef struct tam_steps {
    uint64_t at_ns, steps, wire_bytes, offered, sent;
} tam_steps;

/** What the chunks of a stretch have come to. */
typedef struct tam_tally {
    uint64_t begin_ns, end_ns;
    uint64_t first_step, offered, sent;
    tamis_energy_totals totals;
    struct tam_tally_domain {
        int64_t uj, unattributed_uj, idle_uj;
        uint32_t wraps, resets; /* as they were when it began */
    } * domains;                /* [nchannels] */
} tam_tally;

/** A caller's; or the meter's own, the last, whose end is the begin of the next line. */
typedef struct tam_window {
    bool open, ended;
    bool counts, complete; /* chunks have been closed at its begin, at its end */
    bool written;          /* or it has no line */
    char name[64];
    uint64_t begin_ns, end_ns;
    tam_tally tally;
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
} tam_line;

/** What joules weigh in CO2. */
typedef struct tam_footprint {
    tamis_carbon *carbon; /* NULL: unknown */
    double pue;
    double unix_minus_s; /* Unix time minus monotonic, at open */
} tam_footprint;

struct tamis_energy {
    tam_sampler *samplers[TAM_METER_SOURCES];
    uint32_t nsamplers;
    tam_channel *channels;  /* [nchannels] */
    tam_energy_domain *now; /* [nchannels] as last seen by the meter's thread */
    bool *counted;          /* [nchannels] */
    uint32_t nchannels;
    tam_marks *marks;
    tam_spans *spans;
    tam_energy_log *log; /* NULL: none */
    tam_line line;
    tam_ledger *ledger;
    tam_footprint footprint;
    uint64_t reported_ns; /* the last report, */
    int64_t reported_uj;  /* and what the cluster had come to */
    double reported_grams;
    uint64_t host; /* hash of the boot id */
    uint64_t open_ns, window_ns, settle_ns;
    int pid; /* a child that was forked has no threads */
    tam_told told;
    pthread_t thread;

    /* Of the meter's thread and the caller's, under the lock. */
    pthread_mutex_t lock;
    pthread_cond_t changed; /* a chunk was closed, a window ended, the meter closes */
    bool closing;
    uint64_t told_ns;                 /* phases up to here have been told: a window has ended */
    tam_steps steps[TAM_METER_STEPS]; /* a ring */
    uint64_t nsteps;
    tam_tally chunk;                        /* the last one */
    tam_tally run;                          /* all chunks; the last one ends where it does */
    tam_tally since;                        /* since the last line */
    struct tam_tally_domain *tally_domains; /* of all tallies */
    tamis_energy_totals earlier; /* of the runs that this one goes on; size 0: there are none */
    tam_window windows[TAM_METER_WINDOWS + 1];
    char (*notes)[TAM_METER_NOTE_BYTES]; /* [TAM_METER_NOTES] oldest first */
    uint32_t nnotes;
};

/* -- chunk.c, with the lock held -------------------------------------------------------------- */

/** Take gains and marks. */
void tam_meter_take(tamis_energy *e, uint64_t now_ns);

/** Close the next chunk if it can be. @param flush  nothing more will be told: close it at now
 * @return whether it was */
bool tam_meter_close_next(tamis_energy *e, uint64_t now_ns, bool flush);

/** Note what steps have told by now. */
void tam_meter_note_steps(tamis_energy *e, uint64_t now_ns);

/* -- line.c: files ---------------------------------------------------------------------------- */

tamis_status tam_meter_open_log(tamis_energy *e, const tam_energy_log_setup *setup);
void tam_meter_close_log(tamis_energy *e);

/** With the lock held, which is given up meanwhile: write the lines of windows
 * that are complete. */
void tam_meter_write_lines(tamis_energy *e);

/** Write what callers have noted; what has become of domains since the last call; the end. */
void tam_meter_write_notes(tamis_energy *e);
void tam_meter_events(tamis_energy *e, uint64_t now_ns);
void tam_meter_summary(tamis_energy *e);

/* -- windows.c -------------------------------------------------------------------------------- */

/** A domain as the caller sees it. @param now  of channel i */
void tam_meter_show(const tamis_energy *e, uint32_t i, const tam_energy_domain *now,
                    tamis_energy_domain *out);

/* -- totals.c --------------------------------------------------------------------------------- */

/** From where the last chunk ended. */
void tam_tally_begin(const tamis_energy *e, tam_tally *tally);
void tam_tally_add(const tamis_energy *e, tam_tally *sum, const tam_tally *chunk);

/** Of joules that were used between two times; NAN: unknown. */
double tam_meter_grams(const tamis_energy *e, uint64_t begin_ns, uint64_t end_ns, int64_t uj);

/** Where nothing is known there is a reason. */
void tam_totals_explain(tamis_energy_totals *t, uint32_t ndomains);
bool tam_totals_sound(const tamis_energy_totals *t);

/** Add totals of another run, if there was one, and keep what is missing in this one. */
void tam_totals_join(tamis_energy_totals *sum, const tamis_energy_totals *earlier);

#endif
