/* SPDX-License-Identifier: MIT
 *
 * What a rank does, as a user's program would: steps; after a failure it goes on with the ranks
 * that are left, or starts again from saved states; then a few more steps. Who is left is known
 * from outside, as from a launcher.
 */
#include "tests/explore/program.h"

#include "tests/support/data.h"

#include <stdlib.h>
#include <string.h>
#include <tamis/callback.h>
#include <tamis/elastic.h>
#include <tamis/state.h>

/* -- as every user ---------------------------------------------------------------------------- */

static void fill(uint32_t id, uint64_t number, float *grad) {
    for (uint32_t i = 0; i < LENGTH; i++)
        grad[i] = (float)(data_mix((number * RANKS + id) * LENGTH + i) % 2001) - 1000.0f;
}

static tamis_status make_reducer(tamis_comm *comm, const setting *set, tamis_reducer **out) {
    static const tamis_segment segments[] = {{"a", LENGTH / 2}, {"b", LENGTH - LENGTH / 2}};
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    tamis_layout *layout = NULL;
    config.scheme = set->scheme;
    config.density = 0.1;
    config.block = 32;
    config.op = TAMIS_OP_SUM;
    config.bucket_length = set->bucket_length;
    config.update = set->update;
    tamis_status status = tamis_layout_create(segments, 2, &layout);
    if (status == TAMIS_OK)
        status = tamis_reducer_create(comm, layout, &config, out);
    tamis_layout_destroy(layout);
    return status;
}

static tamis_status open_comm(actor *self, uint32_t generation) {
    tamis_comm_config config = TAMIS_COMM_CONFIG_INIT;
    tamis_callbacks callbacks;
    config.timeout_ms = TIMEOUT_MS;
    net_callbacks(self->world->nets[generation], self->id, &callbacks);
    return CALL(self, tamis_comm_create_callback(&callbacks, &config, &self->comms[generation]));
}

/* -- steps ------------------------------------------------------------------------------------ */

/* After a failure the communicator is lost, and the residual holds all that was given. */
static tamis_status record_failure(actor *self, const tamis_step *step, tamis_status status) {
    tamis_status poison = tamis_comm_status(self->comms[self->generation]);
    if (self->leaving)
        return status;
    if (poison != status)
        world_fail(self, "a step failed with %s, but the communicator says %s",
                   tamis_status_name(status), tamis_status_name(poison));
    tamis_status again = CALL(self, tamis_reducer_start(self->reducer, step));
    if (again != status)
        world_fail(self, "after %s a step begins with %s", tamis_status_name(status),
                   tamis_status_name(again));
    check_residual(self, "after a step that failed");
    return status;
}

static tamis_status make_step(actor *self) {
    float grad[LENGTH], given[LENGTH];
    tamis_step step = TAMIS_STEP_INIT;
    world *w = self->world;
    step.grad = grad;
    fill(self->id, self->gradients++, grad);
    memcpy(given, grad, sizeof given);
    w->open = w->open || self->step >= w->set->opens;
    tamis_status status = CALL(self, tamis_reducer_start(self->reducer, &step));
    if (status != TAMIS_OK)
        return record_failure(self, &step, status);
    check_started(self, given);
    status = CALL(self, tamis_reducer_wait(self->reducer));
    if (status != TAMIS_OK)
        return record_failure(self, &step, status);
    check_applied(self, grad);
    check_residual(self, "after a step");
    return TAMIS_OK;
}

static tamis_status make_steps(actor *self, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) {
        world_compute(self);
        tamis_status status = make_step(self);
        if (status != TAMIS_OK || self->leaving)
            return status;
    }
    return TAMIS_OK;
}

/* -- after a failure -------------------------------------------------------------------------- */

static tamis_status shrink(actor *self, tamis_comm **smaller) {
    const rendezvous *m = &self->outcome;
    const net *base = self->world->nets[m->base];
    tamis_shrink how = TAMIS_SHRINK_INIT;
    tamis_callbacks callbacks;
    uint32_t list[RANKS];
    for (uint32_t i = 0; i < m->nalive; i++)
        for (uint32_t nth = 0; nth < net_nranks(base); nth++)
            if (net_rank(base, nth) == m->alive[i])
                list[i] = nth;
    net_callbacks(self->world->nets[m->generation], self->id, &callbacks);
    how.ranks = list;
    how.nranks = m->nalive;
    how.callbacks = &callbacks;
    return CALL(self, tamis_comm_shrink(self->comms[m->base], &how, smaller));
}

static tamis_status go_on(actor *self) {
    const rendezvous *m = &self->outcome;
    tamis_comm **smaller = &self->comms[m->generation];
    tamis_migration report = TAMIS_MIGRATION_INIT;
    tamis_reducer *migrated = NULL;
    tamis_status status = shrink(self, smaller);
    if (status != TAMIS_OK)
        return status;
    status = CALL(self, tamis_reducer_migrate(self->reducer, *smaller, &report, &migrated));
    if (status != TAMIS_OK) {
        check_back(self);
        return status;
    }
    if (report.gone != m->before - m->nalive)
        world_fail(self, "%u of %u ranks are gone, not %u", m->before - m->nalive, m->before,
                   report.gone);
    tamis_reducer_destroy(self->reducer);
    self->reducer = migrated;
    self->generation = m->generation;
    check_returned(self, report.step);
    return TAMIS_OK;
}

