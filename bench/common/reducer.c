/* SPDX-License-Identifier: MIT */
#include "bench/common/reducer.h"

#include <stdlib.h>
#include <string.h>
#include <tamis/lists.h>

#include "bench/common/options.h"

/* `name`: "block" or "update.beta2" */
static int find_option(const char *name, tamis_option *out) {
    const char *of = "config";
    if (strncmp(name, "update.", 7) == 0) {
        of = "update";
        name += 7;
    }
    for (size_t i = 0; tamis_option_list(i, out); i++) {
        if (strcmp(out->of, of) == 0 && strcmp(out->name, name) == 0)
            return 1;
    }
    return 0;
}

/* Index of a word in "a|b|c"; -1: it is not among them. */
static int find_word(const char *words, const char *word) {
    size_t length = strlen(word);
    for (int i = 0; words; i++) {
        size_t here = strcspn(words, "|");
        if (here == length && strncmp(words, word, length) == 0)
            return i;
        words = words[here] ? words + here + 1 : NULL;
    }
    return -1;
}

static void set_field(const tamis_option *o, const char *value, char *field) {
    char *end = NULL;
    double real = strtod(value, &end);
    unsigned long long whole = strtoull(value, NULL, 10);
    uint32_t narrow = (uint32_t)whole;
    int word = find_word(o->range, value);
    if (strcmp(o->kind, "word") == 0) {
        if (word < 0)
            bench_usage("--set %s=%s: the value must be one of %s", o->name, value, o->range);
        memcpy(field, &word, sizeof word);
        return;
    }
    if (end == value || *end)
        bench_usage("--set %s=%s: the value is not a number", o->name, value);
    if (strcmp(o->kind, "double") == 0)
        memcpy(field, &real, sizeof real);
    else if (strspn(value, "0123456789") < strlen(value))
        bench_usage("--set %s=%s: the value is not a whole number", o->name, value);
    else if (strcmp(o->kind, "uint64_t") == 0)
        memcpy(field, &whole, sizeof(uint64_t));
    else if (whole != narrow)
        bench_usage("--set %s=%s: the value does not fit in 32 bits", o->name, value);
    else
        memcpy(field, &narrow, sizeof narrow);
}

/* Set one "name=value". Writes to `pair`. */
static void set_one(char *pair, const char *own, tamis_reducer_config *config,
                    tamis_update *update) {
    tamis_option option = TAMIS_OPTION_INIT;
    char *equals = strchr(pair, '=');
    if (!equals)
        bench_usage("--set %s: give the option of a reducer as name=value", pair);
    *equals = '\0';
    if (!find_option(pair, &option))
        bench_usage("--set %s: a reducer has no such option; see docs/options.md", pair);
    if (find_word(own, pair) >= 0)
        bench_usage("--set %s: the program sets this option itself; --help lists its options",
                    pair);
    char *whole = strcmp(option.of, "config") == 0 ? (char *)config : (char *)update;
    if (!whole)
        bench_usage("--set %s: there is no update in this run", pair);
    set_field(&option, equals + 1, whole + option.offset);
}

/* Whether the next pair has a name that was given before. */
static bool given_before(const char *text, const char *pair, size_t at) {
    size_t name = strcspn(pair, "=") + 1;
    for (const char *p = text; p < text + at; p += strcspn(p, ",") + 1) {
        if (strncmp(p, pair, name) == 0)
            return true;
    }
    return false;
}

void bench_reducer_set(const char *text, const char *own, tamis_reducer_config *config,
                       tamis_update *update) {
    char *copy = text ? strdup(text) : NULL, *rest = NULL;
    char *pair = copy ? strtok_r(copy, ",", &rest) : NULL;
    for (; pair; pair = strtok_r(NULL, ",", &rest)) {
        if (given_before(text, pair, (size_t)(pair - copy)))
            bench_usage("--set %s: it is given twice", pair);
        set_one(pair, own, config, update);
    }
    free(copy);
}

void bench_reducer_check(const char *text, const char *own) {
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    tamis_update update = TAMIS_UPDATE_INIT;
    bench_reducer_set(text, own, &config, &update);
}
