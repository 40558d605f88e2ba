/* SPDX-License-Identifier: MIT */
#include "bench/train/passages.h"

#include <stdio.h>
#include <stdlib.h>
#include <xxhash.h>

#include "bench/common/measure.h"

bool passages_load(const train_settings *settings, workload_data *out, char *error, size_t size) {
    passages *p = bench_alloc(1, sizeof *p);
    size_t context = p->context = settings->context;
    if (!text_load(settings->data, &p->text, error, size))
        goto free_passages;
    size_t kept = p->text.length / 10, trained = p->text.length - kept;
    if (kept < context + 1 || p->text.vocabulary < 2) {
        snprintf(error, size,
                 "%s: %zu bytes with %zu different values are too few for --context %zu, which "
                 "needs %zu bytes with two different values",
                 settings->data ? settings->data : "bible", p->text.length, p->text.vocabulary,
                 context, 10 * (context + 1));
        goto free_text;
    }
    size_t count = (kept - 1) / context,
           windows = count < PASSAGES_VALIDATE ? count : PASSAGES_VALIDATE;
    p->begin[WORKLOAD_VALIDATE] = trained;
    p->stride[WORKLOAD_TRAIN] = context;
    p->stride[WORKLOAD_VALIDATE] = count / windows * context;
    *out = (workload_data){.count = {(trained - 1) / context, windows}, .content = p};
    return true;

free_text:
    text_free(&p->text);
free_passages:
    free(p);
    return false;
}

void passages_unload(workload_data *data) {
    passages *p = data->content;
    text_free(&p->text);
    free(p);
}

/* Tokens are numbers of characters, so both. */
uint64_t passages_hash(const workload_data *data) {
    const text *t = &((const passages *)data->content)->text;
    return XXH3_64bits_withSeed(t->characters, t->vocabulary, XXH3_64bits(t->tokens, t->length));
}
