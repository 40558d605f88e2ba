/* SPDX-License-Identifier: MIT
 *
 * A meter from inside. Samplers read counters, one thread each; the meter's own thread takes what
 * they gained and what the marks say, and closes chunk after chunk of time:
 *
 *     gains    |----y1----|----y2----|----y3----|----y4---          of one domain
 *     marks      [compute ][exch][compute ]...
 *     chunks   ........|...............|..........|..........       end at moments: windows, of
 *                     line           window     window's end        callers and of lines, begin or
 *                                                                   end there
 * A chunk is closed when its phases have all been told (settle_s) and the counters have moved past
 * its end. Joules up to a time within a gain are those that its phases should have taken until
 * then. Every microjoule is in one chunk: what comes late is in the next one.
 */
#ifndef TAM_ENERGY_METER_H
#define TAM_ENERGY_METER_H

#include "lib/base/sync.h"
#include "lib/energy/attribute/attribute.h"
#include "lib/energy/cluster/registry.h"
#include "lib/energy/govern/carbon.h"
#include "lib/energy/log/log.h"
#include "lib/energy/source/sampler.h"

#include <stdatomic.h>

enum {
    TAM_METER_SOURCES = 8, /* at most; tam_energy_sources_choose refuses more */
    TAM_METER_GAINS = 512, /* of a domain, that no chunk has taken whole */
    TAM_METER_WINDOWS = 16,
    TAM_METER_MOMENTS = 128, /* that no chunk has come to; 2 of each window at most */
    TAM_METER_OWN_MOMENTS = TAM_METER_MOMENTS - 2 * TAM_METER_WINDOWS - 1
};

/** A domain and what has become of its joules. */
typedef struct tam_channel {
    tam_sampler *sampler;
    uint32_t index; /* of the sampler */
    tam_fit *fit;
    tam_energy_gain gains[TAM_METER_GAINS]; /* oldest first */
    uint32_t ngains, fitted;                /* the first `fitted` have been taken by the fit */
    uint64_t passed_uj;                     /* of gains before those */
    uint64_t claimed_uj;                    /* by chunks */
    uint64_t owed_uj, ahead_uj;             /* tam_cover_gain, after the last chunk */
    int64_t phases_uj[TAMIS_ENERGY_PHASES]; /* of claimed_uj */
    uint8_t methods[TAMIS_ENERGY_PHASES];   /* the least certain one so far */
    uint32_t wraps, resets;                 /* that chunks have told */
    tamis_energy_status told_status;        /* in the library's log */
} tam_channel;

typedef enum tam_window_state {
    TAM_WINDOW_FREE,
    TAM_WINDOW_BEGINS,   /* no chunk has come to its begin */
    TAM_WINDOW_COUNTS,   /* chunks are added to its totals */
    TAM_WINDOW_COMPLETE, /* a chunk has come to its end */
    TAM_WINDOW_KNOWN     /* and its line has been made */
} tam_window_state;

/** A caller's; or the meter's own, the last, which begins again where it ends. */
typedef struct tam_window {
    tam_window_state state;
    bool ended; /* by the caller */
    bool named; /* it has a line */
    char name[64];
    tam_period period;
} tam_window;

/** A window begins or ends: a time, and what steps had told by then. */
typedef struct tam_moment {
    tam_window *window;
    bool ends;
    uint64_t at_ns, steps, wire_bytes, offered, sent;
} tam_moment;

