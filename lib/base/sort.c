/* SPDX-License-Identifier: MIT
 *
 * Heap sort: in place, no allocation, no bad case. Insertion sort for the median of a few values.
 */
#include "lib/base/base.h"

static bool sort_less(const tam_pair *a, const tam_pair *b) {
    return a->key != b->key ? a->key < b->key : a->value < b->value;
}

static void sift(tam_pair *pairs, size_t at, size_t count) {
    tam_pair moving = pairs[at];
    for (size_t child; (child = 2 * at + 1) < count; at = child) {
        if (child + 1 < count && sort_less(&pairs[child], &pairs[child + 1]))
            child++;
        if (!sort_less(&moving, &pairs[child]))
            break;
        pairs[at] = pairs[child];
    }
    pairs[at] = moving;
}

void tam_sort(tam_pair *pairs, size_t count) {
    for (size_t i = count / 2; i-- > 0;)
        sift(pairs, i, count);
    for (size_t end = count; end-- > 1;) {
        tam_pair largest = pairs[0];
        pairs[0] = pairs[end];
        pairs[end] = largest;
        sift(pairs, 0, end);
    }
}

double tam_median(double *values, uint32_t count) {
    for (uint32_t i = 1; i < count; i++) {
        double moving = values[i];
        uint32_t at = i;
        for (; at > 0 && values[at - 1] > moving; at--)
            values[at] = values[at - 1];
        values[at] = moving;
    }
    return values[count / 2];
}
