/* SPDX-License-Identifier: MIT
 *
 * Inside the governor: a policy says what it wishes for, the rest finds the knobs for it.
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

typedef enum tam_wish_kind {
    TAM_WISH_FREE,     /* every knob at its begin */
    TAM_WISH_WATTS,    /* at most so many */
    TAM_WISH_SLOWDOWN, /* steps longer by this share */
    TAM_WISH_KEEP      /* what is needed is unknown */
} tam_wish_kind;

typedef struct tam_wish {
    tam_wish_kind kind;
    double value;
    double share; /* of the way from density_max to density_min */
    tamis_governor_reason reason;
} tam_wish;

/** What a policy may look at. */
typedef struct tam_governor_view {
    const tamis_governor_config *config;
    const tamis_governor_window *window;
    double budget_w; /* in force; 0: none; NAN: it is in grams and intensity is unknown */
    double free_w;   /* expected with every knob at its begin */
    double credit_s; /* of the time that may be lost, what has not been */
} tam_governor_view;

/** A row: a policy is a function of plain data. */
typedef struct tam_governor_policy {
    const char *name;
    bool budgets; /* it looks at the budget */
    /** What it needs of the configuration, NULL: nothing. */
    tamis_status (*check)(const tamis_governor_config *config);
    tam_wish (*wish)(const tam_governor_view *view);
} tam_governor_policy;

/** The row of a name; fails with a sentence that lists them. */
tamis_status tam_governor_policy_find(const char *name, const tam_governor_policy **out);

/* -- decide.c --------------------------------------------------------------------------------- */

/** All that changes. */
typedef struct tam_governor_state {
    tam_response response;
    tam_knobs before, now; /* `now` holds from from_step on */
    uint64_t from_step;
    uint64_t seen_step;       /* that follows the last window */
    double budget_w, g_per_h; /* set by the caller, if `budgeted` */
    uint64_t until_step;      /* 0: for good */
    bool budgeted, guarded;   /* guarded: the residual is too large */
    double credit_s;
    double share; /* in eighths */
} tam_governor_state;

tam_governor_state tam_governor_begin(const tamis_governor_config *config);

/** A decision, and the state that follows. The window has been checked. */
void tam_governor_step(const tamis_governor_config *config, const tam_governor_policy *policy,
                       tam_governor_state *state, const tamis_governor_window *window,
                       tamis_governor_decision *out);

#endif
