/* SPDX-License-Identifier: MIT
 *
 * The thread reads without the lock and holds it for plain sums only, so nobody who looks ever
 * waits for a driver. Its priority is left as it is: it needs a thousandth of a core, which a fair
 * scheduler gives at once even where all cores are busy; with less it would read late, blurring
 * when counters change, and might lose the core while it holds the lock.
 */
#include "lib/energy/source/sampler.h"

#include "lib/base/sync.h"

enum { GAINS_LEAST = 256, TEXTS = 5 };

#define CLOSE_NS UINT64_C(50000000)  /* how long an answer is waited for before it is given up */
#define TOGETHER_NS UINT64_C(200000) /* reads that are due so soon are made at once */

typedef struct entry {
    uint32_t index;
    tam_energy_gain gain;
} entry;

struct tam_sampler {
    tamis_energy_config config; /* with copies of the texts that sources read */
    char *texts[TEXTS];
    tam_energy_found found;
    tam_energy_source silent; /* where it stands in for one that hangs */
    uint32_t count;

    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t thread;
    bool threaded, ready, closing, finished, left;
    tamis_status status;    /* when ready */
    uint64_t asked, served; /* hurries */
    tam_energy_domain *domains;
    entry *gains; /* oldest first */
    uint32_t ngains, room;
};

static void release(tam_sampler *s) {
    tam_energy_close(&s->found);
    for (int i = 0; i < TEXTS; i++)
        tam_free(s->texts[i]);
    tam_free(s->gains);
    tam_free(s->domains);
    tam_lock_close(&s->lock, &s->changed);
    tam_free(s);
}

/* -- gains ------------------------------------------------------------------------------------ */

/* The oldest that has a successor joins it; there is one, for there are more
 * places than domains. */
static void merge_oldest(tam_sampler *s) {
    for (uint32_t i = 0; i < s->ngains; i++) {
        uint32_t next = i + 1;
        while (next < s->ngains && s->gains[next].index != s->gains[i].index)
            next++;
        if (next == s->ngains)
            continue;
        tam_energy_gain *into = &s->gains[next].gain, *from = &s->gains[i].gain;
        into->begin_ns = from->begin_ns;
        into->uj += from->uj;
        memmove(&s->gains[i], &s->gains[i + 1], (s->ngains - i - 1) * sizeof s->gains[0]);
        s->ngains--;
        return;
    }
}

static void push_gain(tam_sampler *s, uint32_t index, const tam_energy_gain *gain) {
    if (s->ngains == s->room)
        merge_oldest(s);
    s->gains[s->ngains++] = (entry){index, *gain};
}

