/* SPDX-License-Identifier: MIT */
#include "tests/faults/outcome.h"

#include "tests/support/ranks.h"
#include "tests/support/scratch.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tamis/elastic.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

static uint64_t asked; /* cases of each kind; 0: not asked */
static unsigned long injected, errors, missed;

void outcome_arguments(int argc, char **argv) {
    if (argc > 1)
        asked = strcmp(argv[1], "all") == 0 ? UINT64_MAX : strtoull(argv[1], NULL, 10);
}

uint64_t outcome_stride(uint64_t most) {
    uint64_t cases = asked ? asked : test_stride(2) > 1 ? 1 : 2;
    return most <= cases ? 1 : most / cases;
}

bool outcome_drawn(void) {
    return asked || !TEST_SANITIZED || test_drawn(2);
}

void outcome_count(bool fired, bool failed) {
    injected += fired;
    errors += fired && failed;
    missed += !fired;
}

void outcome_show(void) {
    print_message("%lu faults injected: %lu ended with an error, %lu unharmed; %lu not reached\n",
                  injected, errors, injected - errors, missed);
}

const reference *outcome_reference(const fault_config *config, uint32_t nranks) {
    enum { MOST = 64 };
    static reference all[MOST];
    int i = 0;
    while (i < MOST && all[i].config && (all[i].config != config || all[i].nranks != nranks))
        i++;
    assert_true(i < MOST);
    if (!all[i].config && !reference_make(config, nranks, &all[i]))
        fail_msg("%s of %u ranks is wrong without a fault", config->name, nranks);
    return &all[i];
}

/* -- ranks ------------------------------------------------------------------------------------ */

static void run_attempt(test_rank *self) {
    outcome *o = self->shared;
    attempt *a = &o->ranks[self->id];
    char name[32], path[SCRATCH_PATH];
    attempt_clear(a, o->config, self->id, self->nranks);
    self->where = "an attempt";
    attempt_run(a, self->comm);
    if (a->status != TAMIS_OK && o->tells)
        tamis_comm_abort(self->comm);
    if (!a->reducer)
        return;
    snprintf(name, sizeof name, "rank%u", self->id);
    attempt_save(a, o->file ? scratch_path(name, path) : NULL);
}

static void run_on(test_rank *self) {
    outcome *o = self->shared;
    self->where = "a recovery";
    attempt_recover(&o->ranks[self->id], self->comm);
    attempt_free(&o->ranks[self->id]); /* before the communicator goes */
    RANK_CHECK(self, o->ranks[self->id].broken[0] == '\0', "%s", o->ranks[self->id].broken);
}

/* -- judging ---------------------------------------------------------------------------------- */

/* The last step has no next one. */
static bool is_excused(const outcome *o, const attempt *a, uint32_t t) {
    return o->late && t + 1 == a->done && (a->status != TAMIS_OK || a->done == ATTEMPT_STEPS);
}

static void judge(const outcome *o, const reference *ref, const attempt *a) {
    for (uint32_t t = 0; t < a->done; t++) {
        if (a->hash[t] != ref->hash[t] && !is_excused(o, a, t))
            fail_msg("[%s] rank %u, step %u: a wrong result; in the end %s", test_context_text(),
                     a->rank, t, tamis_status_name(a->status));
    }
    if (a->broken[0])
        fail_msg("[%s] rank %u: %s", test_context_text(), a->rank, a->broken);
    if (a->slowest_s > 1e-3 * (o->timeout_ms + test_grace_ms()))
        fail_msg("[%s] rank %u: a call took %.1f s", test_context_text(), a->rank, a->slowest_s);
    if (a->status == TAMIS_OK)
        return;
    /* In a creation, damage may look as if the ranks had been configured differently. */
    bool loses = tamis_status_loss(a->status) == TAMIS_LOST_COMM || strcmp(a->at, "reducer") == 0;
    if (!loses || !has_word(a->sentence, "rank|injected"))
        fail_msg("[%s] rank %u: %s: \"%s\"", test_context_text(), a->rank,
                 tamis_status_name(a->status), a->sentence);
}

static void add_up(const outcome *o) {
    const attempt *first = &o->ranks[0];
    for (size_t i = 0; i < ATTEMPT_N; i++) {
        double residuals = 0, given = 0, params = (double)first->params[first->step][i];
        for (uint32_t r = 0; r < o->nranks; r++) {
            residuals += (double)o->ranks[r].left[i];
            given += o->ranks[r].given[i];
        }
        if (first->has_residual && !attempt_adds_up(o->config, residuals, params, given))
            fail_msg("[%s] element %zu: %g wait, %g applied, but %g given", test_context_text(), i,
                     residuals, params, given);
    }
    for (uint32_t r = 1; r < o->nranks; r++) {
        if (o->ranks[r].after_hash != first->after_hash)
            fail_msg("[%s] ranks 0 and %u have different results", test_context_text(), r);
    }
}

void outcome_try(outcome *o, tamis_comm *const *comms) {
    const reference *ref = outcome_reference(o->config, o->nranks);
    bool states = true;
    char path[SCRATCH_PATH];
    scratch_path("first", path);
    o->ranks = calloc(o->nranks, sizeof *o->ranks);
    assert_non_null(o->ranks);
    ranks_run_on(comms, o->nranks, run_attempt, o);
    for (uint32_t r = 0; r < o->nranks; r++) {
        judge(o, ref, &o->ranks[r]);
        o->failed = o->failed || o->ranks[r].status != TAMIS_OK;
        states = states && o->ranks[r].reducer;
    }
    if (!o->failed || !states || o->late) /* ranks that differ may be told to load older states */
        return;
    ranks_run(o->nranks, 0, run_on, o);
    add_up(o);
}

void outcome_free(outcome *o) {
    for (uint32_t r = 0; r < o->nranks; r++)
        attempt_free(&o->ranks[r]);
    free(o->ranks);
    o->ranks = NULL;
}
