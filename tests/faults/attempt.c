/* SPDX-License-Identifier: MIT */
#include "tests/faults/attempt.h"

#include "tests/support/data.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tamis/elastic.h>
#include <tamis/state.h>
#include <time.h>
#include <unistd.h>

double attempt_now_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

double attempt_starved_s(void) {
    double ran_ns, waited_ns = 0;
    FILE *file = fopen("/proc/thread-self/schedstat", "re");
    if (file && fscanf(file, "%lf %lf", &ran_ns, &waited_ns) != 2)
        waited_ns = 0;
    if (file)
        fclose(file);
    return 1e-9 * waited_ns;
}

void attempt_clear(attempt *a, const fault_config *config, uint32_t rank, uint32_t nranks) {
    memset(a, 0, sizeof *a);
    a->config = config;
    a->rank = rank;
    a->nranks = nranks;
    a->at = "reducer";
}

void attempt_free(attempt *a) {
    tamis_reducer_destroy(a->reducer);
    free(a->control);
    a->reducer = NULL;
    a->control = NULL;
}

static void enter(attempt *a, const char *call) {
    a->starved_s = attempt_starved_s();
    a->since_s = attempt_now_s();
    a->where = call;
}

/* @return status */
static tamis_status leave(attempt *a, tamis_status status) {
    double took_s = attempt_now_s() - a->since_s - (attempt_starved_s() - a->starved_s);
    a->where = NULL;
    if (took_s > a->slowest_s)
        a->slowest_s = took_s;
    return status;
}

#define TIMED(a, call) (enter(a, #call), leave(a, call))

static void complain(attempt *a, const char *what) {
    if (a->broken[0] == '\0')
        snprintf(a->broken, sizeof a->broken, "%s", what);
}

/* -- a run ------------------------------------------------------------------------------------ */

enum { ROWS_AT = 200, ROWS_LENGTH = 240, ROW = 8 };

static tamis_status create(attempt *a, tamis_comm *comm) {
    static const tamis_segment segments[] = {
        {"first", ROWS_AT}, {"second", ROWS_LENGTH}, {"third", ATTEMPT_N - ROWS_AT - ROWS_LENGTH}};
    tamis_layout *layout = NULL;
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    config.scheme = a->config->scheme;
    config.value_codec = a->config->value_codec;
    config.bucket_length = a->config->bucket_length;
    config.density = 0.1;
    config.op = TAMIS_OP_SUM;
    tamis_status status = tamis_layout_create(segments, 3, &layout);
    if (status == TAMIS_OK && a->config->rows)
        status = tamis_layout_set_rows(layout, 1, ROW);
    if (status == TAMIS_OK)
        status = TIMED(a, tamis_reducer_create(comm, layout, &config, &a->reducer));
    tamis_layout_destroy(layout);
    return status;
}

static void fill(attempt *a, uint32_t number) {
    data_fill(DATA_HEAVY, a->rank, number, ATTEMPT_N, a->gradient);
    for (size_t i = 0; a->config->rows && i < ROWS_LENGTH; i++) {
        if ((i / ROW + a->rank + number) % 5 != 0)
            a->gradient[ROWS_AT + i] = 0.0f;
    }
}

static void read_residual(attempt *a, float *out) {
    const float *residual = NULL;
    if (tamis_reducer_residual(a->reducer, &residual) != TAMIS_OK)
        complain(a, "the residual cannot be read");
    if (residual)
        memcpy(out, residual, sizeof a->before);
    a->has_residual = residual != NULL;
}

/* Each element has been taken into the residual, and cleared, or is where it was. */
static void check_kept(attempt *a, const float *gradient) {
    read_residual(a, a->left);
    for (size_t i = 0; a->has_residual && i < ATTEMPT_N; i++) {
        float sum = a->before[i] + gradient[i];
        if (a->left[i] == sum && a->gradient[i] == 0.0f)
            a->given[i] += (double)gradient[i];
        else if (a->left[i] != a->before[i] || a->gradient[i] != gradient[i])
            complain(a, "after the failure something is neither in the gradient nor waits");
    }
}

/* @return whether it succeeded */
static bool make_step(attempt *a, uint32_t number, uint32_t at) {
    float gradient[ATTEMPT_N];
    tamis_step step = TAMIS_STEP_INIT;
    fill(a, number);
    memcpy(gradient, a->gradient, sizeof gradient);
    read_residual(a, a->before);
    step.grad = a->gradient;
    a->status = TIMED(a, tamis_reducer_start(a->reducer, &step));
    if (a->status == TAMIS_OK)
        a->status = TIMED(a, tamis_reducer_wait(a->reducer));
    if (a->status != TAMIS_OK) {
        snprintf(a->sentence, sizeof a->sentence, "%s", tamis_last_error());
        check_kept(a, gradient);
        return false;
    }
    for (size_t i = 0; i < ATTEMPT_N; i++) {
        a->given[i] += (double)gradient[i];
        a->params[at + 1][i] = a->params[at][i] + a->gradient[i];
    }
    return true;
}

/* -- states of all steps, in files ------------------------------------------------------------ */

static void name_state(const attempt *a, uint32_t step, char path[ATTEMPT_TEXT]) {
    snprintf(path, ATTEMPT_TEXT, "%s.%u", a->states, step);
}

