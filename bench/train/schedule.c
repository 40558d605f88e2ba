/* SPDX-License-Identifier: MIT */
#include "bench/train/schedule.h"

#include <math.h>

static uint32_t smaller(uint32_t a, uint32_t b) {
    return a < b ? a : b;
}

schedule_pass schedule_1f1b(uint32_t stage, uint32_t nstages, uint32_t micro_batches,
                            uint32_t index) {
    uint32_t ahead = smaller(micro_batches, nstages - 1 - stage); /* forward passes at the start */
    uint32_t pairs = micro_batches - ahead;
    if (index < ahead)
        return (schedule_pass){false, index};
    index -= ahead;
    if (index >= 2 * pairs)
        return (schedule_pass){true, index - pairs};
    return (schedule_pass){index % 2, index / 2 + (index % 2 ? 0 : ahead)};
}

uint32_t schedule_in_flight(uint32_t stage, uint32_t nstages, uint32_t micro_batches) {
    return smaller(micro_batches, nstages - stage);
}

/* cost[s][l]: least cost of the first l layers on the first s + 1 stages; cut[s][l]: where the last
 * of these stages then begins. */
typedef struct division {
    double cost[SCHEDULE_LAYERS][SCHEDULE_LAYERS + 1];
    uint32_t cut[SCHEDULE_LAYERS][SCHEDULE_LAYERS + 1];
} division;

void schedule_layers(const uint64_t *lengths, uint32_t nlayers, uint32_t nstages, uint32_t *first) {
    division d;
    for (uint32_t s = 0; s < nstages; s++) {
        for (uint32_t past = 0; past <= nlayers; past++) {
            double sum = 0.0;
            d.cost[s][past] = INFINITY;
            for (uint32_t begin = past; begin-- > s;) {
                sum += (double)lengths[begin];
                double before = s ? d.cost[s - 1][begin] : begin ? INFINITY : 0.0;
                if (before + sum * sum >= d.cost[s][past])
                    continue;
                d.cost[s][past] = before + sum * sum;
                d.cut[s][past] = begin;
            }
        }
    }
    first[nstages] = nlayers;
    for (uint32_t s = nstages; s-- > 0;)
        first[s] = d.cut[s][first[s + 1]];
}
