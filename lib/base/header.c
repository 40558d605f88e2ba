/* SPDX-License-Identifier: MIT */
#include "lib/base/header.h"

static uint32_t header_word_at(const unsigned char *memory) {
    uint32_t word;
    memcpy(&word, memory, sizeof word);
    return word;
}

/* Positions have 32 bits, so that the compiler vectorises the loop. */
static inline __attribute__((always_inline)) uint64_t
sum_words(uint32_t area, const unsigned char *at, uint32_t count) {
    uint64_t sum = 0;
    for (uint32_t i = 0; i < count; i++)
        sum += tam_sum_word(area, i, header_word_at(at + (size_t)i * sizeof(uint32_t)));
    return sum;
}

/* The loop above compiled for AVX2; it gives the same bits. Not an ifunc, which would choose only
 * once: ThreadSanitizer does not support it. */
#if defined(__x86_64__)
__attribute__((target("avx2"))) static uint64_t
sum_words_avx2(uint32_t area, const unsigned char *at, uint32_t count) {
    return sum_words(area, at, count);
}
#endif

static uint64_t sum_whole(uint32_t area, const unsigned char *at, uint32_t count) {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2"))
        return sum_words_avx2(area, at, count);
#endif
    return sum_words(area, at, count);
}

/* `whole` fits 32 bits: no part of a packet has 2^32 words, since no layout has as many
 * elements. */
uint64_t tam_sum_bytes(uint32_t area, const void *memory, size_t bytes) {
    const unsigned char *at = memory;
    size_t whole = bytes / sizeof(uint32_t), left = bytes % sizeof(uint32_t);
    uint64_t sum = sum_whole(area, at, (uint32_t)whole);
    uint32_t last = 0;
    if (left > 0)
        memcpy(&last, at + whole * sizeof(uint32_t), left);
    return sum + tam_sum_word(area, whole, last);
}

uint64_t tam_sum_header(const tam_header *header, size_t header_bytes) {
    enum { HOLE = offsetof(tam_header, check) / sizeof(uint32_t) };
    return tam_sum_bytes(TAM_SUM_HEADER, header, header_bytes) -
           tam_sum_word(TAM_SUM_HEADER, HOLE, header->check);
}

const char *tam_refusal_words(uint32_t refusal) {
    static const char *const words[TAM_REFUSALS] = {
        [TAM_REFUSED_NOTHING] = "no error",
        [TAM_REFUSED_MISSING] = "it did not arrive; its rank may have refused the step before it "
                                "sent one, and says why",
        [TAM_REFUSED_CONFIG] = "it comes from another reducer, configuration, density or packing, "
                               "or its rank was given other rates or tamis_step.agreed; use "
                               "reducers in the same order on all ranks",
        [TAM_REFUSED_STEP] = "it belongs to another step",
        [TAM_REFUSED_RESULT] = "its result of the previous step differs: values were damaged in "
                               "transit; load an older state",
        [TAM_REFUSED_COUNT] = "its count exceeds the size of the packet",
        [TAM_REFUSED_LEADER] = "it holds entries, but another rank leads this step",
        [TAM_REFUSED_BYTES] = "its indices take an impossible number of bytes",
        [TAM_REFUSED_CHECKSUM] = "its checksum is wrong: it was damaged, or comes from another "
                                 "step, result, configuration, density or packing, or its rank "
                                 "was given other rates or tamis_step.agreed",
        [TAM_REFUSED_CODE] = "its indices or values cannot be decoded",
        [TAM_REFUSED_ORDER] = "its indices are not ascending or lie past the end",
        [TAM_REFUSED_OWNER] = "it holds an index that its rank does not own",
        [TAM_REFUSED_ABSENT] =
            "sums are missing: a rank refused a packet or damaged values, or the exchange was "
            "abandoned",
        [TAM_REFUSED_GRADIENT] = "it was damaged, or comes from another step, configuration, "
                                 "density or result of the step before",
    };
    return refusal < TAM_REFUSALS ? words[refusal] : "unknown reason";
}
