/* SPDX-License-Identifier: MIT
 *
 * Making and unmaking a reducer: check, agree, take all memory, agree that all ranks have it.
 */
#include "collectives/reducer/reducer.h"
#include "lib/base/fenv.h"

#include <math.h>
#include <tamis/stats.h>

/* The range of each option, then conditions beyond ranges. */
static tamis_status create_check_numbers(const tamis_reducer_config *c) {
    static const char whose[] = "tamis_reducer_config";
    TAM_TRY(tam_options_check(whose, tam_config_options, TAM_CONFIG_COUNT, c));
    if (c->block % 32 != 0)
        return tam_fail(TAMIS_E_ARGUMENT, "%s.block is %u, not %s", whose, c->block,
                        tam_config_options[TAM_CONFIG_block].range);
    return TAMIS_OK;
}

/* The caller's struct, if any, becomes the reducer's own. What its rule does not have is neither
 * checked nor compared, so nothing may follow from it. */
static tamis_status create_read_update(tamis_reducer *r, const tamis_update *theirs) {
    r->config.update = NULL;
    if (!theirs)
        return TAMIS_OK;
    r->update = (tamis_update)TAMIS_UPDATE_INIT;
    TAM_TRY(
        tam_struct_copy("tamis_update", &r->update, sizeof r->update, sizeof r->update, theirs));
    if (tam_update_used(&r->update) <= TAM_UPDATE_norm_matching)
        r->update.norm_matching = 0.0;
    if (r->update.rule == TAMIS_UPDATE_STEP) {
        const tamis_update none = TAMIS_UPDATE_INIT;
        r->update.beta1 = 0.0;
        r->update.beta2 = none.beta2;
        r->update.epsilon = none.epsilon;
    }
    r->config.update = &r->update;
    return TAMIS_OK;
}

/* Adam divides every layer by its own scale, as most optimizers do whose steps are given, so norms
 * grow as the roots of lengths: budgets by norm would favour small layers over large ones. */
static void even_out(tamis_reducer_config *c, const tamis_update *update) {
    bool even = c->update && update->rule != TAMIS_UPDATE_MOMENTUM;
    if (even)
        c->bucket_budget = TAMIS_BUCKET_BUDGET_LENGTH;
    if (!c->scheme)
        c->scheme = even ? "tamis-update" : "tamis";
}

/* Copy the caller's options, check them alone and together, fill in defaults. */
static tamis_status read_config(tamis_reducer *r, const tamis_layout *layout,
                                const tamis_reducer_config *theirs) {
    tamis_reducer_config c = TAMIS_REDUCER_CONFIG_INIT;
    if (theirs)
        TAM_TRY(tam_struct_copy("tamis_reducer_config", &c, sizeof c, sizeof c, theirs));
    TAM_TRY(create_check_numbers(&c));
    TAM_TRY(create_read_update(r, c.update));
    even_out(&c, &r->update);
    TAM_TRY(tam_scheme_parse(c.scheme, &r->scheme));
    c.scheme = NULL; /* the caller's memory */
    if (r->scheme.exchange == TAM_EXCHANGE_QUANTIZED && c.value_codec == TAMIS_VALUE_AUTO)
        c.value_codec = TAMIS_VALUE_FP4;
    if (c.byte_share != 0.0)
        TAM_TRY(tam_byte_share_complete(r, layout, &c));
    tam_update_complete(r, &c);
    c.overselect = c.overselect != 0.0 ? c.overselect : 1.5;
    c.ranks_per_node = c.ranks_per_node > 1 ? c.ranks_per_node : 0;
    c.density_max = c.density_max != 0.0 ? c.density_max : c.density;
    if (c.density_max < c.density)
        return tam_fail(TAMIS_E_ARGUMENT, "tamis_reducer_config.density_max is %.9g, not %s",
                        c.density_max, tam_config_options[TAM_CONFIG_density_max].range);
    c.threads = c.threads ? c.threads : tam_setting_number(TAM_SETTING_THREADS);
    c.update = r->config.update;
    r->config = c;
    if (tam_reducer_chooses(r)) /* here 0 means that the link is measured */
        return TAMIS_OK;
    const tam_usual_link usual = tam_comm_usual_link(r->comm);
    r->config.link_latency_us = c.link_latency_us != 0.0 ? c.link_latency_us : usual.latency_us;
    r->config.link_gbit = c.link_gbit != 0.0 ? c.link_gbit : usual.gbit;
    return TAMIS_OK;
}

