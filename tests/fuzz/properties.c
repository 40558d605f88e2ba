/* SPDX-License-Identifier: MIT
 *
 * properties: random cases of everything that tamis.h promises, with ranks as threads.
 *
 *     properties --seed S --cases N        cases 0 to N - 1 of a seed
 *     properties --seed random --seconds X as many as time allows; the seed is printed
 *     properties --seed S --case N         one of them, in this process, for a debugger
 *     properties --seed S --case N --shrink   the same, simplified as long as it still fails
 *     --first N   begin with case N        --jobs J   processes at a time (2)
 *
 * A case is a layout, a scheme, options, gradients and up to eight steps of 1 to 16 ranks (draw.c).
 * After each step every entry of every residual, moment and result is compared with what the header
 * says follows from the step before (model.c, check.c), and the statistics with both (figures.c).
 * Most cases run a second time with another order of readiness, form of the gradient, number of
 * threads, worker, index codec or transport, and without saving and restoring between steps: they
 * must give the same bits.
 *
 * Cases run in worker processes, which are replaced when one crashes. A failing case is printed
 * with its description and the command that repeats it. At the end there is a digest of all that
 * the ranks got, which is the same with all kernels (TAMIS_CPU) and on all processors. The last
 * line is "N passed, N failed".
 * Floating-point traps are enabled in every call of the library.
 */
#include "tests/fuzz/property/property.h"

#include <dirent.h>
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <tamis/lists.h>
#include <time.h>
#include <unistd.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif

enum { MOST_JOBS = 64, MOST_FAILURES = 20, HANG_S = 400, TEXT = 4096 };

typedef struct options {
    uint64_t seed, first, cases, only;
    double seconds;
    uint32_t jobs;
    bool one, shrink;
} options;

/* What the processes share. */
typedef struct board {
    _Atomic uint64_t next, passed, failed, refused, twins, digest;
    struct {
        _Atomic uint64_t number, since_s;
        atomic_bool busy;
    } slots[MOST_JOBS];
} board;

static board *shared;
static pid_t pids[MOST_JOBS];
static char folder[64];

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* -- a case ----------------------------------------------------------------------------------- */

/* @return false: `failure` says why */
static bool try_case(const fuzz_case *c, char failure[SENTENCE]) {
    static record one, two;
    static fuzz_case twin;
    if (!fuzz_run(c, 0, &one, failure) || !fuzz_check(&one, failure))
        return false;
    shared->digest += fuzz_digest(&one);
    shared->refused += one.refused;
    if (one.refused || fuzz_mix(c->number) % 3 == 0)
        return true;
    shared->twins++;
    fuzz_twin(c, &twin);
    return fuzz_run(&twin, 1, &two, failure) && fuzz_check_twin(&one, &two, failure);
}

static void tell(const fuzz_case *c, const char *what) {
    static char text[TEXT], line[3 * TEXT];
    fuzz_describe(c, text, sizeof text);
    int length =
        snprintf(line, sizeof line, "FAILED: %s\n    %s\n    properties --seed %llu --case %llu\n",
                 what, text, (unsigned long long)c->seed, (unsigned long long)c->number);
    ssize_t written = write(STDOUT_FILENO, line, (size_t)length); /* one write per line */
    (void)written;
}

static bool try_number(const options *o, uint64_t number) {
    static fuzz_case c;
    char failure[SENTENCE] = "";
    fuzz_draw(o->seed, number, &c);
    if (try_case(&c, failure))
        return true;
    tell(&c, failure);
    return false;
}

/* -- simpler cases ---------------------------------------------------------------------------- */

/* Try the case in a separate process, for it may crash. */
static bool fails_apart(const fuzz_case *c) {
    int status = 0;
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        char failure[SENTENCE] = "";
        alarm(60);
        fuzz_timeout_ms = 3000;
        if (!freopen("/dev/null", "w", stderr))
            _exit(0);
        _exit(try_case(c, failure) ? 0 : 1);
    }
    return pid > 0 && waitpid(pid, &status, 0) == pid && status != 0;
}

