/* SPDX-License-Identifier: MIT
 *
 * Making and unmaking a reducer: check, agree, take all memory, agree that all ranks have it.
 */
#include "collectives/reducer/reducer.h"

#include <math.h>
#include <stdio.h>
#include <xxhash.h>

enum { SPARE_CANDIDATES = 4096 };

static tamis_status refuse(const char *field, double value, const char *range) {
    return tam_fail(TAMIS_E_ARGUMENT, "tamis_reducer_config.%s is %g, not %s", field, value, range);
}

static bool within(double x, double low, double high) {
    return x >= low && x <= high; /* false for NaN */
}

static tamis_status check_numbers(const tamis_reducer_config *c) {
    if (!(c->density > 0.0 && c->density <= 1.0))
        return refuse("density", c->density, "in (0, 1]");
    if (c->over != 0.0 && !within(c->over, 1.1, 8.0))
        return refuse("over", c->over, "0 or 1.1 to 8");
    if (c->capacity != 0.0 && !within(c->capacity, 0.1, 1e6))
        return refuse("capacity", c->capacity, "0 or 0.1 to 1e6");
    if (c->threshold != 0.0 && !within(c->threshold, 1e-38, 1e38))
        return refuse("threshold", c->threshold, "0 or a positive magnitude");
    if (c->block != 0 && (c->block % 32 != 0 || c->block > 65536))
        return refuse("block", c->block, "0 or a multiple of 32 up to 65536");
    if (c->threads > 256)
        return refuse("threads", c->threads, "0 to 256");
    if ((unsigned)c->output > 1 || (unsigned)c->average > 1 || (unsigned)c->nonfinite > 2 ||
        (unsigned)c->grad_type > 2)
        return tam_fail(TAMIS_E_ARGUMENT, "tamis_reducer_config: output, average, nonfinite or "
                                          "grad_type is none of its enum");
    return TAMIS_OK;
}

/* Copy the caller's options, check them alone and together, fill in defaults. */
static tamis_status read_config(tamis_reducer *r, const tamis_reducer_config *theirs) {
    tamis_reducer_config c = TAMIS_REDUCER_CONFIG_INIT;
    if (theirs)
        TAM_TRY(tam_struct_copy("tamis_reducer_config", &c, sizeof c, sizeof c, theirs));
    TAM_TRY(check_numbers(&c));
    TAM_TRY(tam_scheme_parse(c.scheme, &r->scheme));
    if (r->scheme.exchange == TAM_EXCHANGE_DENSE && c.output == TAMIS_OUTPUT_SPARSE)
        return tam_fail(TAMIS_E_UNSUPPORTED,
                        "scheme dense has no sparse view; use TAMIS_OUTPUT_DENSE");
    c.scheme = NULL;   /* the caller's memory */
    c.capacity += 0.0; /* no negative zeros: bits are compared */
    c.threshold += 0.0;
    c.over = c.over != 0.0 ? c.over : 1.5;
    c.threads = c.threads ? c.threads : tam_setting_number(TAM_SETTING_THREADS);
    r->config = c;
    return TAMIS_OK;
}

static tamis_status check(tamis_reducer *r, const tamis_layout *layout,
                          const tamis_reducer_config *config, tamis_reducer **out) {
    if (!layout || !out)
        return tam_fail(TAMIS_E_ARGUMENT, "tamis_reducer_create: %s is NULL",
                        layout ? "out" : "layout");
    TAM_TRY(read_config(r, config));
    return tam_device_find(r->config.device, &r->device);
}

