/* SPDX-License-Identifier: MIT
 *
 * tamis/governor.h - watts and CO2 of a training run: a budget in, knobs out.
 *
 *     tamis_governor_config cfg = TAMIS_GOVERNOR_CONFIG_INIT;
 *     cfg.policy = "budget";
 *     cfg.budget_w = 20e3;
 *     cfg.pace_max_s = 1.0;
 *     tamis_governor_create(&cfg, &governor);                   alike on every rank
 *     for (;;) {
 *         ... steps; then the ranks agree on what a window of them took: a sum over all ranks ...
 *         tamis_governor_decide(governor, &window, &decision);
 *         ... from step decision.step on: set the density, pause pace_s after every step ...
 *     }
 *
 * A decision is a plain function of the configuration and of the windows so far, made of + - * / in
 * binary64 and of comparisons: ranks that are given the same windows decide the same, bit for bit,
 * and need not talk about it. Nothing here measures, communicates, sleeps or sets a limit.
 *
 * Knobs        In the order in which they are used, those that the configuration opens:
 *
 *              density   changes numbers: what travels, and so the course of training. Only
 *                        between density_min and density_max, in eighths; guarded by residual_max
 *              cap       power limit of each device. Numbers stay the same; steps become longer.
 *                        Only with allow_cap, for it needs privilege and outlives the process.
 *                        The governor only says it: setting it, and back at the end, is the
 *                        caller's
 *              pace      a pause after every step. Numbers stay the same
 *
 * Unknown      What is not known is no zero: a window without joules, or without the intensity that
 *              the policy needs, leaves the decision as it was, and the reason says so.
 * Threads      One at a time per handle.
 *
 * docs/governor.md tells how it decides, and how well on a model of a cluster.
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

/** Policies: "off"; "budget": watts, or grams per hour, of the job are not exceeded;
 * "carbon-threshold": slower while intensity is above a threshold; "carbon-proportional": slower in
 * proportion to intensity. */
typedef struct tamis_governor_config {
    size_t size;
    const char *policy;         /* copied */
    double budget_w;            /* "budget": of the job; 0: none */
    double budget_g_per_h;      /* "budget": of the job; 0: none. Both: the smaller one holds */
    double pue;                 /* watts of the site per watt of the job, at least 1 */
    double slowdown;            /* "carbon-...": share of time that may be lost, on average */
    double slowdown_most;       /* "carbon-...": in the worst hours; at least slowdown */
    double threshold_g_per_kwh; /* "carbon-threshold": acts above; 0: above the outlook's mean */
    double density_min, density_max; /* equal: density is left alone, and numbers with it */
    double residual_max;             /* residual norm above which density is the largest; 0: none */
    double pace_max_s;               /* longest pause after a step; 0: no pauses */
    double cap_min_w, cap_max_w;     /* of a device; cap_max_w is its limit without a cap */
    uint32_t allow_cap;              /* 1: decisions may hold a cap */
    uint32_t devices;                /* that are capped, all ranks together */
    double dead_band;                /* changes of watts below this share are not made */
    double ramp_w_per_s; /* the job's watts, between the means of windows, both ways; 0: no limit */
    uint64_t lead_steps; /* a decision applies so many steps after its window; at least 1 */
} tamis_governor_config;

#define TAMIS_GOVERNOR_CONFIG_INIT                                                                 \
    TAMIS_INIT(tamis_governor_config,                                                              \
               TAMIS_SET(policy, "off") TAMIS_SET(pue, 1.0) TAMIS_SET(slowdown, 0.02)              \
                   TAMIS_SET(slowdown_most, 0.05) TAMIS_SET(density_min, 0.01)                     \
                       TAMIS_SET(density_max, 0.01) TAMIS_SET(devices, 1)                          \
                           TAMIS_SET(dead_band, 0.005) TAMIS_SET(lead_steps, 1))

typedef struct tamis_governor tamis_governor;

/**
 * Make a governor. The first decision is free: largest density, no pause, no cap.
 *
 * Errors:     ARGUMENT (the sentence names the field; for an unknown policy, those that there are),
 *             NOMEM; nothing is lost
 */
