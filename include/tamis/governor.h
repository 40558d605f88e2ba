/* SPDX-License-Identifier: MIT
 *
 * tamis/governor.h - watts and CO2 of a training run: a budget in, knobs out.
 *
 *     tamis_governor_config cfg = TAMIS_GOVERNOR_CONFIG_INIT;
 *     cfg.policy = "budget";
 *     cfg.budget_w = 20e3;
 *     cfg.pace_max_s = 1.0;
 *     tamis_governor_create(&cfg, &governor);                   the same on every rank
 *     for (;;) {
 *         ... a window of steps; then the ranks sum what it took over all ranks ...
 *         tamis_governor_decide(governor, &window, &decision);
 *         ... from step decision.step on: set the density, pause pace_s after every step ...
 *     }
 *
 * A decision is a pure function of the configuration and of the windows so far, made of + - * / in
 * binary64 and of comparisons. Ranks that are given the same windows therefore decide the same, bit
 * for bit, without communication. Nothing here measures, communicates, sleeps or sets a limit.
 *
 * Knobs        Those that the configuration opens, in the order in which they are used:
 *
 *              density   changes numbers: which entries are sent, and so the course of training.
 *                        Between density_min and density_max, in eighths; guarded by residual_max
 *              cap       power limit of each device. Numbers stay the same; steps become longer.
 *                        Only with allow_cap, for it needs privilege and outlives the process.
 *                        The governor only proposes a cap; the caller sets it, and resets it at
 *                        the end
 *              pace      a pause after every step. Numbers stay the same
 *
 * Unknown      Unknown is not zero. If a window lacks its joules, or the intensity that the policy
 *              needs, the decision stays as it was, and the reason says so.
 * Threads      One at a time per handle.
 *
 * docs/energy.md explains how it decides, and how well on a model of a cluster.
 */
#ifndef TAMIS_GOVERNOR_H
#define TAMIS_GOVERNOR_H

#ifndef TAMIS_EXPERIMENTAL
#error "tamis/governor.h may still change: define TAMIS_EXPERIMENTAL before including it"
#endif

#include <tamis/tamis.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ------------------------------------------------------------------------------------------- */
/* 1. Policies and their configuration                                                          */

/** Policies: "off"; "budget": the job stays within its watts, or grams per hour;
 * "carbon-threshold": it slows down while intensity is above a threshold; "carbon-proportional": it
 * slows down in proportion to intensity. */
typedef struct tamis_governor_config {
    size_t size;
    const char *policy;         /* copied */
    double budget_w;            /* "budget": of the job; 0: none */
    double budget_g_per_h;      /* "budget": of the job; 0: none. With both, the tighter holds */
    double pue;                 /* watts of the site per watt of the job, at least 1 */
    double slowdown;            /* "carbon-...": share of time that may be lost, on average */
    double slowdown_most;       /* "carbon-...": in the worst hours; at least slowdown */
    double threshold_g_per_kwh; /* "carbon-threshold": acts above it; 0: the outlook's mean */
    double density_min, density_max; /* equal: density, and so all numbers, stay the same */
    double residual_max;             /* residual norm above which density is the largest; 0: none */
    double pace_max_s;               /* longest pause after a step; 0: no pauses */
    double cap_min_w, cap_max_w;     /* of a device; cap_max_w is its limit without a cap */
    uint32_t allow_cap;              /* 1: decisions may contain a cap */
    uint32_t devices;                /* number of capped devices on all ranks */
    double dead_band;                /* changes of watts below this share are not made */
    double ramp_w_per_s; /* most change of the job's watts between window means; 0: no limit */
    uint64_t lead_steps; /* steps from a window's end until its decision applies; at least 1 */
} tamis_governor_config;

#define TAMIS_GOVERNOR_CONFIG_INIT                                                                 \
    TAMIS_INIT(tamis_governor_config,                                                              \
               TAMIS_SET(policy, "off") TAMIS_SET(pue, 1.0) TAMIS_SET(slowdown, 0.02)              \
                   TAMIS_SET(slowdown_most, 0.05) TAMIS_SET(density_min, 0.01)                     \
                       TAMIS_SET(density_max, 0.01) TAMIS_SET(devices, 1)                          \
                           TAMIS_SET(dead_band, 0.005) TAMIS_SET(lead_steps, 1))

typedef struct tamis_governor tamis_governor;

