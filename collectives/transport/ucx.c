/* SPDX-License-Identifier: MIT
 *
 * Point-to-point messages over UCX: tagged messages whose peers may die.
 */
#include "collectives/transport/ucx_comm.h"

#include <sched.h>
#include <stdio.h>

/* -- what ends -------------------------------------------------------------------------------- */

static void operation_end(tam_ucx_operation *operation, ucs_status_t status, size_t bytes) {
    tam_ucx *self = operation->owner;
    if (operation->request)
        operation->mesh->ucx->ucp_request_free(operation->request);
    if (self && self->listening == operation) {
        self->listening = NULL;
        self->revoked = status == UCS_OK && bytes == sizeof self->alarm;
    } else if (self) {
        self->operations[operation->ticket] = NULL;
        if (status == UCS_OK) {
            self->done[self->ndone++] = (tam_done){operation->ticket, bytes};
        } else if (self->error == UCS_OK) {
            self->error = status;
            self->with = operation->peer;
        }
    }
    tam_ucx_operation_give(operation);
}

static void operation_sent(void *request, ucs_status_t status, void *arg) {
    tam_ucx_operation *operation = arg;
    (void)request;
    operation_end(operation, status, 0);
}

static void operation_received(void *request, ucs_status_t status, const ucp_tag_recv_info_t *info,
                               void *arg) {
    tam_ucx_operation *operation = arg;
    (void)request;
    operation->ended = operation->begins;
    operation->status = status;
    operation->bytes = info->length;
    if (!operation->begins)
        operation_end(operation, status, info->length);
}

/* -- posting ---------------------------------------------------------------------------------- */

static const ucp_request_param_t usual = {.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK |
                                                          UCP_OP_ATTR_FIELD_USER_DATA |
                                                          UCP_OP_ATTR_FIELD_MEMORY_TYPE,
                                          .memory_type = UCS_MEMORY_TYPE_HOST};

static void operation_send(tam_ucx_operation *operation, const tam_message *m, ucp_tag_t tag) {
    tam_ucx_mesh *mesh = operation->mesh;
    ucp_request_param_t how = usual;
    how.cb.send = operation_sent;
    how.user_data = operation;
    void *request = mesh->ucx->ucp_tag_send_nbx(mesh->members[m->peer]->endpoint, m->memory,
                                                m->bytes, tag, &how);
    if (UCS_PTR_IS_PTR(request))
        operation->request = request;
    else
        operation_end(operation, UCS_PTR_STATUS(request), 0);
}

/* UCX before 1.16 does not say how long a message is whose receive completes at once, only to a
 * callback, which then comes before the request. */
static void operation_receive(tam_ucx_operation *operation, const tam_message *m, ucp_tag_t tag,
                              ucp_tag_t mask) {
    tam_ucx_mesh *mesh = operation->mesh;
    ucp_request_param_t how = usual;
    how.op_attr_mask |= UCP_OP_ATTR_FLAG_NO_IMM_CMPL;
    how.cb.recv = operation_received;
    how.user_data = operation;
    operation->begins = true;
    void *request = mesh->ucx->ucp_tag_recv_nbx(mesh->worker, m->memory, m->bytes, tag, mask, &how);
    operation->begins = false;
    if (UCS_PTR_IS_PTR(request))
        operation->request = request;
    if (!UCS_PTR_IS_PTR(request) || operation->ended)
        operation_end(operation,
                      UCS_PTR_IS_ERR(request) ? UCS_PTR_STATUS(request) : operation->status,
                      operation->bytes);
}

static const char remedy[] = "tamis_comm_shrink goes on with the ranks that are left";

static tamis_status post_ucx(void *arg, uint32_t ticket, const tam_message *m) {
    tam_ucx *self = arg;
    tam_ucx_mesh *mesh = self->mesh;
    uint32_t from = m->sends ? self->rank : m->peer;
    const ucp_tag_t tag = tam_ucx_tag(TAM_UCX_DATA, from, m->channel);
    pthread_mutex_lock(&mesh->lock);
    tam_ucx_operation *operation = tam_ucx_operation_take(mesh);
    if (operation) {
        operation->owner = self;
        operation->ticket = ticket;
        operation->peer = m->peer;
        operation->sends = m->sends;
        self->operations[ticket] = operation;
        tam_ucx_enter();
        if (m->sends)
            operation_send(operation, m, tag);
        else
            operation_receive(operation, m, tag, TAM_UCX_EXACTLY);
        tam_ucx_exit();
    }
    pthread_mutex_unlock(&mesh->lock);
    return operation
               ? TAMIS_OK
               : tam_fail(TAMIS_E_TRANSPORT,
                          "rank %u: too many messages that were withdrawn are still under way",
                          self->rank);
}