int attempt_newest(const attempt *a) {
    char path[ATTEMPT_TEXT];
    int newest = ATTEMPT_STEPS - 1;
    for (; newest >= 0; newest--) {
        name_state(a, (uint32_t)newest, path);
        if (access(path, R_OK) == 0)
            break;
    }
    return newest;
}

static void make_steps(attempt *a, uint32_t from) {
    char path[ATTEMPT_TEXT];
    a->at = "step";
    a->done = from;
    for (a->step = from; a->step < ATTEMPT_STEPS; a->step++) {
        name_state(a, a->step, path);
        if (a->states && tamis_reducer_save(a->reducer, path) != TAMIS_OK)
            complain(a, tamis_last_error());
        if (!make_step(a, a->step, a->step))
            return;
        a->hash[a->done++] = data_hash(0, a->gradient, sizeof a->gradient);
    }
}

static bool begin(attempt *a, tamis_comm *comm) {
    a->status = create(a, comm);
    if (a->status != TAMIS_OK)
        snprintf(a->sentence, sizeof a->sentence, "%s", tamis_last_error());
    return a->status == TAMIS_OK;
}

void attempt_run(attempt *a, tamis_comm *comm) {
    if (begin(a, comm))
        make_steps(a, 0);
}

void attempt_resume(attempt *a, tamis_comm *comm, uint32_t from) {
    char path[ATTEMPT_TEXT];
    if (!begin(a, comm))
        return;
    name_state(a, from, path);
    if (tamis_reducer_load(a->reducer, path) != TAMIS_OK)
        complain(a, tamis_last_error());
    else
        make_steps(a, from);
}

/* -- states ----------------------------------------------------------------------------------- */

static tamis_status save_memory(attempt *a) {
    tamis_status status = tamis_reducer_control_bytes(a->reducer, &a->control_bytes);
    if (status != TAMIS_OK)
        return status;
    a->control = calloc(1, a->control_bytes);
    status = tamis_reducer_save_control(a->reducer, a->control, a->control_bytes);
    return status == TAMIS_OK && a->has_residual ? tamis_reducer_save_residual(a->reducer, a->left)
                                                 : status;
}

static tamis_status load_memory(attempt *a) {
    return tamis_reducer_load_memory(a->reducer, a->control, a->control_bytes,
                                     a->has_residual ? a->left : NULL);
}

void attempt_save(attempt *a, const char *path) {
    float before[ATTEMPT_N] = {0}, after[ATTEMPT_N] = {0};
    read_residual(a, before);
    tamis_status status = save_memory(a);
    if (status == TAMIS_OK && path)
        status = TIMED(a, tamis_reducer_save(a->reducer, path));
    if (status != TAMIS_OK) {
        complain(a, tamis_last_error());
        return;
    }
    status = path ? TIMED(a, tamis_reducer_load(a->reducer, path)) : load_memory(a);
    if (status == TAMIS_E_STATE && strstr(tamis_last_error(), "never ended"))
        return; /* a call of MPI still runs: only a new reducer can load */
    if (status != TAMIS_OK)
        complain(a, tamis_last_error());
    read_residual(a, after);
    if (memcmp(before, after, sizeof before) != 0)
        complain(a, "the residual that was loaded is not the one that was saved");
}

/* Without a residual the results are what all ranks gave. */
static void check_dense(attempt *a, uint32_t number) {
    attempt *other = calloc(1, sizeof *other);
    double sum[ATTEMPT_N] = {0};
    for (uint32_t r = 0; r < a->nranks; r++) {
        other->config = a->config;
        other->rank = r;
        fill(other, number);
        for (size_t i = 0; i < ATTEMPT_N; i++)
            sum[i] += (double)other->gradient[i];
    }
    for (size_t i = 0; i < ATTEMPT_N; i++) {
        if ((double)a->gradient[i] != sum[i])
            complain(a, "a sum after the recovery is wrong");
    }
    free(other);
}

static void go_on(attempt *a, uint64_t from) {
    enum { FIRST = 100 }; /* other gradients than before */
    for (uint32_t i = 0; i < ATTEMPT_AFTER; i++) {
        if (!make_step(a, FIRST + i, (uint32_t)from + i)) {
            complain(a, a->sentence);
            return;
        }
        a->after_hash = data_hash(a->after_hash, a->gradient, sizeof a->gradient);
        if (!a->has_residual)
            check_dense(a, FIRST + i);
    }
    a->step = (uint32_t)from + ATTEMPT_AFTER;
    read_residual(a, a->left);
}

void attempt_recover(attempt *a, tamis_comm *comm) {
    uint64_t from = 0;
    tamis_reducer_destroy(a->reducer);
    a->reducer = NULL;
    tamis_status status = create(a, comm);
    if (status == TAMIS_OK)
        status = load_memory(a);
    if (status == TAMIS_OK)
        status = TIMED(a, tamis_reducer_resync(a->reducer, &from));
    if (status != TAMIS_OK) {
        complain(a, tamis_last_error());
        return;
    }
    if (from > a->done)
        complain(a, "the ranks go on from a step that this one has not made");
    else
        go_on(a, from);
}