static void shrink(fuzz_case *c) {
    static fuzz_case simpler;
    bool better = true, changed;
    while (better) {
        better = false;
        for (uint32_t way = 0; fuzz_simplify(c, way, &simpler, &changed); way++) {
            while (changed && fails_apart(&simpler)) {
                *c = simpler;
                better = true;
                fuzz_simplify(c, way, &simpler, &changed);
            }
        }
    }
}

static int run_one(const options *o) {
    static fuzz_case c;
    char text[TEXT], failure[SENTENCE] = "";
    fuzz_draw(o->seed, o->only, &c);
    if (o->shrink)
        shrink(&c);
    fuzz_describe(&c, text, sizeof text);
    printf("%s\n", text);
    fflush(stdout);
    bool fine = try_case(&c, failure);
    if (!fine)
        printf("FAILED: %s\n", failure);
    printf("%d passed, %d failed\n", fine, !fine);
    return !fine;
}

/* -- many cases ------------------------------------------------------------------------------- */

/* Ranks run in turns, which is faster on one core. */
static void stay_on_core(uint32_t job) {
    cpu_set_t may, one;
    uint32_t cores = 0, wanted;
    if (sched_getaffinity(0, sizeof may, &may) != 0)
        return;
    wanted = job % (uint32_t)CPU_COUNT(&may);
    CPU_ZERO(&one);
    for (int core = 0; core < CPU_SETSIZE; core++) {
        if (CPU_ISSET(core, &may) && cores++ == wanted)
            CPU_SET(core, &one);
    }
    sched_setaffinity(0, sizeof one, &one);
    sched_setscheduler(0, SCHED_BATCH, &(struct sched_param){0}); /* no preemption on wake-up */
}

static int work(const options *o, uint32_t job, double until_s) {
    stay_on_core(job);
#ifdef __GLIBC__
    mallopt(M_MMAP_THRESHOLD, 1 << 25); /* let the next case reuse the memory */
    mallopt(M_TRIM_THRESHOLD, 1 << 25);
#endif
    while (shared->failed < MOST_FAILURES && now_s() < until_s) {
        uint64_t number = shared->next++;
        if (number >= o->first + o->cases)
            break;
        shared->slots[job].number = number;
        shared->slots[job].since_s = (uint64_t)now_s();
        shared->slots[job].busy = true;
        bool fine = try_number(o, number);
        *(fine ? &shared->passed : &shared->failed) += 1;
        shared->slots[job].busy = false;
    }
    return 0;
}

static bool start(const options *o, uint32_t job, double until_s) {
    fflush(NULL);
    pids[job] = fork();
    if (pids[job] == 0)
        exit(work(o, job, until_s));
    return pids[job] > 0;
}

/* A process ended early: report its case as failed. */
static void tell_crash(const options *o, uint32_t job, int status) {
    static fuzz_case c;
    char what[128];
    if (WIFSIGNALED(status))
        snprintf(what, sizeof what, "%s",
                 WTERMSIG(status) == SIGKILL ? "it did not come back"
                                             : strsignal(WTERMSIG(status)));
    else
        snprintf(what, sizeof what, "the process ended with %d", WEXITSTATUS(status));
    shared->failed++;
    fuzz_draw(o->seed, shared->slots[job].number, &c);
    tell(&c, what);
    shared->slots[job].busy = false;
}

static void look_for_hangs(const options *o) {
    for (uint32_t job = 0; job < o->jobs; job++) {
        if (pids[job] > 0 && shared->slots[job].busy &&
            now_s() > (double)shared->slots[job].since_s + HANG_S)
            kill(pids[job], SIGKILL);
    }
}

/* @return number of processes left */
static uint32_t collect(const options *o, double until_s, uint32_t left) {
    int status;
    for (uint32_t job = 0; job < o->jobs; job++) {
        if (pids[job] <= 0 || waitpid(pids[job], &status, WNOHANG) != pids[job])
            continue;
        pids[job] = 0;
        left--;
        if (status == 0)
            continue;
        tell_crash(o, job, status);
        if (shared->failed < MOST_FAILURES)
            left += start(o, job, until_s);
    }
    return left;
}

static const char *kernels_in_use(void) {
    static tamis_feature part;
    part.size = sizeof part;
    for (size_t i = 0; tamis_feature_list(i, &part) > 0; i++) {
        if (strcmp(part.reason, "in use") == 0)
            return part.name;
    }
    return "unknown";
}

