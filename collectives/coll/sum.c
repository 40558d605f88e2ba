/* SPDX-License-Identifier: MIT
 *
 * Parts of a chunk are added along the tree over virtual ranks (lib/base/tree.h) as they are taken,
 * in the order of digits: a binary counter whose carries are additions. Eight ranks:
 *
 *     taken     0    1      2          3            ...
 *     counter   0    (0+1)  (0+1) 2    (0+1)+(2+3)
 *
 * Sums stay in the buffers in which the parts came, and end in the vector.
 */
#include "collectives/coll/coll.h"

/* The two may be the same memory as the sum. */
static void add_floats(const float *a, const float *b, size_t count, float *sum) {
    for (size_t i = 0; i < count; i++)
        sum[i] = a[i] + b[i];
}

static float *vector_of(const tam_coll *coll, uint32_t which, uint32_t chunk, size_t *count) {
    size_t begin = tam_coll_elements(coll, coll->vrank[which], chunk, count);
    return (float *)(void *)coll->recv + begin;
}

static void sum_release(tam_coll *coll, int32_t buffer) {
    if (buffer >= 0)
        coll->holders[buffer]--;
}

static void merge_top(tam_coll *coll, tam_partials *c, size_t count) {
    c->depth--;
    if (!coll->empty)
        add_floats(c->stack[c->depth - 1].values, c->stack[c->depth].values, count,
                   c->stack[c->depth - 1].values);
    sum_release(coll, c->stack[c->depth].buffer);
    c->stack[c->depth - 1].level++;
}

static void sum_push(tam_coll *coll, tam_partials *c, uint32_t level, int32_t buffer, float *values,
                     size_t count) {
    c->stack[c->depth].level = level;
    c->stack[c->depth].buffer = buffer;
    c->stack[c->depth].values = values;
    c->depth++;
    while (c->depth > 1 && c->stack[c->depth - 2].level == c->stack[c->depth - 1].level)
        merge_top(coll, c, count);
}

static uint32_t own_digit(const tam_coll *coll) {
    return coll->vrank[0] / coll->stride % coll->radix;
}

/* A rank with two virtual ranks enters one level higher. */
static uint32_t level_of(const tam_coll *coll, uint32_t digit) {
    uint32_t span = coll->stride * coll->radix;
    uint32_t vrank = coll->vrank[0] / span * span + digit;
    return coll->stage == 0 && vrank >= tam_plan_own(&coll->plan);
}

static void push_own(tam_coll *coll, uint32_t which, uint32_t chunk) {
    tam_partials *c = &coll->partials[which];
    size_t count;
    float *own = vector_of(coll, which, chunk, &count);
    c->own_added = true;
    sum_push(coll, c, level_of(coll, own_digit(coll)), -1, own, count);
}

void tam_coll_add(tam_coll *coll, uint32_t which, uint32_t digit, uint32_t chunk, int32_t buffer,
                  float *values) {
    tam_partials *c = &coll->partials[which];
    size_t count;
    vector_of(coll, which, chunk, &count);
    if (!c->own_added && digit > own_digit(coll))
        push_own(coll, which, chunk);
    coll->holders[buffer]++;
    sum_push(coll, c, level_of(coll, digit), buffer, values, count);
}

void tam_coll_add_up(tam_coll *coll, uint32_t which, uint32_t chunk) {
    tam_partials *c = &coll->partials[which];
    if (!c->own_added)
        push_own(coll, which, chunk);
    size_t count;
    float *sum = vector_of(coll, which, chunk, &count);
    if (c->stack[0].values != sum && !coll->empty)
        memcpy(sum, c->stack[0].values, count * sizeof sum[0]);
    sum_release(coll, c->stack[0].buffer);
    *c = (tam_partials){0};
}
