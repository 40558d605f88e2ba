/* SPDX-License-Identifier: MIT
 *
 * Every allocation of the library goes through here, so that tests can make the i-th one fail and
 * count allocations made and not freed.
 */
#include "lib/base/base.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>

/* Large vectors get huge pages: with small pages, random reads would cost a table walk each. */
enum { HUGE_PAGE = 1 << 21, HUGE_MIN = 4 * HUGE_PAGE };

static atomic_long budget = -1;
static _Atomic uint64_t made, freed;

static bool spend(void) {
    long left = atomic_load(&budget);
    while (left > 0 && !atomic_compare_exchange_weak(&budget, &left, left - 1)) {
    }
    return left != 0;
}

void *tam_alloc(size_t bytes) {
    if (!spend() || bytes > SIZE_MAX - HUGE_PAGE)
        return NULL;
    size_t align = bytes >= HUGE_MIN ? HUGE_PAGE : 64;
    size_t rounded = ((bytes ? bytes : 1) + align - 1) / align * align;
    void *memory = aligned_alloc(align, rounded);
    if (!memory)
        return NULL;
#ifdef MADV_HUGEPAGE
    if (align == HUGE_PAGE)
        madvise(memory, rounded, MADV_HUGEPAGE); /* only a hint, it may fail */
#endif
    memset(memory, 0, rounded);
    atomic_fetch_add(&made, 1);
    return memory;
}

void *tam_alloc_array(size_t count, size_t size) {
    size_t bytes;
    return __builtin_mul_overflow(count, size, &bytes) ? NULL : tam_alloc(bytes);
}

char *tam_strdup(const char *text) {
    size_t bytes = strlen(text) + 1;
    char *copy = tam_alloc(bytes);
    return copy ? memcpy(copy, text, bytes) : NULL;
}

void tam_free(void *memory) {
    if (!memory)
        return;
    atomic_fetch_add(&freed, 1);
    free(memory);
}

void tam_alloc_budget(long count) {
    atomic_store(&budget, count);
}

uint64_t tam_alloc_made(void) {
    return atomic_load(&made);
}

uint64_t tam_alloc_live(void) {
    return atomic_load(&made) - atomic_load(&freed);
}
