/* SPDX-License-Identifier: MIT
 *
 * How a mesh ends: goodbyes, then its endpoints, then its worker.
 */
#include "collectives/transport/ucx_mesh.h"

#include <unistd.h>

/* Others may come later to where they leave: they know then that this rank left on purpose. */
#define GOODBYE_NS UINT64_C(1000000000)
#define ALARM_NS UINT64_C(300000000)  /* for last words where it is lost */
#define CLOSE_NS UINT64_C(2000000000) /* after it the worker stays, until the process ends */

static bool all_parted(tam_ucx_mesh *mesh) {
    for (uint32_t m = 0; m < mesh->nmembers; m++)
        if (m != mesh->self && mesh->members[m]->gone == UCS_OK &&
            tam_ucx_member_parting(mesh, m) == TAM_UCX_STAYS)
            return false;
    return true;
}

static void say_goodbye(tam_ucx_mesh *mesh, tam_ucx_parting parting) {
    const ucp_tag_t tag = tam_ucx_tag(TAM_UCX_GOODBYE, mesh->self, 0);
    const uint32_t said = parting;
    for (uint32_t m = 0; m < mesh->nmembers; m++)
        if (m != mesh->self)
            tam_ucx_mesh_notify(mesh, m, tag, &said, sizeof said);
}

static void await_goodbyes(tam_ucx_mesh *mesh, uint64_t until_ns) {
    for (unsigned tries = 0; tam_clock_ns() < until_ns; tries++) {
        tam_ucx_mesh_progress(mesh);
        if (mesh->under_way == 0 && all_parted(mesh))
            break;
        tam_back_off(tries);
    }
}

/* @return whether the request, which is freed, came to its end */
static bool finish_request(tam_ucx_mesh *mesh, void *request, uint64_t until_ns) {
    if (!UCS_PTR_IS_PTR(request))
        return true;
    for (unsigned tries = 0; mesh->ucx->ucp_request_check_status(request) == UCS_INPROGRESS;
         tries++) {
        if (tam_clock_ns() > until_ns)
            return false;
        if (mesh->ucx->ucp_worker_progress(mesh->worker) == 0)
            tam_back_off(tries);
    }
    mesh->ucx->ucp_request_free(request);
    return true;
}

static bool close_endpoint(tam_ucx_mesh *mesh, uint32_t member, uint64_t until_ns) {
    const ucp_request_param_t force = {.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS,
                                       .flags = UCP_EP_CLOSE_FLAG_FORCE};
    tam_ucx_member *m = mesh->members[member];
    void *request = m->endpoint ? mesh->ucx->ucp_ep_close_nbx(m->endpoint, &force) : NULL;
    m->endpoint = NULL;
    return finish_request(mesh, request, until_ns);
}

void tam_ucx_mesh_forget(tam_ucx_mesh *mesh) {
    uint64_t until_ns = tam_clock_ns() + CLOSE_NS;
    tam_ucx_enter();
    for (uint32_t m = 0; m < mesh->nmembers; m++) {
        if (mesh->members[m]->gone == UCS_OK)
            continue;
        close_endpoint(mesh, m, until_ns);
        if (mesh->watches[m] >= 0)
            close(mesh->watches[m]);
        mesh->watches[m] = -1;
    }
    tam_ucx_exit();
}

/* What is on its way to members that live arrives; what is under way otherwise ends. */
static bool close_endpoints(tam_ucx_mesh *mesh, uint64_t flushed_ns) {
    const ucp_request_param_t none = {0};
    bool closed = true;
    finish_request(mesh, mesh->ucx->ucp_worker_flush_nbx(mesh->worker, &none), flushed_ns);
    for (uint32_t m = 0; m < mesh->nmembers; m++)
        closed = close_endpoint(mesh, m, flushed_ns + CLOSE_NS) && closed;
    return closed;
}

bool tam_ucx_mesh_end(tam_ucx_mesh *mesh, tam_ucx_parting parting, bool waits) {
    uint64_t flushed_ns = tam_clock_ns() + (waits ? GOODBYE_NS : ALARM_NS);
    pthread_mutex_lock(&mesh->lock);
    tam_ucx_enter();
    if (parting != TAM_UCX_STAYS)
        say_goodbye(mesh, parting);
    if (waits)
        await_goodbyes(mesh, flushed_ns);
    bool closed = close_endpoints(mesh, flushed_ns);
    for (unsigned tries = 0; mesh->under_way > 0 && tam_clock_ns() < flushed_ns + CLOSE_NS;
         tries++) {
        if (mesh->ucx->ucp_worker_progress(mesh->worker) == 0)
            tam_back_off(tries);
    }
    tam_ucx_exit();
    bool ended = closed && mesh->under_way == 0;
    pthread_mutex_unlock(&mesh->lock);
    return ended;
}

bool tam_ucx_mesh_close(tam_ucx_mesh *mesh, tam_ucx_parting parting, bool waits) {
    bool ended = tam_ucx_mesh_end(mesh, parting, waits);
    tam_ucx_enter();
    if (ended)
        tam_ucx_mesh_free(mesh);
    tam_ucx_exit();
    return ended;
}

void tam_ucx_mesh_release(tam_ucx_mesh *control) {
    pthread_mutex_lock(&control->lock);
    bool last = --control->users == 0;
    pthread_mutex_unlock(&control->lock);
    if (last)
        tam_ucx_mesh_close(control, TAM_UCX_STAYS, false);
}