/**
 * Make a governor. It starts unrestricted: largest density, no pause, no cap.
 *
 * Errors:     ARGUMENT (the sentence names the field, and lists all policies if the given one is
 *             unknown), NOMEM; nothing is lost
 */
TAMIS_CHECKED tamis_status tamis_governor_create(const tamis_governor_config *config,
                                                 tamis_governor **out);
TAMIS_API void tamis_governor_destroy(tamis_governor *governor);

/**
 * Replace the configured budget. Call it on all ranks, between the same windows.
 *
 * @param  watts       [in]  0: no limit of this kind
 * @param  g_per_h     [in]  0: no limit of this kind
 * @param  until_step  [in]  the configured budget holds again for windows that end after this
 *                           step; 0: never
 * Errors:     ARGUMENT; UNSUPPORTED: the policy has no budget; nothing is lost
 */
TAMIS_CHECKED tamis_status tamis_governor_set_budget(tamis_governor *governor, double watts,
                                                     double g_per_h, uint64_t until_step);

/* ------------------------------------------------------------------------------------------- */
/* 2. Decisions                                                                                 */

/** NAN without <math.h>. */
#define TAMIS_UNKNOWN (__builtin_nan(""))

/** What a run of steps took, on all ranks together. NAN: unknown. */
typedef struct tamis_governor_window {
    size_t size;
    uint64_t step;  /* the one after its last step */
    uint64_t steps; /* in it */
    double seconds; /* from its begin to its end */
    int64_t uj;     /* of all domains, each counted once */
    uint64_t known; /* 0: uj is unknown */
    double density; /* used; NAN: as decided */
    double pace_s;  /* actual mean pause after a step; NAN: as decided */
    double cap_w;   /* in force on each device, 0: none; NAN: as decided */
    double residual_norm;
    double intensity_g_per_kwh;   /* now */
    double outlook_g_per_kwh;     /* mean over the time that the policy plans ahead */
    double outlook_low_g_per_kwh; /* least in that time */
} tamis_governor_window;

#define TAMIS_GOVERNOR_WINDOW_INIT                                                                 \
    TAMIS_INIT(tamis_governor_window,                                                              \
               TAMIS_SET(density, TAMIS_UNKNOWN) TAMIS_SET(pace_s, TAMIS_UNKNOWN)                  \
                   TAMIS_SET(cap_w, TAMIS_UNKNOWN) TAMIS_SET(residual_norm, TAMIS_UNKNOWN)         \
                       TAMIS_SET(intensity_g_per_kwh, TAMIS_UNKNOWN)                               \
                           TAMIS_SET(outlook_g_per_kwh, TAMIS_UNKNOWN)                             \
                               TAMIS_SET(outlook_low_g_per_kwh, TAMIS_UNKNOWN))

/** The reason for a decision. Numbers are frozen. */
typedef enum tamis_governor_reason {
    TAMIS_GOVERNOR_FREE = 0,              /* nothing has to be saved */
    TAMIS_GOVERNOR_BUDGET = 1,            /* aims at the budget */
    TAMIS_GOVERNOR_CARBON = 2,            /* aims at a slowdown that follows intensity */
    TAMIS_GOVERNOR_HOLD = 3,              /* near enough: as before */
    TAMIS_GOVERNOR_RAMP = 4,              /* moves toward the target as fast as the ramp permits */
    TAMIS_GOVERNOR_OUT_OF_REACH = 5,      /* every knob is at its end, and that is not enough */
    TAMIS_GOVERNOR_GUARD = 6,             /* the residual is too large: density is the largest */
    TAMIS_GOVERNOR_UNKNOWN_ENERGY = 7,    /* no joules in the window: as before */
    TAMIS_GOVERNOR_UNKNOWN_INTENSITY = 8, /* the policy needs it: as before */
    TAMIS_GOVERNOR_NO_STEPS = 9,          /* the window holds no steps: as before */
    TAMIS_GOVERNOR_PENDING = 10,          /* the last decision is not in effect yet: as before */
    TAMIS_GOVERNOR_REASONS
} tamis_governor_reason;

/** "free", "budget", ...; "" for other numbers. Never NULL. */
TAMIS_API const char *tamis_governor_reason_name(tamis_governor_reason reason);

