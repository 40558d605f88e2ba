/* SPDX-License-Identifier: MIT
 *
 * Every scheme there is.
 */
#include "tests/support/schemes.h"
#include <stdio.h>
#include <string.h>
#include <tamis/lists.h>
#include <tamis/tamis.h>

static bool is(const char *text, const char *word) {
    return text && strcmp(text, word) == 0;
}

static void fill(const tamis_scheme_info *info, scheme_case *out) {
    *out = (scheme_case){.dense = false};
    snprintf(out->name, sizeof out->name, "%s", info->name);
    out->dense = is(info->exchange, "dense");
    out->exclusive = is(info->ownership, "cyclic") || is(info->ownership, "rotate") ||
                     is(info->ownership, "leader") || is(info->ownership, "balanced");
    out->whole = out->dense || is(info->exchange, "quantized");
    out->all = is(info->ownership, "all") && !out->whole;
    out->counted = is(info->threshold, "exact") || is(info->threshold, "predict");
    out->by_segment =
        out->counted && is(info->budget, "norm") && is(info->threshold, "exact") && !out->exclusive;
    out->all_at_once = out->whole || (out->counted && !out->by_segment &&
                                      (out->all || is(info->exchange, "union")));
}

bool scheme_preset(size_t index, scheme_case *out) {
    tamis_scheme_info info = TAMIS_SCHEME_INFO_INIT;
    for (size_t i = 0; tamis_scheme_list(i, &info); i++) {
        if (is(info.exchange, "auto") && i <= index)
            index++;
    }
    if (!tamis_scheme_list(index, &info))
        return false;
    fill(&info, out);
    return true;
}

bool scheme_combination(size_t index, scheme_case *out) {
    static const char *const ownership[] = {"all",    "rotate", "bins",
                                            "cyclic", "leader", "balanced"};
    static const char *const budget[] = {"global", "norm"};
    static const char *const threshold[] = {"exact", "step", "predict", "fixed", "sage", "reuse"};
    static const char *const exchange[] = {"union", "pairs", "balanced-pairs"};
    char name[sizeof out->name];
    if (index >= 6 * 2 * 6 * 3)
        return false;
    tamis_scheme_info info = {.name = name,
                              .ownership = ownership[index / 36],
                              .budget = budget[index / 18 % 2],
                              .threshold = threshold[index / 3 % 6],
                              .exchange = exchange[index % 3]};
    snprintf(name, sizeof name, "%s+%s+%s+%s", info.ownership, info.budget, info.threshold,
             info.exchange);
    fill(&info, out);
    return true;
}
