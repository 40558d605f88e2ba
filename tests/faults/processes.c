/* SPDX-License-Identifier: MIT
 *
 * processes CASES OUT DEADLINE_MS [single|resume]
 *
 * Ranks under mpirun make the attempts that CASES lists, one a line, "ID CONFIG FAULT" with FAULT
 * as shim.h says or "-", each over a communicator of its own. After one that failed they go on from
 * their saved states over a new one. Each rank writes OUT.RANK, a line of JSON an attempt, at once.
 *
 * No rank waits for another longer than the deadline inside of the library, whatever happens, and
 * not much longer outside: a watchdog writes "hang" and the name of the call, and ends the process.
 * With `single` there is one case after which a rank may be gone: nothing is recovered, and a rank
 * leaves when it has written its line and the others had time to write theirs. Before each step it
 * saves a state, and with `resume` all go on from the newest step of which each of them has one.
 */
#include "tests/faults/attempt.h"
#include "tests/faults/shim.h"

#include "lib/base/json.h"

#include <errno.h>
#include <math.h>
#include <mpi.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <tamis/elastic.h>
#include <tamis/mpi.h>
#include <time.h>
#include <unistd.h>

enum { CONFIGS = 32, LINE = 256, GRACE_S = 10, RECOVERY_MS = 60000 };

static struct {
    int rank, nranks;
    uint32_t deadline_ms;
    bool single, resumes;
    const char *out;
    FILE *file;
    char id[32];
    pthread_mutex_t writing;
    const char *_Atomic where; /* outside of an attempt */
    _Atomic double since_s, limit_s;
    _Atomic double stalled_s; /* time in which nobody ran: a machine that is busy, or halted */
    attempt *_Atomic current;
} job = {.writing = PTHREAD_MUTEX_INITIALIZER};

static void sleep_briefly(double s) {
    nanosleep(&(struct timespec){(time_t)s, (long)(fmod(s, 1.0) * 1e9)}, NULL);
}

/* -- the watchdog ----------------------------------------------------------------------------- */

static void enter(const char *where, double limit_s) {
    job.since_s = attempt_now_s();
    job.limit_s = limit_s;
    job.where = where;
}

static void put_line(const tam_text *t) {
    fwrite(t->bytes, 1, t->length, job.file);
    fflush(job.file);
}

static void give_up(const char *where, double since_s) {
    tam_text t = {0};
    pthread_mutex_lock(&job.writing);
    tam_text_put(&t, "{");
    tam_json_text(&t, "case", job.id);
    tam_json_count(&t, "rank", (uint64_t)job.rank);
    tam_json_text(&t, "hang", where);
    tam_json_number(&t, "after_s", attempt_now_s() - since_s);
    tam_json_number(&t, "stalled_s", job.stalled_s);
    tam_text_put(&t, "}\n");
    put_line(&t);
    _exit(9);
}

/* A call under way, and how long this process could work at it. */
typedef struct patience {
    double since_s, waited_s;
} patience;

static bool is_over(patience *p, const char *where, double since_s, double more_s, double limit_s) {
    if (!where || p->since_s != since_s)
        *p = (patience){.since_s = since_s};
    else
        p->waited_s += more_s;
    return p->waited_s > limit_s;
}

static void *watch(void *unused) {
    static const double tick_s = 0.05, most_s = 0.25;
    patience outside = {0}, inside = {0};
    for (double before_s = attempt_now_s(), now_s; true; before_s = now_s) {
        sleep_briefly(tick_s);
        now_s = attempt_now_s();
        double more_s = fmin(now_s - before_s, most_s), since_s = job.since_s;
        job.stalled_s = job.stalled_s + (now_s - before_s - more_s);
        const char *where = job.where;
        if (is_over(&outside, where, since_s, more_s, job.limit_s))
            give_up(where, since_s);
        attempt *a = job.current;
        where = a ? a->where : NULL;
        since_s = a ? a->since_s : now_s;
        if (is_over(&inside, where, since_s, more_s, 1e-3 * job.deadline_ms + GRACE_S))
            give_up(where, since_s);
    }
    return unused;
}

/* -- an attempt ------------------------------------------------------------------------------- */

static const reference *reference_for(const fault_config *config) {
    static reference all[CONFIGS];
    for (int i = 0; i < CONFIGS; i++) {
        if (all[i].config == config)
            return &all[i];
        if (all[i].config)
            continue;
        if (!reference_make(config, (uint32_t)job.nranks, &all[i]))
            _exit(8);
        return &all[i];
    }
    return NULL;
}

static tamis_status create(attempt *a, uint32_t timeout_ms, tamis_comm **comm) {
    tamis_comm_config config = TAMIS_COMM_CONFIG_INIT;
    config.timeout_ms = timeout_ms;
    double begin_s = attempt_now_s(), starved_s = attempt_starved_s();
    enter("tamis_comm_create_mpi", 1e-3 * timeout_ms + GRACE_S);
    tamis_status status = tamis_comm_create_mpi(MPI_COMM_WORLD, &config, comm);
    job.where = NULL;
    double took_s = attempt_now_s() - begin_s - (attempt_starved_s() - starved_s);
    a->slowest_s = took_s > a->slowest_s ? took_s : a->slowest_s;
    return status;
}

