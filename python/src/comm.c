/* SPDX-License-Identifier: MIT
 *
 * tamis.Comm. The all-gather of Comm.callback is in callback.c, Comm.shrink in shrink.c; the
 * modules for MPI and NCCL are in loader.c.
 */
#include "core.h"

#include <structmember.h>
#include <tamis/callback.h>
#include <tamis/elastic.h>
#include <tamis/stats.h>
#include <tamis/ucx.h>

PyTypeObject *tam_py_comm_type;

/* -- calls in progress ------------------------------------------------------------------------ */

static bool is_open(const tam_py_comm *self, const char *call) {
    if (self->handle)
        return true;
    tam_py_raise_own(TAMIS_E_STATE, "Create a new one.", "%s: this Comm was closed", call);
    return false;
}

bool tam_py_comm_enter(tam_py_comm *self, const char *call) {
    if (!is_open(self, call))
        return false;
    if (self->inside) {
        tam_py_raise_own(TAMIS_E_STATE, "Use a Comm from one thread at a time.",
                         "%s: another call on the Comm of rank %u is in progress, %s", call,
                         (unsigned)self->rank, self->inside);
        return false;
    }
    self->inside = call;
    return true;
}

void tam_py_comm_leave(tam_py_comm *self) {
    self->inside = NULL;
}

bool tam_py_comm_buffers_in_flight(const tam_py_comm *self) {
    return tamis_comm_status(self->handle) != TAMIS_OK && strcmp(self->transport, "local") != 0 &&
           strcmp(self->transport, "callback") != 0;
}

/* -- making ----------------------------------------------------------------------------------- */

tam_py_comm *tam_py_comm_alloc(PyObject *allgather) {
    tam_py_comm *self = (tam_py_comm *)PyType_GenericAlloc(tam_py_comm_type, 0);
    if (self)
        Py_XINCREF(allgather);
    if (self)
        self->allgather = allgather;
    return self;
}

void tam_py_comm_adopt(tam_py_comm *self, tamis_comm *handle) {
    self->handle = handle;
    self->rank = tamis_comm_rank(handle);
    self->nranks = tamis_comm_nranks(handle);
    self->transport = tamis_comm_transport(handle);
    self->mpi = strcmp(self->transport, "mpi") == 0;
}

static void comm_destroy(tamis_comm *handle) {
    Py_BEGIN_ALLOW_THREADS tamis_comm_destroy(handle);
    Py_END_ALLOW_THREADS
}

tam_py_comm *tam_py_comm_wrap(tamis_comm *handle) {
    tam_py_comm *self = tam_py_comm_alloc(NULL);
    if (self)
        tam_py_comm_adopt(self, handle);
    else
        comm_destroy(handle);
    return self;
}

static PyObject *wrap_all(tamis_comm **handles, uint32_t count) {
    PyObject *list = PyList_New(count);
    for (uint32_t i = 0; i < count; i++) {
        PyObject *one = list ? (PyObject *)tam_py_comm_wrap(handles[i]) : NULL;
        if (one)
            PyList_SetItem(list, i, one);
        else if (!list)
            comm_destroy(handles[i]);
        else
            Py_CLEAR(list);
    }
    return list;
}

static PyObject *comm_local(PyObject *none, PyObject *args, PyObject *keywords) {
    static char *names[] = {"nranks", "timeout_ms", NULL};
    PyObject *number, *timeout = NULL;
    uint32_t nranks;
    tamis_comm_config config = TAMIS_COMM_CONFIG_INIT;
    (void)none;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O|O:Comm.local", names, &number, &timeout) ||
        !tam_py_as_u32(number, "nranks", &nranks) ||
        (timeout && !tam_py_as_u32(timeout, "timeout_ms", &config.timeout_ms)))
        return NULL;
    tamis_comm **handles = PyMem_Calloc(nranks > 0 ? nranks : 1, sizeof handles[0]);
    if (!handles)
        return PyErr_NoMemory();
    tamis_status status = tamis_comm_create_local(nranks, &config, handles);
    PyObject *list = status == TAMIS_OK ? wrap_all(handles, nranks) : tam_py_raise(status);
    PyMem_Free(handles);
    return list;
}

typedef tamis_status (*comm_maker)(const tamis_callbacks *, const tamis_comm_config *,
                                   tamis_comm **);

