/* SPDX-License-Identifier: MIT
 *
 * A text that grows, and numbers in it that are the same in every locale.
 */
#ifndef TAM_ENERGY_LOG_TEXT_H
#define TAM_ENERGY_LOG_TEXT_H

#include "lib/base/base.h"

/** Begin with zeros. Once memory is short it stays incomplete until it is cleared. */
typedef struct tam_text {
    char *bytes; /* no '\0' at the end */
    size_t length, room;
    bool incomplete;
} tam_text;

void tam_text_clear(tam_text *text);
void tam_text_free(tam_text *text);

void tam_text_add(tam_text *text, const char *bytes, size_t length);
void tam_text_put(tam_text *text, const char *words);

/** No conversions of floating point: the locale would choose their decimal point. A piece has 255
 * bytes at most. */
void tam_text_format(tam_text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));

/** The shortest of 15 to 17 digits that reads back as the same double. It must be finite. */
void tam_text_number(tam_text *text, double value);

/** Millionths as a decimal number, exactly, without zeros at its end: -1500000 is "-1.5". */
void tam_text_micro(tam_text *text, int64_t millionths);

/** Bytes of the character at `bytes`, which ends with '\0'; 0: it is no UTF-8. */
size_t tam_text_utf8(const char *bytes);

/** Replace the decimal point of a locale, whatever its bytes are, by '.', in place. */
void tam_text_plain(char *number);

#endif