static tamis_status save(actor *self) {
    tamis_status status = tamis_reducer_control_bytes(self->reducer, &self->control_bytes);
    if (!self->control)
        self->control = malloc(self->control_bytes);
    if (status == TAMIS_OK)
        status = CALL(
            self, tamis_reducer_save_control(self->reducer, self->control, self->control_bytes));
    if (status == TAMIS_OK)
        status = CALL(self, tamis_reducer_save_residual(self->reducer, self->saved));
    tamis_reducer_destroy(self->reducer);
    self->reducer = NULL;
    return status;
}

static tamis_status start_again(actor *self) {
    uint32_t generation = self->outcome.generation;
    uint64_t step = 0;
    tamis_status status = self->reducer ? save(self) : TAMIS_OK;
    if (status == TAMIS_OK)
        status = open_comm(self, generation);
    if (status == TAMIS_OK)
        status =
            CALL(self, make_reducer(self->comms[generation], self->world->set, &self->reducer));
    if (status != TAMIS_OK)
        return status;
    self->generation = generation;
    status = CALL(self, tamis_reducer_load_memory(self->reducer, self->control, self->control_bytes,
                                                  self->saved));
    if (status == TAMIS_OK)
        status = CALL(self, tamis_reducer_resync(self->reducer, &step));
    if (status == TAMIS_OK) {
        check_returned(self, step);
        return TAMIS_OK;
    }
    tamis_reducer_destroy(self->reducer); /* what was saved is whole */
    self->reducer = NULL;
    return status;
}

static tamis_status recover(actor *self) {
    bool again = self->world->set->resyncs && self->outcome.nalive == RANKS;
    tamis_status status = again ? start_again(self) : go_on(self);
    if (status != TAMIS_OK)
        return status;
    tamis_comm *comm = self->comms[self->generation];
    return CALL(self, tamis_comm_check_equal(comm, self->params, sizeof self->params));
}

/* -- life ------------------------------------------------------------------------------------- */

static void leave(actor *self) {
    tamis_reducer_destroy(self->reducer);
    for (uint32_t g = 0; g < GENERATIONS; g++)
        tamis_comm_destroy(self->comms[g]);
    free(self->control);
}

void program_run(actor *self) {
    world *w = self->world;
    tamis_status status = open_comm(self, 0);
    if (status == TAMIS_OK)
        status = CALL(self, make_reducer(self->comms[0], w->set, &self->reducer));
    if (status == TAMIS_OK)
        status = make_steps(self, FIRST);
    for (;;) {
        self->fine = status == TAMIS_OK;
        world_rendezvous(self);
        if (self->leaving || self->expelled || w->broken || self->outcome.fine ||
            self->outcome.hopeless)
            break;
        status = recover(self);
        if (status == TAMIS_OK)
            status = make_steps(self, MORE);
    }
    leave(self);
}

/* -- without a world -------------------------------------------------------------------------- */

typedef struct referee {
    tamis_comm *comm;
    const setting *set;
    uint64_t hash[STEPS_MOST];
} referee;

static void *refer(void *argument) {
    referee *one = argument;
    tamis_reducer *reducer = NULL;
    float grad[LENGTH];
    tamis_step step = TAMIS_STEP_INIT;
    tamis_status status = make_reducer(one->comm, one->set, &reducer);
    step.grad = grad;
    for (uint32_t s = 0; s < FIRST && status == TAMIS_OK; s++) {
        fill(tamis_comm_rank(one->comm), s, grad);
        status = tamis_reducer_start(reducer, &step);
        if (status == TAMIS_OK)
            status = tamis_reducer_wait(reducer);
        one->hash[s] = data_hash(0, grad, sizeof grad);
    }
    if (status != TAMIS_OK)
        abort();
    tamis_reducer_destroy(reducer);
    return NULL;
}

void world_refer(const setting *set, uint64_t hash[STEPS_MOST]) {
    tamis_comm *comms[RANKS];
    pthread_t threads[RANKS];
    referee all[RANKS] = {0};
    if (tamis_comm_create_local(RANKS, NULL, comms) != TAMIS_OK)
        abort();
    for (uint32_t r = 0; r < RANKS; r++) {
        all[r].comm = comms[r];
        all[r].set = set;
        if (pthread_create(&threads[r], NULL, refer, &all[r]) != 0)
            abort();
    }
    for (uint32_t r = 0; r < RANKS; r++) {
        pthread_join(threads[r], NULL);
        tamis_comm_destroy(comms[r]);
    }
    memcpy(hash, all[0].hash, sizeof all[0].hash);
}