/* Over an all-gather in Python, or by its help. */
static tam_py_comm *make_by_gather(const char *format, comm_maker maker, PyObject *args,
                                   PyObject *keywords) {
    static char *names[] = {"rank", "nranks", "allgather", "timeout_ms", NULL};
    PyObject *rank, *nranks, *allgather, *timeout = NULL;
    tamis_comm_config config = TAMIS_COMM_CONFIG_INIT;
    tamis_callbacks callbacks = TAMIS_CALLBACKS_INIT;
    tamis_comm *handle;
    tamis_status status;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, format, names, &rank, &nranks, &allgather,
                                     &timeout) ||
        !tam_py_as_u32(rank, "rank", &callbacks.rank) ||
        !tam_py_as_u32(nranks, "nranks", &callbacks.nranks) ||
        (timeout && !tam_py_as_u32(timeout, "timeout_ms", &config.timeout_ms)))
        return NULL;
    if (!PyCallable_Check(allgather)) {
        PyErr_Format(PyExc_TypeError, "allgather is %R, which is not callable", allgather);
        return NULL;
    }
    tam_py_comm *self = tam_py_comm_alloc(allgather);
    if (!self)
        return NULL;
    self->nranks = callbacks.nranks;
    callbacks.allgather = tam_py_callback;
    callbacks.context = self; /* outlives the handle */
    Py_BEGIN_ALLOW_THREADS status = maker(&callbacks, &config, &handle);
    Py_END_ALLOW_THREADS if (status != TAMIS_OK) {
        tam_py_raise(status);
        Py_DECREF(self);
        return NULL;
    }
    tam_py_comm_adopt(self, handle);
    return self;
}

static PyObject *comm_callback(PyObject *none, PyObject *args, PyObject *keywords) {
    (void)none;
    return (PyObject *)make_by_gather("OOO|O:Comm.callback", tamis_comm_create_callback, args,
                                      keywords);
}

#ifdef TAM_HAVE_UCX
static PyObject *ucx_by_environment(PyObject *args, PyObject *keywords) {
    static char *names[] = {"timeout_ms", NULL};
    PyObject *timeout = NULL;
    tamis_comm_config config = TAMIS_COMM_CONFIG_INIT;
    tamis_comm *handle;
    tamis_status status;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "|$O:Comm.ucx", names, &timeout) ||
        (timeout && !tam_py_as_u32(timeout, "timeout_ms", &config.timeout_ms)))
        return NULL;
    Py_BEGIN_ALLOW_THREADS status = tamis_comm_create_ucx(NULL, &config, &handle);
    Py_END_ALLOW_THREADS if (status != TAMIS_OK) return tam_py_raise(status);
    return (PyObject *)tam_py_comm_wrap(handle);
}

/* The all-gather is not needed any more when they have met. */
static PyObject *comm_ucx(PyObject *none, PyObject *args, PyObject *keywords) {
    (void)none;
    if (PyTuple_Size(args) == 0 && !(keywords && PyDict_GetItemString(keywords, "allgather")))
        return ucx_by_environment(args, keywords);
    tam_py_comm *self = make_by_gather("OOO|O:Comm.ucx", tamis_comm_create_ucx, args, keywords);
    if (self)
        Py_CLEAR(self->allgather);
    return (PyObject *)self;
}
#else
static PyObject *comm_ucx(PyObject *none, PyObject *args, PyObject *keywords) {
    (void)none, (void)args, (void)keywords;
    return tam_py_no_ucx("Comm.ucx");
}
#endif

PyObject *tam_py_no_ucx(const char *call) {
    return tam_py_raise_own(TAMIS_E_UNSUPPORTED, "Build it with TAMIS_UCX=ON.",
                            "%s: this tamis was built without UCX", call);
}

static PyObject *comm_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    (void)type, (void)args, (void)keywords;
    PyErr_SetString(PyExc_TypeError,
                    "create a Comm with Comm.local, .callback, .ucx, .mpi or .nccl");
    return NULL;
}

/* -- methods ---------------------------------------------------------------------------------- */

static PyObject *get_rank(PyObject *object, void *none) {
    (void)none;
    return PyLong_FromUnsignedLong(((tam_py_comm *)object)->rank);
}

static PyObject *get_nranks(PyObject *object, void *none) {
    (void)none;
    return PyLong_FromUnsignedLong(((tam_py_comm *)object)->nranks);
}

static PyObject *get_joined(PyObject *object, void *none) {
    (void)none;
    return PyLong_FromUnsignedLong(tamis_comm_joined(((tam_py_comm *)object)->handle));
}

static PyObject *get_transport(PyObject *object, void *none) {
    (void)none;
    return PyUnicode_FromString(((tam_py_comm *)object)->transport);
}

static tamis_status status_of(const tam_py_comm *self) {
    return self->handle ? tamis_comm_status(self->handle) : self->last;
}

static PyObject *get_status(PyObject *object, void *none) {
    (void)none;
    return PyUnicode_FromString(tamis_status_name(status_of((tam_py_comm *)object)));
}

