/* SPDX-License-Identifier: MIT
 *
 * The thread reads without the lock and holds it for plain sums only, so nobody who looks ever
 * waits for a driver. Its priority is left as it is: it needs a thousandth of a core, which a fair
 * scheduler gives at once even where all cores are busy; with less it would read late, blurring
 * when counters change, and might lose the core while it holds the lock.
 */
#include "lib/energy/source/sampler.h"

#include "lib/base/sync.h"

enum { GAINS_LEAST = 256 };

#define CLOSE_NS UINT64_C(50000000)  /* how long an answer is waited for before it is given up */
#define TOGETHER_NS UINT64_C(200000) /* reads that are due so soon are made at once */

typedef struct entry {
    uint32_t index;
    tam_energy_gain gain;
} entry;

struct tam_sampler {
    const tam_energy_source *source;
    void *self;
    uint32_t count;

    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t thread;
    bool threaded, closing, finished, left;
    uint64_t asked, served; /* hurries */
    tam_energy_domain *domains;
    entry *gains; /* oldest first */
    uint32_t ngains, room;
};

static void release(tam_sampler *s) {
    s->source->close(s->self);
    tam_free(s->gains);
    tam_free(s->domains);
    tam_free(s);
}

/* -- gains ------------------------------------------------------------------------------------ */

/* The oldest that has a successor joins it; there is one, for there are more places than domains. */
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
        into->err_ns = from->err_ns > into->err_ns ? from->err_ns : into->err_ns;
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
    s->source->read(s->self, index, &reading);
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

static void *drive(void *opaque) {
    tam_sampler *s = opaque;
    pthread_mutex_lock(&s->lock);
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
    s->finished = true;
    bool left = s->left;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    if (left) { /* the driver has come back after all */
        tam_lock_close(&s->lock, &s->changed);
        release(s);
    }
    return NULL;
}

/* -- the sampler ------------------------------------------------------------------------------ */

/* @return whether any of them can be read */
static bool place_domains(tam_sampler *s) {
    bool some = false;
    for (uint32_t i = 0; i < s->count; i++) {
        tam_energy_place place;
        s->source->place(s->self, i, &place);
        tam_domain_init(&s->domains[i], &place);
        tam_domain_age(&s->domains[i], tam_clock_ns());
        some = some || place.status == TAMIS_ENERGY_OK;
    }
    return some;
}

tamis_status tam_sampler_open(const tam_energy_source *source, void *self, tam_sampler **out) {
    tam_sampler *s = tam_alloc(sizeof *s);
    if (!s) {
        source->close(self);
        return tam_fail(TAMIS_E_NOMEM, "no memory for the energy source %s", source->name);
    }
    s->source = source;
    s->self = self;
    s->count = source->count(self);
    s->room = 2 * s->count > GAINS_LEAST ? 2 * s->count : GAINS_LEAST;
    s->domains = tam_alloc_array(s->count, sizeof s->domains[0]);
    s->gains = tam_alloc_array(s->room, sizeof s->gains[0]);
    if (!s->domains || !s->gains || !tam_lock_open(&s->lock, &s->changed))
        goto err_release;
    s->threaded = place_domains(s);
    if (s->threaded && !tam_thread_start(&s->thread, drive, s))
        goto err_lock;
    *out = s;
    return TAMIS_OK;

err_lock:
    tam_lock_close(&s->lock, &s->changed);
err_release:
    release(s);
    return tam_fail(TAMIS_E_NOMEM, "no memory or no thread for the energy source %s", source->name);
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
    if (!s->threaded)
        return true;
    pthread_mutex_lock(&s->lock);
    uint64_t asked = ++s->asked;
    pthread_cond_broadcast(&s->changed);
    while (s->served < asked && tam_lock_wait(&s->lock, &s->changed, until_ns))
        ;
    bool served = s->served >= asked;
    pthread_mutex_unlock(&s->lock);
    return served;
}

/* @return whether the thread has ended; else it is the last owner */
static bool stop_thread(tam_sampler *s) {
    uint64_t until_ns = tam_clock_ns() + CLOSE_NS;
    pthread_mutex_lock(&s->lock);
    s->closing = true;
    pthread_cond_broadcast(&s->changed);
    while (!s->finished && tam_lock_wait(&s->lock, &s->changed, until_ns))
        ;
    bool finished = s->finished;
    s->left = !finished;
    if (s->left)
        pthread_detach(s->thread);
    pthread_mutex_unlock(&s->lock);
    if (finished)
        pthread_join(s->thread, NULL);
    return finished;
}

void tam_sampler_close(tam_sampler *s) {
    if (!s)
        return;
    const char *name = s->source->name;
    if (s->threaded && !stop_thread(s)) {
        tam_log(TAM_WARN, "energy: the source %s hangs; its thread and memory stay behind", name);
        return;
    }
    tam_lock_close(&s->lock, &s->changed);
    release(s);
}
