/* SPDX-License-Identifier: MIT */
#include "tests/explore/search.h"

#include "lib/base/base.h"
#include "tests/support/data.h"
#include "tests/support/ranks.h"

#include <malloc.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

typedef struct searcher {
    const setting *set;
    const bounds *bounds;
    uint64_t reference[STEPS_MOST];
    uint32_t few, job, jobs;
    findings *out;
} searcher;

const char *fault_name(fault what) {
    static const char *const names[FAULTS + 1] = {
        [AS_USUAL] = "as usual",
        [CRASH] = "crash",
        [SLEEP_HALF] = "asleep for a half",
        [SLEEP_EDGE] = "asleep for the timeout",
        [SLEEP_LONG] = "asleep for two",
        [EXPELLED] = "asleep and expelled",
        [ABORTED] = "aborted",
        [LATE_HALF] = "late by a half",
        [LATE_EDGE] = "late by the timeout",
        [LATE_LONG] = "late by two",
        [LOST] = "lost",
        [STUCK] = "stuck",
        [REFUSED] = "refused",
    };
    return names[what];
}

/* -- one execution ---------------------------------------------------------------------------- */

static bool does_harm(const world *w) {
    const figures *t = &w->seen;
    uint64_t slow = t->faults[SLEEP_HALF] + t->faults[LATE_HALF], all = 0;
    for (uint32_t f = 0; f <= FAULTS; f++)
        all += t->faults[f];
    return all > slow || slow > 1;
}

void search_try(world *w, const setting *set, const choice *choices, uint32_t nchoices,
                const uint64_t *reference, bool traced) {
    uint64_t live = tam_alloc_live();
    world_run(w, set, choices, nchoices, traced);
    if (w->broken)
        return;
    if (w->next < nchoices)
        snprintf(w->failure, sizeof w->failure,
                 "decision %u was never made: executions are not repeatable", choices[w->next].at);
    else if (w->ndecisions == DECISIONS_MOST)
        snprintf(w->failure, sizeof w->failure, "too many decisions");
    else if (tam_alloc_live() != live)
        snprintf(w->failure, sizeof w->failure, "memory is lost: %llu allocations",
                 (unsigned long long)(tam_alloc_live() - live));
    else if (!does_harm(w) && w->seen.recovered + w->seen.hopeless > 0)
        snprintf(w->failure, sizeof w->failure, "a delay shorter than the deadline did harm");
    for (uint64_t s = 0; s < STEPS_MOST && w->failure[0] == '\0'; s++)
        if (w->hash[0][s] != 0 && reference[s] != 0 && w->hash[0][s] != reference[s])
            snprintf(w->failure, sizeof w->failure, "step %llu has other bits than over local",
                     (unsigned long long)s);
    w->broken = w->failure[0] != '\0';
}

/* -- many ------------------------------------------------------------------------------------- */

static void add_up(figures *sum, const figures *one) {
    uint64_t *to = (uint64_t *)(void *)sum;
    const uint64_t *from = (const uint64_t *)(const void *)one;
    for (size_t i = 0; i < sizeof *sum / sizeof *to; i++)
        __atomic_fetch_add(&to[i], from[i], __ATOMIC_RELAXED);
}

static void record_path(path *p, const choice *choices, uint32_t n) {
    memcpy(p->choices, choices, n * sizeof choices[0]);
    p->nchoices = n;
}

static void record_failure(findings *out, const world *w, const choice *choices, uint32_t n) {
    if (__atomic_exchange_n(&out->failed, true, __ATOMIC_ACQ_REL))
        return;
    memcpy(out->failure, w->failure, sizeof out->failure);
    record_path(&out->at, choices, n);
}

static bool is_drawn(const searcher *s, const choice *choices, uint32_t n) {
    uint64_t stride = s->bounds->stride[n - 1];
    uint64_t mixed = 0;
    for (uint32_t i = 0; i < n; i++)
        mixed = data_mix(mixed ^ ((uint64_t)choices[i].at << 16 | choices[i].option));
    if (n == 1)
        stride *= s->few;
    if (n == 1 && data_mix(mixed + 1) % s->jobs != s->job)
        return false;
    return stride <= 1 || mixed / 64 % stride == 0;
}

