/* SPDX-License-Identifier: MIT
 *
 * The meter's life: sources, samplers, channels, files, its thread.
 */
#include "lib/energy/meter/meter.h"
#include "lib/base/fenv.h"
#include "lib/base/hash.h"

#include <stdio.h>
#include <time.h>
#include <unistd.h>

enum { LOOK_NS = 50000000, LAST_READING_NS = 500000000 };

#define OPENING_NS UINT64_C(3000000000)

/* -- thread ----------------------------------------------------------------------------------- */

/* What is new of domains, in the library's log. */
static void log_status_changes(tamis_energy *e) {
    for (uint32_t i = 0; i < e->nchannels; i++) {
        const tam_energy_domain *d = &e->now[i];
        if (d->status != e->channels[i].told_status)
            tam_log(TAM_INFO, "energy: %s: %s%s%s", d->sensor.id,
                    tamis_energy_status_name(d->status), d->reason[0] ? ", " : "", d->reason);
        e->channels[i].told_status = d->status;
    }
}

/* One chunk, and the lines that end with it. @return whether one could be closed */
static bool meter_advance(tamis_energy *e, bool flush) {
    pthread_mutex_lock(&e->lock);
    uint64_t now_ns = tam_meter_take(e);
    bool closed = tam_meter_close_next(e, now_ns, flush);
    while (tam_meter_make_line(e)) {
        pthread_mutex_unlock(&e->lock);
        tam_energy_log_write(e->log);
        pthread_mutex_lock(&e->lock);
    }
    pthread_mutex_unlock(&e->lock);
    log_status_changes(e);
    return closed;
}

static bool rest(tamis_energy *e) {
    pthread_mutex_lock(&e->lock);
    if (!e->closing)
        tam_lock_wait(&e->lock, &e->changed, tam_clock_ns() + LOOK_NS);
    bool closing = e->closing;
    pthread_mutex_unlock(&e->lock);
    return !closing;
}

static void *meter_run(void *context) {
    tamis_energy *e = context;
    do {
        while (meter_advance(e, false))
            continue;
    } while (rest(e));
    return NULL;
}

/* -- open ------------------------------------------------------------------------------------- */

static tamis_status meter_check_numbers(const tamis_energy_config *c) {
    if (!(c->window_s >= 0.1 && c->window_s <= 86400.0))
        return tam_fail(TAMIS_E_ARGUMENT, "energy: window_s is %g, not 0.1 to 86400", c->window_s);
    if (!(c->settle_s >= 0.0 && c->settle_s <= 5.0)) /* as far back as gains are kept, and more */
        return tam_fail(TAMIS_E_ARGUMENT, "energy: settle_s is %g, not 0 to 5", c->settle_s);
    if (!(c->pue >= 1.0 && c->pue <= 100.0))
        return tam_fail(TAMIS_E_ARGUMENT, "energy: pue is %g, not 1 to 100", c->pue);
    if (c->g_per_kwh < 0.0 || c->g_per_kwh > 1e4)
        return tam_fail(TAMIS_E_ARGUMENT, "energy: g_per_kwh is %g, not 0 to 10000", c->g_per_kwh);
    if (c->nranks == 0 || c->rank >= c->nranks)
        return tam_fail(TAMIS_E_ARGUMENT, "energy: rank %u is out of range: nranks is %u", c->rank,
                        c->nranks);
    return TAMIS_OK;
}

/* What the caller left open. */
static void resolve(tamis_energy_config *c) {
    if (!c->sources)
        c->sources = tam_setting_text(TAM_SETTING_ENERGY);
    if (!c->sysfs_root)
        c->sysfs_root = tam_setting_text(TAM_SETTING_SYSFS_ROOT);
    if (!c->nvml_path)
        c->nvml_path = tam_setting_text(TAM_SETTING_NVML_PATH);
}

static tamis_status open_sources(tamis_energy *e, const tamis_energy_config *c) {
    const tam_energy_source *sources[TAM_METER_SOURCES];
    uint32_t n;
    TAM_TRY(tam_energy_sources_choose(c->sources, TAM_METER_SOURCES, sources, &n));
    for (; e->nsamplers < n; e->nsamplers++)
        TAM_TRY(tam_sampler_open(sources[e->nsamplers], c, tam_clock_ns() + OPENING_NS,
                                 &e->samplers[e->nsamplers]));
    return TAMIS_OK;
}

