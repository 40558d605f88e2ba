/* SPDX-License-Identifier: MIT
 *
 * The thread reads without the lock and holds it for plain sums only, so nobody who looks ever
 * waits for a driver. Its priority is left as it is: it needs a thousandth of a core, which a fair
 * scheduler gives at once even where all cores are busy; with less it would read late, blurring
 * when counters change, and might lose the core while it holds the lock.
 */
#include "lib/energy/source/sampler.h"

#include "lib/base/sync.h"

enum { GAINS = 64, TEXTS = 5 }; /* GAINS: of more than a second */

#define CLOSE_NS UINT64_C(50000000)  /* how long an answer is waited for before it is given up */
#define TOGETHER_NS UINT64_C(200000) /* reads that are due so soon are made at once */

/* A domain, and what it has gained that was not taken yet, oldest first. */
typedef struct slot {
    tam_energy_domain domain;
    tam_energy_gain gains[GAINS];
    uint32_t ngains;
} slot;

struct tam_sampler {
    tam_energy_source source;
    tamis_energy_config config; /* with copies of the texts that sources read */
    char *texts[TEXTS];
    tam_energy_found found;
    slot *slots; /* [count] */
    uint32_t count;

    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t thread;
    bool ready, closing, finished, left;
    tamis_status status;    /* when ready */
    uint64_t asked, served; /* hurries */
};

static void sampler_release(tam_sampler *s) {
    tam_energy_close(&s->found);
    for (int i = 0; i < TEXTS; i++)
        tam_free(s->texts[i]);
    tam_free(s->slots);
    tam_lock_close(&s->lock, &s->changed);
    tam_free(s);
}

/* -- gains ------------------------------------------------------------------------------------ */

static void push_gain(slot *of, const tam_energy_gain *gain) {
    tam_energy_gain *last = &of->gains[GAINS - 1];
    if (of->ngains < GAINS) {
        of->gains[of->ngains++] = *gain;
    } else { /* nobody takes them: no joule is lost */
        last->end_ns = gain->end_ns;
        last->uj += gain->uj;
    }
}

bool tam_sampler_take(tam_sampler *s, uint32_t index, tam_energy_gain *out) {
    pthread_mutex_lock(&s->lock);
    slot *of = &s->slots[index];
    bool some = of->ngains > 0;
    if (some) {
        *out = of->gains[0];
        memmove(&of->gains[0], &of->gains[1], --of->ngains * sizeof of->gains[0]);
    }
    pthread_mutex_unlock(&s->lock);
    return some;
}

/* -- the thread ------------------------------------------------------------------------------- */

/* Under the lock, which is given up for the read. */
static void read_one(tam_sampler *s, uint32_t index) {
    tam_energy_reading reading;
    tam_energy_gain gain;
    pthread_mutex_unlock(&s->lock);
    tam_energy_read(&s->found, &s->found.sensors[index], &reading);
    pthread_mutex_lock(&s->lock);
    if (!s->closing && tam_domain_take(&s->slots[index].domain, &reading, &gain))
        push_gain(&s->slots[index], &gain);
}

/* @return when the next one is due */
static uint64_t read_due(tam_sampler *s, bool all) {
    uint64_t next_ns = UINT64_MAX;
    for (uint32_t i = 0; i < s->count && !s->closing; i++) {
        const tam_energy_domain *d = &s->slots[i].domain;
        uint64_t now_ns = tam_clock_ns(), due_ns = tam_domain_next(d, now_ns);
        if (d->sensor.status != TAMIS_ENERGY_OK)
            continue;
        if (all || due_ns <= now_ns + TOGETHER_NS) {
            read_one(s, i);
            now_ns = tam_clock_ns();
            due_ns = tam_domain_next(d, now_ns + TOGETHER_NS);
        }
        next_ns = due_ns < next_ns ? due_ns : next_ns;
    }
    return next_ns;
}

/* @return whether any of them can be read */
static bool take_found(tam_sampler *s) {
    bool some = false;
    s->slots = tam_alloc_array(s->found.n, sizeof s->slots[0]);
    if (!s->slots) {
        s->status = TAMIS_E_NOMEM;
        return false;
    }
    for (; s->count < s->found.n; s->count++) {
        tam_energy_domain *d = &s->slots[s->count].domain;
        tam_domain_init(d, &s->found.sensors[s->count]);
        tam_domain_age(d, tam_clock_ns());
        some = some || d->sensor.status == TAMIS_ENERGY_OK;
    }
    return some;
}

/* Under the lock. */
static void read_on(tam_sampler *s) {
    while (!s->closing) {
        uint64_t asked = s->asked;
        uint64_t next_ns = read_due(s, asked > s->served);
        if (s->served < asked) {
            s->served = asked;
            pthread_cond_broadcast(&s->changed);
        }
        while (!s->closing && s->asked == s->served &&
               tam_lock_wait(&s->lock, &s->changed, next_ns))
            ;
    }
}