/* -- what goes wrong -------------------------------------------------------------------------- */

/* A rank that has left on purpose owes no message, and takes none. */
static tamis_status check_parted(const tam_ucx *self, uint32_t rank) {
    for (uint32_t t = 0; t < TAM_P2P_TICKETS; t++) {
        const tam_ucx_operation *o = self->operations[t];
        if (o && o->peer == rank)
            return tam_fail(TAMIS_E_TRANSPORT,
                            "rank %u: rank %u has destroyed its communicator, and does not %s",
                            self->rank, rank,
                            o->sends ? "take a message of this rank" : "send what this rank needs");
    }
    return TAMIS_OK;
}

static tamis_status check_member(tam_ucx *self, uint32_t rank) {
    tam_ucx_mesh *mesh = self->mesh;
    ucs_status_t gone = mesh->members[rank]->gone;
    if (gone == UCS_OK)
        return TAMIS_OK;
    if (tam_ucx_member_parting(mesh, rank) == TAM_UCX_LEAVES)
        return check_parted(self, rank);
    return tam_fail(TAMIS_E_TRANSPORT, "rank %u: rank %u has died, or cannot be reached (%s); %s",
                    self->rank, rank, mesh->ucx->ucs_status_string(gone), remedy);
}

/* What came before its sender was gone is taken first. */
static tamis_status check_members(tam_ucx *self) {
    for (uint32_t r = 0; self->mesh->ngone > 0 && r < self->nranks; r++)
        if (r != self->rank)
            TAM_TRY(check_member(self, r));
    return TAMIS_OK;
}

static tamis_status check_message(const tam_ucx *self) {
    const char *why = self->mesh->ucx->ucs_status_string(self->error);
    if (self->error == UCS_OK)
        return TAMIS_OK;
    return tam_fail(TAMIS_E_TRANSPORT,
                    "rank %u: a message from or to rank %u failed (%s); all ranks must make the "
                    "same calls with the same options",
                    self->rank, self->with, why);
}

static tamis_status check_revoked(tam_ucx *self) {
    tam_ucx_alarm *alarm = &self->alarm;
    bool later = self->opening && alarm->status == TAMIS_E_ABORTED; /* its sender has opened it */
    if (!self->revoked || later)
        return TAMIS_OK;
    bool passes = alarm->status >= TAMIS_E_TIMEOUT && alarm->status <= TAMIS_E_ABORTED;
    alarm->cause[sizeof alarm->cause - 1] = '\0';
    return tam_fail(passes ? (tamis_status)alarm->status : TAMIS_E_TRANSPORT,
                    "rank %u: rank %u has given up the communicator: %s; %s", self->rank,
                    alarm->rank, alarm->cause, remedy);
}

/* What this rank has decided for others in a shrink may still be on its way (ucx_decide.h). */
static void progress_control(const tam_ucx *self) {
    tam_ucx_mesh *control = self->control;
    if (atomic_load_explicit(&control->under_way, memory_order_relaxed) == 0 ||
        pthread_mutex_trylock(&control->lock) != 0)
        return;
    tam_ucx_mesh_progress(control);
    pthread_mutex_unlock(&control->lock);
}

static tamis_status test_ucx(void *arg, tam_done *done, uint32_t *count) {
    tam_ucx *self = arg;
    pthread_mutex_lock(&self->mesh->lock);
    tam_ucx_mesh_progress(self->mesh);
    *count = self->ndone;
    memcpy(done, self->done, self->ndone * sizeof done[0]);
    self->ndone = 0;
    tamis_status status = check_revoked(self);
    if (status == TAMIS_OK && *count == 0)
        status = check_members(self);
    if (status == TAMIS_OK && *count == 0)
        status = check_message(self);
    pthread_mutex_unlock(&self->mesh->lock);
    if (*count == 0)
        progress_control(self);
    if (*count == 0)
        sched_yield(); /* returns at once where each rank has a core of its own */
    return status;
}

/* -- ends ------------------------------------------------------------------------------------- */

