/* SPDX-License-Identifier: MIT
 *
 * Shared by the tests of local steps: a case, a rank's run of it, and what its optimizer changes.
 */
#ifndef TEST_LOCAL_CASE_H
#define TEST_LOCAL_CASE_H

#include "tests/support/data.h"
#include "tests/support/ranks.h"

#include <tamis/local.h>

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

enum { N = 420, STEPS = 26, RANKS = 3 };

static const tamis_segment segments[] = {{"one", 100}, {"two", N - 100}};

typedef struct local_case {
    const char *name;
    const char *scheme;
    double density;
    tamis_value_codec value_codec;
    tamis_nonfinite nonfinite;
    uint32_t steps, delay, offset;
    double lr, momentum;
    /* of a run */
    uint32_t halt;   /* goes on in new handles after this step; 0: never */
    uint32_t spoils; /* step in which all move so far that their sum is infinite; 0: none */
    uint64_t hash[RANKS_MOST], base[RANKS_MOST];
    double want[STEPS][RANKS][N];
    double sums[RANKS][N];
} local_case;

typedef struct run {
    test_rank *self;
    tamis_reducer *reducer;
    tamis_local *local;
    float params[N];
    float *parts[2];
} run;

/* What an optimizer step changes. */
static inline double change(uint32_t rank, uint32_t step, size_t i, double param) {
    uint64_t noise = data_mix(data_mix(rank * 1000 + step) + i);
    double spread = i % 7 == 0 ? 0.5 : 0.05;
    return spread * ((double)(noise % 2001) / 1000.0 - 1.0) - 0.02 * param;
}

static inline double first_param(size_t i) {
    return (double)(data_mix(i) % 1001) / 1000.0;
}

static inline void train(run *u, uint32_t step) {
    for (size_t i = 0; i < N; i++)
        u->params[i] += (float)change(u->self->id, step, i, u->params[i]);
}

static inline tamis_status make_reducer(test_rank *self, const local_case *c, tamis_reducer **out) {
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    tamis_layout *layout = NULL;
    config.scheme = c->scheme;
    config.density = c->density;
    config.value_codec = c->value_codec;
    config.nonfinite = c->nonfinite;
    tamis_status status = tamis_layout_create(segments, 2, &layout);
    if (status == TAMIS_OK)
        status = tamis_reducer_create(self->comm, layout, &config, out);
    tamis_layout_destroy(layout);
    return status;
}

static inline tamis_local_config config_of(const local_case *c) {
    tamis_local_config config = TAMIS_LOCAL_CONFIG_INIT;
    config.steps = c->steps;
    config.delay = c->delay;
    config.offset = c->offset;
    config.lr = c->lr;
    config.momentum = c->momentum;
    return config;
}

static inline void begin(run *u, test_rank *self, const local_case *c) {
    tamis_local_config config = config_of(c);
    u->self = self;
    u->parts[0] = u->params;
    u->parts[1] = u->params + 100;
    for (size_t i = 0; i < N; i++)
        u->params[i] = (float)first_param(i);
    RANK_OK(self, make_reducer(self, c, &u->reducer));
    RANK_OK(self, tamis_local_create(u->reducer, u->parts, &config, &u->local));
}

static inline void end(run *u) {
    tamis_local_destroy(u->local);
    tamis_reducer_destroy(u->reducer);
}

static inline uint64_t hash_base(const run *u) {
    const float *base = NULL;
    if (tamis_local_base(u->local, &base) != TAMIS_OK)
        return 0;
    return data_hash(0, base, N * sizeof *base);
}

static inline bool finite_params(const run *u) {
    for (size_t i = 0; i < N; i++)
        if (!isfinite(u->params[i]))
            return false;
    return true;
}

#endif
