/* SPDX-License-Identifier: MIT */
#include "lib/policy/plan.h"

#include "lib/base/numbers.h"
#include "lib/base/tree.h"

#include <stdio.h>
#include <string.h>

enum {
    USUAL = 8,   /* radix; and up to so many ranks all with all */
    WIDEST = 32, /* of the radices that are tried */
    FUSED = 1024 /* bytes that cost less than a latency on any network: 5 us at 1 Gbit/s, radix 8 */
};

uint32_t tam_plan_nvranks(uint32_t nranks) {
    uint32_t vranks = 1;
    while (vranks < nranks && vranks <= TAM_PLAN_RANKS_MAX)
        vranks *= 2;
    return vranks;
}

uint32_t tam_plan_vrank(const tam_plan *plan, uint32_t rank) {
    return tam_tree_vrank(rank, tam_plan_own(plan));
}

uint32_t tam_plan_rank(const tam_plan *plan, uint32_t vrank) {
    return vrank < tam_plan_own(plan) ? vrank : (vrank + tam_plan_own(plan)) / 2;
}

uint32_t tam_plan_vranks_of(const tam_plan *plan, uint32_t rank, uint32_t vranks[2]) {
    vranks[0] = tam_plan_vrank(plan, rank);
    vranks[1] = vranks[0] + 1;
    return rank < tam_plan_own(plan) ? 1 : 2;
}

bool tam_plan_is_primary(const tam_plan *plan, uint32_t vrank) {
    return vrank < tam_plan_own(plan) || vrank % 2 == 0;
}

/* -- plans ------------------------------------------------------------------------------------ */

static tam_plan plan_without_stages(uint32_t nranks) {
    return (tam_plan){.nranks = nranks, .nvranks = tam_plan_nvranks(nranks)};
}

/* Stages that multiply to `size`. */
static void add_stages(tam_plan *plan, uint32_t size, uint32_t radix) {
    while (size > 1 && plan->nstages < TAM_PLAN_STAGES) {
        uint32_t next = tam_min_u32(radix, size);
        plan->radix[plan->nstages++] = next;
        size /= next;
    }
}

tam_plan tam_plan_linear(uint32_t nranks) {
    tam_plan plan = plan_without_stages(nranks);
    add_stages(&plan, plan.nvranks, plan.nvranks);
    return plan;
}

/* Virtual ranks of a node: the virtual ranks of 2^a ranks are a whole subtree if 2^a divides
 * nranks. */
static uint32_t vranks_inside(uint32_t nranks, uint32_t ranks_per_node) {
    uint32_t g = ranks_per_node;
    bool whole = g > 1 && (g & (g - 1)) == 0 && nranks % g == 0;
    return whole ? g : 1;
}

tam_plan tam_plan_make(uint32_t nranks, uint32_t ranks_per_node, uint32_t radix) {
    tam_plan plan = plan_without_stages(nranks);
    uint32_t inside = vranks_inside(nranks, ranks_per_node);
    add_stages(&plan, inside, radix);
    add_stages(&plan, plan.nvranks / inside, radix);
    return plan;
}

static tam_plan two_levels(uint32_t nranks, uint32_t ranks_per_node) {
    tam_plan plan = plan_without_stages(nranks);
    uint32_t inside = vranks_inside(nranks, ranks_per_node);
    add_stages(&plan, inside, inside);
    add_stages(&plan, plan.nvranks / inside, plan.nvranks / inside);
    return plan;
}

void tam_plan_candidates(uint32_t nranks, uint32_t ranks_per_node,
                         tam_plan out[TAM_PLAN_CANDIDATES]) {
    tam_plan linear = tam_plan_linear(nranks), levels = two_levels(nranks, ranks_per_node);
    *out++ = linear;
    *out++ = tam_plan_fits(&levels) ? levels : linear;
    for (uint32_t radix = 2; radix <= WIDEST; radix *= 2)
        *out++ = tam_plan_make(nranks, ranks_per_node, radix);
}

tam_plan tam_plan_usual(uint32_t nranks, uint32_t ranks_per_node) {
    tam_plan plan = tam_plan_make(nranks, ranks_per_node, USUAL);
    plan.fused_bytes = FUSED;
    return nranks <= USUAL ? tam_plan_linear(nranks) : plan;
}

