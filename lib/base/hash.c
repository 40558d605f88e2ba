/* SPDX-License-Identifier: MIT */
#include "lib/base/hash.h"

#include <xxhash.h>

uint64_t tam_hash(const void *memory, size_t bytes) {
#ifdef TAM_HAVE_X86_KERNELS
    if (__builtin_cpu_supports("avx2"))
        return tam_hash_avx2(memory, bytes);
#endif
    return XXH3_64bits(memory, bytes);
}
