/* SPDX-License-Identifier: MIT
 *
 * A worker of UCX, its endpoints, and which members are gone.
 *
 * A process that dies closes its connections, and the error handler of the endpoint is called.
 * Whoever leaves on purpose says goodbye first, which is read before the end of the connection.
 */
#include "collectives/transport/ucx_mesh.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

typedef struct ucx_setting {
    const char *name, *value;
} ucx_setting;

/* What differs from UCX's own. Endpoints whose peers may die use shared memory only where it is
 * told to handle errors. */
static const ucx_setting of_data[] = {
    {"MM_ERROR_HANDLING", "y"}, {"KEEPALIVE_INTERVAL", "1s"}, {NULL, NULL}};
static const ucx_setting of_control[] = {
    {"TLS", "^shm"}, {"KEEPALIVE_INTERVAL", "1s"}, {NULL, NULL}};

/* Others may come later to where they leave: they know then that this rank left on purpose. */
#define GOODBYE_NS UINT64_C(1000000000)
#define ALARM_NS UINT64_C(300000000) /* for last words where it is lost */
#define LOOK_NS UINT64_C(20000000)
#define CLOSE_NS UINT64_C(2000000000) /* after it the worker stays, until the process ends */

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

static void mesh_free(tam_ucx_mesh *mesh) {
    if (mesh->worker)
        mesh->ucx->ucp_worker_destroy(mesh->worker);
    if (mesh->context)
        mesh->ucx->ucp_cleanup(mesh->context);
    for (uint32_t m = 0; m < mesh->nmembers; m++) {
        free(mesh->members[m].address);
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
        mesh_free(mesh);
    tam_ucx_exit();
    *out = status == TAMIS_OK ? mesh : NULL;
    return status;
}

tamis_status tam_ucx_mesh_size(tam_ucx_mesh *mesh, uint32_t self, uint32_t nmembers) {
    mesh->members = tam_alloc_array(nmembers, sizeof mesh->members[0]);
    mesh->watches = tam_alloc_array(nmembers, sizeof mesh->watches[0]);
    mesh->ended = tam_alloc_array(nmembers, sizeof mesh->ended[0]);
    if (!mesh->members || !mesh->watches || !mesh->ended)
        return tam_fail(TAMIS_E_NOMEM, "no memory for the endpoints of %u ranks", nmembers);
    memset(mesh->watches, -1, nmembers * sizeof mesh->watches[0]);
    mesh->self = self;
    mesh->nmembers = nmembers;
    return TAMIS_OK;
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
            set_gone(&mesh->members[m], UCS_ERR_CONNECTION_RESET);
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
    mesh->watches[member] = tam_watch_open(&mesh->identity, &other, &ended);
    mesh->nlocal += other.host == mesh->identity.host;
    mesh->crowded = (long)mesh->nlocal + 1 > sysconf(_SC_NPROCESSORS_ONLN);
    if (ended)
        set_gone(&mesh->members[member], UCS_ERR_CONNECTION_RESET);
}

tamis_status tam_ucx_mesh_reach(tam_ucx_mesh *mesh, uint32_t member, const void *address) {
    tam_ucx_member *m = &mesh->members[member];
    const ucp_ep_params_t params = {
        .field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER,
        .address = (const void *)((const char *)address + sizeof(tam_identity)),
        .err_mode = UCP_ERR_HANDLING_MODE_PEER,
        .err_handler = {.cb = endpoint_failed, .arg = m}};
    m->mesh = mesh;
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

bool tam_ucx_member_parted(tam_ucx_mesh *mesh, uint32_t member) {
    tam_ucx_member *m = &mesh->members[member];
    uint32_t from;
    size_t length;
    if (!m->parted) {
        void *said = tam_ucx_mesh_poll(mesh, tam_ucx_tag(TAM_UCX_GOODBYE, member, 0),
                                       TAM_UCX_EXACTLY, &length, &from);
        m->parted = said != NULL;
        free(said);
    }
    return m->parted;
}

/* -- messages of control, and last words ------------------------------------------------------ */

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
    tam_ucx_member *m = &mesh->members[member];
    if (m->address) {
        bool was_quiet = tam_errors_quiet(true); /* its process may have ended since */
        if (tam_ucx_mesh_reach(mesh, member, m->address) != TAMIS_OK)
            set_gone(m, UCS_ERR_UNREACHABLE);
        tam_errors_quiet(was_quiet);
        free(m->address);
        m->address = NULL;
    }
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

/* -- closing ---------------------------------------------------------------------------------- */

static bool all_parted(tam_ucx_mesh *mesh) {
    for (uint32_t m = 0; m < mesh->nmembers; m++)
        if (m != mesh->self && !tam_ucx_member_parted(mesh, m) && mesh->members[m].gone == UCS_OK)
            return false;
    return true;
}

static void say_goodbye(tam_ucx_mesh *mesh, uint64_t until_ns) {
    const ucp_tag_t tag = tam_ucx_tag(TAM_UCX_GOODBYE, mesh->self, 0);
    for (uint32_t m = 0; m < mesh->nmembers; m++)
        if (m != mesh->self)
            tam_ucx_mesh_notify(mesh, m, tag, &mesh->self, sizeof mesh->self);
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

/* What is on its way to members that live arrives; what is under way otherwise ends. */
static bool close_endpoints(tam_ucx_mesh *mesh, uint64_t flushed_ns) {
    const ucp_request_param_t none = {0}, force = {.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS,
                                                   .flags = UCP_EP_CLOSE_FLAG_FORCE};
    uint64_t until_ns = flushed_ns + CLOSE_NS;
    bool closed = true;
    finish_request(mesh, mesh->ucx->ucp_worker_flush_nbx(mesh->worker, &none), flushed_ns);
    for (uint32_t i = 0; i < mesh->nmembers; i++) {
        tam_ucx_member *m = &mesh->members[i];
        void *request = m->endpoint ? mesh->ucx->ucp_ep_close_nbx(m->endpoint, &force) : NULL;
        closed = finish_request(mesh, request, until_ns) && closed;
        m->endpoint = NULL;
    }
    return closed;
}

bool tam_ucx_mesh_close(tam_ucx_mesh *mesh, bool goodbye) {
    uint64_t flushed_ns = tam_clock_ns() + (goodbye ? GOODBYE_NS : ALARM_NS);
    tam_ucx_enter();
    if (goodbye)
        say_goodbye(mesh, flushed_ns);
    bool closed = close_endpoints(mesh, flushed_ns);
    if (closed)
        mesh_free(mesh);
    tam_ucx_exit();
    return closed;
}

void tam_ucx_mesh_release(tam_ucx_mesh *control) {
    pthread_mutex_lock(&control->lock);
    bool last = --control->users == 0;
    pthread_mutex_unlock(&control->lock);
    if (last)
        tam_ucx_mesh_close(control, false);
}