/** What to do from `step` on, until the next decision. */
typedef struct tamis_governor_decision {
    size_t size;
    uint64_t step;
    double density;
    double pace_s;
    double cap_w; /* of each device; 0: none */
    tamis_governor_reason reason;
    uint32_t changed; /* 0: as before */

    /* What it is based on, for people and for whatever sets budgets. NAN: unknown. */
    double watts;         /* of the window */
    double budget_w;      /* in force, grams turned into watts; 0: none */
    double expected_w;    /* from `step` on, by what was learned */
    double slowdown;      /* expected, as a share of the time of an unrestricted step */
    double low_w, high_w; /* range of budgets that can be met, all knobs at either end */
} tamis_governor_decision;

#define TAMIS_GOVERNOR_DECISION_INIT                                                               \
    TAMIS_INIT(tamis_governor_decision,                                                            \
               TAMIS_SET(watts, TAMIS_UNKNOWN) TAMIS_SET(expected_w, TAMIS_UNKNOWN)                \
                   TAMIS_SET(slowdown, TAMIS_UNKNOWN) TAMIS_SET(low_w, TAMIS_UNKNOWN)              \
                       TAMIS_SET(high_w, TAMIS_UNKNOWN))

/**
 * Learn from a window, then decide. Call it every few seconds; it takes a few microseconds, about
 * fifteen with a ramp, and allocates nothing.
 *
 * Errors:     ARGUMENT (an impossible window, or one that overlaps the one before): no effect
 */
TAMIS_CHECKED tamis_status tamis_governor_decide(tamis_governor *governor,
                                                 const tamis_governor_window *window,
                                                 tamis_governor_decision *out);

/**
 * Write a decision and the window that led to it as a log line without newline (record `decision`,
 * docs/energy.md). `tamis_replay` repeats the decision from it, bit for bit.
 *
 * Errors:     ARGUMENT: `bytes` are not enough; TAMIS_GOVERNOR_LINE_BYTES always are
 */
TAMIS_CHECKED tamis_status tamis_governor_line(const tamis_governor_window *window,
                                               const tamis_governor_decision *decision, char *text,
                                               size_t bytes);
enum { TAMIS_GOVERNOR_LINE_BYTES = 1024 };

/* ------------------------------------------------------------------------------------------- */
/* 3. Carbon: grams from joules, and the outlook that policies plan by                          */

typedef struct tamis_carbon tamis_carbon;

/**
 * Open the intensity of the grid's electricity, in g CO2 per kWh: a trace from a file, else a
 * constant, else unknown. Nothing is ever fetched.
 *
 *     time,g_per_kwh            may be missing; columns of other names are refused
 *     1718000000,412.5          seconds of Unix time, ascending; a value holds until the next row,
 *     1718003600,398            the last value for as long as the one before it
 *     1718007200,               no value: unknown until the next row
 *
 * @param  path                [in]  NULL or "": no trace
 * @param  constant_g_per_kwh  [in]  used without a trace; NAN: unknown
 * Errors:     ARGUMENT, NOMEM, IO, FORMAT (names the line); nothing is lost
 */
TAMIS_CHECKED tamis_status tamis_carbon_open(const char *path, double constant_g_per_kwh,
                                             tamis_carbon **out);
TAMIS_API void tamis_carbon_close(tamis_carbon *carbon);

/** Intensity at a time, past or future; NAN: unknown. */
TAMIS_API double tamis_carbon_intensity(const tamis_carbon *carbon, double unix_s);

/** Grams for joules spent evenly between two times. NAN if intensity is unknown for any part of the
 * time: gaps are never averaged over. The first such time for which a trace has no value is logged,
 * once. */
TAMIS_API double tamis_carbon_grams(const tamis_carbon *carbon, double unix_begin_s,
                                    double unix_end_s, int64_t uj, double pue);

/** The intensity ahead. */
typedef struct tamis_carbon_outlook {
    size_t size;
    double known_s;         /* from now until intensity becomes unknown, or to the horizon */
    double mean, low, high; /* over known_s, g/kWh; NAN if known_s is 0 */
} tamis_carbon_outlook;

#define TAMIS_CARBON_OUTLOOK_INIT                                                                  \
    TAMIS_INIT(tamis_carbon_outlook, TAMIS_SET(mean, TAMIS_UNKNOWN) TAMIS_SET(low, TAMIS_UNKNOWN)  \
                                         TAMIS_SET(high, TAMIS_UNKNOWN))

/** Look up to `horizon_s` ahead of `unix_s`. Errors: ARGUMENT. */
TAMIS_CHECKED tamis_status tamis_carbon_look(const tamis_carbon *carbon, double unix_s,
                                             double horizon_s, tamis_carbon_outlook *out);

#ifdef __cplusplus
}
#endif

#endif