bool tam_sampler_take(tam_sampler *s, uint32_t *index, tam_energy_gain *out) {
    pthread_mutex_lock(&s->lock);
    bool some = s->ngains > 0;
    if (some) {
        *index = s->gains[0].index;
        *out = s->gains[0].gain;
        memmove(&s->gains[0], &s->gains[1], --s->ngains * sizeof s->gains[0]);
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
    tam_energy_read(&s->found, &s->found.places[index], &reading);
    pthread_mutex_lock(&s->lock);
    if (!s->closing && tam_domain_take(&s->domains[index], &reading, &gain))
        push_gain(s, index, &gain);
}

/* @return when the next one is due */
static uint64_t read_due(tam_sampler *s, bool all) {
    uint64_t next_ns = UINT64_MAX;
    for (uint32_t i = 0; i < s->count && !s->closing; i++) {
        uint64_t now_ns = tam_clock_ns(), due_ns = tam_domain_next(&s->domains[i], now_ns);
        if (s->domains[i].place.status != TAMIS_ENERGY_OK)
            continue;
        if (all || due_ns <= now_ns + TOGETHER_NS) {
            read_one(s, i);
            now_ns = tam_clock_ns();
            due_ns = tam_domain_next(&s->domains[i], now_ns + TOGETHER_NS);
        }
        next_ns = due_ns < next_ns ? due_ns : next_ns;
    }
    return next_ns;
}

/* @return whether any of them can be read */
static bool take_found(tam_sampler *s) {
    bool some = false;
    uint32_t n = s->found.n;
    s->room = 2 * n > GAINS_LEAST ? 2 * n : GAINS_LEAST;
    s->domains = tam_alloc_array(n, sizeof s->domains[0]);
    s->gains = tam_alloc_array(s->room, sizeof s->gains[0]);
    if (!s->domains || !s->gains) {
        s->status =
            tam_fail(TAMIS_E_NOMEM, "no memory for the energy source %s", s->found.source->name);
        return false;
    }
    for (; s->count < n; s->count++) {
        tam_domain_init(&s->domains[s->count], &s->found.places[s->count]);
        tam_domain_age(&s->domains[s->count], tam_clock_ns());
        some = some || s->domains[s->count].place.status == TAMIS_ENERGY_OK;
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

static void *drive(void *opaque) {
    tam_sampler *s = opaque;
    s->status = tam_energy_find(s->found.source, &s->config, &s->found);
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
        release(s);
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

static tam_sampler *make(const tam_energy_source *source, const tamis_energy_config *config) {
    tam_sampler *s = tam_alloc(sizeof *s);
    if (!s || !tam_lock_open(&s->lock, &s->changed)) {
        tam_free(s);
        return NULL;
    }
    s->found.source = source;
    s->config = *config;
    if (copy_texts(s))
        return s;
    release(s);
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
    tam_energy_place *place = tam_energy_add(found, "", TAMIS_ENERGY_OTHER, 0);
    tam_energy_break(place, TAMIS_ENERGY_STALE,
                     "opening it hangs, so it was given up; does its driver answer (nvidia-smi)?");
}

/* What stands in for a source that did not answer. */
static tamis_status open_silent(const tam_energy_source *source, tam_sampler **out) {
    static const tamis_energy_config none;
    tam_sampler *s = make(source, &none);
    if (!s)
        return tam_fail(TAMIS_E_NOMEM, "no memory for the energy source %s", source->name);
    s->silent = (tam_energy_source){.name = source->name, .find = find_silent};
    s->finished = true;
    s->status = tam_energy_find(&s->silent, &s->config, &s->found);
    if (s->status == TAMIS_OK)
        take_found(s);
    tamis_status status = s->status;
    if (status != TAMIS_OK) {
        release(s);
        return status;
    }
    tam_log(TAM_WARN, "energy: %s: %s", source->name, s->domains[0].reason);
    *out = s;
    return TAMIS_OK;
}

tamis_status tam_sampler_open(const tam_energy_source *source, const tamis_energy_config *config,
                              uint64_t until_ns, tam_sampler **out) {
    tam_sampler *s = make(source, config);
    if (!s || !tam_thread_start(&s->thread, drive, s)) {
        if (s)
            release(s);
        return tam_fail(TAMIS_E_NOMEM, "no memory or no thread for the energy source %s",
                        source->name);
    }
    s->threaded = true;
    if (!await(s, &s->ready, until_ns))
        return open_silent(source, out);
    tamis_status status = s->status;
    if (status == TAMIS_OK) {
        *out = s;
        return TAMIS_OK;
    }
    tam_sampler_close(s);
    return tam_fail(status, "no memory for the energy source %s", source->name);
}

uint32_t tam_sampler_count(const tam_sampler *s) {
    return s->count;
}

void tam_sampler_look(tam_sampler *s, uint32_t index, tam_energy_domain *out) {
    pthread_mutex_lock(&s->lock);
    *out = s->domains[index];
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
    const char *name = s->found.source->name;
    pthread_mutex_lock(&s->lock);
    s->closing = true;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    if (s->threaded && !await(s, &s->finished, tam_clock_ns() + CLOSE_NS)) {
        tam_log(TAM_WARN, "energy: the source %s hangs; its thread and memory stay behind", name);
        return;
    }
    if (s->threaded)
        pthread_join(s->thread, NULL);
    release(s);
}
