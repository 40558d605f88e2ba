/* SPDX-License-Identifier: MIT
 *
 * A worker of UCX, its endpoints, and which members are gone.
 *
 * A process that dies closes its connections, and the error handler of the endpoint is called.
 * Whoever leaves on purpose says goodbye first, which is read before the end of the connection.
 */
#include "collectives/transport/ucx_mesh.h"

#include "collectives/transport/newcomers.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

typedef struct ucx_setting {
    const char *name, *value;
} ucx_setting;

/* What differs from UCX's own. Endpoints whose peers may die use shared memory only where it is
 * told to handle errors. Packets of up to 64 KiB go without a rendezvous, which costs more than a
 * copy (docs/measured/speed.md). */
static const ucx_setting of_data[] = {
    {"MM_ERROR_HANDLING", "y"}, {"KEEPALIVE_INTERVAL", "1s"}, {"RNDV_THRESH", "64k"}, {NULL, NULL}};
static const ucx_setting of_control[] = {
    {"TLS", "^shm"}, {"KEEPALIVE_INTERVAL", "1s"}, {NULL, NULL}};

#define LOOK_NS UINT64_C(20000000)

static tamis_status mesh_fail(const tam_ucx_mesh *mesh, ucs_status_t status, const char *what) {
    return tam_fail(TAMIS_E_TRANSPORT, "UCX: %s: %s", what, mesh->ucx->ucs_status_string(status));
}

/* -- opening ---------------------------------------------------------------------------------- */

/* What the environment says counts, but for control. */
static void configure(const tam_ucx_mesh *mesh, bool control, ucp_config_t *config) {
    char variable[64];
    for (const ucx_setting *s = control ? of_control : of_data; s->name; s++) {
        snprintf(variable, sizeof variable, "UCX_%s", s->name);
        if ((control || !getenv(variable)) &&
            mesh->ucx->ucp_config_modify(config, s->name, s->value) != UCS_OK)
            tam_log(TAM_WARN, "UCX does not take %s=%s; 1.13 and later do", variable, s->value);
    }
}

static tamis_status open_context(tam_ucx_mesh *mesh, bool control) {
    const ucp_params_t params = {.field_mask = UCP_PARAM_FIELD_FEATURES,
                                 .features = UCP_FEATURE_TAG};
    ucp_config_t *config;
    ucs_status_t status = mesh->ucx->ucp_config_read(NULL, NULL, &config);
    if (status != UCS_OK)
        return mesh_fail(mesh, status, "reading its settings (UCX_...)");
    configure(mesh, control, config);
    status =
        mesh->ucx->ucp_init_version(UCP_API_MAJOR, UCP_API_MINOR, &params, config, &mesh->context);
    mesh->ucx->ucp_config_release(config);
    return status == UCS_OK ? TAMIS_OK : mesh_fail(mesh, status, "its beginning");
}

static tamis_status open_worker(tam_ucx_mesh *mesh) {
    const ucp_worker_params_t params = {.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
                                        .thread_mode = UCS_THREAD_MODE_SERIALIZED};
    ucs_status_t status = mesh->ucx->ucp_worker_create(mesh->context, &params, &mesh->worker);
    return status == UCS_OK ? TAMIS_OK : mesh_fail(mesh, status, "a worker");
}

void tam_ucx_mesh_free(tam_ucx_mesh *mesh) {
    tam_newcomers_close(mesh->newcomers);
    if (mesh->worker)
        mesh->ucx->ucp_worker_destroy(mesh->worker);
    if (mesh->context)
        mesh->ucx->ucp_cleanup(mesh->context);
    for (uint32_t m = 0; m < mesh->nmembers; m++) {
        free(mesh->members[m]->address);
        tam_free(mesh->members[m]);
        if (mesh->watches[m] >= 0)
            close(mesh->watches[m]);
    }
    tam_free(mesh->members);
    tam_free(mesh->watches);
    tam_free(mesh->ended);
    pthread_mutex_destroy(&mesh->lock);
    tam_free(mesh);
}