/* The options of another reducer, with its defaults filled in. */
static void inherit_config(tamis_reducer *r, const tamis_reducer *like) {
    r->config = like->config;
    r->update = like->update;
    r->config.update = like->config.update ? &r->update : NULL;
    r->scheme = like->scheme;
    r->scale_open = like->scale_open;
    r->matching_open = like->matching_open;
    r->slowdown = like->slowdown;
    r->slowdown_least = like->slowdown_least;
}

/* Set the rank and number of ranks that select. */
static tamis_status find_rank_among_nodes(tamis_reducer *r) {
    uint32_t size = r->config.ranks_per_node, nranks = r->comm->nranks;
    r->rank = r->comm->rank;
    r->nranks = nranks;
    if (size <= 1)
        return TAMIS_OK;
    if (nranks % size != 0)
        return tam_fail(TAMIS_E_ARGUMENT,
                        "tamis_reducer_config.ranks_per_node is %u, which does not divide the %u "
                        "ranks of the communicator",
                        size, nranks);
    r->rank = r->comm->rank / size;
    r->nranks = nranks / size;
    return TAMIS_OK;
}

static tamis_status create_check(tamis_reducer *r, const tam_recipe *recipe) {
    const tamis_layout *layout = recipe->layout;
    if (!layout || !recipe->out)
        return tam_fail(TAMIS_E_ARGUMENT, "tamis_reducer_create: %s is NULL",
                        layout ? "out" : "layout");
    if (recipe->like)
        inherit_config(r, recipe->like);
    else
        TAM_TRY(read_config(r, layout, recipe->config));
    TAM_TRY(tam_layout_part(layout, 0, layout->nsegments, &r->layout));
    TAM_TRY(tam_refuse(r, "tamis_reducer_create"));
    if (r->config.update)
        TAM_TRY(tam_options_check("tamis_update", tam_update_options, tam_update_used(&r->update),
                                  &r->update));
    TAM_TRY(find_rank_among_nodes(r));
    if (tam_reducer_calibrates(r) && !r->comm->measured)
        TAM_TRY(tam_calibrate_costs_open(r->comm, &r->calibration));
    return tam_device_find(r->config.device, &r->device);
}

/* -- memory ----------------------------------------------------------------------------------- */

static tamis_status create_open_all(tamis_reducer *r, const tam_recipe *recipe) {
    bool whole = tam_scheme_whole(r->scheme);
    uint64_t n = recipe->layout->ordinary;
    tam_reducer_take_density(r, whole ? 1.0 : r->config.density);
    r->k_max = whole ? n : tam_reducer_entries(r->config.density_max, n);
    return tam_buckets_open(r, recipe->like);
}

static void create_release(tamis_reducer *r) {
    tam_calibrate_costs_close(r->calibration);
    tam_buckets_close(r);
    tamis_layout_destroy(r->layout);
    tam_lock_close(&r->lock, &r->progress);
    tam_free(r);
}

/* -- public ----------------------------------------------------------------------------------- */

/* The other ranks must learn of a failure here. @param r  NULL: there was no memory for one */
static tamis_status agree_on(tamis_reducer *r, tamis_comm *comm, const tamis_layout *layout,
                             tamis_status own, uint64_t deadline_ns) {
    tam_config_handshake none = {0}, *mine = r ? &r->handshake : &none;
    mine->header = (tam_handshake_header){(uint64_t)own, "tamis_reducer_create"};
    return tam_config_handshake_run(comm, mine, layout, deadline_ns);
}