/* Works for receives that did not begin; others end when their peers have ended them. */
static void operation_withdraw(tam_ucx_operation *operation) {
    tam_ucx_mesh *mesh = operation->mesh;
    operation->owner = NULL;
    if (!operation->sends)
        mesh->ucx->ucp_request_cancel(mesh->worker, operation->request);
}

static void cancel_ucx(void *arg, uint32_t ticket) {
    tam_ucx *self = arg;
    pthread_mutex_lock(&self->mesh->lock);
    tam_ucx_operation *operation = self->operations[ticket];
    self->operations[ticket] = NULL;
    tam_ucx_enter();
    if (operation)
        operation_withdraw(operation);
    tam_ucx_exit();
    pthread_mutex_unlock(&self->mesh->lock);
}

/* The poison ends polling on this rank. */
static void abort_ucx(void *arg, tamis_status status, const char *cause) {
    tam_ucx *self = arg;
    tam_ucx_mesh *mesh = self->mesh;
    tam_ucx_alarm alarm = {.rank = self->rank, .status = (uint32_t)status};
    const ucp_tag_t tag = tam_ucx_tag(TAM_UCX_ALARM, self->rank, 0);
    if (atomic_exchange(&self->told, true))
        return;
    snprintf(alarm.cause, sizeof alarm.cause, "%.240s", cause);
    pthread_mutex_lock(&mesh->lock);
    for (uint32_t r = 0; r < self->nranks; r++)
        if (r != self->rank)
            tam_ucx_mesh_notify(mesh, r, tag, &alarm, sizeof alarm);
    tam_ucx_mesh_progress(mesh);
    pthread_mutex_unlock(&mesh->lock);
}

static void withdraw_all(tam_ucx *self) {
    tam_ucx_mesh *mesh = self->mesh;
    pthread_mutex_lock(&mesh->lock);
    tam_ucx_enter();
    for (uint32_t t = 0; t < TAM_P2P_TICKETS; t++) {
        if (self->operations[t])
            operation_withdraw(self->operations[t]);
        self->operations[t] = NULL;
    }
    if (self->listening)
        operation_withdraw(self->listening);
    self->listening = NULL;
    tam_ucx_exit();
    pthread_mutex_unlock(&mesh->lock);
}

/* Over control this rank lives on, whatever others find in the endpoints' end. */
static bool silence_ucx(void *arg) {
    tam_ucx *self = arg;
    if (!self->silenced) {
        abort_ucx(self, TAMIS_E_TRANSPORT, "its communicator was lost");
        withdraw_all(self);
        self->silent = tam_ucx_mesh_end(self->mesh, TAM_UCX_GOES_ON, false);
        self->silenced = true;
    }
    return self->silent;
}

/* What is under way ends with the endpoints. */
static bool close_ucx(void *arg, int clean) {
    tam_ucx *self = arg;
    tam_ucx_mesh *mesh = self->mesh;
    if (!clean)
        abort_ucx(self, TAMIS_E_TRANSPORT, "its communicator was lost, and is destroyed");
    withdraw_all(self);
    tam_ucx_parting parting = self->goes_on ? TAM_UCX_GOES_ON
                              : clean       ? TAM_UCX_LEAVES
                                            : TAM_UCX_STAYS;
    bool closed = tam_ucx_mesh_close(mesh, parting, clean);
    tam_ucx_mesh_release(self->control);
    tam_free(self->members);
    if (closed) /* else the alarm may still come into it */
        tam_free(self);
    return closed;
}

bool tam_ucx_listen(tam_ucx *self) {
    const tam_message m = {.memory = &self->alarm, .bytes = sizeof self->alarm};
    tam_ucx_operation *operation = tam_ucx_operation_take(self->mesh);
    if (!operation)
        return false;
    self->listening = operation;
    operation->owner = self;
    tam_ucx_enter();
    operation_receive(operation, &m, tam_ucx_tag(TAM_UCX_ALARM, 0, 0), TAM_UCX_ANY_MEMBER);
    tam_ucx_exit();
    return true;
}

const tam_p2p tam_ucx_p2p = {
    .name = "ucx",
    .stays_in_flight = true,
    .post = post_ucx,
    .test = test_ucx,
    .cancel = cancel_ucx,
    .abort = abort_ucx,
    .silence = silence_ucx,
    .close = close_ucx,
};
