/* SPDX-License-Identifier: MIT */
#include "lib/energy/log/log_text.h"

#include <stdio.h>
#include <stdlib.h>

void tam_text_clear(tam_text *text) {
    text->length = 0;
    text->incomplete = false;
}

void tam_text_free(tam_text *text) {
    tam_free(text->bytes);
    *text = (tam_text){0};
}

static bool make_room(tam_text *text, size_t length) {
    enum { FIRST = 4096 };
    size_t room = text->room ? text->room : FIRST;
    if (length <= text->room - text->length)
        return true;
    while (length > room - text->length)
        room *= 2;
    char *bytes = tam_alloc(room);
    if (!bytes)
        return false;
    if (text->length)
        memcpy(bytes, text->bytes, text->length);
    tam_free(text->bytes);
    text->bytes = bytes;
    text->room = room;
    return true;
}

void tam_text_add(tam_text *text, const char *bytes, size_t length) {
    if (length == 0 || text->incomplete)
        return;
    if (!make_room(text, length)) {
        text->incomplete = true;
        return;
    }
    memcpy(text->bytes + text->length, bytes, length);
    text->length += length;
}

void tam_text_put(tam_text *text, const char *words) {
    tam_text_add(text, words, strlen(words));
}

void tam_text_format(tam_text *text, const char *format, ...) {
    char piece[256];
    va_list args;
    va_start(args, format);
    vsnprintf(piece, sizeof piece, format, args);
    va_end(args);
    tam_text_put(text, piece);
}

void tam_text_plain(char *number) {
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

void tam_text_number(tam_text *text, double value) {
    char number[64];
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(number, sizeof number, "%.*g", digits, value);
        if (strtod(number, NULL) == value) /* in the locale in which it was written */
            break;
    }
    tam_text_plain(number);
    tam_text_put(text, number);
}

void tam_text_micro(tam_text *text, int64_t millionths) {
    uint64_t size = millionths < 0 ? -(uint64_t)millionths : (uint64_t)millionths;
    char number[32];
    int length =
        snprintf(number, sizeof number, "%s%llu.%06llu", millionths < 0 ? "-" : "",
                 (unsigned long long)(size / 1000000), (unsigned long long)(size % 1000000));
    while (number[length - 1] == '0')
        length--;
    if (number[length - 1] == '.')
        length--;
    tam_text_add(text, number, (size_t)length);
}

size_t tam_text_utf8(const char *bytes) {
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
