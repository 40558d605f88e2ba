/* SPDX-License-Identifier: MIT
 *
 * Creating a pipeline: check, allocate all memory, agree. Marks, and reading stages.
 */
#include "collectives/pipeline/pipeline.h"
#include "lib/policy/bubble.h"
#include "lib/base/fenv.h"

#include <float.h>
#include <stdio.h>

enum { STAGES_MAX = 1 << 14 }; /* keeps the sum of their lengths below 2^47 */

/* -- handshake -------------------------------------------------------------------------------- */

typedef struct creation {
    tam_handshake_header header;
    uint64_t version, nstages, micro_batches, density;
    uint64_t stage, length;
} creation;

_Static_assert(sizeof(creation) <= TAM_RECORD_BYTES, "a creation fits the records");

static const tam_handshake_field common[] = {
    {"library version", offsetof(creation, version), TAM_SHOWS_NUMBER},
    {"nstages", offsetof(creation, nstages), TAM_SHOWS_NUMBER},
    {"micro_batches", offsetof(creation, micro_batches), TAM_SHOWS_NUMBER},
    {"density", offsetof(creation, density), TAM_SHOWS_REAL},
};

static const creation *shown(const unsigned char *records, uint32_t rank) {
    return tam_handshake_record(records, rank);
}

/* A stage must have ranks, which must give the same length. */
static tamis_status check_stage(const unsigned char *records, uint32_t nranks, uint64_t stage) {
    char name[48];
    uint32_t first = nranks;
    snprintf(name, sizeof name, "length of stage %llu", (unsigned long long)stage);
    tam_handshake_field length = {name, offsetof(creation, length), TAM_SHOWS_NUMBER};
    for (uint32_t r = 0; r < nranks; r++) {
        if (shown(records, r)->stage != stage)
            continue;
        first = first < nranks ? first : r;
        TAM_TRY(tam_handshake_compare(records, first, r, &length));
    }
    if (first == nranks)
        return tam_fail(TAMIS_E_MISMATCH, "stage %llu of %llu has no rank",
                        (unsigned long long)stage, (unsigned long long)shown(records, 0)->nstages);
    return TAMIS_OK;
}

static tamis_status pipeline_judge(const unsigned char *records, uint32_t nranks) {
    TAM_TRY(tam_handshake_failure(records, nranks, "create its pipeline"));
    TAM_TRY(tam_handshake_same(records, nranks, common, sizeof common / sizeof common[0]));
    for (uint64_t s = 0; s < shown(records, 0)->nstages; s++)
        TAM_TRY(check_stage(records, nranks, s));
    return TAMIS_OK;
}

static void pipeline_describe(const tamis_pipeline_config *c, creation *out) {
    out->version = TAMIS_VERSION;
    out->nstages = c->nstages;
    out->micro_batches = c->micro_batches;
    out->density = tam_bits64(c->density);
    out->stage = c->stage;
    out->length = c->length;
}

/* -- creation --------------------------------------------------------------------------------- */

static tamis_status pipeline_check(const tamis_pipeline_config *c) {
    if (c->nstages == 0 || c->nstages > STAGES_MAX)
        return tam_fail(TAMIS_E_ARGUMENT, "tamis_pipeline_config.nstages is %u, not 1 to %d",
                        c->nstages, STAGES_MAX);
    if (c->stage >= c->nstages)
        return tam_fail(TAMIS_E_ARGUMENT,
                        "tamis_pipeline_config.stage is %u, but there are %u stages", c->stage,
                        c->nstages);
    if (c->micro_batches == 0)
        return tam_fail(TAMIS_E_ARGUMENT, "tamis_pipeline_config.micro_batches is 0");
    if (c->length == 0 || c->length > TAM_LENGTH_MAX)
        return tam_fail(TAMIS_E_ARGUMENT, "tamis_pipeline_config.length is %llu, not 1 to %llu",
                        (unsigned long long)c->length, (unsigned long long)TAM_LENGTH_MAX);
    if (!tam_positive_upto(c->density, 1.0))
        return tam_fail(TAMIS_E_ARGUMENT, "tamis_pipeline_config.density is %.9g, not in (0, 1]",
                        c->density);
    return TAMIS_OK;
}

/* What this rank can do before the ranks agree. */
static tamis_status pipeline_prepare(tamis_comm *world, const tamis_pipeline_config *config,
                                     tamis_pipeline **out, tamis_pipeline **made) {
    tamis_pipeline_config own = TAMIS_PIPELINE_CONFIG_INIT;
    if (!config || !out)
        return tam_fail(TAMIS_E_ARGUMENT, "tamis_pipeline_create: %s is NULL",
                        config ? "out" : "config");
    TAM_TRY(tam_struct_copy("tamis_pipeline_config", &own, sizeof own, sizeof own, config));
    TAM_TRY(pipeline_check(&own));
    tamis_pipeline *p = *made = tam_alloc(sizeof *p);
    if (!p)
        return tam_fail(TAMIS_E_NOMEM, "no memory for a pipeline");
    p->world = world;
    p->config = own;
    p->stages = tam_alloc_array(own.nstages, sizeof p->stages[0]);
    p->stage_of = tam_alloc_array(world->nranks, sizeof p->stage_of[0]);
    p->lengths = tam_alloc_array(own.nstages, sizeof p->lengths[0]);
    p->budgets = tam_alloc_array(own.nstages, sizeof p->budgets[0]);
    p->learned = tam_alloc_array(own.nstages, sizeof p->learned[0]);
    p->even = tam_alloc_array(own.nstages, sizeof p->even[0]);
    p->wanted = tam_alloc_array(own.nstages, sizeof p->wanted[0]);
    p->windows_s = tam_alloc_array(own.nstages, sizeof p->windows_s[0]);
    p->entry_s = tam_alloc_array(own.nstages, sizeof p->entry_s[0]);
    if (!p->stages || !p->stage_of || !p->lengths || !p->budgets || !p->learned || !p->even ||
        !p->wanted || !p->windows_s || !p->entry_s)
        return tam_fail(TAMIS_E_NOMEM, "no memory for a pipeline of %u stages", own.nstages);
    return TAMIS_OK;
}

