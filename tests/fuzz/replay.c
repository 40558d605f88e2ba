/* SPDX-License-Identifier: MIT
 *
 * replay [FOLDER]: runs the fuzz target on a fixed set of inputs, good encodings and damaged ones,
 * for compilers without a fuzzer. With a folder: writes the good ones there as a fuzzer's seeds.
 */
#include "lib/contracts/index_codec.h"

#include <stdio.h>
#include <stdlib.h>

enum { INPUTS = 400, DAMAGES = 60, MOST = 1 << 16, HEAD = 7 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static uint64_t random_of(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}

/* Encode a list of any density in a span of any length up to 300000. @return bytes of the input */
static size_t make_input(uint64_t *random, uint8_t *input) {
    static uint32_t list[MOST];
    enum { FIRST = TAMIS_INDEX_U32 + 1, CODECS = TAMIS_INDEX_END - FIRST };
    uint8_t which = (uint8_t)(random_of(random) % CODECS);
    uint32_t span = 1 + (uint32_t)(random_of(random) % (random_of(random) % 300000 + 1));
    uint32_t step = 1 + (uint32_t)(random_of(random) % 600), at = 0;
    uint16_t count = 0;
    while ((at += (uint32_t)(random_of(random) % step)) < span && count < 2000)
        list[count++] = at++;
    input[0] = which;
    memcpy(input + 1, &span, sizeof span);
    memcpy(input + 5, &count, sizeof count);
    return HEAD + tam_index_codec_of(FIRST + which)->encode(list, count, span, input + HEAD);
}

static int write_input(const char *folder, int number, const uint8_t *input, size_t size) {
    char path[512];
    snprintf(path, sizeof path, "%s/input%d", folder, number);
    FILE *file = fopen(path, "wb");
    if (!file)
        return 1;
    size_t written = fwrite(input, 1, size, file);
    return fclose(file) != 0 || written != size;
}

static void damage(uint64_t *random, uint8_t *input, size_t size) {
    static uint8_t spoilt[MOST];
    for (int i = 0; i < DAMAGES; i++) {
        size_t length = i % 3 ? size : random_of(random) % (size + 1);
        memcpy(spoilt, input, size);
        for (int flips = i % 4; flips > 0; flips--)
            spoilt[random_of(random) % size] ^= (uint8_t)(1u << random_of(random) % 8);
        LLVMFuzzerTestOneInput(spoilt, length);
    }
}

int main(int argc, char **argv) {
    static uint8_t input[MOST];
    uint64_t random = 1;
    for (int i = 0; i < INPUTS; i++) {
        size_t size = make_input(&random, input);
        if (argc > 1 && write_input(argv[1], i, input, size)) {
            fprintf(stderr, "cannot write to %s\n", argv[1]);
            return 1;
        }
        LLVMFuzzerTestOneInput(input, size);
        damage(&random, input, size);
    }
    printf("%d inputs, each damaged %d times\n", INPUTS, DAMAGES);
    return 0;
}
