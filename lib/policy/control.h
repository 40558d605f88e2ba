/* SPDX-License-Identifier: MIT
 *
 * The threshold of the next step. Every rank computes it from numbers that all ranks share, with
 * arithmetic that gives the same bits everywhere, so the thresholds stay equal, except for sage and
 * reuse.
 *
 * step     MiCRO: one threshold that moves by fixed factors.
 *
 * fixed    One threshold that does not move.
 *
 * sage     Each rank has its own threshold: sage.h. The ranks share nothing of it.
 *
 * reuse    Each rank has its own threshold and selects the entries over it (Ok-Topk). Every 32nd
 * step
 *          searches for it: the k-th largest. In the other steps, before the selection, it is
 *          multiplied
 *          by 1.03 up to 5 times while more than 4/3 k entries pass. After every step it is divided
 *          by 1.012 if fewer than 2/3 k were over it, multiplied by 1.012 if more than 5/4 k.
 *
 * predict  Every group g has a level tau_g; the key of an entry is |acc| / tau_g, and rank r sends
 *          its k_r largest keys. Candidates are the entries with key >= margin, chosen such that
 *          there should be over * k of them. After the step:
 *
 *              level   kappa_r, the smallest key that rank r selected; tau *= their mean (all
 *              groups)
 *              spread  sigma, rms of log2 kappa_r where negative: how far a rank fell short
 *              slope   alpha of count ~ key^-alpha between margin and kappa, least squares over
 *                      the last steps; error feedback makes it steep (8 to 50)
 *              margin  low enough for over * k candidates and for a miss of 3 sigma:
 *                      2^-max(log2(over) / alpha, 3 sigma)
 *              shape   group g was given s_g of b_g: tau_g *= ((s_g + 2) / (b_g + 2))^(1/2 alpha)
 *
 *          The prediction decides only what a step costs: the selection makes the count exact, and
 *          a
 *          rank whose candidates do not suffice searches its part again.
 *
 * Sources: over-selection with an exact count is this library's own. Our simulations showed that
 * the slope of the count must be measured, since no fixed gain is right (docs/algorithm.md). The
 * budgets b_g are DEFT's.
 */
#ifndef TAM_POLICY_CONTROL_H
#define TAM_POLICY_CONTROL_H

#include "lib/base/base.h"
#include "lib/contracts/device.h"
#include "lib/policy/sage.h"
#include "lib/policy/scheme.h"

/** The part that is saved and loaded, in the format of state files. */
struct tam_control_state {
    uint64_t primed;  /* predict, sage: 0 until a step has shown the level; reuse: steps left for
                         which the threshold holds */
    double threshold; /* step, fixed, sage, reuse: magnitude */
    double drift;     /* predict: log2 of the level change expected per step */
    double spread;    /* predict: sigma squared */
    double fit_xx;    /* predict: mean of distance squared and of distance * count, in log2, */
    double fit_xy;    /*          between margin and smallest key; alpha is their ratio */
    double margin;    /* predict: log2 of the margin, below 0 */
    double mean;      /* sage: of |acc| in the sample of the last step */
};

typedef struct tam_control {
    tam_scheme scheme;
    const tam_grid *grid;
    uint64_t k;
    double over;

    tam_control_state state;
    double *levels; /* predict: [ngroups] log2 tau_g; saved with the state */
    tam_sage sage;  /* sage: the step under way */
    double reused;  /* reuse: the threshold of the step under way; 0: fewer than k entries */

    /* Derived from the state by tam_control_prepare. */
    uint32_t *thresholds; /* [ngroups] magnitude bits */
    float *weights;       /* [ngroups] 1 / tau_g */
    float floor_key;      /* candidates are complete above this key */

    uint32_t *budgets; /* [ngroups] b_g of the last step */
    double *norms;     /* [ngroups] scratch */
    tam_pair *order;   /* [ngroups] scratch */
} tam_control;

/** What all ranks know after a step. */
typedef struct tam_observed {
    uint64_t selected;      /* all ranks together, before any packet limit */
    uint64_t candidates;    /* all ranks; 0 if unknown */
    const double *min_keys; /* [nmin_keys] log2 of the smallest key of every rank that selected */
    uint32_t nmin_keys;
    const double *group_sums;       /* [ngroups] mean over ranks of the sums of acc squared */
    const uint32_t *group_selected; /* [ngroups] */
    uint64_t found;                 /* by this rank, before any packet limit */
    uint64_t step;
} tam_observed;

/** @param  threshold  step, sage: the first one; fixed: the one; 0: 1 / (2 sqrt(k)) */
tamis_status tam_control_open(tam_scheme scheme, const tam_grid *grid, uint64_t k, double over,
                              double threshold, tam_control *out);
void tam_control_close(tam_control *control);

/** Compute thresholds, weights and floor_key from the state. */
void tam_control_prepare(tam_control *control);

/** alpha */
double tam_control_slope(const tam_control *control);

/** Set k for the next step: learned levels are shifted accordingly. */
void tam_control_set_target(tam_control *control, uint64_t k);

/** Learn from a finished step, then prepare the next. */
void tam_control_update(tam_control *control, const tam_observed *seen);

#endif
