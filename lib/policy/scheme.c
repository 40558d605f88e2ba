/* SPDX-License-Identifier: MIT */
#include "lib/policy/scheme.h"

#include <stdio.h>

static const char *const ownerships[] = {"all",    "rotate",   "bins", "cyclic",
                                         "leader", "balanced", NULL};
static const char *const budgets[] = {"global", "norm", NULL};
static const char *const thresholds[] = {"exact", "step",  "predict", "fixed",
                                         "sage",  "reuse", NULL};
#define WORD(NAME, name, scheme_word) scheme_word,
static const char *const exchanges[] = {TAM_EXCHANGES(WORD) "auto", NULL};

#define SIZE sizeof(tamis_scheme_info)
static const tamis_scheme_info presets[] = {
    {SIZE, "tamis", "cyclic", "norm", "predict", "union",
     "this library; exclusive selection of MiCRO, budgets of DEFT"},
    {SIZE, "dense", "all", "global", "exact", "dense", "all-reduce of everything, no residual"},
    {SIZE, "topk", "all", "global", "exact", "union",
     "Top-k with error feedback (Aji and Heafield, EMNLP 2017), reduced at the union"},
    {SIZE, "cltk", "leader", "global", "exact", "union",
     "CLT-k of ScaleCom (Chen et al., NeurIPS 2020, arXiv 2104.11125)"},
    {SIZE, "threshold", "all", "global", "fixed", "union",
     "hard threshold (Sahu et al., NeurIPS 2021, arXiv 2108.00951), reduced at the union"},
    {SIZE, "sage", "all", "global", "sage", "union",
     "SAGE (Yoon, Jeong and Oh, Journal of Supercomputing, 2023), reduced at the union"},
    {SIZE, "deft", "bins", "norm", "exact", "union",
     "DEFT (Yoon and Oh, ICPP 2023, arXiv 2307.03500)"},
    {SIZE, "micro", "rotate", "global", "step", "union",
     "MiCRO (Yoon and Oh, HiPC 2023, arXiv 2310.00967)"},
    {SIZE, "exdyna", "balanced", "global", "step", "union",
     "ExDyna (Yoon and Oh, CCGrid 2024, arXiv 2402.13781)"},
    {SIZE, "oktopk", "all", "global", "reuse", "balanced-pairs",
     "Ok-Topk (Li and Hoefler, PPoPP 2022, arXiv 2201.07598)"},
    {SIZE, "tamis-update", "cyclic", "global", "predict", "union",
     "tamis with one threshold for all layers, for update mode (docs/fidelity.md)"},
    {SIZE, "quantized", "all", "global", "exact", "quantized",
     "every element in few bits, with error feedback (Seide et al., Interspeech 2014)"},
    {SIZE, "auto", "cyclic", "norm", "predict", "auto",
     "tamis or dense, bucket by bucket, whichever should be faster (docs/exchange.md)"},
};

enum { PRESETS = sizeof presets / sizeof presets[0] };

int tamis_scheme_list(size_t index, tamis_scheme_info *out) {
    if (index >= PRESETS || !out)
        return 0;
    return tam_struct_list("tamis_scheme_info", &presets[index], SIZE, out);
}

/* Index of the word in the list, or -1. */
static int look_up(const char *const *list, const char *word, size_t length) {
    for (int i = 0; list[i]; i++) {
        if (strlen(list[i]) == length && strncmp(list[i], word, length) == 0)
            return i;
    }
    return -1;
}

/* What one of the four words may be. */
typedef struct policy {
    const char *name;
    const char *const *words;
} policy;

static const policy policies[] = {{"ownership", ownerships},
                                  {"budget", budgets},
                                  {"threshold", thresholds},
                                  {"exchange", exchanges}};

/* "the exchange (union, pairs, ...)" */
static const char *scheme_describe(const policy *p, char *text, size_t size) {
    size_t at = (size_t)snprintf(text, size, "the %s (", p->name);
    for (int i = 0; p->words[i] && at < size; i++)
        at += (size_t)snprintf(text + at, size - at, "%s%s", i > 0 ? ", " : "", p->words[i]);
    if (at < size)
        snprintf(text + at, size - at, ")");
    return text;
}

static const char *list_presets(char *text, size_t size) {
    size_t at = 0;
    for (int i = 0; i < PRESETS && at < size; i++)
        at += (size_t)snprintf(text + at, size - at, "%s%s", i > 0 ? ", " : "", presets[i].name);
    return text;
}

static tamis_status refuse_word(const char *text, int i) {
    char names[320], words[192];
    return tam_fail(TAMIS_E_ARGUMENT,
                    "scheme \"%s\": neither a preset (%s) nor four policies joined by '+'; word %d "
                    "must be %s",
                    text, list_presets(names, sizeof names), i + 1,
                    scheme_describe(&policies[i], words, sizeof words));
}

static tamis_status parse_words(const char *text, tam_scheme *out) {
    int found[4];
    char words[192];
    const char *at = text;
    for (int i = 0; i < 4; i++) {
        size_t length = strcspn(at, "+");
        found[i] = look_up(policies[i].words, at, length);
        if (found[i] < 0)
            return refuse_word(text, i);
        if (i < 3 && at[length] == '\0')
            return tam_fail(TAMIS_E_ARGUMENT, "scheme \"%s\": word %d must be followed by %s", text,
                            i + 1, scheme_describe(&policies[i + 1], words, sizeof words));
        if (i == 3 && at[length] != '\0')
            return tam_fail(TAMIS_E_ARGUMENT,
                            "scheme \"%s\": nothing may follow word 4, the exchange", text);
        at += length + 1;
    }
    *out = (tam_scheme){(tam_ownership)found[0], (tam_budget)found[1], (tam_threshold)found[2],
                        (tam_exchange_kind)found[3]};
    return TAMIS_OK;
}

