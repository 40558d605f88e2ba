/* SPDX-License-Identifier: MIT
 *
 * A training run of which everything is known: phases with watts and lengths, and a counter with a
 * tick, lag, duty and noise, as a reader sees it that polls.
 */
#ifndef TEST_GENERATOR_H
#define TEST_GENERATOR_H

#include "lib/energy/attribute/attribute.h"

enum { GENERATOR_LANES = 2, GENERATOR_MOST = 8 };

typedef struct generator_phase {
    uint32_t phase; /* TAMIS_ENERGY_IDLE: nothing is marked */
    double ms, watts;
    double spread; /* standard deviation of its length, as part of it; 0: always the same */
    uint32_t twin; /* marked whenever it is; its watts are in `watts`; 0: none */
} generator_phase;

typedef struct generator_config {
    /* Threads, each of which goes through its phases again and again; ms 0 ends a list. */
    generator_phase lanes[GENERATOR_LANES][GENERATOR_MOST];
    double tick_s, lag_s, duty;
    double noise_w;  /* standard deviation of the mean power of a tick */
    double jitter_s; /* a tick is seen later by up to this */
    double resolution_uj;
    double seconds;
    double change_s, changed; /* from then on the watts of lane 0 are times `changed`; 0: never */
    uint64_t seed;
} generator_config;

/** Six phases, 86 ms an iteration, 140 to 470 W, whose lengths vary; a GPU's counter. */
generator_config generator_six(uint64_t seed);

typedef struct generator generator;

/** NULL: no memory. */
generator *generator_open(const generator_config *config);
void generator_close(generator *g);

/** The next gain; the phases until then have been added. @return false: the run is over */
bool generator_next(generator *g, tam_spans *spans, uint64_t *begin_ns, uint64_t *end_ns,
                    uint64_t *uj);

/** What all gains added up to so far, and what the phases took and lasted meanwhile. */
typedef struct generator_truth {
    double seconds[TAMIS_ENERGY_PHASES], joules[TAMIS_ENERGY_PHASES];
    int64_t uj;
} generator_truth;

/** The difference of two of them is the truth of the stretch between. */
void generator_look(const generator *g, generator_truth *out);

/** Uniform in [0, 1), and with mean 0 and variance 1; *state is any number. */
double generator_uniform(uint64_t *state);
double generator_normal(uint64_t *state);

#endif
