/* SPDX-License-Identifier: MIT
 *
 * tamis/energy.h - joules of a training run: per phase, counted once, honest when unknown.
 *
 *     tamis_energy_config cfg = TAMIS_ENERGY_CONFIG_INIT;
 *     tamis_energy_create(&cfg, &energy);                  finds counters; none is a normal state
 *     reducer_config.on_phase = tamis_energy_on_phase;   the reducer's phases, as they end
 *     reducer_config.on_phase_context = energy;
 *     for (;;) {
 *         tamis_energy_begin(energy, TAMIS_ENERGY_COMPUTE);
 *         backward(grads);
 *         tamis_energy_end(energy, TAMIS_ENERGY_COMPUTE);
 *         ... a step of the reducer ...
 *         tamis_energy_step(energy, &stats);
 *     }
 *     tamis_energy_report(energy, comm, &report);        all ranks together, each counter once
 *     tamis_energy_destroy(energy);
 *
 * Counters tick slowly, GPUs about every 100 ms, while phases last milliseconds. So joules are not
 * read at the ends of phases: they are attributed, by a regression of what the counter gained
 * between two ticks on the time that each phase was under way between them. The joules of all
 * phases and `unattributed` add up to what the counters measured, to the microjoule.
 *
 * Nothing here synchronises a device, and no call waits for a counter's driver unless it says so.
 *
 * Threads      begin, end, span and on_phase from any thread, the others one at a time.
 * Unknown      What cannot be measured is never 0: `known` is 0 and `missing` says why.
 * Fork         A child that was forked can mark, to no effect; all else is refused with STATE.
 */
#ifndef TAMIS_ENERGY_H
#define TAMIS_ENERGY_H

#include <math.h>
#include <tamis/stats.h>
#include <tamis/tamis.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ------------------------------------------------------------------------------------------- */
/* 1. Domains: what is measured                                                                 */

/** Sources of counters, row(name), in the order in which "auto" reads them (docs/energy.md):
 *
 *     nvml       GPUs
 *     rapl       processors
 *     file       numbers in files, listed in the configuration
 *     callback   a function of the program
 */
#define TAMIS_ENERGY_SOURCES(row) row(nvml) row(rapl) row(file) row(callback)

/** What a counter covers. A wider one contains narrower ones on the same host; sums never add
 * both (section 4). */
typedef enum tamis_energy_kind {
    TAMIS_ENERGY_NODE = 0,    /* the whole host */
    TAMIS_ENERGY_PSYS = 1,    /* platform: packages, DRAM and more */
    TAMIS_ENERGY_MODULE = 2,  /* GPU, CPU and memory of one module (Grace Hopper) */
    TAMIS_ENERGY_PACKAGE = 3, /* processor socket, or one die of it; without DRAM */
    TAMIS_ENERGY_DRAM = 4,
    TAMIS_ENERGY_CORE = 5,   /* inside its package */
    TAMIS_ENERGY_UNCORE = 6, /* inside its package */
    TAMIS_ENERGY_GPU = 7,
    TAMIS_ENERGY_OTHER = 8,
    TAMIS_ENERGY_KINDS
} tamis_energy_kind;

/** Whether a domain can be read, and if not, why. */
typedef enum tamis_energy_status {
    TAMIS_ENERGY_OK = 0,
    TAMIS_ENERGY_STALE = 1,       /* no answer for a while: the driver hangs, or a file is late */
    TAMIS_ENERGY_FROZEN = 2,      /* it answers, but its counter has stood still for too long */
    TAMIS_ENERGY_RESET = 3,       /* the counter went back or leapt; what it lost is not counted */
    TAMIS_ENERGY_LOST = 4,        /* it answered once and is gone */
    TAMIS_ENERGY_DENIED = 5,      /* no permission */
    TAMIS_ENERGY_UNSUPPORTED = 6, /* the device, driver or library has no such counter */
    TAMIS_ENERGY_ABSENT = 7,      /* no such library, driver, folder or file */
    TAMIS_ENERGY_FAILED = 8,      /* an error of reading */
    TAMIS_ENERGY_GARBLED = 9,     /* no number, out of range, or it cannot follow from the last */
    TAMIS_ENERGY_STATUSES
} tamis_energy_status;

/** "gpu", "package", ...; "ok", "stale", ...; "" for other numbers. Never NULL. */
TAMIS_API const char *tamis_energy_kind_name(tamis_energy_kind kind);
TAMIS_API const char *tamis_energy_status_name(tamis_energy_status status);