struct tamis_energy {
    tam_sampler *samplers[TAM_METER_SOURCES];
    uint32_t nsamplers;
    tam_channel *channels;  /* [nchannels] */
    tam_energy_domain *now; /* [nchannels] as last seen by the meter's thread */
    bool *counted;          /* [nchannels] */
    tam_cover_gain *gains;  /* [nchannels] since the last chunk */
    uint64_t taken_ns;      /* when gains and marks were last taken */
    uint32_t nchannels;
    tam_marks *marks;
    tam_spans *spans;
    tam_energy_log *log;        /* NULL: none */
    tamis_energy_domain *shown; /* [nchannels] of the line that is being made */
    tam_registry *registry;
    tamis_carbon *carbon; /* NULL: unknown */
    double pue;
    double unix_minus_s, clock_err_s; /* Unix time minus monotonic, at open */
    uint64_t reported_ns;             /* the last report, */
    int64_t reported_uj;              /* and what the cluster had come to */
    double reported_grams;
    uint64_t host; /* hash of the boot id */
    uint64_t open_ns, window_ns, settle_ns;
    unsigned forks; /* tam_forks when it was opened */
    pthread_t thread;

    struct { /* by steps; training threads add to it */
        atomic_uint_fast64_t steps, wire_bytes, offered, sent;
        _Atomic double density, residual_norm; /* of the last one */
    } told;

    /* Shared by the meter's thread and the caller's, under the lock. */
    pthread_mutex_t lock;
    pthread_cond_t changed; /* a window is known or has ended, the meter closes */
    bool closing;
    uint64_t told_ns;                      /* phases up to here have been told */
    uint64_t due_ns;                       /* the meter's own window ends */
    tam_moment moments[TAM_METER_MOMENTS]; /* oldest first */
    uint32_t nmoments;
    tam_period chunk;                  /* the last one */
    tam_period run;                    /* all chunks; the last one ends where it does */
    tam_period_domain *period_domains; /* of all periods */
    tamis_energy_totals earlier; /* of the runs that this one goes on; size 0: there are none */
    tam_window windows[TAM_METER_WINDOWS + 1];
};

/* -- chunk.c, with the lock held -------------------------------------------------------------- */

/** Take gains and marks. @return the time */
uint64_t tam_meter_take(tamis_energy *e);

/** Close the next chunk if it can be. @param flush  nothing more will be told @return whether it
 * was */
bool tam_meter_close_next(tamis_energy *e, uint64_t now_ns, bool flush);

/** A window begins or ends now: so must the next chunk. @return the time */
uint64_t tam_meter_mark(tamis_energy *e, tam_window *window, bool ends);

/** All chunks, and what has been taken since: what was not marked yet is idle. */
void tam_meter_so_far(tamis_energy *e, tamis_energy_totals *out);

/** Seconds of phases since open, to the same moment. */
void tam_meter_exposure(const tamis_energy *e, double seconds[TAMIS_ENERGY_PHASES]);

/* -- line.c ----------------------------------------------------------------------------------- */

/** With the lock held: what becomes of windows that are complete. @return whether the line of one
 * of them is to be written; call again then */
bool tam_meter_make_line(tamis_energy *e);

/** Write the last line, if there is a file. */
void tam_meter_summary(tamis_energy *e);

/* -- windows.c -------------------------------------------------------------------------------- */

/** A domain as the caller sees it. @param now  of channel i */
void tam_meter_show(const tamis_energy *e, uint32_t i, const tam_energy_domain *now,
                    tamis_energy_domain *out);

/* -- totals.c --------------------------------------------------------------------------------- */

/** From where the last chunk ended. */
void tam_period_begin(const tamis_energy *e, tam_period *period);
void tam_period_add(const tamis_energy *e, tam_period *sum, const tam_period *chunk);

void tam_totals_add(tamis_energy_totals *sum, const tamis_energy_totals *more);

/** Grams of CO2 for joules that were used between two times; NAN: unknown. */
double tam_meter_grams(const tamis_energy *e, uint64_t begin_ns, uint64_t end_ns, int64_t uj);

/** Where nothing is known there is a reason, and there are no grams; and where they are not. */
void tam_totals_explain(const tamis_energy *e, tamis_energy_totals *t);
bool tam_totals_sound(const tamis_energy_totals *t);

/** Add totals of another run, if there was one, and keep what is missing in this one. */
void tam_totals_join(tamis_energy_totals *sum, const tamis_energy_totals *earlier);

#endif