static uint64_t real_bits(double x) {
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static void describe(tamis_reducer *r, const tamis_layout *layout) {
    const tamis_reducer_config *c = &r->config;
    uint64_t *f = r->agreement.fields;
    f[TAM_FIELD_VERSION] = TAMIS_VERSION;
    f[TAM_FIELD_LENGTH] = layout->length;
    f[TAM_FIELD_NSEGMENTS] = layout->nsegments;
    f[TAM_FIELD_SEGMENTS] = layout->hash;
    f[TAM_FIELD_SCHEME] = tam_scheme_code(r->scheme);
    f[TAM_FIELD_DENSITY] = real_bits(c->density);
    f[TAM_FIELD_OUTPUT] = c->output;
    f[TAM_FIELD_AVERAGE] = c->average;
    f[TAM_FIELD_NONFINITE] = c->nonfinite;
    f[TAM_FIELD_BLOCK] = c->block;
    f[TAM_FIELD_OVER] = real_bits(c->over);
    f[TAM_FIELD_CAPACITY] = real_bits(c->capacity);
    f[TAM_FIELD_THRESHOLD] = real_bits(c->threshold);
    f[TAM_FIELD_DEVICE] = c->device;
    f[TAM_FIELD_GRAD_TYPE] = c->grad_type;
    f[TAM_FIELD_GRAPHS] = tam_setting_number(TAM_SETTING_GRAPHS);
    r->config_hash = tam_agreement_hash(&r->agreement);
}

/* -- memory ----------------------------------------------------------------------------------- */

/* Most indices that one rank sends in one step. */
static size_t slot_capacity(const tamis_reducer *r, bool *growing) {
    size_t own = tam_own_max(&r->division);
    *growing = false;
    if (tam_scheme_exact_count(r->scheme))
        return tam_share_max(&r->division, r->k);
    if (r->scheme.threshold == TAM_THRESHOLD_STEP && r->config.capacity > 0.0) {
        double ranks = r->scheme.ownership == TAM_OWN_ALL ? 1.0 : r->division.nranks;
        double capacity = ceil(r->config.capacity * (double)r->k / ranks);
        return capacity < (double)own ? (size_t)capacity : own;
    }
    *growing = true;
    /* Group by group at least one entry each can exceed k by the number of groups. */
    size_t most = (size_t)r->k + r->division.grid.ngroups;
    return r->scheme.threshold == TAM_THRESHOLD_STEP ? own : most < own ? most : own;
}

static size_t candidate_capacity(const tamis_reducer *r) {
    size_t own = tam_own_max(&r->division), most = own;
    if (r->scheme.threshold != TAM_THRESHOLD_STEP)
        most = (size_t)(8.0 * r->config.over * (double)tam_share_max(&r->division, r->k));
    if (r->scheme.ownership == TAM_OWN_BINS)
        most = (size_t)(2.0 * r->config.over * (double)r->k);
    most += SPARE_CANDIDATES;
    return most < own ? most : own;
}

/* What travels, whoever drives: sizes, and the hash that all ranks' slots must carry. */
static void prepare_slots(tamis_reducer *r) {
    r->slots.rank = r->comm->rank;
    r->slots.nranks = r->comm->nranks;
    r->slots.nstats = tam_scheme_weighted(r->scheme) ? r->division.grid.ngroups : 0;
    r->slots.capacity = slot_capacity(r, &r->slots.growing);
    r->slots.with_values = r->scheme.exchange == TAM_EXCHANGE_PAIRS;
    /* Reducers of one communicator may be configured alike and must not be mixed up. */
    r->config_hash =
        XXH3_64bits_withSeed(&r->config_hash, sizeof r->config_hash, r->comm->agreements);
    r->slots.config = r->config_hash;
}

static tamis_status open_sparse(tamis_reducer *r) {
    const tamis_reducer_config *c = &r->config;
    TAM_TRY(tam_division_open(r->layout, r->scheme, r->comm->nranks, c->block, &r->division));
    TAM_TRY(
        tam_control_open(r->scheme, &r->division.grid, r->k, c->over, c->threshold, &r->control));
    TAM_TRY(r->device->open(&r->division.grid, candidate_capacity(r), c->threads, &r->kernels));
    r->acc = r->device->alloc(r->kernels, (size_t)r->layout->length * sizeof r->acc[0]);
    if (!r->acc)
        return tam_fail(TAMIS_E_NOMEM, "no memory for a residual of %llu elements",
                        (unsigned long long)r->layout->length);
    prepare_slots(r);
    return r->driver->open(r);
}

/* Kernels are opened for memory that the host cannot reach. */
static tamis_status open_dense(tamis_reducer *r) {
    r->k = r->layout->length;
    if (r->config.device != TAMIS_DEVICE_CPU) {
        TAM_TRY(tam_division_open(r->layout, r->scheme, r->comm->nranks, 0, &r->division));
        TAM_TRY(r->device->open(&r->division.grid, 0, r->config.threads, &r->kernels));
    }
    return r->driver->open(r);
}

static tamis_status open_all(tamis_reducer *r, const tamis_layout *layout) {
    TAM_TRY(tam_layout_copy(layout, &r->layout));
    double k = floor(r->config.density * (double)layout->length);
    r->k = k >= 1.0 ? (uint64_t)k : 1;
    r->overlaps = tam_alloc_array(layout->nsegments, sizeof r->overlaps[0]);
    if (!r->overlaps)
        return tam_fail(TAMIS_E_NOMEM, "no memory for %u segments", layout->nsegments);
    r->driver = tam_driver_find(r);
    return r->scheme.exchange == TAM_EXCHANGE_DENSE ? open_dense(r) : open_sparse(r);
}

static void release(tamis_reducer *r) {
    if (r->driver)
        r->driver->close(r);
    if (r->kernels) {
        r->device->release(r->kernels, r->acc);
        r->device->close(r->kernels);
    }
    tam_control_close(&r->control);
    tam_division_close(&r->division);
    tamis_layout_destroy(r->layout);
    if (!tam_reducer_lingers(r))
        tam_free(r->staging);
    tam_free(r->overlaps);
    tam_free(r);
}

/* -- public ----------------------------------------------------------------------------------- */

/* This rank's own failure is what it reports, but the others must hear of it first. */
static tamis_status agree_on(tamis_reducer *r, tamis_comm *comm, tamis_status own,
                             uint64_t deadline_ns) {
    char sentence[512];
    snprintf(sentence, sizeof sentence, "%s", own != TAMIS_OK ? tamis_last_error() : "");
    tam_agreement none = {.status = TAMIS_E_NOMEM};
    if (r)
        r->agreement.status = (uint64_t)own;
    tamis_status status = tam_agree(comm, r ? &r->agreement : &none, deadline_ns);
    return own != TAMIS_OK ? tam_fail(own, "%s", sentence) : status;
}

static tamis_status open_agreed(tamis_reducer *r, const tamis_layout *layout,
                                const tamis_reducer_config *config, tamis_reducer **out) {
    uint64_t deadline_ns = tam_clock_ns() + r->comm->timeout_ns;
    tamis_status status = check(r, layout, config, out);
    if (status == TAMIS_OK)
        describe(r, layout);
    TAM_TRY(agree_on(r, r->comm, status, deadline_ns));
    TAM_TRY(agree_on(r, r->comm, open_all(r, layout), deadline_ns));
    return agree_on(r, r->comm, r->driver->arm(r), deadline_ns);
}

tamis_status tamis_reducer_create(tamis_comm *comm, const tamis_layout *layout,
                                  const tamis_reducer_config *config, tamis_reducer **out) {
    if (!comm)
        return tam_fail(TAMIS_E_ARGUMENT, "tamis_reducer_create: comm is NULL");
    TAM_TRY(tam_comm_check(comm));
    tamis_reducer *r = tam_alloc(sizeof *r);
    if (!r)
        return agree_on(NULL, comm, tam_fail(TAMIS_E_NOMEM, "no memory for a reducer"), 0);
    r->comm = comm;
    r->stats = r->now = (tamis_stats)TAMIS_STATS_INIT;
    tamis_status status = open_agreed(r, layout, config, out);
    if (status != TAMIS_OK) {
        release(r);
        return status;
    }
    tam_log(TAM_INFO,
            "reducer: rank %u on %s, driven by the %s, %llu elements, k = %llu, slots of %zu",
            comm->rank, r->device->name, r->driver->name, (unsigned long long)layout->length,
            (unsigned long long)r->k, r->slots.capacity);
    *out = r;
    return TAMIS_OK;
}

void tamis_reducer_destroy(tamis_reducer *r) {
    if (!r)
        return;
    if (r->started)
        tamis_reduce_wait(r);
    r->driver->settle(r); /* joined steps end first; how they fare no longer matters */
    if (r->abandoned) {
        tam_log(TAM_WARN, "rank %u: the exchange of a reducer never ended; its memory stays",
                r->comm->rank);
        return;
    }
    release(r);
}
