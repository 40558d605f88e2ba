/* SPDX-License-Identifier: MIT
 *
 * A text as numbers: the bytes that occur in it, in the order of their codes, are 0, 1, 2, ...
 */
#ifndef TAMIS_TRAIN_TEXT_H
#define TAMIS_TRAIN_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { TEXT_BYTES = 256 };

typedef struct text {
    size_t length;
    uint8_t *tokens;                /* [length], each less than `vocabulary` */
    size_t vocabulary;              /* bytes that occur */
    uint8_t characters[TEXT_BYTES]; /* [vocabulary]: token -> byte */
} text;

/**
 * Read a file of any bytes; NULL: the King James Bible, as the program `bible` of Debian's package
 * bible-kjv prints it (4,404,412 bytes, 73 characters).
 *
 * On failure `error` holds a message.
 */
bool text_load(const char *path, text *out, char *error, size_t error_size);

void text_free(text *t);

#endif