TAMIS_CHECKED tamis_status tamis_governor_create(const tamis_governor_config *config,
                                                 tamis_governor **out);
TAMIS_API void tamis_governor_destroy(tamis_governor *governor);

/**
 * Another budget, in place of that of the configuration. On all ranks between the same windows.
 *
 * @param  watts       [in]  0: no limit of this kind
 * @param  g_per_h     [in]  0: no limit of this kind
 * @param  until_step  [in]  from windows that end after this step on, the budget of the
 *                           configuration holds again; 0: never
 * Errors:     ARGUMENT; UNSUPPORTED: the policy has no budget; nothing is lost
 */
TAMIS_CHECKED tamis_status tamis_governor_set_budget(tamis_governor *governor, double watts,
                                                     double g_per_h, uint64_t until_step);

/* ------------------------------------------------------------------------------------------- */
/* 2. Decisions                                                                                 */

/** NAN without <math.h>. */
#define TAMIS_UNKNOWN (__builtin_nan(""))

/** What a stretch of steps took, on all ranks together. NAN: unknown. */
typedef struct tamis_governor_window {
    size_t size;
    uint64_t step;  /* that follows its last step */
    uint64_t steps; /* in it */
    double seconds; /* from its begin to its end */
    int64_t uj;     /* of all domains, each counted once */
    uint64_t known; /* 0: uj is no figure */
    double density; /* used; NAN: as decided */
    double pace_s;  /* really paused after a step, on average; NAN: as decided */
    double cap_w;   /* in force on each device, 0: none; NAN: as decided */
    double residual_norm;
    double intensity_g_per_kwh;   /* now */
    double outlook_g_per_kwh;     /* mean over the time to come that a policy plans for */
    double outlook_low_g_per_kwh; /* least in that time */
} tamis_governor_window;

#define TAMIS_GOVERNOR_WINDOW_INIT                                                                 \
    TAMIS_INIT(tamis_governor_window,                                                              \
               TAMIS_SET(density, TAMIS_UNKNOWN) TAMIS_SET(pace_s, TAMIS_UNKNOWN)                  \
                   TAMIS_SET(cap_w, TAMIS_UNKNOWN) TAMIS_SET(residual_norm, TAMIS_UNKNOWN)         \
                       TAMIS_SET(intensity_g_per_kwh, TAMIS_UNKNOWN)                               \
                           TAMIS_SET(outlook_g_per_kwh, TAMIS_UNKNOWN)                             \
                               TAMIS_SET(outlook_low_g_per_kwh, TAMIS_UNKNOWN))

/** Why a decision is what it is. Numbers are frozen. */
typedef enum tamis_governor_reason {
    TAMIS_GOVERNOR_FREE = 0,              /* nothing has to be saved */
    TAMIS_GOVERNOR_BUDGET = 1,            /* aims at the budget */
    TAMIS_GOVERNOR_CARBON = 2,            /* aims at a slowdown, by intensity */
    TAMIS_GOVERNOR_HOLD = 3,              /* near enough: as before */
    TAMIS_GOVERNOR_RAMP = 4,              /* on its way, as fast as the ramp permits */
    TAMIS_GOVERNOR_OUT_OF_REACH = 5,      /* every knob is at its end, and it does not suffice */
    TAMIS_GOVERNOR_GUARD = 6,             /* the residual is too large: density is the largest */
    TAMIS_GOVERNOR_UNKNOWN_ENERGY = 7,    /* no joules in the window: as before */
    TAMIS_GOVERNOR_UNKNOWN_INTENSITY = 8, /* the policy needs it: as before */
    TAMIS_GOVERNOR_NO_STEPS = 9,          /* nothing was done in the window: as before */
    TAMIS_GOVERNOR_PENDING = 10,          /* the last decision has not taken hold yet: as before */
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

    /* What it is based on, for people and for who sets budgets. NAN: unknown. */
    double watts;         /* of the window */
    double budget_w;      /* in force, grams turned into watts; 0: none */
    double expected_w;    /* from step on, as learnt */
    double slowdown;      /* expected, as a share of the time of a free step */
    double low_w, high_w; /* between which a budget could be met: all knobs at their ends */
} tamis_governor_decision;

