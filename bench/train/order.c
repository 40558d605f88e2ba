/* SPDX-License-Identifier: MIT */
#include "bench/train/order.h"

#include <stdlib.h>

#include "bench/common/measure.h"
#include "bench/common/random.h"

void order_open(uint64_t count, uint64_t seed, uint64_t together, order *out) {
    *out = (order){.count = count, .seed = seed, .together = together};
    out->samples = bench_alloc(count, sizeof *out->samples);
}

void order_close(order *o) {
    free(o->samples);
}

/* Fisher and Yates. */
static void shuffle(order *o, uint64_t epoch) {
    uint64_t key = bench_key(o->seed, 2, epoch);
    uint32_t count = (uint32_t)o->count;
    for (uint32_t i = 0; i < count; i++)
        o->samples[i] = i;
    for (uint32_t i = count - 1; i > 0; i--) {
        uint32_t j = (uint32_t)(((bench_random(key, i) >> 32) * (i + 1)) >> 32);
        uint32_t swap = o->samples[i];
        o->samples[i] = o->samples[j];
        o->samples[j] = swap;
    }
    o->epoch = epoch + 1;
}

uint64_t order_epoch_steps(const order *o) {
    return o->count / o->together;
}

const uint32_t *order_of(order *o, uint64_t step) {
    uint64_t epoch = step / order_epoch_steps(o);
    if (o->epoch != epoch + 1)
        shuffle(o, epoch);
    return o->samples + step % order_epoch_steps(o) * o->together;
}
