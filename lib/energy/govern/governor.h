/* SPDX-License-Identifier: MIT
 *
 * Inside the governor: a policy sets a target, the rest finds the knobs for it.
 *
 *     window -> learn -> policy -> density -> effort -> ramp, dead band -> decision
 *
 *     effort   0          1/2          1      one number in place of two knobs: first the cap goes
 *     cap      none  C \______ least _____    down, then the pause goes up; watts fall and steps
 *     pace     0       ________/ most         grow longer all the way. Without caps, or without
 *                                             pauses, the other one has the whole of it
 */
#ifndef TAM_ENERGY_GOVERNOR_H
#define TAM_ENERGY_GOVERNOR_H

#include "lib/energy/govern/response.h"

#include <tamis/governor.h>

/* -- policies.c ------------------------------------------------------------------------------- */

typedef enum tam_target_kind {
    TAM_TARGET_FREE,     /* every knob at its begin */
    TAM_TARGET_WATTS,    /* at most so many */
    TAM_TARGET_SLOWDOWN, /* steps longer by this share */
    TAM_TARGET_KEEP      /* what is needed is unknown */
} tam_target_kind;

typedef struct tam_target {
    tam_target_kind kind;
    double value;
    double share; /* of the way from density_max to density_min */
    tamis_governor_reason reason;
} tam_target;

/** A row: a policy is a function of plain data. */
typedef struct tam_governor_policy {
    const char *name;
    bool budgets; /* it looks at the budget */
    /** What it needs of the configuration, NULL: nothing. */
    tamis_status (*check)(const tamis_governor_config *config);
    /** @param now  the decision in the making: budget_w (NAN: it is in grams and intensity is
     *              unknown) and high_w are set */
    tam_target (*target)(const tamis_governor *g, const tamis_governor_decision *now);
} tam_governor_policy;

/** The row of a name; fails with a sentence that lists them. */
tamis_status tam_governor_policy_find(const char *name, const tam_governor_policy **out);

/* -- decide.c --------------------------------------------------------------------------------- */

struct tamis_governor {
    tamis_governor_config config;
    const tam_governor_policy *policy;

    tamis_governor_window window; /* the last one */
    tam_response response;
    tam_knobs before, now; /* `now` holds from from_step on */
    uint64_t from_step;
    double budget_w, g_per_h; /* set by the caller, if `budgeted` */
    uint64_t until_step;      /* 0: for good */
    bool budgeted, guarded;   /* guarded: the residual is too large */
    double credit_s;          /* of the time that may be lost, what has not been */
    double share;             /* of the way from density_max to density_min, in eighths */
};

/** Every knob at its begin. */
tam_knobs tam_governor_free_knobs(const tamis_governor_config *config);

/** Decide after g->window, which has been checked. */
void tam_governor_step(tamis_governor *g, tamis_governor_decision *out);

#endif
