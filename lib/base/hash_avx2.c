/* SPDX-License-Identifier: MIT
 *
 * Compiled for AVX2: the library's own functions are compiled here once more, and inlined.
 */
#include "lib/base/hash.h"

#ifdef TAM_HAVE_X86_KERNELS
#define XXH_INLINE_ALL
#include <xxhash.h>

uint64_t tam_hash_avx2(const void *memory, size_t bytes) {
    return XXH3_64bits(memory, bytes);
}
#endif
