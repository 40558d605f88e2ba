/* SPDX-License-Identifier: MIT */
#define _DEFAULT_SOURCE /* popen */
#include "bench/train/text.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "bench/common/measure.h"

enum { FIRST_BYTES = 1 << 20, MAX_BYTES = 1 << 30 };

/* The data's compression is the program's own, so let the program print them. */
static const char default_text[] = "bible -f -p /usr/lib gen1:1-rev22:21 2>/dev/null </dev/null";

/* Read a stream to its end. @return why that failed, or NULL. */
static const char *read_all(FILE *stream, uint8_t **bytes, size_t *length) {
    size_t capacity = FIRST_BYTES, used = 0;
    uint8_t *data = NULL;
    for (;;) {
        uint8_t *more = realloc(data, capacity);
        if (!more) {
            free(data);
            return "out of memory";
        }
        data = more;
        used += fread(data + used, 1, capacity - used, stream);
        if (used < capacity)
            break;
        if (capacity >= MAX_BYTES) {
            free(data);
            return "it is larger than 2^30 bytes";
        }
        capacity *= 2;
    }
    if (ferror(stream)) {
        free(data);
        return strerror(errno);
    }
    *bytes = data;
    *length = used;
    return NULL;
}

static void number_characters(text *t) {
    size_t token[TEXT_BYTES] = {0};
    for (size_t i = 0; i < t->length; i++)
        token[t->tokens[i]] = 1;
    for (size_t c = 0; c < TEXT_BYTES; c++) {
        if (!token[c])
            continue;
        token[c] = t->vocabulary;
        t->characters[t->vocabulary++] = (uint8_t)c;
    }
    for (size_t i = 0; i < t->length; i++)
        t->tokens[i] = (uint8_t)token[t->tokens[i]];
}

static bool read_file(const char *path, text *out, char *error, size_t size) {
    FILE *stream = fopen(path, "rb");
    const char *why = stream ? read_all(stream, &out->tokens, &out->length) : strerror(errno);
    if (stream)
        fclose(stream);
    if (why)
        snprintf(error, size, "%s: %s", path, why);
    return !why;
}

static bool read_default(text *out, char *error, size_t size) {
    FILE *stream = popen(default_text, "r");
    const char *why = stream ? read_all(stream, &out->tokens, &out->length) : strerror(errno);
    int status = stream ? pclose(stream) : 0;
    if (!why && (status != 0 || out->length == 0)) {
        free(out->tokens);
        why = "it failed";
    }
    if (why)
        snprintf(error, size,
                 "the default text is the output of the program `bible` (Debian: apt-get install "
                 "bible-kjv): %s; give another text with --data FILE",
                 why);
    return !why;
}

bool text_load(const char *path, text *out, char *error, size_t error_size) {
    *out = (text){0};
    if (path ? !read_file(path, out, error, error_size) : !read_default(out, error, error_size))
        return false;
    number_characters(out);
    return true;
}

void text_free(text *t) {
    free(t->tokens);
}

/* -- passages --------------------------------------------------------------------------------- */

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
