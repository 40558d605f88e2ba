/* SPDX-License-Identifier: MIT */
#include "lib/base/json.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* -- a text that grows ------------------------------------------------------------------------ */

void tam_text_clear(tam_text *text) {
    text->length = 0;
    text->incomplete = false;
}

void tam_text_free(tam_text *text) {
    tam_free(text->bytes);
    *text = (tam_text){0};
}

static bool json_reserve(tam_text *text, size_t length) {
    if (length <= text->capacity - text->length)
        return true;
    size_t capacity = 2 * (text->length + length) + 4096;
    char *bytes = tam_alloc(capacity);
    if (!bytes)
        return false;
    if (text->length)
        memcpy(bytes, text->bytes, text->length);
    tam_free(text->bytes);
    text->bytes = bytes;
    text->capacity = capacity;
    return true;
}

static void json_add(tam_text *text, const char *bytes, size_t length) {
    text->incomplete = text->incomplete || !json_reserve(text, length);
    if (text->incomplete || length == 0)
        return;
    memcpy(text->bytes + text->length, bytes, length);
    text->length += length;
}

void tam_text_put(tam_text *text, const char *words) {
    json_add(text, words, strlen(words));
}

/* -- values ----------------------------------------------------------------------------------- */

void tam_json_put(tam_text *out, const char *key, const char *value) {
    char last = out->length ? out->bytes[out->length - 1] : '{';
    if (last != '{' && last != '[')
        tam_text_put(out, ",");
    if (key) {
        tam_text_put(out, "\"");
        tam_text_put(out, key);
        tam_text_put(out, "\":");
    }
    tam_text_put(out, value);
}

void tam_json_bool(tam_text *out, const char *key, bool value) {
    tam_json_put(out, key, value ? "true" : "false");
}

void tam_json_count(tam_text *out, const char *key, uint64_t value) {
    char number[32];
    snprintf(number, sizeof number, "%llu", (unsigned long long)value);
    tam_json_put(out, key, number);
}

void tam_json_uj(tam_text *out, const char *key, bool known, int64_t uj) {
    char number[32];
    snprintf(number, sizeof number, "%lld", (long long)uj);
    tam_json_put(out, key, known ? number : "null");
}

void tam_json_plain(char *number) {
    char *out = number;
    bool inside = false; /* a decimal point may have several bytes */
    for (const char *in = number; *in; in++) {
        bool ours = (*in >= '0' && *in <= '9') || *in == '-' || *in == '+' || *in == 'e';
        if (ours)
            *out++ = *in;
        else if (!inside)
            *out++ = '.';
        inside = !ours;
    }
    *out = '\0';
}

void tam_json_number(tam_text *out, const char *key, double value) {
    char number[64] = "null";
    for (int digits = 15; isfinite(value) && digits <= 17; digits++) {
        snprintf(number, sizeof number, "%.*g", digits, value);
        if (strtod(number, NULL) == value) /* in the locale in which it was written */
            break;
    }
    if (isfinite(value))
        tam_json_plain(number);
    tam_json_put(out, key, number);
}

/* Bytes of the character at `bytes`, which ends with '\0'; 0: it is no UTF-8. */
static size_t character(const char *bytes) {
    const unsigned char *b = (const unsigned char *)bytes;
    size_t length = b[0] < 0x80                    ? 1
                    : b[0] >= 0xc2 && b[0] <= 0xdf ? 2
                    : b[0] >= 0xe0 && b[0] <= 0xef ? 3
                    : b[0] >= 0xf0 && b[0] <= 0xf4 ? 4
                                                   : 0;
    for (size_t i = 1; i < length; i++) {
        if ((b[i] & 0xc0) != 0x80) /* a '\0' too */
            return 0;
    }
    bool too_long = (b[0] == 0xe0 && b[1] < 0xa0) || (b[0] == 0xf0 && b[1] < 0x90);
    bool none = (b[0] == 0xed && b[1] > 0x9f) || (b[0] == 0xf4 && b[1] > 0x8f);
    return too_long || none ? 0 : length;
}

void tam_json_text(tam_text *out, const char *key, const char *value) {
    char escaped[8];
    tam_json_put(out, key, "\"");
    for (const char *c = value; *c;) {
        size_t length = character(c);
        bool control = (unsigned char)*c < 0x20, quoted = *c == '"' || *c == '\\';
        snprintf(escaped, sizeof escaped, control ? "\\u%04x" : "\\%c", (unsigned char)*c);
        if (length == 0)
            tam_text_put(out, "\xef\xbf\xbd"); /* U+FFFD, as readers would show it */
        else if (control || quoted)
            tam_text_put(out, escaped);
        else
            json_add(out, c, length);
        c += length ? length : 1;
    }
    tam_text_put(out, "\"");
}