static bool names_rows(tam_scheme s) {
    return s.exchange == TAM_EXCHANGE_SPARSE_ROWS;
}

static bool bins_of_others(tam_scheme s) {
    return s.ownership == TAM_OWN_BINS &&
           (s.budget != TAM_BUDGET_NORM || s.threshold != TAM_THRESHOLD_EXACT);
}

static bool bins_of_pairs(tam_scheme s) {
    return s.ownership == TAM_OWN_BINS && s.exchange == TAM_EXCHANGE_PAIRS;
}

static bool threshold_by_norm(tam_scheme s) {
    return tam_scheme_by_threshold(s) && s.budget != TAM_BUDGET_GLOBAL;
}

static bool balanced_pairs_of_one(tam_scheme s) {
    return tam_scheme_balanced_pairs(s) && s.ownership != TAM_OWN_ALL;
}

static bool reuse_of_parts(tam_scheme s) {
    return s.threshold == TAM_THRESHOLD_REUSE && s.ownership != TAM_OWN_ALL;
}

static bool balanced_exactly(tam_scheme s) {
    return s.ownership == TAM_OWN_BALANCED && !tam_scheme_by_threshold(s);
}

static const struct refusal {
    const char *asked, *with, *why;
    bool (*holds)(tam_scheme s);
} refusals[] = {
    {"exchange dense", "custom policies", "it selects nothing; use the preset dense",
     tam_scheme_dense},
    {"exchange quantized", "custom policies", "it selects nothing; use the preset quantized",
     tam_scheme_whole},
    {"exchange rows", "custom policies",
     "it is only for segments that the layout marks (tamis_layout_set_rows)", names_rows},
    {"ownership bins", "a budget other than norm or a threshold other than exact",
     "bins are packed by the cost of exact norm budgets; use bins+norm+exact", bins_of_others},
    {"ownership bins", "exchange pairs",
     "groups that are taken whole are not sent, so there are no pairs of them; use union",
     bins_of_pairs},
    {"threshold step, fixed, sage or reuse", "budget norm",
     "there is one threshold for the whole vector; use budget global", threshold_by_norm},
    {"exchange balanced-pairs", "an ownership other than all",
     "it sums what several ranks select in one region; use ownership all", balanced_pairs_of_one},
    {"threshold reuse", "an ownership other than all",
     "the threshold of one part says nothing about the next; use ownership all", reuse_of_parts},
    {"ownership balanced", "threshold exact or predict",
     "parts are balanced by the counts that a threshold yields, and this count is known "
     "beforehand; use step, fixed or sage",
     balanced_exactly},
};

enum { REFUSALS = sizeof refusals / sizeof refusals[0] };

int tam_scheme_refusal(size_t index, tamis_refusal *out) {
    if (index >= REFUSALS)
        return 0;
    const struct refusal *one = &refusals[index];
    const tamis_refusal own = {sizeof own, "tamis_reducer_create", one->asked, one->with, one->why};
    return tam_struct_list("tamis_refusal", &own, sizeof own, out);
}

static tamis_status scheme_check(const char *text, tam_scheme s) {
    for (int i = 0; i < REFUSALS; i++) {
        const struct refusal *one = &refusals[i];
        if (one->holds(s))
            return tam_fail(TAMIS_E_UNSUPPORTED, "scheme \"%s\": %s cannot be combined with %s: %s",
                            text, one->asked, one->with, one->why);
    }
    return TAMIS_OK;
}

tamis_status tam_scheme_parse(const char *text, tam_scheme *out) {
    if (!text)
        text = presets[0].name;
    for (size_t i = 0; i < PRESETS; i++) {
        const tamis_scheme_info *p = &presets[i];
        if (strcmp(p->name, text) != 0)
            continue;
        char words[64];
        snprintf(words, sizeof words, "%s+%s+%s+%s", p->ownership, p->budget, p->threshold,
                 p->exchange);
        return parse_words(words, out);
    }
    tam_scheme scheme;
    TAM_TRY(parse_words(text, &scheme));
    TAM_TRY(scheme_check(text, scheme));
    *out = scheme;
    return TAMIS_OK;
}

uint64_t tam_scheme_code(tam_scheme s) {
    return (uint64_t)s.ownership << 12 | (uint64_t)s.budget << 8 | (uint64_t)s.threshold << 4 |
           (uint64_t)s.exchange;
}

static const char *scheme_word(const char *const *list, uint64_t index) {
    for (uint64_t i = 0; list[i]; i++) {
        if (i == index)
            return list[i];
    }
    return "?";
}

void tam_scheme_print(uint64_t code, char *text, size_t size) {
    snprintf(text, size, "%s+%s+%s+%s", scheme_word(ownerships, code >> 12),
             scheme_word(budgets, code >> 8 & 15), scheme_word(thresholds, code >> 4 & 15),
             scheme_word(exchanges, code & 15));
}

const char *tam_scheme_exchange(tam_scheme s) {
    return scheme_word(exchanges, s.exchange);
}