enum { TAMIS_ENERGY_TEXT = 192 };

/** A domain as it is now. */
typedef struct tamis_energy_domain {
    size_t size;
    char id[64];     /* unique on its host: "rapl:package-0", "nvml:GPU-5a1c...", "file:node" */
    char source[16]; /* of TAMIS_ENERGY_SOURCES */
    tamis_energy_kind kind;
    tamis_energy_status status;
    char reason[TAMIS_ENERGY_TEXT]; /* what is wrong and what to do; "" when ok */
    int counted;                    /* part of totals: 0 for what a wider domain contains */
    uint64_t uj;                    /* since open; wraps corrected, resets left out */
    uint32_t wraps, resets;
    double tick_s; /* between two changes of the counter, as learnt; 0: not yet */
    double lag_s;  /* by which the counter is late */
    double duty;   /* share of the time at which its sensor looks; 0: not yet known */
} tamis_energy_domain;

#define TAMIS_ENERGY_DOMAIN_INIT TAMIS_INIT(tamis_energy_domain, )

/* ------------------------------------------------------------------------------------------- */
/* 2. Phases                                                                                    */

/** Phases are numbers below 32: those of tamis_phase, and these. */
enum {
    TAMIS_ENERGY_COMPUTE = 16, /* forward and backward, where they are not distinguished */
    TAMIS_ENERGY_FORWARD = 17,
    TAMIS_ENERGY_BACKWARD = 18,
    TAMIS_ENERGY_OPTIMIZER = 19,
    TAMIS_ENERGY_INPUT = 20, /* reading data */
    TAMIS_ENERGY_USER = 21,  /* to 30: the caller's own */
    TAMIS_ENERGY_IDLE = 31,  /* no phase is under way; never marked */
    TAMIS_ENERGY_PHASES = 32
};

/** "compute", "exchange", "user0", ..., "idle"; "" for other numbers. Never NULL. */
TAMIS_API const char *tamis_energy_phase_name(uint32_t phase);

/** How joules of a phase were found. */
typedef enum tamis_energy_method {
    TAMIS_ENERGY_NONE = 0,       /* no joules */
    TAMIS_ENERGY_COUNTER = 1,    /* it was the only phase */
    TAMIS_ENERGY_REGRESSED = 2,  /* increments of the counter regressed on exposure */
    TAMIS_ENERGY_TIME_SHARE = 3, /* too little is known: by time, no interval */
    TAMIS_ENERGY_METHODS
} tamis_energy_method;

TAMIS_API const char *tamis_energy_method_name(tamis_energy_method method);

/** Joules of one phase. */
typedef struct tamis_energy_share {
    double seconds; /* exposure: time under way, added over the threads of this process */
    int64_t uj;
    int64_t low_uj, high_uj; /* 95 % interval; equal to uj where the method gives none */
    uint32_t group; /* phases that cannot be distinguished from it, itself included, as bits:
                                the interval is wide for each and holds for their sum */
    tamis_energy_method method;
} tamis_energy_share;

/** Joules of a stretch of time. shares and unattributed_uj add up to uj. */
typedef struct tamis_energy_totals {
    size_t size;
    double seconds;
    uint64_t steps, wire_bytes; /* as reported by tamis_energy_step */
    int known;                  /* 0: nothing could be measured, uj is no figure; see missing */
    int64_t uj;                 /* of the counted domains */
    int64_t unattributed_uj;
    tamis_energy_share shares[TAMIS_ENERGY_PHASES];
    double grams;                    /* CO2; NAN: unknown */
    char missing[TAMIS_ENERGY_TEXT]; /* domains that are not in uj, and why; else why grams are not
                                        known of a trace; "" if complete */
} tamis_energy_totals;

#define TAMIS_ENERGY_TOTALS_INIT TAMIS_INIT(tamis_energy_totals, )

/* ------------------------------------------------------------------------------------------- */
/* 3. A meter: one per process                                                                  */

typedef struct tamis_energy tamis_energy;

