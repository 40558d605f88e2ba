/* SPDX-License-Identifier: MIT
 *
 * Messages beside those of collectives: over control, and last words.
 */
#include "collectives/transport/ucx_mesh.h"

#include <stdlib.h>

/* One that is sent, and belongs to nobody. */
typedef struct loose {
    tam_ucx_mesh *mesh;
    unsigned char bytes[];
} loose;

static void loose_end(loose *l) {
    l->mesh->under_way--;
    free(l);
}

static void loose_sent(void *request, ucs_status_t status, void *arg) {
    loose *l = arg;
    (void)status;
    l->mesh->ucx->ucp_request_free(request);
    loose_end(l);
}

static ucp_ep_h endpoint_of(tam_ucx_mesh *mesh, uint32_t member) {
    tam_ucx_member *m = mesh->members[member];
    tam_ucx_mesh_connect(mesh, member);
    return m->gone == UCS_OK ? m->endpoint : NULL;
}

void tam_ucx_mesh_notify(tam_ucx_mesh *mesh, uint32_t member, ucp_tag_t tag, const void *bytes,
                         size_t length) {
    ucp_ep_h endpoint = endpoint_of(mesh, member);
    loose *l = endpoint ? malloc(sizeof *l + length) : NULL;
    if (!l)
        return;
    const ucp_request_param_t how = {.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK |
                                                     UCP_OP_ATTR_FIELD_USER_DATA |
                                                     UCP_OP_ATTR_FIELD_MEMORY_TYPE,
                                     .cb.send = loose_sent,
                                     .user_data = l,
                                     .memory_type = UCS_MEMORY_TYPE_HOST};
    l->mesh = mesh;
    memcpy(l->bytes, bytes, length);
    mesh->under_way++;
    tam_ucx_enter();
    void *request = mesh->ucx->ucp_tag_send_nbx(endpoint, l->bytes, length, tag, &how);
    tam_ucx_exit();
    if (!UCS_PTR_IS_PTR(request))
        loose_end(l);
}

/* What was found has begun to come, and soon has come as a whole, unless its sender dies.
 * @return NULL: it did not, and its memory must stay */
static void *receive_found(tam_ucx_mesh *mesh, ucp_tag_message_h message, size_t length) {
    enum { TURNS = 1000000 };
    const ucp_request_param_t how = {.op_attr_mask = UCP_OP_ATTR_FIELD_MEMORY_TYPE,
                                     .memory_type = UCS_MEMORY_TYPE_HOST};
    void *bytes = malloc(length > 0 ? length : 1);
    if (!bytes)
        return NULL;
    void *request = mesh->ucx->ucp_tag_msg_recv_nbx(mesh->worker, bytes, length, message, &how);
    ucs_status_t status = UCS_PTR_STATUS(request);
    for (int i = 0; i < TURNS && status == UCS_INPROGRESS; i++) {
        mesh->ucx->ucp_worker_progress(mesh->worker);
        status = mesh->ucx->ucp_request_check_status(request);
    }
    if (UCS_PTR_IS_PTR(request) && status != UCS_INPROGRESS)
        mesh->ucx->ucp_request_free(request);
    if (status != UCS_OK && status != UCS_INPROGRESS)
        free(bytes);
    return status == UCS_OK ? bytes : NULL;
}

void *tam_ucx_mesh_poll(tam_ucx_mesh *mesh, ucp_tag_t tag, ucp_tag_t mask, size_t *length,
                        uint32_t *member) {
    ucp_tag_recv_info_t info;
    tam_ucx_enter();
    ucp_tag_message_h message = mesh->ucx->ucp_tag_probe_nb(mesh->worker, tag, mask, 1, &info);
    void *bytes = message ? receive_found(mesh, message, info.length) : NULL;
    tam_ucx_exit();
    if (bytes) {
        *length = info.length;
        *member = (uint32_t)(info.sender_tag >> 8);
    }
    return bytes;
}

tam_ucx_parting tam_ucx_member_parting(tam_ucx_mesh *mesh, uint32_t member) {
    tam_ucx_member *m = mesh->members[member];
    uint32_t from;
    size_t length;
    if (m->parting == TAM_UCX_STAYS) {
        uint32_t *said = tam_ucx_mesh_poll(mesh, tam_ucx_tag(TAM_UCX_GOODBYE, member, 0),
                                           TAM_UCX_EXACTLY, &length, &from);
        if (said && length == sizeof *said)
            m->parting = *said == TAM_UCX_GOES_ON ? TAM_UCX_GOES_ON : TAM_UCX_LEAVES;
        free(said);
    }
    return m->parting;
}
