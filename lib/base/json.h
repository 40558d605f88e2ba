/* SPDX-License-Identifier: MIT
 *
 * A text that grows, and JSON in it that is the same in every locale.
 */
#ifndef TAM_BASE_JSON_H
#define TAM_BASE_JSON_H

#include "lib/base/base.h"

/** Begin with zeros. Once memory is short it stays incomplete until it is cleared. */
typedef struct tam_text {
    char *bytes; /* no '\0' at the end */
    size_t length, capacity;
    bool incomplete;
} tam_text;

void tam_text_clear(tam_text *text);
void tam_text_free(tam_text *text);
void tam_text_put(tam_text *text, const char *words);

/** Values: what is unknown is null. `key` is NULL inside of a list. */
void tam_json_put(tam_text *out, const char *key, const char *value); /* as it is, or a bracket */
void tam_json_text(tam_text *out, const char *key, const char *value);
void tam_json_bool(tam_text *out, const char *key, bool value);
void tam_json_count(tam_text *out, const char *key, uint64_t value);
void tam_json_uj(tam_text *out, const char *key, bool known, int64_t uj);

/** The shortest of 15 to 17 digits that reads back as the same double; null if it is not finite. */
void tam_json_number(tam_text *out, const char *key, double value);

/** Replace the decimal point of a locale, whatever its bytes are, by '.', in place. */
void tam_json_plain(char *number);

#endif