/** Options. Texts may be NULL for the default; they are copied. */
typedef struct tamis_energy_config {
    size_t size;
    const char *sources;    /* names of TAMIS_ENERGY_SOURCES joined by ','; "auto": all; "none".
                                NULL: TAMIS_ENERGY */
    const char *sysfs_root; /* put before every path under /sys and /proc. NULL:
                                TAMIS_SYSFS_ROOT */
    const char *nvml_path;  /* of NVML. NULL: TAMIS_NVML_PATH, else libnvidia-ml.so.1 */
    const char *gpus;       /* UUIDs or PCI bus ids joined by ','. NULL: all of the host */
    const char *files;      /* other counters: name=path:unit joined by ',', unit uJ, mJ, J, uW, mW
                                or W; a name that begins with that of a kind is of this kind */
    tamis_status (*callback)(void *context, uint64_t *out_uj); /* a counter of the program's own */
    void *callback_context;
    const char *callback_name; /* "callback". Ranks of a host whose counters differ give different
                                  names: one name is one counter */

    const char *json;      /* file of JSON Lines to write (docs/energy.md) */
    double window_s;       /* between two lines of the file (5) */
    double settle_s;       /* report a phase at most this long after it began (2; 0 to 5) */
    const char *run;       /* name in the file */
    uint32_t rank, nranks; /* in the file */
    double pue;            /* power of the site / power of the computers (1) */
    double g_per_kwh;      /* CO2 of the power, everywhere and always; NAN: unknown */
    const char *intensity; /* CSV "time,g_per_kwh", Unix seconds: CO2 of the power over time */
} tamis_energy_config;

#define TAMIS_ENERGY_CONFIG_INIT                                                                   \
    TAMIS_INIT(tamis_energy_config,                                                                \
               TAMIS_SET(window_s, 5.0) TAMIS_SET(settle_s, 2.0) TAMIS_SET(nranks, 1)              \
                   TAMIS_SET(pue, 1.0) TAMIS_SET(g_per_kwh, (double)NAN))

/**
 * Find the counters and begin to read them, on threads of the library.
 *
 * A host without counters, without the right to read them or without a driver gives a meter whose
 * domains say so. Every rank of a host may open one: tamis_energy_report counts nothing twice.
 *
 * Collective: no               Errors:  ARGUMENT, NOMEM; IO, FORMAT: a file of the configuration
 * Cost:       less than 0.5 % of a core; no call on a device's stream
 */
TAMIS_CHECKED tamis_status tamis_energy_create(const tamis_energy_config *config,
                                               tamis_energy **out);

/** Write what is left to the file and free everything; waits for a last reading, half a second at
 * most. Nobody may mark any more. A thread that hangs in a driver is left behind. NULL is fine. */
TAMIS_API void tamis_energy_destroy(tamis_energy *energy);

TAMIS_API uint32_t tamis_energy_ndomains(const tamis_energy *energy);

/** Figures of a domain up to now. Errors: ARGUMENT */
TAMIS_CHECKED tamis_status tamis_energy_domain_at(tamis_energy *energy, uint32_t index,
                                                  tamis_energy_domain *out);

/**
 * A phase begins, or ends, on this thread now. Phases nest and overlap as they like. Begins of one
 * phase on a thread are counted: it lasts from the first begin to the end that matches it.
 *
 * Cost: reading a clock and a store; no lock, no allocation after a thread's first mark, no system
 * call. Marks that come faster than they are read are dropped and counted.
 */
TAMIS_API void tamis_energy_begin(tamis_energy *energy, uint32_t phase);
TAMIS_API void tamis_energy_end(tamis_energy *energy, uint32_t phase);

/** A phase that has ended, in the nanoseconds of CLOCK_MONOTONIC. Cost: as begin. */
TAMIS_API void tamis_energy_span(tamis_energy *energy, uint32_t phase, uint64_t begin_ns,
                                 uint64_t end_ns);

/** The phases of a reducer: its config.on_phase, with the meter as on_phase_context. Not
 * TAMIS_PHASE_WAIT, in which a thread is blocked: it would run beside the phases waited for. */
TAMIS_API void tamis_energy_on_phase(void *energy, const tamis_phase_event *event);

/** A step has ended: its bytes and entries, for figures per step and per bit. Each call is a step:
 * where ranks of a process share a meter, one of them calls it, with the bytes of all. Cost: as
 * begin. */
TAMIS_API void tamis_energy_step(tamis_energy *energy, const tamis_stats *stats);

/**
 * Joules since open, and before it those of a state (resume), up to the last ticks of the counters.
 * Never waits. Phases of the last settle_s that were not marked yet are idle here, and have their
 * joules in a later read.
 *
 * Errors: ARGUMENT
 */