static tam_ucx_mesh *new_mesh(const tam_ucx_library *ucx) {
    tam_ucx_mesh *mesh = tam_alloc(sizeof *mesh);
    if (!mesh || pthread_mutex_init(&mesh->lock, NULL) != 0) {
        tam_free(mesh);
        return NULL;
    }
    mesh->ucx = ucx;
    mesh->identity = tam_identity_own();
    for (int i = 0; i < TAM_UCX_OPERATIONS; i++) {
        mesh->operations[i] = (tam_ucx_operation){.next = mesh->free, .mesh = mesh};
        mesh->free = &mesh->operations[i];
    }
    return mesh;
}

tamis_status tam_ucx_mesh_open(bool control, tam_ucx_mesh **out) {
    const tam_ucx_library *ucx;
    TAM_TRY(tam_ucx_load(&ucx));
    tam_ucx_mesh *mesh = new_mesh(ucx);
    if (!mesh)
        return tam_fail(TAMIS_E_NOMEM, "no memory for a communicator");
    tam_ucx_enter();
    tamis_status status = open_context(mesh, control);
    if (status == TAMIS_OK)
        status = open_worker(mesh);
    if (status != TAMIS_OK)
        tam_ucx_mesh_free(mesh);
    tam_ucx_exit();
    *out = status == TAMIS_OK ? mesh : NULL;
    return status;
}

/* The old array stays where there is no memory for a larger one. */
static bool widen(void *array, uint32_t before, uint32_t after, size_t size) {
    void *larger = tam_alloc_array(after, size), *old;
    memcpy(&old, array, sizeof old);
    if (!larger)
        return false;
    if (old)
        memcpy(larger, old, before * size);
    memcpy(array, &larger, sizeof larger);
    tam_free(old);
    return true;
}

static bool add_member(tam_ucx_mesh *mesh) {
    tam_ucx_member *m = tam_alloc(sizeof *m);
    if (!m)
        return false;
    m->mesh = mesh;
    mesh->watches[mesh->nmembers] = -1;
    mesh->members[mesh->nmembers++] = m;
    return true;
}

tamis_status tam_ucx_mesh_extend(tam_ucx_mesh *mesh, uint32_t nmembers) {
    uint32_t before = mesh->nmembers;
    bool enough =
        nmembers <= before || (widen(&mesh->members, before, nmembers, sizeof mesh->members[0]) &&
                               widen(&mesh->watches, before, nmembers, sizeof mesh->watches[0]) &&
                               widen(&mesh->ended, before, nmembers, sizeof mesh->ended[0]));
    while (enough && mesh->nmembers < nmembers)
        enough = add_member(mesh);
    return enough ? TAMIS_OK
                  : tam_fail(TAMIS_E_NOMEM, "no memory for the endpoints of %u ranks", nmembers);
}

void *tam_ucx_mesh_address(tam_ucx_mesh *mesh, size_t *bytes) {
    const tam_identity own = mesh->identity;
    ucp_address_t *address;
    size_t length;
    if (mesh->ucx->ucp_worker_get_address(mesh->worker, &address, &length) != UCS_OK)
        return NULL;
    char *copy = malloc(sizeof own + length);
    if (copy) {
        memcpy(copy, &own, sizeof own);
        memcpy(copy + sizeof own, address, length);
    }
    mesh->ucx->ucp_worker_release_address(mesh->worker, address);
    *bytes = sizeof own + length;
    return copy;
}

/* -- progress --------------------------------------------------------------------------------- */

static void set_gone(tam_ucx_member *m, ucs_status_t status) {
    if (m->gone == UCS_OK)
        m->mesh->ngone++;
    m->gone = status;
}

/* All that a process sent lies here once it has ended: a goodbye is read before it is missed. */
static void drain_worker(tam_ucx_mesh *mesh) {
    enum { MOST = 10000 };
    int turns = 0;
    tam_ucx_enter();
    while (turns < MOST && mesh->ucx->ucp_worker_progress(mesh->worker) != 0)
        turns++;
    tam_ucx_exit();
}

