/* SPDX-License-Identifier: MIT */
#include "bench/train/neighbour.h"

#include <stdlib.h>
#include <string.h>

#include "bench/common/measure.h"

static void receive_ahead(neighbour *n, size_t slot) {
    bench_receive(n->world, n->arrivals + slot * n->bytes, n->bytes, n->rank, &n->coming[slot]);
}

static void wait_for(neighbour *n, bench_message *message) {
    double begin = bench_now_s();
    bench_message_wait(message);
    n->waited_s += bench_now_s() - begin;
}

void neighbour_open(bench_group *world, uint32_t rank, size_t bytes, size_t slots, neighbour *out) {
    *out = (neighbour){
        .world = world,
        .rank = rank,
        .bytes = bytes,
        .slots = slots,
        .arrivals = bench_alloc(slots, bytes),
        .coming = bench_alloc(slots, sizeof *out->coming),
        .going = bench_alloc(slots, sizeof *out->going),
    };
    for (size_t slot = 0; slot < slots; slot++)
        receive_ahead(out, slot);
}

void neighbour_close(neighbour *n) {
    for (size_t slot = 0; slot < n->slots; slot++) {
        bench_message_wait(&n->going[slot]);
        bench_message_cancel(&n->coming[slot]);
    }
    free(n->going);
    free(n->coming);
    free(n->arrivals);
}

void neighbour_send(neighbour *n, size_t slot, const void *data) {
    bench_send(n->world, data, n->bytes, n->rank, &n->going[slot]);
}

void neighbour_sent(neighbour *n, size_t slot) {
    if (n->slots)
        wait_for(n, &n->going[slot]);
}

bool neighbour_arrived(neighbour *n) {
    return bench_message_test(&n->coming[n->taken % n->slots]);
}

void neighbour_take(neighbour *n, void *out) {
    size_t slot = n->taken++ % n->slots;
    wait_for(n, &n->coming[slot]);
    memcpy(out, n->arrivals + slot * n->bytes, n->bytes);
    receive_ahead(n, slot);
}