double tam_pipeline_density(uint64_t entries, uint64_t length) {
    /* A little more, so that rounding cannot lose one when density * length is cut off. */
    double density = (double)entries / (double)length * (1.0 + 2.0 * DBL_EPSILON);
    return density < 1.0 ? density : 1.0;
}

/* From the records: which rank is in which stage, and even budgets. */
static void divide_evenly(tamis_pipeline *p) {
    const unsigned char *records = p->world->records;
    uint32_t nstages = p->config.nstages;
    uint64_t length = 0;
    for (uint32_t s = 0; s < nstages; s++)
        p->stages[s] = (tamis_stage){.size = sizeof p->stages[s], .straggler = UINT32_MAX};
    for (uint32_t r = 0; r < p->world->nranks; r++) {
        p->stage_of[r] = (uint32_t)shown(records, r)->stage;
        p->lengths[p->stage_of[r]] = shown(records, r)->length;
        p->stages[p->stage_of[r]].nranks++;
    }
    for (uint32_t s = 0; s < nstages; s++)
        length += p->lengths[s];
    p->budget = (uint64_t)(p->config.density * (double)length);
    p->budget = p->budget > nstages ? p->budget : nstages;
    uint64_t more = tam_bucket_more(p->budget, nstages, TAM_STAGE_TENTHS);
    tam_bucket_even(p->budget, nstages, p->lengths, p->budgets);
    for (uint32_t s = 0; s < nstages; s++) {
        uint64_t most = tam_bucket_bounds(p->budgets[s], p->lengths[s], more).high;
        p->stages[s].length = p->lengths[s];
        p->stages[s].density = tam_pipeline_density(p->budgets[s], p->lengths[s]);
        p->stages[s].density_max = tam_pipeline_density(most, p->lengths[s]);
    }
}

tamis_status tamis_pipeline_create(tamis_comm *world, const tamis_pipeline_config *config,
                                   tamis_pipeline **out) {
    TAM_FENV_HELD();
    if (!world)
        return tam_fail(TAMIS_E_ARGUMENT, "tamis_pipeline_create: world is NULL");
    TAM_TRY(tam_comm_check(world));
    tamis_pipeline *p = NULL;
    creation mine = {.header.call = "tamis_pipeline_create"};
    tamis_status status = pipeline_prepare(world, config, out, &p);
    mine.header.status = (uint64_t)status;
    if (status == TAMIS_OK)
        pipeline_describe(&p->config, &mine);
    status = tam_handshake_run(world, &mine, sizeof mine, pipeline_judge, 0);
    if (status != TAMIS_OK) {
        tamis_pipeline_destroy(p);
        return status;
    }
    divide_evenly(p);
    tam_log(TAM_INFO, "pipeline: rank %u is in stage %u of %u, %llu entries for all stages",
            world->rank, p->config.stage, p->config.nstages, (unsigned long long)p->budget);
    *out = p;
    return TAMIS_OK;
}

void tamis_pipeline_destroy(tamis_pipeline *p) {
    if (!p)
        return;
    tam_free(p->entry_s);
    tam_free(p->windows_s);
    tam_free(p->wanted);
    tam_free(p->even);
    tam_free(p->learned);
    tam_free(p->budgets);
    tam_free(p->lengths);
    tam_free(p->stage_of);
    tam_free(p->stages);
    tam_free(p);
}

/* -- marks ------------------------------------------------------------------------------------ */

tamis_status tamis_pipeline_mark(tamis_pipeline *p, tamis_mark mark) {
    uint64_t now_ns = tam_clock_ns();
    if (!p)
        return tam_fail(TAMIS_E_ARGUMENT, "tamis_pipeline_mark: pipeline is NULL");
    if (mark != TAMIS_MARK_INPUT && mark != TAMIS_MARK_BACKWARD)
        return tam_fail(TAMIS_E_ARGUMENT, "tamis_pipeline_mark: %d is not a mark", (int)mark);
    if (mark != p->next)
        return tam_fail(TAMIS_E_STATE, "tamis_pipeline_mark: the next mark must be TAMIS_MARK_%s",
                        mark == TAMIS_MARK_INPUT ? "BACKWARD" : "INPUT");
    if (mark == TAMIS_MARK_BACKWARD) {
        p->busy_ns += now_ns - p->marked_ns;
        p->steps++;
    } else if (p->marked_ns) {
        p->window_ns += now_ns - p->marked_ns;
        p->windows++;
    }
    p->marked_ns = now_ns;
    p->next = mark == TAMIS_MARK_INPUT ? TAMIS_MARK_BACKWARD : TAMIS_MARK_INPUT;
    return TAMIS_OK;
}

/* -- reading ---------------------------------------------------------------------------------- */

tamis_status tamis_pipeline_stage_at(const tamis_pipeline *p, uint32_t stage, tamis_stage *out) {
    if (!p || !out)
        return tam_fail(TAMIS_E_ARGUMENT, "tamis_pipeline_stage_at: %s is NULL",
                        p ? "out" : "pipeline");
    if (stage >= p->config.nstages)
        return tam_fail(TAMIS_E_ARGUMENT,
                        "tamis_pipeline_stage_at: stage %u is out of range: there are %u", stage,
                        p->config.nstages);
    return tam_struct_return("tamis_stage", &p->stages[stage], sizeof *out, out);
}
