/* SPDX-License-Identifier: MIT
 *
 * A step ends: wait, test, join, and what can be read between steps.
 */
#include "collectives/reducer/reducer.h"

#include <tamis/overlap.h>
#include <tamis/stats.h>

/* Outcomes of joined steps that are kept: TAM_CUDA_STEPS. */
enum { BACK_MAX = 8 };

/* -- wait ------------------------------------------------------------------------------------- */

/* Longest time between two checks of the communicator's status. */
#define LOOK_NS UINT64_C(20000000)

/* How long after the end of a wait a thread may still be busy with its bucket. */
#define GRACE_NS UINT64_C(500000000)

static tamis_status result_name_missing(const tamis_reducer *r) {
    uint32_t nsegments = r->layout->nsegments, first = nsegments, missing = 0;
    for (uint32_t s = nsegments; s-- > 0;) {
        if (r->ready[s])
            continue;
        first = s;
        missing++;
    }
    if (missing == 0)
        return tam_fail(TAMIS_E_TIMEOUT,
                        "rank %u waited until its deadline for a thread inside tamis_reducer_ready",
                        r->comm->rank);
    return tam_fail(TAMIS_E_TIMEOUT,
                    "rank %u waited until its deadline for the gradient of %s (segment %u), which "
                    "was never marked ready; %u of %u segments are missing",
                    r->comm->rank, r->layout->names[first], first, missing, nsegments);
}

static bool is_started(tamis_reducer *r) {
    pthread_mutex_lock(&r->lock);
    bool started = r->started;
    pthread_mutex_unlock(&r->lock);
    return started;
}

/* With the lock held: let no further bucket begin. A launch that takes longer than the grace may
 * still use the reducer, so the reducer's memory stays. */
static void result_give_up(tamis_reducer *r) {
    uint64_t until_ns = tam_clock_ns() + GRACE_NS;
    r->given_up = true;
    while (r->launching && tam_lock_wait(&r->lock, &r->progress, until_ns))
        ;
    r->abandoned = r->abandoned || r->launching;
    r->launching = false;
}

/* Called with the lock held; releases it meanwhile. Exchange what has been launched, if no library
 * thread does it. */
static bool result_drive(tamis_reducer *r, uint32_t *driven, uint64_t until_ns) {
    if (r->comm->threaded || !r->driver->by_host || *driven == r->launched)
        return false;
    *driven = r->launched;
    tam_job *job = &r->buckets[r->launched - 1].job;
    pthread_mutex_unlock(&r->lock);
    tam_comm_drive(r->comm, job, until_ns);
    pthread_mutex_lock(&r->lock);
    return true;
}

/* Wait until another thread has launched all buckets. */
static tamis_status await_launches(tamis_reducer *r, uint64_t until_ns) {
    tamis_status status = TAMIS_OK;
    uint32_t driven = 0;
    pthread_mutex_lock(&r->lock);
    while (status == TAMIS_OK && r->launched < r->nbuckets) {
        uint64_t now_ns = tam_clock_ns(), look_ns = now_ns + LOOK_NS;
        status = tamis_comm_status(r->comm);
        if (status == TAMIS_OK && now_ns >= until_ns) {
            status = result_name_missing(r);
            tam_comm_lose(r->comm, status);
        }
        if (status == TAMIS_OK && !result_drive(r, &driven, until_ns))
            tam_lock_wait(&r->lock, &r->progress, look_ns < until_ns ? look_ns : until_ns);
    }
    if (status != TAMIS_OK)
        result_give_up(r);
    status = r->launched == r->nbuckets ? TAMIS_OK : status;
    pthread_mutex_unlock(&r->lock);
    return status;
}

static void result_end(tamis_reducer *r) {
    pthread_mutex_lock(&r->lock);
    r->started = false;
    pthread_mutex_unlock(&r->lock);
}

static tamis_status result_finish(tamis_reducer *r, const char *call, bool joins, void *stream) {
    uint64_t begin_ns = tam_clock_ns();
    if (!r)
        return tam_fail(TAMIS_E_ARGUMENT, "%s: reducer is NULL", call);
    TAM_TRY(tam_comm_usable(r->comm));
    if (!is_started(r))
        return tam_fail(TAMIS_E_STATE,
                        "rank %u: %s was called without tamis_reducer_start or tamis_reducer_ready",
                        r->comm->rank, call);
    uint64_t until_ns = tam_comm_deadline(r->comm), step = r->step;
    tam_comm_record(r->comm, TAM_FLIGHT_WAIT, step, TAMIS_OK);
    tamis_status lost = await_launches(r, until_ns), status = lost;
    uint64_t launched_ns = tam_clock_ns(); /* a call may wait before others have computed */
    if (r->launched > 0)
        status = joins ? r->driver->join(r, stream, begin_ns, until_ns)
                       : r->driver->wait(r, begin_ns, until_ns);
    if (lost != TAMIS_OK)
        status = tam_comm_check(r->comm);
    if (status == TAMIS_E_STATE) /* which had no effect */
        return status;
    r->has_result = !joins && tamis_status_loss(status) != TAMIS_LOST_COMM;
    tam_comm_record(r->comm, TAM_FLIGHT_DONE, step, status);
    result_end(r);
    tam_slowdown_waited(r, launched_ns, status == TAMIS_OK);
    tam_slowdown_follow(r);
    return status;
}