static PyObject *comm_set_waiting(PyObject *object, PyObject *value) {
    static tam_py_words words = {"auto", "spin", "sleep", NULL};
    tam_py_comm *self = (tam_py_comm *)object;
    int waiting;
    if (!is_open(self, "Comm.set_waiting") || !tam_py_as_word(value, "waiting", words, &waiting))
        return NULL;
    tamis_status status = tamis_comm_set_waiting(self->handle, (tamis_waiting)waiting);
    if (status != TAMIS_OK)
        return tam_py_raise(status);
    Py_RETURN_NONE;
}

/* Runs without the GIL: it takes locks that a thread in a callback may hold while it waits for the
 * GIL. */
static PyObject *comm_abort(PyObject *object, PyObject *none) {
    tam_py_comm *self = (tam_py_comm *)object;
    tamis_status status;
    (void)none;
    if (!is_open(self, "Comm.abort"))
        return NULL;
    self->aborting++;
    Py_BEGIN_ALLOW_THREADS status = tamis_comm_abort(self->handle);
    Py_END_ALLOW_THREADS self->aborting--;
    if (status != TAMIS_OK)
        return tam_py_raise(status);
    Py_RETURN_NONE;
}

static PyObject *comm_write_flight(PyObject *object, PyObject *args) {
    tam_py_comm *self = (tam_py_comm *)object;
    const char *folder = NULL;
    if (!is_open(self, "Comm.write_flight") || !PyArg_ParseTuple(args, "|z", &folder))
        return NULL;
    tamis_status status = tamis_comm_write_flight(self->handle, folder);
    if (status != TAMIS_OK)
        return tam_py_raise(status);
    Py_RETURN_NONE;
}

static void comm_close_handle(tam_py_comm *self) {
    tamis_comm *handle = self->handle;
    self->last = tamis_comm_status(handle);
    self->handle = NULL;
    comm_destroy(handle);
    tam_py_cause_drop();
    if (self->mpi)
        tam_py_loader_mpi_closed(self->last);
}

static PyObject *comm_close(PyObject *object, PyObject *none) {
    tam_py_comm *self = (tam_py_comm *)object;
    (void)none;
    if (!self->handle)
        Py_RETURN_NONE;
    if (self->inside || self->aborting > 0)
        return tam_py_raise_own(TAMIS_E_STATE, "Wait until it returns; Comm.abort makes it return.",
                                "Comm.close: another call is in progress, %s",
                                self->inside ? self->inside : "Comm.abort");
    if (self->reducers > 0)
        return tam_py_raise_own(TAMIS_E_STATE, "Close its reducers first.",
                                "Comm.close: %u reducer(s) still use it", self->reducers);
    comm_close_handle(self);
    Py_RETURN_NONE;
}

/* -- type ------------------------------------------------------------------------------------- */

static int comm_traverse(PyObject *object, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(((tam_py_comm *)object)->allgather);
    return 0;
}

/* The handle stays until the reducers over it are gone. */
static int comm_clear(PyObject *object) {
    Py_CLEAR(((tam_py_comm *)object)->allgather);
    return 0;
}

static void comm_dealloc(PyObject *object) {
    tam_py_comm *self = (tam_py_comm *)object;
    PyTypeObject *type = Py_TYPE(object);
    PyObject *error, *value, *trace;
    PyObject_GC_UnTrack(object);
    PyErr_Fetch(&error, &value, &trace);
    if (self->weak)
        PyObject_ClearWeakRefs(object);
    if (self->handle)
        comm_close_handle(self);
    Py_CLEAR(self->allgather);
    PyErr_Restore(error, value, trace);
    PyObject_GC_Del(object);
    Py_DECREF(type);
}

static PyObject *comm_repr(PyObject *object) {
    const tam_py_comm *self = (tam_py_comm *)object;
    return PyUnicode_FromFormat("<tamis.Comm: rank %u of %u over %s%s>", (unsigned)self->rank,
                                (unsigned)self->nranks, self->transport,
                                self->handle ? "" : ", closed");
}

