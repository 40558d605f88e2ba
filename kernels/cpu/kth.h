/* SPDX-License-Identifier: MIT
 *
 * The k-th largest of a list of keys. Keys are magnitude bits of binary32 compared as integers.
 */
#ifndef TAM_CPU_KTH_H
#define TAM_CPU_KTH_H

#include <stddef.h>
#include <stdint.h>

/** Chooses all keys over `key`, and the first `ties` of those equal to it. */
typedef struct tam_cutoff {
    uint32_t key;
    size_t ties;
} tam_cutoff;

/**
 * The cutoff that chooses k of `count` keys.
 *
 * @param  k      [in]  1 to count
 * @param  spare  [in]  uint32_t[count], overwritten
 */
tam_cutoff tam_kth(const uint32_t *keys, size_t count, size_t k, uint32_t *spare);

/** The bucket of a histogram that holds the k-th largest key; *k becomes its rank in the bucket. */
uint32_t tam_kth_bucket(const uint32_t *histogram, uint32_t buckets, size_t *k);

/** Whether this key is chosen, in a walk by ascending index. `*ties` counts down. */
static inline int tam_chosen(uint32_t key, uint32_t cutoff, size_t *ties) {
    if (key != cutoff)
        return key > cutoff;
    if (*ties == 0)
        return 0;
    --*ties;
    return 1;
}

#endif
