/* SPDX-License-Identifier: MIT
 *
 * A communicator over UCX on meshes that are connected, or become so: memory, and what all ranks
 * settle.
 */
#include "collectives/transport/ucx_comm.h"

static bool begin_ucx(tam_ucx *self, const uint32_t *members) {
    size_t bytes = self->nranks * sizeof members[0];
    self->members = tam_alloc(bytes);
    if (!self->members)
        return false;
    memcpy(self->members, members, bytes);
    atomic_init(&self->told, false);
    pthread_mutex_lock(&self->mesh->lock);
    bool listens = tam_ucx_listen(self);
    pthread_mutex_unlock(&self->mesh->lock);
    return listens;
}

tamis_status tam_ucx_open(const tam_transport *row, tam_ucx_mesh *data, tam_ucx_mesh *control,
                          const uint32_t *members, uint64_t deadline_ns,
                          const tamis_comm_config *config, tamis_comm **out) {
    const char *wanted = tam_setting_text(TAM_SETTING_PLAN);
    uint32_t rank = data->self, nranks = data->nmembers;
    tam_ucx *self = tam_alloc(sizeof *self);
    tam_staged *staged = NULL;
    if (self)
        *self = (tam_ucx){.mesh = data, .control = control, .rank = rank, .nranks = nranks};
    if (!self || !begin_ucx(self, members)) {
        tam_free(self ? self->members : NULL);
        tam_free(self);
        tam_ucx_mesh_close(data, TAM_UCX_STAYS, false);
        return tam_fail(TAMIS_E_NOMEM, "no memory for a communicator");
    }
    pthread_mutex_lock(&control->lock);
    control->users++;
    pthread_mutex_unlock(&control->lock);
    self->opening = true;
    TAM_TRY(tam_staged_open(&tam_ucx_p2p, self, rank, nranks, wanted, deadline_ns, &staged));
    self->opening = false;
    return tam_comm_open_staged(row, staged, rank, nranks, config, out);
}

static tamis_status connect_and_open(const tam_transport *row, const tamis_callbacks *rendezvous,
                                     tam_ucx_mesh *data, tam_ucx_mesh *control, tamis_status own,
                                     uint32_t *members, uint64_t deadline_ns,
                                     const tamis_comm_config *config, tamis_comm **out) {
    if (own == TAMIS_OK && !members)
        own = tam_fail(TAMIS_E_NOMEM, "no memory for a communicator");
    tamis_status status = tam_ucx_connect(data, control, own, rendezvous, members);
    if (status == TAMIS_OK)
        return tam_ucx_open(row, data, control, members, deadline_ns, config, out);
    if (data)
        tam_ucx_mesh_close(data, TAM_UCX_STAYS, false);
    return status;
}

tamis_status tam_ucx_create_over(const tam_transport *row, const tamis_callbacks *rendezvous,
                                 tam_ucx_mesh *control, tamis_status own, uint64_t deadline_ns,
                                 const tamis_comm_config *config, tamis_comm **out) {
    tam_ucx_mesh *data = NULL;
    uint32_t *members = tam_alloc_array(rendezvous->nranks, sizeof members[0]);
    if (own == TAMIS_OK)
        own = tam_ucx_mesh_open(false, &data);
    tamis_status status =
        connect_and_open(row, rendezvous, data, control, own, members, deadline_ns, config, out);
    tam_free(members);
    return status;
}

tamis_status tam_ucx_control_open(uint32_t self, uint32_t nmembers, tam_ucx_mesh **out) {
    TAM_TRY(tam_ucx_mesh_open(true, out));
    (*out)->users = 1; /* this call */
    (*out)->self = self;
    return tam_ucx_mesh_extend(*out, nmembers);
}

void tam_ucx_went_on(tam_ucx *self) {
    self->goes_on = true;
    pthread_mutex_lock(&self->control->lock);
    tam_ucx_mesh_progress(self->control);
    tam_ucx_mesh_forget(self->control);
    pthread_mutex_unlock(&self->control->lock);
}