tamis_status tamis_reducer_wait(tamis_reducer *r) {
    return result_finish(r, "tamis_reducer_wait", false, NULL);
}

tamis_status tamis_reducer_join(tamis_reducer *r, void *stream) {
    return result_finish(r, "tamis_reducer_join", true, stream);
}

tamis_status tamis_reducer_test(tamis_reducer *r, int *done) {
    if (!r || !done)
        return tam_fail(TAMIS_E_ARGUMENT, "tamis_reducer_test: %s is NULL", r ? "done" : "reducer");
    TAM_TRY(tam_comm_usable(r->comm));
    if (!is_started(r))
        return tam_fail(TAMIS_E_STATE,
                        "rank %u: tamis_reducer_test was called without tamis_reducer_start or "
                        "tamis_reducer_ready",
                        r->comm->rank);
    pthread_mutex_lock(&r->lock);
    bool launched = r->launched == r->nbuckets;
    pthread_mutex_unlock(&r->lock);
    bool failed = tamis_comm_status(r->comm) != TAMIS_OK;
    *done = failed || (launched && r->driver->test(r));
    return TAMIS_OK;
}

/* -- results ---------------------------------------------------------------------------------- */

static tamis_status check_idle(const tamis_reducer *r, const void *out, const char *call) {
    if (!r || !out)
        return tam_fail(TAMIS_E_ARGUMENT, "%s: %s is NULL", call, r ? "out" : "reducer");
    if (r->started)
        return tam_fail(TAMIS_E_STATE, "%s: a step is under way; call tamis_reducer_wait first",
                        call);
    return TAMIS_OK;
}

tamis_status tamis_reducer_result(const tamis_reducer *r, tamis_result *out) {
    TAM_TRY(check_idle(r, out, "tamis_reducer_result"));
    if (!r->has_result)
        return tam_fail(TAMIS_E_STATE, "tamis_reducer_result: no step has finished yet");
    tamis_result own = TAMIS_RESULT_INIT;
    r->driver->result(r, &own);
    return tam_struct_return("tamis_result", &own, sizeof own, out);
}

tamis_status tamis_reducer_residual(const tamis_reducer *r, const float **out) {
    TAM_TRY(check_idle(r, out, "tamis_reducer_residual"));
    *out = r->acc;
    return TAMIS_OK;
}

tamis_status tamis_reducer_outcome(tamis_reducer *r, uint32_t back, int *applied) {
    TAM_TRY(check_idle(r, applied, "tamis_reducer_outcome"));
    if (back >= BACK_MAX)
        return tam_fail(TAMIS_E_ARGUMENT, "tamis_reducer_outcome: back is %u, not 0 to %d", back,
                        BACK_MAX - 1);
    TAM_TRY(tam_comm_check(r->comm));
    return r->driver->outcome(r, back, applied);
}

const char *tamis_reducer_driver(const tamis_reducer *r, const char **why) {
    bool host = !r || r->driver->by_host;
    if (why)
        *why = r ? tam_driver_reason(r) : "";
    return host ? "host" : "device";
}

tamis_status tamis_reducer_options(const tamis_reducer *r, tamis_reducer_config *config,
                                   tamis_update *update) {
    if (!r || !config)
        return tam_fail(TAMIS_E_ARGUMENT, "tamis_reducer_options: %s is NULL",
                        r ? "config" : "reducer");
    tamis_reducer_config own = r->config;
    own.update = own.update ? update : NULL;
    if (update)
        TAM_TRY(tam_struct_return("tamis_update", &r->update, sizeof r->update, update));
    return tam_struct_return("tamis_reducer_config", &own, sizeof own, config);
}

tamis_status tamis_reducer_stats(tamis_reducer *r, tamis_stats *out) {
    TAM_TRY(check_idle(r, out, "tamis_reducer_stats"));
    r->driver->look(r);
    return tam_struct_return_part("tamis_stats", &r->stats, sizeof r->stats,
                                  offsetof(tamis_stats, skew_s), out);
}