static int run_many(const options *o) {
    double begin_s = now_s(), until_s = begin_s + o->seconds;
    uint32_t left = 0;
    shared->next = o->first;
    for (uint32_t job = 0; job < o->jobs; job++)
        left += start(o, job, until_s);
    while (left > 0) {
        nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
        left = collect(o, until_s, left);
        look_for_hangs(o);
    }
    double took_s = now_s() - begin_s;
    uint64_t done = shared->passed + shared->failed;
    printf("seed %llu: %llu cases in %.1f s, %.0f a second; %llu ran twice, %llu were refused\n",
           (unsigned long long)o->seed, (unsigned long long)done, took_s, (double)done / took_s,
           (unsigned long long)shared->twins, (unsigned long long)shared->refused);
    printf("digest %016llx, kernels %s\n", (unsigned long long)shared->digest, kernels_in_use());
    printf("%llu passed, %llu failed\n", (unsigned long long)shared->passed,
           (unsigned long long)shared->failed);
    return shared->failed > 0 || shared->passed == 0;
}

/* -- the program ------------------------------------------------------------------------------ */

static bool open_folder(void) {
    snprintf(folder, sizeof folder, "/dev/shm/tamis-fuzz-XXXXXX");
    if (!mkdtemp(folder)) {
        snprintf(folder, sizeof folder, "/tmp/tamis-fuzz-XXXXXX");
        if (!mkdtemp(folder))
            return false;
    }
    return setenv("FUZZ_FOLDER", folder, 1) == 0;
}

/* Remove the folder and what crashed processes have left in it. */
static void close_folder(void) {
    DIR *entries = opendir(folder);
    char path[sizeof folder + 256 + 2];
    for (struct dirent *e = entries ? readdir(entries) : NULL; e; e = readdir(entries)) {
        snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        if (e->d_name[0] != '.')
            unlink(path);
    }
    if (entries)
        closedir(entries);
    rmdir(folder);
}

static uint64_t read_number(const char *text) {
    char *rest;
    errno = 0;
    uint64_t number = strtoull(text, &rest, 10);
    if (errno != 0 || rest == text || *rest != '\0') {
        fprintf(stderr, "properties: \"%s\" is no number\n", text);
        exit(2);
    }
    return number;
}

static bool read_options(int argc, char **argv, options *o) {
    for (int i = 1; i < argc; i++) {
        const char *name = argv[i], *value = i + 1 < argc ? argv[i + 1] : NULL;
        if (strcmp(name, "--shrink") == 0) {
            o->shrink = true;
            continue;
        }
        if (!value)
            return false;
        i++;
        if (strcmp(name, "--seed") == 0)
            o->seed = strcmp(value, "random") == 0
                          ? fuzz_mix((uint64_t)time(NULL) << 20 ^ (uint64_t)getpid()) >> 32
                          : read_number(value);
        else if (strcmp(name, "--first") == 0)
            o->first = read_number(value);
        else if (strcmp(name, "--cases") == 0)
            o->cases = read_number(value);
        else if (strcmp(name, "--seconds") == 0)
            o->seconds = (double)read_number(value);
        else if (strcmp(name, "--jobs") == 0)
            o->jobs = (uint32_t)read_number(value);
        else if (strcmp(name, "--case") == 0)
            o->one = true, o->only = read_number(value);
        else
            return false;
    }
    return o->jobs >= 1 && o->jobs <= MOST_JOBS;
}

int main(int argc, char **argv) {
    options o = {.seed = 1, .cases = UINT64_MAX / 2, .seconds = 1e9, .jobs = 2};
    if (argc < 2 || !read_options(argc, argv, &o)) {
        fprintf(stderr, "usage: properties [--seed S|random] [--cases N] [--seconds X] [--first N] "
                        "[--jobs J] [--case N [--shrink]]\n");
        return 2;
    }
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED || !open_folder()) {
        fprintf(stderr, "properties: no memory or no folder for state files\n");
        return 2;
    }
    setenv("TAMIS_LOG_FILE", "/dev/null", 0); /* some calls fail on purpose */
    int failed = o.one ? run_one(&o) : run_many(&o);
    close_folder();
    return failed;
}