/* Each needs a place for every domain. */
static tamis_status open_periods(tamis_energy *e) {
    const uint32_t n = e->nchannels, windows = TAM_METER_WINDOWS + 1;
    e->period_domains = tam_alloc_array((size_t)(2 + windows) * n, sizeof e->period_domains[0]);
    if (!e->period_domains)
        return tam_fail(TAMIS_E_NOMEM, "energy: no memory for %u windows", windows);
    for (uint32_t i = 0; i < windows; i++)
        e->windows[i].period.domains = e->period_domains + (size_t)(2 + i) * n;
    e->chunk.domains = e->period_domains;
    e->run.domains = e->period_domains + n;
    e->run.end_ns = e->open_ns;
    tam_period_begin(e, &e->run);
    for (uint32_t i = 0; i < n; i++)
        e->gains[i].compared = e->now[i].status == TAMIS_ENERGY_OK;
    tam_domain_cover(e->now, n, e->gains, e->counted, e->run.totals.missing);

    tam_window *own = &e->windows[TAM_METER_WINDOWS];
    *own = (tam_window){
        .state = TAM_WINDOW_COUNTS, .named = true, .name = "window", .period = own->period};
    tam_period_begin(e, &own->period);
    e->due_ns = e->open_ns + e->window_ns;
    return TAMIS_OK;
}

static tamis_status open_channels(tamis_energy *e) {
    tam_channel *c;
    for (uint32_t s = 0; s < e->nsamplers; s++)
        e->nchannels += tam_sampler_count(e->samplers[s]);
    e->channels = c = tam_alloc_array(e->nchannels, sizeof e->channels[0]);
    e->now = tam_alloc_array(e->nchannels, sizeof e->now[0]);
    e->counted = tam_alloc_array(e->nchannels, sizeof e->counted[0]);
    e->gains = tam_alloc_array(e->nchannels, sizeof e->gains[0]);
    e->shown = tam_alloc_array(e->nchannels, sizeof e->shown[0]);
    if (!e->channels || !e->now || !e->counted || !e->gains || !e->shown)
        return tam_fail(TAMIS_E_NOMEM, "energy: no memory for %u domains", e->nchannels);
    for (uint32_t s = 0; s < e->nsamplers; s++) {
        for (uint32_t i = 0; i < tam_sampler_count(e->samplers[s]); i++, c++) {
            c->sampler = e->samplers[s];
            c->index = i;
            tam_sampler_look(c->sampler, i, &e->now[c - e->channels]);
            TAM_TRY(tam_fit_open(&c->fit));
        }
    }
    return open_periods(e);
}

/* As the kernel names this boot; containers of one host share it. */
static void read_boot_id(const char *root, char *out, size_t size) {
    char path[512] = "";
    snprintf(path, sizeof path, "%s/proc/sys/kernel/random/boot_id", root);
    out[0] = '\0';
    FILE *file = fopen(path, "r");
    if (file && fgets(out, (int)size, file))
        out[strcspn(out, "\n")] = '\0';
    if (file)
        fclose(file);
    if (!out[0])
        gethostname(out, size - 1);
}

static tamis_status open_log(tamis_energy *e, const tamis_energy_config *c, const char *boot_id) {
    char host[128] = "";
    gethostname(host, sizeof host - 1);
    tam_energy_log_setup setup = {
        .config = *c,
        .host = host,
        .boot_id = boot_id,
        .t0_ns = e->open_ns,
        .t0_unix = e->unix_minus_s + (double)e->open_ns * 1e-9,
        .clock_err_s = e->clock_err_s,
    };
    for (uint32_t i = 0; i < e->nchannels; i++)
        tam_meter_show(e, i, &e->now[i], &e->shown[i]);
    return tam_energy_log_open(&setup, e->shown, e->nchannels, &e->log);
}

/* Both clocks at about one time. */
static void set_clocks(tamis_energy *e, const tamis_energy_config *c) {
    struct timespec now;
    uint64_t before_ns = tam_clock_ns();
    clock_gettime(CLOCK_REALTIME, &now);
    e->open_ns = e->reported_ns = e->taken_ns = tam_clock_ns();
    e->clock_err_s = (double)(e->open_ns - before_ns) * 1e-9;
    e->unix_minus_s = (double)now.tv_sec + (double)now.tv_nsec * 1e-9 - (double)e->open_ns * 1e-9;
    e->window_ns = (uint64_t)(c->window_s * 1e9);
    e->settle_ns = (uint64_t)(c->settle_s * 1e9);
}