static void *sampler_drive(void *opaque) {
    tam_sampler *s = opaque;
    s->status = tam_energy_find(&s->source, &s->config, &s->found);
    bool some = s->status == TAMIS_OK && take_found(s);
    pthread_mutex_lock(&s->lock);
    s->ready = true;
    pthread_cond_broadcast(&s->changed);
    if (some)
        read_on(s);
    s->finished = true;
    bool left = s->left;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    if (left) /* the driver has come back after all */
        sampler_release(s);
    return NULL;
}

/* -- the sampler ------------------------------------------------------------------------------ */

static bool copy_texts(tam_sampler *s) {
    const char **texts[TEXTS] = {&s->config.sysfs_root, &s->config.nvml_path, &s->config.gpus,
                                 &s->config.files, &s->config.callback_name};
    for (int i = 0; i < TEXTS; i++) {
        s->texts[i] = tam_strdup(*texts[i] ? *texts[i] : "");
        if (!s->texts[i])
            return false;
        *texts[i] = s->texts[i];
    }
    return true;
}

static tam_sampler *sampler_start(const tam_energy_source *source,
                                  const tamis_energy_config *config) {
    tam_sampler *s = tam_alloc(sizeof *s);
    if (!s || !tam_lock_open(&s->lock, &s->changed)) {
        tam_free(s);
        return NULL;
    }
    s->source = *source;
    s->found.source = &s->source;
    s->config = *config;
    if (copy_texts(s) && tam_thread_start(&s->thread, sampler_drive, s))
        return s;
    sampler_release(s);
    return NULL;
}

/* Wait for the thread to be so far. @return false: it hangs, and is the last owner from here on */
static bool await(tam_sampler *s, const bool *so_far, uint64_t until_ns) {
    pthread_mutex_lock(&s->lock);
    while (!*so_far && tam_lock_wait(&s->lock, &s->changed, until_ns))
        ;
    bool left = s->left = !*so_far;
    s->closing = s->closing || left;
    if (left)
        pthread_detach(s->thread);
    pthread_mutex_unlock(&s->lock);
    return !left;
}

static void find_silent(const tamis_energy_config *config, tam_energy_found *found) {
    (void)config;
    tam_energy_sensor *sensor = tam_energy_add(found, "", TAMIS_ENERGY_OTHER, 0);
    tam_energy_break(
        sensor, TAMIS_ENERGY_STALE,
        "opening it hangs, so it was abandoned; does its driver respond (nvidia-smi)?");
}

/* What stands in for a source that did not answer. */
static tam_sampler *start_silent(const char *name, const tamis_energy_config *config) {
    tam_energy_source silent = {.name = name, .find = find_silent};
    tam_sampler *s = sampler_start(&silent, config);
    if (s && await(s, &s->ready, UINT64_MAX) && s->status == TAMIS_OK)
        tam_log(TAM_WARN, "energy: %s: %s", name, s->slots[0].domain.reason);
    return s;
}

tamis_status tam_sampler_open(const tam_energy_source *source, const tamis_energy_config *config,
                              uint64_t until_ns, tam_sampler **out) {
    tam_sampler *s = sampler_start(source, config);
    if (s && !await(s, &s->ready, until_ns))
        s = start_silent(source->name, config);
    if (s && s->status == TAMIS_OK) {
        *out = s;
        return TAMIS_OK;
    }
    tam_sampler_close(s);
    return tam_fail(TAMIS_E_NOMEM, "no memory or no thread for the energy source %s", source->name);
}

uint32_t tam_sampler_count(const tam_sampler *s) {
    return s->count;
}

void tam_sampler_look(tam_sampler *s, uint32_t index, tam_energy_domain *out) {
    pthread_mutex_lock(&s->lock);
    *out = s->slots[index].domain;
    pthread_mutex_unlock(&s->lock);
    tam_domain_age(out, tam_clock_ns());
}

bool tam_sampler_hurry(tam_sampler *s, uint64_t until_ns) {
    pthread_mutex_lock(&s->lock);
    uint64_t asked = ++s->asked;
    pthread_cond_broadcast(&s->changed);
    while (!s->finished && s->served < asked && tam_lock_wait(&s->lock, &s->changed, until_ns))
        ;
    bool served = s->finished || s->served >= asked;
    pthread_mutex_unlock(&s->lock);
    return served;
}

void tam_sampler_close(tam_sampler *s) {
    if (!s)
        return;
    const char *name = s->source.name;
    pthread_mutex_lock(&s->lock);
    s->closing = true;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    if (!await(s, &s->finished, tam_clock_ns() + CLOSE_NS)) {
        tam_log(TAM_WARN, "energy: the source %s hangs; its thread and memory are leaked", name);
        return;
    }
    pthread_join(s->thread, NULL);
    sampler_release(s);
}