static void visit(searcher *s, choice *choices, uint32_t n, uint32_t faults, uint32_t deviations);

/* All choices more at one decision. */
static void branch(searcher *s, choice *choices, uint32_t n, decision d, uint32_t faults,
                   uint32_t deviations) {
    uint32_t options = (uint32_t)d.faults + d.deviations;
    for (uint32_t option = 1; option <= options; option++) {
        bool is_fault = option <= d.faults;
        if (n == CHOICES_MOST || (is_fault ? faults : deviations) == 0)
            continue;
        choices[n].option = option;
        if (is_drawn(s, choices, n + 1))
            visit(s, choices, n + 1, faults - is_fault, deviations - !is_fault);
    }
}

static void visit(searcher *s, choice *choices, uint32_t n, uint32_t faults, uint32_t deviations) {
    static __thread world w; /* large; only its decisions are kept */
    if (__atomic_load_n(&s->out->failed, __ATOMIC_ACQUIRE))
        return;
    record_path(&s->out->under_way[s->job], choices, n);
    search_try(&w, s->set, choices, n, s->reference, false);
    if (n > 0 || s->job == 0)
        add_up(&s->out->seen, &w.seen);
    if (w.broken) {
        record_failure(s->out, &w, choices, n);
        return;
    }
    uint32_t count = w.ndecisions, from = n > 0 ? choices[n - 1].at + 1 : 0;
    if (faults + deviations == 0 || count <= from)
        return;
    decision *decisions = malloc((count - from) * sizeof decisions[0]);
    if (!decisions)
        abort();
    memcpy(decisions, w.decisions + from, (count - from) * sizeof decisions[0]);
    for (uint32_t at = from; at < count; at++) {
        choices[n].at = at;
        branch(s, choices, n, decisions[at - from], faults, deviations);
    }
    free(decisions);
}

/* -- processes -------------------------------------------------------------------------------- */

/* The ranks of a world run one at a time: on one core the turn passes faster. */
static void stay_on_one_core(uint32_t job) {
    cpu_set_t allowed, one;
    uint32_t nth = 0;
    CPU_ZERO(&one);
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0)
        return;
    job %= (uint32_t)CPU_COUNT(&allowed);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &allowed) && nth++ == job)
            CPU_SET(cpu, &one);
    sched_setaffinity(0, sizeof one, &one);
}

static void run_job(searcher *s, uint32_t job) {
    choice choices[CHOICES_MOST];
    s->job = job;
    stay_on_one_core(job);
    mallopt(M_ARENA_MAX, 1); /* keep what each execution frees */
    mallopt(M_MMAP_THRESHOLD, 1 << 30);
    mallopt(M_TRIM_THRESHOLD, 1 << 30);
    visit(s, choices, 0, s->bounds->faults, s->bounds->deviations);
}

void search_run(const setting *set, const bounds *b, uint32_t jobs, findings *out) {
    pid_t children[JOBS_MOST];
    searcher s = {.set = set,
                  .bounds = b,
                  .few = test_stride(6),
                  .jobs = jobs < JOBS_MOST ? jobs : JOBS_MOST};
    s.out = mmap(NULL, sizeof *out, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (s.out == MAP_FAILED)
        abort();
    *s.out = *out;
    world_refer(set, s.reference);
    for (uint32_t job = 0; job < s.jobs; job++) {
        children[job] = fork();
        if (children[job] == 0) {
            run_job(&s, job);
            _exit(0);
        }
    }
    for (uint32_t job = 0; job < s.jobs; job++) {
        int how = 0;
        if (waitpid(children[job], &how, 0) >= 0 && how == 0)
            continue;
        s.out->failed = true;
        s.out->at = s.out->under_way[job];
        snprintf(s.out->failure, sizeof s.out->failure, "the process ended: %s %d",
                 WIFSIGNALED(how) ? "signal" : "status",
                 WIFSIGNALED(how) ? WTERMSIG(how) : WEXITSTATUS(how));
    }
    *out = *s.out;
    munmap(s.out, sizeof *out);
}
