/* SPDX-License-Identifier: MIT
 *
 * Describes what is special about a case, in one line.
 */
#include "tests/fuzz/property/property.h"

#include <stdarg.h>
#include <stdio.h>

typedef struct page {
    char *text;
    size_t size, used;
} page;

static void say(page *p, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void say(page *p, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(p->text + p->used, p->size - p->used, format, arguments);
    va_end(arguments);
    p->used += (size_t)(length > 0 ? length : 0);
    p->used = p->used < p->size ? p->used : p->size - 1;
}

static void say_number(page *p, const char *name, double value, double usual) {
    if (value != usual)
        say(p, " %s=%.9g", name, value);
}

static void describe_steps(page *p, const fuzz_case *c) {
    static const char *const events[] = {"",     "set_density", "save and restore",
                                         "file", "residual",    "misuse"};
    for (uint32_t s = 0; s < c->nsteps; s++) {
        const step_plan *plan = &c->steps[s];
        if (plan->micros)
            say(p, "; step %u: %u micro-batches", s, plan->micros);
        if (plan->event)
            say(p, "; step %u%s: %s", s, plan->late ? " late" : "", events[plan->event]);
        if (plan->event == EVENT_DENSITY)
            say(p, " %.9g", plan->density);
    }
}

static void describe_config(page *p, const fuzz_case *c) {
    const tamis_reducer_config *o = &c->config;
    say(p, ", density=%.17g", o->density);
    say_number(p, "density_max", o->density_max, 0.0);
    say(p, " %s %s nonfinite=%d", o->output ? "sparse" : "dense-output", o->op ? "sum" : "mean",
        (int)o->nonfinite);
    say_number(p, "block", o->block, 0);
    say_number(p, "overselect", o->overselect, 0.0);
    say_number(p, "capacity", o->capacity, 0.0);
    say_number(p, "rows_capacity", o->rows_capacity, 0);
    say_number(p, "threshold", o->threshold, 0.0);
    say_number(p, "threads", o->threads, 1);
    say_number(p, "grad_dtype", o->grad_dtype, 0);
    say_number(p, "bucket_length", (double)o->bucket_length, 0);
    say_number(p, "bucket_budget", o->bucket_budget, 0);
    say_number(p, "worker", o->worker, 0);
    say_number(p, "link_latency_us", o->link_latency_us, 0.0);
    say_number(p, "link_gbit", o->link_gbit, 0.0);
    say_number(p, "index_codec", o->index_codec, 0);
    say_number(p, "value_codec", o->value_codec, 0);
    say_number(p, "sum_codec", o->sum_codec, 0);
    say_number(p, "ranks_per_node", o->ranks_per_node, 0);
    say_number(p, "residual_decay", o->residual_decay, 1.0);
    if (c->updates)
        say(p, " update={rule=%d beta1=%g beta2=%g epsilon=%g scale=%.9g norm_matching=%g}",
            (int)c->update.rule, c->update.beta1, c->update.beta2, c->update.epsilon,
            c->update.scale, c->update.norm_matching);
}

void fuzz_describe(const fuzz_case *c, char *text, size_t size) {
    static const char *const kinds[] = {"whole", "real", "hard"};
    page p = {text, size, 0};
    say(&p, "%s, ranks=%u%s, segments", c->scheme, c->nranks,
        c->callback ? c->messages ? " (messages)" : " (callback)" : "");
    for (uint32_t s = 0; s < c->nsegments; s++) {
        if (c->rows[s])
            say(&p, " %ux%u", c->lengths[s] / c->rows[s], c->rows[s]);
        else
            say(&p, " %u", c->lengths[s]);
    }
    describe_config(&p, c);
    say(&p, ", steps=%u %s", c->nsteps, kinds[c->data]);
    if (c->data == DATA_HARD)
        say(&p, " (one in %u of %#x)", c->bad, c->specials);
    say(&p, "%s%s%s", c->quiet ? " quiet" : "", c->scaled ? " scaled" : "",
        c->ordered ? " ordered" : "");
    describe_steps(&p, c);
    if (c->odd)
        say(&p, "; rank %u is odd (%u)", c->odd_rank, c->odd);
}
