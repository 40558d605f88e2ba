/* SPDX-License-Identifier: MIT */
#include "lib/base/options.h"

#include "lib/base/base.h"

#include <stdio.h>
#include <tamis/lists.h>

#define ROW(name, kind, scope, low, high, other, range, help)                                      \
    {#name, TAM_OPTION_##kind, TAM_SCOPE_##scope, FIELD(name), low, high, other, range, help},
#define FIELD(name) offsetof(tamis_reducer_config, name)
const tam_option tam_config_options[TAM_CONFIG_COUNT] = {TAM_CONFIG_OPTIONS(ROW)};
#undef FIELD
#define FIELD(name) offsetof(tamis_update, name)
const tam_option tam_update_options[TAM_UPDATE_COUNT] = {TAM_UPDATE_OPTIONS(ROW)};

static double real_at(const void *field) {
    double real;
    memcpy(&real, field, sizeof real);
    return real;
}

static uint32_t options_word_at(const void *field) {
    uint32_t word;
    memcpy(&word, field, sizeof word);
    return word;
}

/* A WORD is an enum: as large as an int, and never negative. */
static double number_of(const tam_option *o, const void *fields) {
    const char *field = (const char *)fields + o->offset;
    return o->kind == TAM_OPTION_REAL ? real_at(field) : (double)options_word_at(field);
}

static tamis_status options_check(const char *whose, const tam_option *o, const void *fields) {
    if (o->kind == TAM_OPTION_U64)
        return TAMIS_OK;
    double value = number_of(o, fields);
    if (tam_within(value, o->low, o->high) || value == o->other)
        return TAMIS_OK;
    return tam_fail(TAMIS_E_ARGUMENT, "%s.%s is %.9g, not %s%s", whose, o->name, value,
                    o->kind == TAM_OPTION_WORD ? "one of " : "", o->range);
}

tamis_status tam_options_check(const char *whose, const tam_option *rows, uint32_t count,
                               const void *fields) {
    for (uint32_t i = 0; i < count; i++)
        TAM_TRY(options_check(whose, &rows[i], fields));
    return TAMIS_OK;
}

uint64_t tam_option_bits(const tam_option *o, const void *fields) {
    const char *field = (const char *)fields + o->offset;
    uint64_t bits = 0;
    if (o->kind == TAM_OPTION_REAL)
        return tam_bits64(real_at(field) + 0.0); /* no negative zeros */
    if (o->kind != TAM_OPTION_U64)
        return options_word_at(field);
    memcpy(&bits, field, sizeof bits);
    return bits;
}

/* The index-th of "a|b|c". @return false: index is past the end */
static bool find_word(const char *words, uint64_t index, char *text, size_t size) {
    for (; index > 0 && words; index--) {
        words = strchr(words, '|');
        words = words ? words + 1 : NULL;
    }
    if (!words)
        return false;
    snprintf(text, size, "%.*s", (int)strcspn(words, "|"), words);
    return true;
}

void tam_option_print(const tam_option *o, uint64_t bits, char *text, size_t size) {
    if (o->kind == TAM_OPTION_REAL)
        snprintf(text, size, "%.9g", tam_double(bits));
    else if (o->kind != TAM_OPTION_WORD || !find_word(o->range, bits, text, size))
        snprintf(text, size, "%llu", (unsigned long long)bits);
}

/* -- public ----------------------------------------------------------------------------------- */

static const char *const kinds[] = {
    [TAM_OPTION_REAL] = "double",
    [TAM_OPTION_U32] = "uint32_t",
    [TAM_OPTION_U64] = "uint64_t",
    [TAM_OPTION_WORD] = "word",
};

static const char *const scopes[] = {
    [TAM_SCOPE_RANK] = "rank",
    [TAM_SCOPE_RANKS] = "ranks",
    [TAM_SCOPE_STATE] = "state",
};

static double fallback_of(const tam_option *o, const void *fields) {
    uint64_t bits = tam_option_bits(o, fields);
    return o->kind == TAM_OPTION_REAL ? tam_double(bits) : (double)bits;
}

int tamis_option_list(size_t index, tamis_option *out) {
    static const tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    static const tamis_update update = TAMIS_UPDATE_INIT;
    if (!out || index >= TAM_CONFIG_COUNT + TAM_UPDATE_COUNT)
        return 0;
    bool of_config = index < TAM_CONFIG_COUNT;
    const tam_option *o =
        of_config ? &tam_config_options[index] : &tam_update_options[index - TAM_CONFIG_COUNT];
    const tamis_option own = {
        .size = sizeof own,
        .of = of_config ? "config" : "update",
        .name = o->name,
        .offset = o->offset,
        .kind = kinds[o->kind],
        .range = o->range,
        .same = scopes[o->scope],
        .help = o->help,
        .fallback = fallback_of(o, of_config ? (const void *)&config : &update),
    };
    return tam_struct_list("tamis_option", &own, sizeof own, out);
}