static PyMethodDef methods[] = {
    {"local", (PyCFunction)(void (*)(void))comm_local, METH_VARARGS | METH_KEYWORDS | METH_STATIC,
     "local(nranks, timeout_ms=0)\n--\n\nA list of communicators, one for each rank, which are "
     "threads of this process."},
    {"callback", (PyCFunction)(void (*)(void))comm_callback,
     METH_VARARGS | METH_KEYWORDS | METH_STATIC,
     "callback(rank, nranks, allgather, timeout_ms=0)\n--\n\nOver an all-gather in Python: "
     "allgather(send, recv), memoryviews of B and nranks * B\nbytes, rank after rank. They are "
     "released when it returns; copy what must be kept.\nWhat it raises becomes the __cause__ of "
     "the Error of the call that needed it."},
    {"ucx", (PyCFunction)(void (*)(void))comm_ucx, METH_VARARGS | METH_KEYWORDS | METH_STATIC,
     "ucx(rank, nranks, allgather, timeout_ms=0)\n--\n\nOver UCX. The all-gather, as that of "
     "Comm.callback, brings the ranks together while\nthis call lasts. Without the three: by "
     "TAMIS_RENDEZVOUS."},
    {"mpi", (PyCFunction)(void (*)(void))tam_py_loader_mpi,
     METH_VARARGS | METH_KEYWORDS | METH_STATIC,
     "mpi(module, timeout_ms=0)\n--\n\nOver MPI_COMM_WORLD. `module` is the path of the shared "
     "object that links MPI."},
    {"nccl", (PyCFunction)(void (*)(void))tam_py_loader_nccl,
     METH_VARARGS | METH_KEYWORDS | METH_STATIC,
     "nccl(module, bootstrap, timeout_ms=0)\n--\n\n"
     "Over NCCL, for the ranks of `bootstrap`, which may be closed afterwards."},
    {"set_waiting", comm_set_waiting, METH_O,
     "set_waiting(waiting)\n--\n\nHow threads wait for other ranks: \"auto\", \"spin\" or "
     "\"sleep\"."},
    {"abort", comm_abort, METH_NOARGS,
     "abort()\n--\n\nAbort it, from any thread: calls in progress raise Error soon."},
    {"shrink", (PyCFunction)(void (*)(void))tam_py_comm_shrink, METH_VARARGS | METH_KEYWORDS,
     "shrink(ranks=None, callbacks=None)\n--\n\nA Comm of the ranks that are left, in their order. "
     "Over callback both must be given."},
    {"grow", (PyCFunction)(void (*)(void))tam_py_comm_grow, METH_VARARGS | METH_KEYWORDS,
     "grow(address=None)\n--\n\nA Comm of all ranks and of processes that wait to join, or None."},
    {"join_ucx", (PyCFunction)(void (*)(void))tam_py_comm_join_ucx,
     METH_VARARGS | METH_KEYWORDS | METH_STATIC,
     "join_ucx(address=None, timeout_ms=0)\n--\n\nJoin a job over UCX, whose ranks call grow."},
    {"allgather", tam_py_comm_allgather, METH_O,
     "allgather(data)\n--\n\nThe bytes of all ranks, a list."},
    {"broadcast", (PyCFunction)(void (*)(void))tam_py_comm_broadcast, METH_VARARGS | METH_KEYWORDS,
     "broadcast(data, root=0)\n--\n\nThe bytes of the root."},
    {"rank_before", tam_py_comm_rank_before, METH_O,
     "rank_before(rank)\n--\n\nWhich rank of the communicator that was shrunk has become `rank` of "
     "this one."},
    {"write_flight", comm_write_flight, METH_VARARGS,
     "write_flight(folder=None)\n--\n\nWrite this rank's last 1024 events, for tamis_info "
     "--flight; None: to the folder of TAMIS_FLIGHT."},
    {"close", comm_close, METH_NOARGS,
     "close()\n--\n\nClose it. Error (STATE) while it has reducers or a call is in progress."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef getters[] = {
    {"rank", get_rank, NULL, "0 to nranks - 1", NULL},
    {"nranks", get_nranks, NULL, "number of ranks", NULL},
    {"joined", get_joined, NULL, "how many ranks, the last ones, were newcomers", NULL},
    {"transport", get_transport, NULL, "\"local\", \"callback\", \"ucx\", \"mpi\", \"nccl\"", NULL},
    {"status", get_status, NULL, "\"TAMIS_OK\", or the status that lost it", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef members[] = {
    {"__weaklistoffset__", T_PYSSIZET, offsetof(tam_py_comm, weak), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, "The ranks that take part. Reducers keep their Comm alive."},
    {Py_tp_new, TAM_PY_SLOT(comm_new)},
    {Py_tp_dealloc, TAM_PY_SLOT(comm_dealloc)},
    {Py_tp_traverse, TAM_PY_SLOT(comm_traverse)},
    {Py_tp_clear, TAM_PY_SLOT(comm_clear)},
    {Py_tp_repr, TAM_PY_SLOT(comm_repr)},
    {Py_tp_methods, methods},
    {Py_tp_getset, getters},
    {Py_tp_members, members},
    {0, NULL},
};

static PyType_Spec spec = {
    .name = "tamis._core.Comm",
    .basicsize = sizeof(tam_py_comm),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .slots = slots,
};

bool tam_py_comm_type_open(PyObject *module) {
    return tam_py_type_open(module, "Comm", &spec, &tam_py_comm_type);
}
