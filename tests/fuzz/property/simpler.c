/* SPDX-License-Identifier: MIT
 *
 * Simplifies a case, one change at a time, as long as it still fails.
 */
#include "tests/fuzz/property/property.h"

#include <string.h>

static void drop_segment(fuzz_case *c, uint32_t at) {
    if (c->nsegments < 2 || at >= c->nsegments)
        return;
    c->nsegments--;
    memmove(&c->lengths[at], &c->lengths[at + 1], (c->nsegments - at) * sizeof c->lengths[0]);
    memmove(&c->rows[at], &c->rows[at + 1], (c->nsegments - at) * sizeof c->rows[0]);
    c->lengths[c->nsegments] = c->rows[c->nsegments] = 0;
}

static void drop_step(fuzz_case *c, uint32_t at) {
    if (c->nsteps < 2 || at >= c->nsteps)
        return;
    c->nsteps--;
    memmove(&c->steps[at], &c->steps[at + 1], (c->nsteps - at) * sizeof c->steps[0]);
    memset(&c->steps[c->nsteps], 0, sizeof c->steps[0]);
}

static void shorten(fuzz_case *c, uint32_t at) {
    uint32_t row = c->rows[at] ? c->rows[at] : 1, rows = c->lengths[at] / row;
    if (rows > 1)
        c->lengths[at] = (rows + 1) / 2 * row;
}

static void make_usual(fuzz_case *c, uint32_t what) {
    const tamis_reducer_config usual = TAMIS_REDUCER_CONFIG_INIT;
    tamis_reducer_config *o = &c->config;
    switch (what) {
    case 0:
        c->nsteps = (c->nsteps + 1) / 2;
        memset(&c->steps[c->nsteps], 0, (MOST_STEPS - c->nsteps) * sizeof c->steps[0]);
        break;
    case 1:
        c->nranks = c->nranks > 1 ? c->nranks / 2 : 1;
        break;
    case 2:
        c->nranks = c->nranks > 1 ? c->nranks - 1 : 1;
        break;
    case 3:
        o->threads = 1, o->worker = usual.worker;
        break;
    case 4:
        o->index_codec = usual.index_codec;
        break;
    case 5:
        o->block = 0, o->overselect = 0.0;
        break;
    case 6:
        o->capacity = 0.0, o->rows_capacity = 0;
        break;
    case 7:
        o->threshold = 0.0;
        break;
    case 8:
        o->residual_decay = 1.0;
        break;
    case 9:
        o->bucket_length = 0;
        break;
    case 10:
        o->ranks_per_node = 0;
        break;
    case 11:
        c->updates = false;
        break;
    case 12:
        c->update.scale = 1.0;
        c->update.norm_matching = 0.0;
        break;
    case 13:
        o->grad_dtype = TAMIS_DTYPE_FLOAT32;
        o->value_codec = o->sum_codec = TAMIS_VALUE_AUTO;
        break;
    case 14:
        c->data = c->data == DATA_HARD ? DATA_REAL : DATA_WHOLE;
        break;
    case 15:
        c->quiet = 0, c->scaled = false;
        break;
    case 16:
        c->callback = false, c->ordered = true;
        break;
    case 17:
        o->op = TAMIS_OP_SUM, o->output = TAMIS_OUTPUT_DENSE;
        break;
    case 18:
        o->density_max = 0.0, o->bucket_budget = usual.bucket_budget;
        break;
    case 19:
        memset(c->rows, 0, sizeof c->rows);
        break;
    case 20:
        c->specials =
            c->specials & (c->specials - 1) ? c->specials & (c->specials - 1) : c->specials;
        break;
    default:
        c->bad = c->bad < 4096 ? 2 * c->bad : c->bad;
        break;
    }
}

bool fuzz_simplify(const fuzz_case *of, uint32_t way, fuzz_case *out, bool *changed) {
    enum { USUAL = 22 };
    *out = *of;
    if (way < USUAL)
        make_usual(out, way);
    else if ((way -= USUAL) < MOST_SEGMENTS)
        drop_segment(out, way);
    else if ((way -= MOST_SEGMENTS) < MOST_SEGMENTS)
        shorten(out, way);
    else if ((way -= MOST_SEGMENTS) < MOST_STEPS)
        drop_step(out, way);
    else if ((way -= MOST_STEPS) < MOST_STEPS)
        out->steps[way].event = EVENT_NONE;
    else if ((way -= MOST_STEPS) < MOST_STEPS)
        out->steps[way].micros = 0;
    else
        return false;
    if (out->config.ranks_per_node > 1 && out->nranks % out->config.ranks_per_node != 0)
        *out = *of;
    *changed = memcmp(out, of, sizeof *out) != 0;
    return true;
}