/* From what the earliest rank has: a step that another had made since is made again. */
static void run(attempt *a, tamis_comm **comm, int from) {
    a->at = "communicator";
    a->status = create(a, job.deadline_ms, comm);
    if (a->status != TAMIS_OK) {
        snprintf(a->sentence, sizeof a->sentence, "%s", tamis_last_error());
        return;
    }
    job.current = a;
    a->at = "reducer";
    if (from < 0)
        attempt_run(a, *comm);
    else
        attempt_resume(a, *comm, (uint32_t)from);
    job.current = NULL;
}

/* Steps whose result is not that of a run without a fault. */
static uint32_t count_wrong(const attempt *a, const reference *ref, uint32_t from) {
    uint32_t wrong = 0;
    for (uint32_t t = from; t < a->done; t++)
        wrong += a->hash[t] != ref->hash[t];
    return wrong;
}

/* What came of the attempt itself, before anything is recovered. */
static void put_outcome(tam_text *out, const attempt *a, uint32_t wrong) {
    tam_text t = {0};
    tam_text_put(&t, "{");
    tam_json_text(&t, "case", job.id);
    tam_json_count(&t, "rank", a->rank);
    tam_json_bool(&t, "fired", shim_fired());
    tam_json_text(&t, "status", tamis_status_name(a->status));
    tam_json_text(&t, "at", a->at);
    tam_json_count(&t, "step", a->step);
    tam_json_text(&t, "sentence", a->sentence);
    tam_json_count(&t, "done", a->done);
    tam_json_count(&t, "wrong", wrong);
    tam_json_number(&t, "slowest_s", a->slowest_s);
    for (int c = 0; c < SHIM_CALLS; c++)
        tam_json_count(&t, shim_calls[c], shim_count(c));
    *out = t;
}

/* What did not hold, then or later. */
static void report(tam_text *t, const attempt *a, const char *recovery) {
    tam_json_text(t, "broken", a->broken);
    tam_json_text(t, "recovery", recovery);
    tam_json_number(t, "stalled_s", job.stalled_s);
    tam_text_put(t, "}\n");
    pthread_mutex_lock(&job.writing);
    put_line(t);
    pthread_mutex_unlock(&job.writing);
    tam_text_free(t);
}

static void save(attempt *a) {
    char path[512];
    snprintf(path, sizeof path, "%s.%d.state", job.out, job.rank);
    job.current = a;
    attempt_save(a, atoi(job.id) % 2 ? path : NULL);
    job.current = NULL;
    unlink(path);
}

/* -- after it --------------------------------------------------------------------------------- */

static int all_of(int mine, MPI_Op op) {
    int all = mine;
    enter("a rank is waited for after an attempt",
          3.0 * GRACE_S + 4e-3 * job.deadline_ms + 1e-3 * RECOVERY_MS);
    PMPI_Allreduce(MPI_IN_PLACE, &all, 1, MPI_INT, op, MPI_COMM_WORLD);
    job.where = NULL;
    return all;
}