#define TAMIS_GOVERNOR_DECISION_INIT                                                               \
    TAMIS_INIT(tamis_governor_decision,                                                            \
               TAMIS_SET(watts, TAMIS_UNKNOWN) TAMIS_SET(expected_w, TAMIS_UNKNOWN)                \
                   TAMIS_SET(slowdown, TAMIS_UNKNOWN) TAMIS_SET(low_w, TAMIS_UNKNOWN)              \
                       TAMIS_SET(high_w, TAMIS_UNKNOWN))

/**
 * Learn from a window, then decide. Once in a few seconds; it takes a few microseconds, with a ramp
 * some fifteen, and allocates nothing.
 *
 * Errors:     ARGUMENT (a window that cannot be, or that overlaps the one before): no effect
 */
TAMIS_CHECKED tamis_status tamis_governor_decide(tamis_governor *governor,
                                                 const tamis_governor_window *window,
                                                 tamis_governor_decision *out);

/**
 * The decision as a line of a log (record `decision`, docs/governor.md), with the window that led
 * to it and without newline, from which `tamis_replay` repeats it bit for bit.
 *
 * Errors:     ARGUMENT: `bytes` are not enough; TAMIS_GOVERNOR_LINE_BYTES always are
 */
TAMIS_CHECKED tamis_status tamis_governor_line(const tamis_governor_window *window,
                                               const tamis_governor_decision *decision, char *text,
                                               size_t bytes);
enum { TAMIS_GOVERNOR_LINE_BYTES = 1024 };

/* ------------------------------------------------------------------------------------------- */
/* 3. Carbon: grams from joules, and the outlook that policies plan with                        */

typedef struct tamis_carbon tamis_carbon;

/**
 * Intensity of the grid's electricity in g CO2 per kWh: a trace from a file, else a constant, else
 * unknown. Nothing is ever fetched.
 *
 *     time,g_per_kwh            the header may be missing
 *     1718000000,412.5          seconds of Unix time, ascending; the value holds until the next
 *     1718003600,398            row, the last one for as long as the one before it
 *     1718007200,               no value: unknown until the next row
 *
 * @param  path                [in]  NULL or "": no trace
 * @param  constant_g_per_kwh  [in]  for lack of a trace; NAN: unknown
 * Errors:     ARGUMENT, NOMEM, IO; FORMAT naming the line; nothing is lost
 */
TAMIS_CHECKED tamis_status tamis_carbon_open(const char *path, double constant_g_per_kwh,
                                             tamis_carbon **out);
TAMIS_API void tamis_carbon_close(tamis_carbon *carbon);

/** Intensity at a time, also one to come; NAN: unknown. */
TAMIS_API double tamis_carbon_intensity(const tamis_carbon *carbon, double unix_s);

/** Grams of joules spent evenly between two times; NAN where any of it is unknown: no average by
 * stealth. */
TAMIS_API double tamis_carbon_grams(const tamis_carbon *carbon, double unix_begin_s,
                                    double unix_end_s, int64_t uj, double pue);

/** What is to come. */
typedef struct tamis_carbon_outlook {
    size_t size;
    double known_s;         /* from now to where intensity is no longer known, or the horizon */
    double mean, low, high; /* over known_s, g/kWh; NAN if that is 0 */
} tamis_carbon_outlook;

#define TAMIS_CARBON_OUTLOOK_INIT                                                                  \
    TAMIS_INIT(tamis_carbon_outlook, TAMIS_SET(mean, TAMIS_UNKNOWN) TAMIS_SET(low, TAMIS_UNKNOWN)  \
                                         TAMIS_SET(high, TAMIS_UNKNOWN))

/** Errors: ARGUMENT. */
TAMIS_CHECKED tamis_status tamis_carbon_look(const tamis_carbon *carbon, double unix_s,
                                             double horizon_s, tamis_carbon_outlook *out);

#ifdef __cplusplus
}
#endif

#endif
