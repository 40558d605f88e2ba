/* SPDX-License-Identifier: MIT
 *
 * The caller's own network: an all-gather, of which sums are made chunk by chunk, or messages, of
 * which coll makes all.
 */
#include "lib/base/base.h"
#include "collectives/coll/staged.h"
#include "collectives/transport/comm.h"
#include "collectives/transport/unseal.h"
#include "collectives/transport/shrink.h"
#include "collectives/transport/sum.h"

#include <tamis/callback.h>

enum { CHUNK = 65536 }; /* floats per rank and round */
enum { FIRST_VERSION = offsetof(tamis_callbacks, post) };

#define SEALED_CHUNK (CHUNK * sizeof(float) + TAM_SEAL)

typedef struct callback {
    tamis_callbacks user;
    char *sealed;   /* [SEALED_CHUNK] */
    char *gathered; /* [nranks * SEALED_CHUNK] */
    tam_alltoall_scratch runs;
} callback;

static tamis_status callback_judge(const callback *self, tamis_status status, const char *what) {
    bool passes = (int)status >= TAMIS_E_TIMEOUT && (int)status <= TAMIS_E_DEVICE;
    if (status == TAMIS_OK)
        return TAMIS_OK;
    return tam_fail(passes ? status : TAMIS_E_TRANSPORT,
                    "rank %u: the %s callback returned %d (%s)", self->user.rank, what, (int)status,
                    tamis_status_name(status));
}

static tamis_status callback_call_allgather(const callback *self, const void *send, size_t bytes,
                                            void *recv, tam_call *call) {
    tamis_status poison = (tamis_status)atomic_load(call->poison);
    if (poison != TAMIS_OK)
        return tam_fail(poison, "rank %u: the communicator was abandoned", self->user.rank);
    tamis_status status = self->user.allgather(self->user.context, send, recv, bytes);
    call->wire_bytes += (uint64_t)bytes * (self->user.nranks - 1);
    return callback_judge(self, status, "all-gather");
}

static tamis_status gather_chunk(void *arg, const void *send, size_t bytes, const void **out,
                                 tam_call *call) {
    callback *self = arg;
    *out = self->gathered;
    memcpy(self->sealed, send, bytes);
    tam_seal(self->sealed, bytes);
    TAM_TRY(callback_call_allgather(self, self->sealed, bytes + TAM_SEAL, self->gathered, call));
    return tam_unseal(self->user.rank, self->user.nranks, bytes, "the all-gather callback",
                      self->gathered);
}

static tamis_status allgather_callback(void *arg, const void *send, size_t bytes, void *recv,
                                       tam_call *call) {
    const callback *self = arg;
    const void *received;
    size_t at = 0;
    do {
        size_t most = CHUNK * sizeof(float), length = bytes - at < most ? bytes - at : most;
        TAM_TRY(gather_chunk(arg, (const char *)send + at, length, &received, call));
        for (uint32_t r = 0; r < self->user.nranks; r++)
            memcpy((char *)recv + r * bytes + at, (const char *)received + r * length, length);
        at += length;
    } while (at < bytes);
    return TAMIS_OK;
}

static tamis_status allreduce_sum_callback(void *arg, float *values, size_t count, tam_call *call) {
    callback *self = arg;
    return tam_sum_by_gather(gather_chunk, self, self->user.nranks, CHUNK, values, count, call);
}

static tamis_status alltoall_callback(void *arg, const void *send, const size_t *send_at,
                                      void *recv, const size_t *recv_at, tam_call *call) {
    callback *self = arg;
    return tam_alltoall_by_gather(gather_chunk, self, self->user.rank, self->user.nranks,
                                  &self->runs, send, send_at, recv, recv_at, call);
}

static void abort_callback(void *arg, tamis_status status, const char *cause) {
    (void)arg, (void)status, (void)cause; /* only the caller can wake a callback that blocks */
}

static void close_callback(void *arg, int clean) {
    callback *self = arg;
    (void)clean;
    tam_free(self->gathered);
    tam_free(self->sealed);
    tam_alltoall_scratch_close(&self->runs);
    tam_free(self);
}

static tamis_status shrink_callback(void *arg, const tam_left *left, tamis_comm **out);

static const tam_transport transport = {
    .name = "callback",
    .capabilities = TAM_CAP_GATHERS,
    .allgather = allgather_callback,
    .allreduce_sum = allreduce_sum_callback,
    .alltoall = alltoall_callback,
    .shrink = shrink_callback,
    .grow = tam_grow_refuse,
    .abort = abort_callback,
    .close = close_callback,
};

/* -- messages --------------------------------------------------------------------------------- */

_Static_assert((int)TAMIS_TICKETS == (int)TAM_P2P_TICKETS, "callers have room for all tickets");

static tamis_status post_callback(void *arg, uint32_t ticket, const tam_message *m) {
    callback *self = arg;
    const tamis_message message = {ticket, m->peer, m->channel, m->sends, m->memory, m->bytes};
    return callback_judge(self, self->user.post(self->user.context, &message), "post");
}

static tamis_status test_callback(void *arg, tam_done *done, uint32_t *count) {
    callback *self = arg;
    uint32_t tickets[TAMIS_TICKETS], n = 0;
    size_t bytes[TAMIS_TICKETS];
    TAM_TRY(callback_judge(self, self->user.test(self->user.context, tickets, bytes, &n), "test"));
    *count = 0;
    for (uint32_t i = 0; i < n && i < TAMIS_TICKETS; i++) {
        if (tickets[i] >= TAMIS_TICKETS)
            return tam_fail(TAMIS_E_TRANSPORT, "rank %u: the test callback names ticket %u of %d",
                            self->user.rank, tickets[i], TAMIS_TICKETS);
        done[(*count)++] = (tam_done){tickets[i], bytes[i]};
    }
    return TAMIS_OK;
}

