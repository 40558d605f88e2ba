/* SPDX-License-Identifier: MIT
 *
 * Opening a source with a deadline: initialising a driver may hang as well. It happens on a thread
 * with its own copy of the setup; who comes last, the thread or the caller, cleans up.
 */
#include "lib/base/sync.h"
#include "lib/energy/source/source.h"

enum { TEXTS = 5 };

typedef struct opening {
    const tam_energy_source *source;
    tam_energy_setup setup;
    char *texts[TEXTS];
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool done, left;
    tamis_status status;
    void *self;
} opening;

static void release(opening *o) {
    for (int i = 0; i < TEXTS; i++)
        tam_free(o->texts[i]);
    tam_lock_close(&o->lock, &o->changed);
    tam_free(o);
}

static bool copy_setup(opening *o, const tam_energy_setup *setup) {
    o->setup = *setup;
    const char **texts[TEXTS] = {&o->setup.sysfs_root, &o->setup.nvml_path, &o->setup.gpus,
                                 &o->setup.files, &o->setup.callback_name};
    for (int i = 0; i < TEXTS; i++) {
        o->texts[i] = tam_strdup(*texts[i] ? *texts[i] : "");
        if (!o->texts[i])
            return false;
        *texts[i] = o->texts[i];
    }
    return true;
}

static opening *make(const tam_energy_source *source, const tam_energy_setup *setup) {
    opening *o = tam_alloc(sizeof *o);
    if (!o || !tam_lock_open(&o->lock, &o->changed)) {
        tam_free(o);
        return NULL;
    }
    o->source = source;
    if (copy_setup(o, setup))
        return o;
    release(o);
    return NULL;
}

static void *run(void *opaque) {
    opening *o = opaque;
    void *self = NULL;
    tamis_status status = o->source->open(&o->setup, &self);
    pthread_mutex_lock(&o->lock);
    o->self = self;
    o->status = status;
    o->done = true;
    bool left = o->left;
    pthread_cond_broadcast(&o->changed);
    pthread_mutex_unlock(&o->lock);
    if (left) {
        if (status == TAMIS_OK)
            o->source->close(self);
        release(o);
    }
    return NULL;
}

/* -- what stands in for a source that did not answer ------------------------------------------ */

typedef struct silent {
    tam_energy_source source;
    tam_energy_place place;
} silent;

static uint32_t count_silent(const void *self) {
    (void)self;
    return 1;
}

static void place_silent(const void *self, uint32_t index, tam_energy_place *out) {
    (void)index;
    *out = ((const silent *)self)->place;
}

static void read_silent(void *self, uint32_t index, tam_energy_reading *out) {
    (void)index;
    *out = (tam_energy_reading){.status = ((const silent *)self)->place.status};
}

static tamis_status make_silent(const tam_energy_source *source,
                                const tam_energy_source **out_source, void **out) {
    silent *self = tam_alloc(sizeof *self);
    if (!self)
        return tam_fail(TAMIS_E_NOMEM, "no memory for the energy source %s", source->name);
    self->source = (tam_energy_source){
        .name = source->name,
        .count = count_silent,
        .place = place_silent,
        .read = read_silent,
        .close = tam_free,
    };
    tam_energy_place_init(&self->place, source->name, "", TAMIS_ENERGY_OTHER, 1.0);
    self->place.status = TAMIS_ENERGY_STALE;
    tam_energy_say(self->place.reason, "opening it hangs, so it was given up; does its driver "
                                       "answer (nvidia-smi)?");
    tam_log(TAM_WARN, "energy: %s: %s", source->name, self->place.reason);
    *out_source = &self->source;
    *out = self;
    return TAMIS_OK;
}

tamis_status tam_energy_source_open(const tam_energy_source *source, const tam_energy_setup *setup,
                                    uint64_t until_ns, const tam_energy_source **out_source,
                                    void **out) {
    pthread_t thread;
    opening *o = make(source, setup);
    if (!o || !tam_thread_start(&thread, run, o)) {
        if (o)
            release(o);
        return tam_fail(TAMIS_E_NOMEM, "no memory or no thread for the energy source %s",
                        source->name);
    }
    pthread_mutex_lock(&o->lock);
    while (!o->done && tam_lock_wait(&o->lock, &o->changed, until_ns))
        ;
    bool done = o->done;
    o->left = !done;
    if (!done)
        pthread_detach(thread);
    pthread_mutex_unlock(&o->lock);
    if (!done)
        return make_silent(source, out_source, out);
    pthread_join(thread, NULL);
    tamis_status status = o->status;
    *out_source = source;
    *out = o->self;
    release(o);
    return status == TAMIS_OK
               ? status
               : tam_fail(status, "no memory for the energy source %s", source->name);
}