static tamis_status open_agreed(tamis_reducer *r, const tam_recipe *recipe) {
    const tamis_layout *layout = recipe->layout;
    uint64_t deadline_ns = recipe->deadline_ns;
    tamis_status status = recipe->status;
    if (status == TAMIS_OK)
        status = create_check(r, recipe);
    if (status == TAMIS_OK)
        tam_config_handshake_fill(r, layout);
    TAM_TRY(agree_on(r, r->comm, layout, status, deadline_ns));
    if (r->calibration)
        TAM_TRY(tam_calibrate_costs_run(r->calibration, r->comm));
    TAM_TRY(agree_on(r, r->comm, layout, create_open_all(r, recipe), deadline_ns));
    return agree_on(r, r->comm, layout, r->driver->arm(r), deadline_ns);
}

/* Results have the same bits; only the overlap that was asked for is missing. */
static void warn_of_no_overlap(const tamis_reducer *r) {
    const char *why = r->comm->transport->unthreaded;
    const char *asked = r->config.bucket_length > 0               ? "bucket_length"
                        : r->config.worker == TAMIS_WORKER_THREAD ? "worker THREAD"
                                                                  : NULL;
    if (why && asked)
        tam_log(TAM_WARN,
                "rank %u: %s asks for overlap, but the exchange runs inside tamis_reducer_wait: %s",
                r->comm->rank, asked, why);
}

tamis_status tam_reducer_make(tamis_comm *comm, const tam_recipe *recipe) {
    const tamis_layout *layout = recipe->layout;
    tamis_reducer *r = tam_alloc(sizeof *r);
    if (!r || !tam_lock_open(&r->lock, &r->progress)) {
        tam_free(r);
        return agree_on(NULL, comm, layout, tam_fail(TAMIS_E_NOMEM, "no memory for a reducer"), 0);
    }
    r->comm = comm;
    r->serial = comm->reducers + 1;
    r->origin = recipe->like ? recipe->like->origin
                             : (uint64_t)comm->generation << 32 | (uint32_t)r->serial;
    r->stats = (tamis_stats)TAMIS_STATS_INIT;
    r->stats.straggler = UINT32_MAX;
    tamis_status status = open_agreed(r, recipe);
    if (status != TAMIS_OK) {
        create_release(r);
        return status;
    }
    comm->reducers = r->serial; /* all ranks have agreed that it exists */
    tam_calibrate_costs_close(r->calibration);
    r->calibration = NULL;
    tam_log(TAM_INFO,
            "reducer: rank %u on %s, driven by the %s, %llu elements, k = %llu, buckets: %u",
            comm->rank, r->device->name, r->driver->name, (unsigned long long)layout->length,
            (unsigned long long)r->k, r->nbuckets);
    warn_of_no_overlap(r);
    *recipe->out = r;
    return TAMIS_OK;
}

tamis_status tamis_reducer_create(tamis_comm *comm, const tamis_layout *layout,
                                  const tamis_reducer_config *config, tamis_reducer **out) {
    TAM_FENV_HELD();
    if (!comm)
        return tam_fail(TAMIS_E_ARGUMENT, "tamis_reducer_create: comm is NULL");
    TAM_TRY(tam_comm_check(comm));
    const tam_recipe recipe = {
        .layout = layout, .config = config, .deadline_ns = tam_comm_deadline(comm), .out = out};
    return tam_reducer_make(comm, &recipe);
}

void tamis_reducer_destroy(tamis_reducer *r) {
    if (!r || tam_comm_of_parent(r->comm))
        return;
    if (r->started)
        tam_log(TAM_WARN,
                "rank %u: a reducer is destroyed between start and wait, so the last step has no "
                "result; call tamis_reducer_wait after each start",
                r->comm->rank);
    bool before =
        tam_errors_quiet(true);        /* nobody waits for these steps: do not log their failures */
    if (r->started && r->launched > 0) /* segments that are not ready never will be */
        r->driver->wait(r, tam_clock_ns(), tam_comm_deadline(r->comm));
    r->driver->quiesce(r); /* joined steps end first */
    tam_errors_quiet(before);
    if (r->abandoned) {
        tam_log(TAM_WARN, "rank %u: the exchange of a reducer never ended; its memory is not freed",
                r->comm->rank);
        return;
    }
    create_release(r);
}