TAMIS_CHECKED tamis_status tamis_energy_read(tamis_energy *energy, tamis_energy_totals *out);

/**
 * Joules between two moments: begin and end take the time and return. The result is known when the
 * counters have moved past the end, a tick later.
 *
 * @param name  [in]  of its line in the file; NULL: it has none
 *
 * wait_ms      for the counters, at most; 0: do not wait
 * out          NULL: give the window up
 *
 * At most 16 windows are open at a time; result closes one. Phases that are under way when a window
 * ends must have been begun by then; it ignores spans that end later.
 *
 * Errors: ARGUMENT; UNSUPPORTED: too many are open; STATE (result): it is not known yet, try again
 */
TAMIS_CHECKED tamis_status tamis_energy_window_begin(tamis_energy *energy, const char *name,
                                                     uint32_t *out_window);
TAMIS_CHECKED tamis_status tamis_energy_window_end(tamis_energy *energy, uint32_t window);
TAMIS_CHECKED tamis_status tamis_energy_window_result(tamis_energy *energy, uint32_t window,
                                                      uint32_t wait_ms, tamis_energy_totals *out);

/**
 * Totals of earlier parts of this run are added to all that read gives from here on.
 *
 * Save the totals that read gives beside the model and give them to the meter of the run that goes
 * on: a run that was interrupted ends with the joules of all its parts.
 *
 * Errors: ARGUMENT (totals that do not add up)
 */
TAMIS_CHECKED tamis_status tamis_energy_resume(tamis_energy *energy,
                                               const tamis_energy_totals *earlier);

/* ------------------------------------------------------------------------------------------- */
/* 4. All ranks together                                                                        */
/*
 * Many ranks see the same counters: all those of a node its packages, MIG instances their GPU, some
 * are denied. Each domain of the cluster is counted once, by the lowest rank that can read it, and
 * of domains that contain one another only the widest readable ones are part of the sum.
 *
 * Sums are whole microjoules and the same on all ranks. They begin where the meters that are in the
 * first report were opened, and go on when a rank is gone or no longer allowed to read: the next
 * rank that sees the domain takes it over, and what was gained since the last report is found from
 * its own readings of the same counter. They also go on over another communicator, with other or
 * fewer ranks: domains are known by host, not by rank.
 *
 * Nothing that was counted is counted again. What a rank read that was not in the last report, as a
 * new one, may have been counted by others: unless one that was in it reads the same domain, the
 * domain counts from this report on, what it gained before is left out, and `missing` says so, here
 * and in all reports that follow. The same holds for a domain that no rank could read at a report
 * and that another, wider or narrower one was counted for meanwhile; else all that it gained is
 * counted when it is read again. Where ranks come together that have been in different reports, all
 * go on from the sums of the rank that was in the most.
 *
 * Joules of one tick may count twice or not at all where two readings of about one moment meet that
 * are of different things: domains of different width, power that each rank integrates for itself,
 * and a domain that another rank takes over just after a report that failed on some ranks alone.
 */

/**
 * Count the joules of all ranks since their meters were opened. For now and then: every few
 * seconds or minutes, and at the end.
 *
 * Joules of phases are those that the owners of the domains have attributed; what they have not is
 * unattributed. `seconds` and `steps` are of the rank with the most of them; `wire_bytes` and the
 * seconds of phases are sums over the ranks that take part; all of them up to now. A phase's
 * `method` is the least certain of its domains, low_uj and high_uj are uj. `grams` are by the
 * intensity that this rank was given.
 * What was given to tamis_energy_resume is added: give all ranks the same.
 *
 * @param  energy  [in,out]  this rank's; also one that found no domain
 * @param  comm    [in]      borrowed, of any transport; also another than at the last report
 * @param  out     [out]     set by TAMIS_ENERGY_TOTALS_INIT; untouched on failure
 *
 * Collective: over `comm`, between steps or at the same place of a step on all ranks
 * Cost:       two all-gathers; memory, at the first report and when domains have been added
 * Errors:     ARGUMENT, NOMEM, MISMATCH: on all ranks, nothing is lost and the next report counts
 *             it all; else the comm, and a report over another communicator goes on. The comm also
 *             where a rank that sees fewer domains than others has no memory for theirs
 */
TAMIS_CHECKED tamis_status tamis_energy_report(tamis_energy *energy, tamis_comm *comm,
                                               tamis_energy_totals *out);

#ifdef __cplusplus
}
#endif

#endif
