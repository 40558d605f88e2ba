/* SPDX-License-Identifier: MIT
 *
 * Joules of phases: spans say when which phase was under way, a fit learns its watts from the gains
 * of one counter.
 *
 *     spans   compute  [------]  [-------]  [------]         gain i: y_i joules between two ticks
 *             exchange      [---]    [-----]     [--]        y_i = sum over k of x_ik p_k
 *     ticks   |             |             |           |      x_ik: seconds of phase k in there
 */
#ifndef TAM_ENERGY_ATTRIBUTE_H
#define TAM_ENERGY_ATTRIBUTE_H

#include "lib/base/base.h"

#include <tamis/energy.h>

/* -- marks.c: from any thread, without lock, allocation or system call but the clock ---------- */

typedef struct tam_marks tam_marks;

enum {
    TAM_MARKS_THREADS = 64, /* that mark at one time; one that ends makes room */
    TAM_MARKS_DEPTH = 4096  /* spans of a thread between two drains */
};

tamis_status tam_marks_open(tam_marks **out);

/** When no thread marks any more; threads that have marked may end later. */
void tam_marks_close(tam_marks *marks);

/** Begins of one phase on one thread nest and count once. Only a thread's first mark allocates.
 * What means nothing (an end without begin, a span that ends before it begins, no phase) is
 * ignored. */
void tam_marks_begin(tam_marks *marks, uint32_t phase, uint64_t now_ns);
void tam_marks_end(tam_marks *marks, uint32_t phase, uint64_t now_ns);
void tam_marks_span(tam_marks *marks, uint32_t phase, uint64_t begin_ns, uint64_t end_ns);

/** Marks that did not fit. */
uint64_t tam_marks_dropped(const tam_marks *marks);

/** A phase was under way on a thread. */
typedef struct tam_span {
    uint32_t phase;
    uint32_t nested; /* it came of a begin and an end */
    uint64_t begin_ns, end_ns;
} tam_span;

enum { TAM_SPAN_OPEN = 0 }; /* end_ns of a phase that is under way */

/** Give all spans that have ended since the last call, then those under way. One thread. */
void tam_marks_drain(tam_marks *marks, void (*take)(void *context, const tam_span *span),
                     void *context);

/* -- spans.c: when which phase was under way -------------------------------------------------- */

typedef struct tam_spans tam_spans;

tamis_status tam_spans_open(tam_spans **out);
void tam_spans_close(tam_spans *spans);

/** Phases that have begun and not ended go on; spans may arrive late and overlap. */
void tam_spans_add(tam_spans *spans, uint32_t phase, uint64_t begin_ns, uint64_t end_ns);

/** Take what the marks hold. One thread. */
void tam_spans_drain(tam_spans *spans, tam_marks *marks);

/** Seconds of every phase between two times; IDLE: of none. */
void tam_spans_seconds(const tam_spans *spans, uint64_t begin_ns, uint64_t end_ns,
                       double seconds[TAMIS_ENERGY_PHASES]);

/** Nanoseconds of phases from some time of its own until `at_ns`: differences are exposures. */
typedef struct tam_exposure {
    uint64_t ns[TAMIS_ENERGY_PHASES];
} tam_exposure;

/** For many times, which must not ascend: quicker than one by one. @param out  [count] */
void tam_spans_until(const tam_spans *spans, const uint64_t *at_ns, uint32_t count,
                     tam_exposure *out);

/** Phases that have been seen, as bits, IDLE always; the rest has no exposure. */
uint32_t tam_spans_phases(const tam_spans *spans);

/** Nobody will ask for what lies before. */
void tam_spans_forget(tam_spans *spans, uint64_t before_ns);

/** What lies before is not known any more. */
uint64_t tam_spans_known_ns(const tam_spans *spans);

/** Spans that came too late, or found no memory. */
uint64_t tam_spans_dropped(const tam_spans *spans);

/* -- fit.c, regress.c, divide.c: watts of phases, of one domain ------------------------------- */

typedef struct tam_fit tam_fit;

/** A fit asks for spans so long before the begin of a gain: forget no more than that. */
#define TAM_FIT_REACH_NS 70000000u

tamis_status tam_fit_open(tam_fit **out);
void tam_fit_close(tam_fit *fit);

/** A gain of the counter whose phases have all been told. @param tick_s  0: not known yet, and it
 * teaches nothing */
void tam_fit_take(tam_fit *fit, const tam_spans *spans, uint64_t begin_ns, uint64_t end_ns,
                  uint64_t uj, double tick_s);

/** What was learnt of the counter; duty 0: nothing yet. */
void tam_fit_sensor(const tam_fit *fit, double *lag_s, double *duty);

/** Microjoules that phases should take that are under way so long; 0: nothing is known yet. */
double tam_fit_expect(const tam_fit *fit, const double seconds[TAMIS_ENERGY_PHASES]);

/**
 * Divide the joules of a stretch of time: the shares and what is left unattributed add up to `uj`
 * exactly. Neither is negative.
 *
 * The counter errs by its noise, by what its sensor does not see, and by parts of a tick at both
 * ends: stretches of 50 ticks and more divide well, shorter ones have wide intervals. Intervals are
 * those of `method` REGRESSED; of a group each goes from 0 to what the group has.
 *
 * @param  seconds  [in]   exposure in the stretch
 * @param  shares   [out]  all 32, .seconds included
 */
void tam_fit_divide(const tam_fit *fit, const double seconds[TAMIS_ENERGY_PHASES], int64_t uj,
                    tamis_energy_share shares[TAMIS_ENERGY_PHASES], int64_t *unattributed_uj);

/** One line on the state of the fit for logs: residual in watts and condition. */
void tam_fit_quality(const tam_fit *fit, double *residual_w, double *condition);

#endif