static void cancel_callback(void *arg, uint32_t ticket) {
    callback *self = arg;
    self->user.cancel(self->user.context, ticket);
}

static bool close_messages(void *arg, int clean) {
    close_callback(arg, clean);
    return true;
}

static const tam_p2p p2p = {
    .name = "callback",
    .post = post_callback,
    .test = test_callback,
    .cancel = cancel_callback,
    .abort = abort_callback,
    .close = close_messages,
};

static const tam_transport staged = {
    .name = "callback",
    .allgather = tam_staged_allgather,
    .allreduce_sum = tam_staged_sum,
    .alltoall = tam_staged_alltoall,
    .encoded = &tam_staged_encoded,
    .shrink = shrink_callback,
    .grow = tam_grow_refuse,
    .abort = tam_staged_abort,
    .close = tam_staged_close,
};

/* Nothing is sent before the first step, so ranks need not call at the same time. */
static tamis_status callback_open_staged(callback *self, const tamis_comm_config *config,
                                         tamis_comm **out) {
    uint32_t rank = self->user.rank, nranks = self->user.nranks;
    tam_staged *made = NULL;
    const char *wanted = tam_setting_text(TAM_SETTING_PLAN);
    TAM_TRY(tam_staged_open(&p2p, self, rank, nranks, wanted, 0, &made));
    return tam_comm_open_staged(&staged, made, rank, nranks, config, out);
}

/* -- creation --------------------------------------------------------------------------------- */

static tamis_status callback_check(const tamis_callbacks *user) {
    int messages = (user->post != NULL) + (user->test != NULL) + (user->cancel != NULL);
    if (messages > 0 && messages < 3)
        return tam_fail(TAMIS_E_ARGUMENT,
                        "tamis_callbacks: post, test and cancel go together, and one is NULL");
    if (!user->allgather && messages == 0)
        return tam_fail(TAMIS_E_ARGUMENT, "tamis_callbacks.allgather is NULL");
    if (user->nranks == 0 || user->nranks > 65536 || user->rank >= user->nranks)
        return tam_fail(TAMIS_E_ARGUMENT, "tamis_callbacks: rank %u is out of range: nranks is %u",
                        user->rank, user->nranks);
    return TAMIS_OK;
}

tamis_status tamis_comm_create_callback(const tamis_callbacks *callbacks,
                                        const tamis_comm_config *config, tamis_comm **out) {
    tamis_callbacks user = TAMIS_CALLBACKS_INIT;
    uint64_t timeout_ns;
    if (!callbacks || !out)
        return tam_fail(TAMIS_E_ARGUMENT, "tamis_comm_create_callback: callbacks or out is NULL");
    TAM_TRY(tam_struct_copy("tamis_callbacks", &user, sizeof user, FIRST_VERSION, callbacks));
    TAM_TRY(callback_check(&user));
    TAM_TRY(tam_comm_timeout(config, &timeout_ns));
    callback *self = tam_alloc(sizeof *self);
    if (!self)
        return tam_fail(TAMIS_E_NOMEM, "no memory for a communicator");
    self->user = user;
    if (user.post)
        return callback_open_staged(self, config, out);
    self->sealed = tam_alloc(SEALED_CHUNK);
    self->gathered = tam_alloc_array(user.nranks, SEALED_CHUNK);
    if (!tam_alltoall_scratch_open(user.nranks, CHUNK * sizeof(float), &self->runs) ||
        !self->gathered || !self->sealed) {
        close_callback(self, 0);
        return tam_fail(TAMIS_E_NOMEM, "no memory for the sums of %u ranks", user.nranks);
    }
    return tam_comm_open(&transport, self, user.rank, user.nranks, config, out);
}

/* -- with the ranks that are left ------------------------------------------------------------- */

static tamis_status check_rank(const tam_left *left) {
    tamis_callbacks user = TAMIS_CALLBACKS_INIT;
    if (!left->ranks || !left->callbacks)
        return tam_fail(TAMIS_E_ARGUMENT,
                        "tamis_shrink.%s is NULL: over callback the caller says who is left and "
                        "gives a network of these ranks",
                        left->ranks ? "callbacks" : "ranks");
    TAM_TRY(tam_struct_copy("tamis_callbacks", &user, sizeof user, FIRST_VERSION, left->callbacks));
    if (user.nranks != left->nranks || user.rank >= user.nranks ||
        left->ranks[user.rank] != left->comm->rank)
        return tam_fail(TAMIS_E_ARGUMENT,
                        "tamis_shrink.callbacks: rank %u of %u is not the index of rank %u in the "
                        "list of %u ranks that are left",
                        user.rank, user.nranks, left->comm->rank, left->nranks);
    return TAMIS_OK;
}

static tamis_status shrink_callback(void *arg, const tam_left *left, tamis_comm **out) {
    tamis_comm *made = NULL;
    (void)arg; /* nothing of the old network is used */
    TAM_TRY(check_rank(left));
    TAM_TRY(tamis_comm_create_callback(left->callbacks, left->config, &made));
    tam_comm_revoke(left->comm);
    tamis_status status = tam_shrink_compare(made, left, TAMIS_OK);
    if (status != TAMIS_OK) {
        tamis_comm_destroy(made);
        return status;
    }
    *out = made;
    return tam_comm_record_before(out, left->ranks);
}