/* All ranks end with the same results, and nothing is missing. */
static const char *compare(const attempt *a) {
    static double residuals[ATTEMPT_N], given[ATTEMPT_N];
    uint64_t hashes[2] = {a->after_hash, ~a->after_hash};
    for (size_t i = 0; i < ATTEMPT_N; i++)
        residuals[i] = (double)a->left[i];
    enter("results are compared", 3.0 * GRACE_S);
    PMPI_Allreduce(MPI_IN_PLACE, hashes, 2, MPI_UINT64_T, MPI_MAX, MPI_COMM_WORLD);
    PMPI_Allreduce(MPI_IN_PLACE, residuals, ATTEMPT_N, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    PMPI_Allreduce(a->given, given, ATTEMPT_N, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    job.where = NULL;
    if (hashes[0] != ~hashes[1])
        return "the ranks have different results after the recovery";
    for (size_t i = 0; a->has_residual && i < ATTEMPT_N; i++) {
        if (!attempt_adds_up(a->config, residuals[i], (double)a->params[a->step][i], given[i]))
            return "after the recovery something is missing, or there twice";
    }
    return "ok";
}

static tamis_comm *create_again(attempt *a) {
    tamis_comm *comm = NULL;
    double slowest_s = a->slowest_s;
    if (all_of(create(a, RECOVERY_MS, &comm) == TAMIS_OK, MPI_MIN) == 0)
        snprintf(a->broken, sizeof a->broken, "no new communicator: %.300s", tamis_last_error());
    a->slowest_s = slowest_s;
    return a->broken[0] ? NULL : comm;
}

static const char *recover(attempt *a) {
    tamis_comm *comm = create_again(a);
    if (!comm)
        return "failed";
    uint32_t deadline_ms = job.deadline_ms;
    double slowest_s = a->slowest_s;
    job.deadline_ms = RECOVERY_MS;
    job.current = a;
    attempt_recover(a, comm);
    job.current = NULL;
    job.deadline_ms = deadline_ms;
    a->slowest_s = slowest_s;
    const char *said = all_of(a->broken[0] == '\0', MPI_MIN) ? compare(a) : "failed";
    attempt_free(a);
    tamis_comm_destroy(comm);
    return said;
}

/* Where a rank has no state the run begins anew. */
static const char *begin_anew(attempt *a, const reference *ref) {
    static attempt fresh;
    attempt_clear(&fresh, a->config, a->rank, a->nranks);
    tamis_comm *comm = create_again(a);
    if (!comm)
        return "failed";
    attempt_run(&fresh, comm);
    bool right = fresh.status == TAMIS_OK && count_wrong(&fresh, ref, 0) == 0;
    right = all_of(right, MPI_MIN) != 0;
    attempt_free(&fresh);
    tamis_comm_destroy(comm);
    return right ? "ok" : "a run from the beginning fails";
}

static const char *go_on(attempt *a, tamis_comm *comm, const reference *ref) {
    bool all_fine = all_of(a->status == TAMIS_OK, MPI_MIN) != 0;
    bool have_states = all_of(a->reducer != NULL, MPI_MIN) != 0;
    shim_disarm();
    if (!all_fine && comm)
        tamis_comm_abort(comm); /* for a rank that has noticed nothing */
    const char *said = all_fine ? "-" : have_states ? recover(a) : begin_anew(a, ref);
    attempt_free(a);
    enter("tamis_comm_destroy", 3.0 * GRACE_S);
    tamis_comm_destroy(comm);
    job.where = NULL;
    return said;
}

/* The launcher ends all ranks soon after one has left; each first sees the others' lines. */
static void leave_alone(void) {
    double end_s = attempt_now_s() + 1e-3 * job.deadline_ms + 1.0;
    for (int written = 0; written < job.nranks && attempt_now_s() < end_s; sleep_briefly(0.02)) {
        written = 0;
        for (int r = 0; r < job.nranks; r++) {
            char path[512];
            snprintf(path, sizeof path, "%s.%d", job.out, r);
            FILE *file = fopen(path, "re");
            written += file && fgetc(file) != EOF;
            if (file)
                fclose(file);
        }
    }
    _exit(0);
}

static void make(const char *config_name, const char *fault) {
    static attempt a;
    char states[512];
    int from = -1;
    tam_text outcome;
    tamis_comm *comm = NULL;
    const fault_config *config = fault_config_find(config_name);
    const reference *ref = config ? reference_for(config) : NULL;
    if (!ref)
        _exit(7);
    attempt_clear(&a, config, (uint32_t)job.rank, (uint32_t)job.nranks);
    snprintf(states, sizeof states, "%s.%d.before", job.out, job.rank);
    a.states = job.single || job.resumes ? states : NULL;
    from = all_of(job.resumes ? attempt_newest(&a) : -1, MPI_MIN);
    job.stalled_s = 0;
    setenv("FAULT", strcmp(fault, "-") == 0 ? "" : fault, 1);
    if (!shim_arm())
        _exit(7);
    run(&a, &comm, from);
    put_outcome(&outcome, &a, count_wrong(&a, ref, from < 0 ? 0 : (uint32_t)from));
    if (a.reducer)
        save(&a);
    report(&outcome, &a, job.single ? "-" : go_on(&a, comm, ref));
    if (job.single)
        leave_alone();
}

int main(int argc, char **argv) {
    char path[512], line[LINE], config[64], fault[64];
    int level;
    pthread_t thread;
    if (argc < 4)
        return 2;
    signal(SIGTERM, SIG_IGN); /* the launcher's; SIGKILL comes later */
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    job.out = argv[2];
    job.deadline_ms = (uint32_t)strtoul(argv[3], NULL, 10);
    job.single = argc > 4 && strcmp(argv[4], "single") == 0;
    job.resumes = argc > 4 && strcmp(argv[4], "resume") == 0;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
    MPI_Comm_rank(MPI_COMM_WORLD, &job.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &job.nranks);
    snprintf(path, sizeof path, "%s.%d", job.out, job.rank);
    job.file = fopen(path, "we");
    FILE *cases = fopen(argv[1], "re");
    if (!job.file || !cases || pthread_create(&thread, NULL, watch, NULL) != 0)
        return 2;
    while (fgets(line, sizeof line, cases)) {
        if (sscanf(line, "%31s %63s %63s", job.id, config, fault) == 3)
            make(config, fault);
    }
    fclose(cases);
    all_of(0, MPI_MAX);
    fflush(NULL);
    MPI_Finalize();
    return 0;
}