bool tam_plan_valid(const tam_plan *plan, uint32_t nranks) {
    uint32_t size = tam_plan_nvranks(nranks);
    if (nranks < 1 || nranks > TAM_PLAN_RANKS_MAX || plan->nranks != nranks ||
        plan->nvranks != size || plan->nstages > TAM_PLAN_STAGES)
        return false;
    for (uint32_t i = 0; i < plan->nstages; i++) {
        uint32_t radix = plan->radix[i];
        if (radix < 2 || (radix & (radix - 1)) != 0)
            return false;
        size /= radix; /* 0 if they are too many */
    }
    for (uint32_t i = plan->nstages; i < TAM_PLAN_STAGES; i++)
        if (plan->radix[i] != 0)
            return false;
    return size == 1;
}

bool tam_plan_fits(const tam_plan *plan) {
    for (uint32_t i = 0; i < plan->nstages; i++) {
        uint32_t levels = 1;
        for (uint32_t radix = plan->radix[i]; radix > 1; radix /= 2)
            levels++;
        if (levels * (i > 0 && plan->nvranks != plan->nranks ? 2 : 1) > TAM_PLAN_SUMS)
            return false;
    }
    return true;
}

/* A number without leading zeros, up to TAM_PLAN_RANKS_MAX. @return what follows; NULL: none */
static const char *read_radix(const char *at, uint32_t *radix) {
    *radix = 0;
    if (*at == '0')
        return NULL;
    for (; *at >= '0' && *at <= '9'; at++) {
        *radix = 10 * *radix + (uint32_t)(*at - '0');
        if (*radix > TAM_PLAN_RANKS_MAX)
            return NULL;
    }
    return *radix > 0 ? at : NULL;
}

static bool parse_fused(const char *at, tam_plan *plan) {
    uint32_t bytes = 0;
    if (*at == '\0' || (*at == '0' && at[1] != '\0')) /* texts that are compared are short */
        return false;
    for (; *at >= '0' && *at <= '9' && bytes <= TAM_PLAN_FUSED_MOST; at++)
        bytes = 10 * bytes + (uint32_t)(*at - '0');
    plan->fused_bytes = bytes;
    return *at == '\0' && bytes <= TAM_PLAN_FUSED_MOST;
}

static bool parse_radices(const char *at, tam_plan *plan) {
    if (plan->nranks == 1)
        return strcmp(at, "1") == 0;
    while ((at = read_radix(at, &plan->radix[plan->nstages++])) != NULL) {
        if (*at == '\0')
            return true;
        if (*at == '/')
            return parse_fused(at + 1, plan);
        if (*at++ != 'x' || plan->nstages == TAM_PLAN_STAGES)
            return false;
    }
    return false;
}

bool tam_plan_parse(const char *text, uint32_t nranks, uint32_t ranks_per_node, tam_plan *out) {
    tam_plan plan = plan_without_stages(nranks);
    if (strcmp(text, "usual") == 0)
        plan = tam_plan_usual(nranks, ranks_per_node);
    else if (strcmp(text, "linear") == 0)
        plan = tam_plan_linear(nranks);
    else if (!parse_radices(text, &plan))
        return false;
    if (!tam_plan_valid(&plan, nranks) || !tam_plan_fits(&plan))
        return false;
    *out = plan;
    return true;
}

const char *tam_plan_text(const tam_plan *plan, char *text, size_t size) {
    size_t at = 0;
    if (size > 0)
        snprintf(text, size, "1");
    for (uint32_t i = 0; i < plan->nstages && at < size; i++) {
        int wrote = snprintf(text + at, size - at, i > 0 ? "x%u" : "%u", plan->radix[i]);
        at += wrote > 0 ? (size_t)wrote : 0;
    }
    return text;
}

const char *tam_plan_whole_text(const tam_plan *plan, char *text, size_t size) {
    tam_plan_text(plan, text, size);
    size_t at = strlen(text);
    if (plan->nstages > 1 && plan->fused_bytes > 0)
        snprintf(text + at, size - at, "/%u", plan->fused_bytes);
    return text;
}

/* -- nodes ------------------------------------------------------------------------------------ */

/* O(P) for ranks in nodes, O(P^2) where the ranks of hosts are mixed. */
static bool returns(const uint64_t *hosts, uint32_t nranks, uint32_t from, uint64_t host) {
    for (uint32_t r = from; r < nranks; r++) {
        if (hosts[r] == host)
            return true;
    }
    return false;
}

uint32_t tam_plan_nodes(const uint64_t *hosts, uint32_t nranks, bool *scattered) {
    uint32_t each = 0, begin = 0;
    bool even = true;
    *scattered = false;
    for (uint32_t r = 1; r <= nranks; r++) {
        if (r < nranks && hosts[r] == hosts[begin])
            continue;
        each = each ? each : r - begin;
        even = even && r - begin == each;
        *scattered = *scattered || returns(hosts, nranks, r, hosts[begin]);
        begin = r;
    }
    return even && !*scattered && each > 0 ? each : 1;
}
