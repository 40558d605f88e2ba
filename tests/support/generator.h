/* SPDX-License-Identifier: MIT
 *
 * A simulated training run whose truth is known: phases with watts and lengths, and a counter with
 * tick, lag, duty and noise, as a polling reader sees it.
 */
#ifndef TEST_GENERATOR_H
#define TEST_GENERATOR_H

#include "lib/energy/attribute/attribute.h"

enum { GENERATOR_TRACKS = 2, GENERATOR_MOST = 8 };

typedef struct generator_phase {
    uint32_t phase; /* TAMIS_ENERGY_IDLE: nothing is marked */
    double ms, watts;
    double spread; /* relative standard deviation of its length; 0: always the same */
    uint32_t twin; /* phase marked at the same times; `watts` includes its watts; 0: none */
} generator_phase;

typedef struct generator_config {
    /* Threads; each repeats its list of phases; ms 0 ends a list. */
    generator_phase tracks[GENERATOR_TRACKS][GENERATOR_MOST];
    double tick_s, lag_s, duty;
    double noise_w;  /* standard deviation of the mean power of a tick */
    double jitter_s; /* largest delay until a tick is seen */
    double resolution_uj;
    double seconds;
    double change_s, changed; /* from change_s on track 0 has `changed` times the watts; 0: never */
    uint64_t seed;
} generator_config;

/** Six phases of varying length, 86 ms per iteration, 140 to 470 W; a GPU's counter. */
generator_config generator_six(uint64_t seed);

typedef struct generator generator;

/** NULL: no memory. */
generator *generator_open(const generator_config *config);
void generator_close(generator *g);

/** The counter's next gain; adds the phases until then. @return false: the run is over */
bool generator_next(generator *g, tam_spans *spans, uint64_t *begin_ns, uint64_t *end_ns,
                    uint64_t *uj);

/** The sum of all gains so far, and joules and seconds of the phases in that time. */
typedef struct generator_truth {
    double seconds[TAMIS_ENERGY_PHASES], joules[TAMIS_ENERGY_PHASES];
    int64_t uj;
} generator_truth;

/** The truth so far; the difference of two is the truth of the time between them. */
void generator_look(const generator *g, generator_truth *out);

/** Uniform in [0, 1), and with mean 0 and variance 1; *state is any number. */
double generator_uniform(uint64_t *state);
double generator_normal(uint64_t *state);

#endif