static tamis_status open_parts(tamis_energy *e, const tamis_energy_config *c) {
    char boot_id[128];
    bool constant = c->g_per_kwh == c->g_per_kwh;
    set_clocks(e, c);
    e->pue = c->pue;
    e->forks = tam_forks();
    read_boot_id(c->sysfs_root, boot_id, sizeof boot_id);
    e->host = tam_hash(boot_id, strlen(boot_id));
    TAM_TRY(tam_marks_open(&e->marks));
    TAM_TRY(tam_spans_open(&e->spans));
    if (constant || (c->intensity && c->intensity[0]))
        TAM_TRY(tamis_carbon_open(c->intensity, c->g_per_kwh, &e->carbon));
    TAM_TRY(open_sources(e, c));
    TAM_TRY(open_channels(e));
    TAM_TRY(tam_registry_open(e->nchannels, &e->registry));
    return c->json && c->json[0] ? open_log(e, c, boot_id) : TAMIS_OK;
}

static void free_parts(tamis_energy *e) {
    tam_lock_close(&e->lock, &e->changed);
    tam_energy_log_close(e->log);
    for (uint32_t i = 0; e->channels && i < e->nchannels; i++)
        tam_fit_close(e->channels[i].fit);
    for (uint32_t s = 0; s < e->nsamplers; s++)
        tam_sampler_close(e->samplers[s]);
    tamis_carbon_close(e->carbon);
    tam_registry_close(e->registry);
    tam_spans_close(e->spans);
    tam_marks_close(e->marks);
    tam_free(e->shown);
    tam_free(e->period_domains);
    tam_free(e->gains);
    tam_free(e->counted);
    tam_free(e->now);
    tam_free(e->channels);
    tam_free(e);
}

tamis_status tamis_energy_create(const tamis_energy_config *config, tamis_energy **out) {
    TAM_FENV_HELD();
    tamis_energy_config c = TAMIS_ENERGY_CONFIG_INIT;
    if (!out)
        return tam_fail(TAMIS_E_ARGUMENT, "tamis_energy_create: out is NULL");
    if (config)
        TAM_TRY(tam_struct_copy("tamis_energy_config", &c, sizeof c, sizeof c, config));
    TAM_TRY(meter_check_numbers(&c));
    resolve(&c);
    tamis_energy *e = tam_alloc(sizeof *e);
    if (!e)
        return tam_fail(TAMIS_E_NOMEM, "energy: no memory");
    if (!tam_lock_open(&e->lock, &e->changed)) {
        tam_free(e);
        return tam_fail(TAMIS_E_NOMEM, "energy: cannot create a lock");
    }
    tamis_status status = open_parts(e, &c);
    if (status == TAMIS_OK && !tam_thread_start(&e->thread, meter_run, e))
        status = tam_fail(TAMIS_E_NOMEM, "energy: cannot start a thread");
    if (status == TAMIS_OK)
        *out = e;
    else
        free_parts(e);
    return status;
}

/* -- close ------------------------------------------------------------------------------------ */

static void stop(tamis_energy *e) {
    pthread_mutex_lock(&e->lock);
    e->closing = true;
    pthread_cond_broadcast(&e->changed);
    pthread_mutex_unlock(&e->lock);
    pthread_join(e->thread, NULL);
}

/* From here on this thread is alone with the meter. The last chunk ends now. */
static void meter_finish(tamis_energy *e) {
    uint64_t until_ns = tam_clock_ns() + LAST_READING_NS;
    for (uint32_t s = 0; s < e->nsamplers; s++)
        tam_sampler_hurry(e->samplers[s], until_ns);
    e->told_ns = tam_meter_mark(e, &e->windows[TAM_METER_WINDOWS], true);
    while (meter_advance(e, true))
        continue;
    tam_meter_summary(e);
}

void tamis_energy_destroy(tamis_energy *e) {
    TAM_FENV_HELD();
    if (!e || e->forks != tam_forks())
        return; /* a child that was forked has no threads, and the file is its parent's */
    stop(e);
    meter_finish(e);
    free_parts(e);
}