static void look_at_processes(tam_ucx_mesh *mesh) {
    uint64_t now_ns = tam_clock_ns();
    uint32_t before = mesh->ngone;
    if (now_ns - mesh->looked_ns < LOOK_NS || mesh->nmembers < 2)
        return;
    mesh->looked_ns = now_ns;
    tam_watch_look(mesh->watches, mesh->nmembers, mesh->ended);
    for (uint32_t m = 0; m < mesh->nmembers; m++)
        if (mesh->ended[m])
            set_gone(mesh->members[m], UCS_ERR_CONNECTION_RESET);
    if (mesh->ngone != before)
        drain_worker(mesh);
}

void tam_ucx_mesh_progress(tam_ucx_mesh *mesh) {
    enum { TURNS = 16 };
    uint32_t before = mesh->under_way;
    int turns = 0;
    tam_ucx_enter();
    while (turns < TURNS && mesh->ucx->ucp_worker_progress(mesh->worker) != 0 &&
           mesh->under_way == before)
        turns++;
    tam_ucx_exit();
    if (turns == 0)
        look_at_processes(mesh);
}

tam_ucx_operation *tam_ucx_operation_take(tam_ucx_mesh *mesh) {
    tam_ucx_operation *operation = mesh->free;
    if (!operation)
        return NULL;
    mesh->free = operation->next;
    mesh->under_way++;
    return operation;
}

void tam_ucx_operation_give(tam_ucx_operation *operation) {
    tam_ucx_mesh *mesh = operation->mesh;
    mesh->under_way--;
    *operation = (tam_ucx_operation){.next = mesh->free, .mesh = mesh};
    mesh->free = operation;
}

/* -- deaths ----------------------------------------------------------------------------------- */

/* From inside progress: the lock is held. */
static void endpoint_failed(void *arg, ucp_ep_h endpoint, ucs_status_t status) {
    (void)endpoint;
    set_gone(arg, status);
}

/* What an address begins with. */
static void watch_member(tam_ucx_mesh *mesh, uint32_t member, const void *address) {
    tam_identity other;
    bool ended;
    memcpy(&other, address, sizeof other);
    if (mesh->watches[member] >= 0)
        return;
    mesh->watches[member] = tam_watch_open(&mesh->identity, &other, &ended);
    if (ended)
        set_gone(mesh->members[member], UCS_ERR_CONNECTION_RESET);
}

tamis_status tam_ucx_mesh_reach(tam_ucx_mesh *mesh, uint32_t member, const void *address) {
    tam_ucx_member *m = mesh->members[member];
    const ucp_ep_params_t params = {
        .field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER,
        .address = (const void *)((const char *)address + sizeof(tam_identity)),
        .err_mode = UCP_ERR_HANDLING_MODE_PEER,
        .err_handler = {.cb = endpoint_failed, .arg = m}};
    watch_member(mesh, member, address);
    tam_ucx_enter();
    ucs_status_t status = mesh->ucx->ucp_ep_create(mesh->worker, &params, &m->endpoint);
    tam_ucx_exit();
    if (status == UCS_OK)
        return TAMIS_OK;
    return tam_fail(TAMIS_E_TRANSPORT,
                    "rank %u cannot reach rank %u over UCX: %s (UCX_TLS, UCX_NET_DEVICES)",
                    mesh->self, member, mesh->ucx->ucs_status_string(status));
}

void tam_ucx_mesh_watch(tam_ucx_mesh *mesh, uint32_t member) {
    tam_ucx_member *m = mesh->members[member];
    if (m->address)
        watch_member(mesh, member, m->address);
    if (m->gone == UCS_OK && mesh->watches[member] < 0)
        tam_ucx_mesh_connect(mesh, member);
}

void tam_ucx_mesh_connect(tam_ucx_mesh *mesh, uint32_t member) {
    tam_ucx_member *m = mesh->members[member];
    if (!m->address)
        return;
    bool was_quiet = tam_errors_quiet(true); /* its process may have ended since */
    if (tam_ucx_mesh_reach(mesh, member, m->address) != TAMIS_OK)
        set_gone(m, UCS_ERR_UNREACHABLE);
    tam_errors_quiet(was_quiet);
    free(m->address);
    m->address = NULL;
}
