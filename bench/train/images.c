/* SPDX-License-Identifier: MIT */
#include "bench/train/images.h"

#include <stdlib.h>
#include <xxhash.h>

#include "bench/common/measure.h"

bool images_load(const train_settings *settings, workload_data *out, char *error, size_t size) {
    idx_set *sets = bench_alloc(2, sizeof *sets);
    if (!idx_load(settings->data, "train", &sets[WORKLOAD_TRAIN], error, size))
        goto free_sets;
    if (!idx_load(settings->data, "t10k", &sets[WORKLOAD_VALIDATE], error, size))
        goto free_train;
    *out = (workload_data){.count = {sets[0].count, sets[1].count}, .content = sets};
    return true;

free_train:
    idx_free(&sets[WORKLOAD_TRAIN]);
free_sets:
    free(sets);
    return false;
}

void images_unload(workload_data *data) {
    idx_set *sets = data->content;
    idx_free(&sets[WORKLOAD_VALIDATE]);
    idx_free(&sets[WORKLOAD_TRAIN]);
    free(sets);
}

const idx_set *images_set(const workload_data *data, workload_set set) {
    return (const idx_set *)data->content + set;
}

uint64_t images_hash(const workload_data *data) {
    uint64_t sum = 0;
    for (int i = WORKLOAD_TRAIN; i <= WORKLOAD_VALIDATE; i++) {
        const idx_set *set = images_set(data, (workload_set)i);
        sum = XXH3_64bits_withSeed(set->images, set->count * IDX_PIXELS, sum);
        sum = XXH3_64bits_withSeed(set->labels, set->count, sum);
    }
    return sum;
}
