/* SPDX-License-Identifier: MIT
 *
 * Comm.allgather and Comm.broadcast: bytes, or tensors in host memory, for all ranks.
 */
#include "core.h"

#include <string.h>

static tamis_status gather_bytes(tam_py_comm *comm, const void *send, size_t bytes, void *recv) {
    tamis_status status;
    Py_BEGIN_ALLOW_THREADS status = tamis_comm_allgather(comm->handle, send, bytes, recv);
    Py_END_ALLOW_THREADS return status;
}

static tamis_status broadcast_bytes(tam_py_comm *comm, uint32_t root, void *data, size_t bytes) {
    tamis_status status;
    Py_BEGIN_ALLOW_THREADS status = tamis_comm_broadcast(comm->handle, root, data, bytes);
    Py_END_ALLOW_THREADS return status;
}

/* The other ranks are in the call, or will be. NULL shows them that this rank has no data; it then
 * raises its own exception. @return NULL */
static PyObject *bytes_fail_together(tam_py_comm *comm) {
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    if (gather_bytes(comm, NULL, 1, NULL) != TAMIS_E_ARGUMENT)
        tam_py_cause_drop();
    PyErr_Restore(type, value, trace);
    return NULL;
}

static PyObject *bytes_split(const char *all, size_t bytes, uint32_t nranks) {
    PyObject *list = PyList_New(nranks);
    for (uint32_t r = 0; list && r < nranks; r++) {
        PyObject *one = PyBytes_FromStringAndSize(all + r * bytes, (Py_ssize_t)bytes);
        if (one)
            PyList_SetItem(list, r, one);
        else
            Py_CLEAR(list);
    }
    return list;
}

static PyObject *py_allgather(tam_py_comm *self, const void *data, size_t bytes) {
    char *all = PyMem_Malloc(bytes > 0 ? bytes * self->nranks : 1);
    tamis_status status = gather_bytes(self, all ? data : NULL, bytes, all);
    PyObject *list = !all                 ? PyErr_NoMemory()
                     : status != TAMIS_OK ? tam_py_raise(status)
                                          : bytes_split(all, bytes, self->nranks);
    if (!all && status != TAMIS_OK)
        tam_py_cause_drop();
    PyMem_Free(all);
    return list;
}

PyObject *tam_py_comm_allgather(PyObject *object, PyObject *data) {
    tam_py_comm *self = (tam_py_comm *)object;
    PyObject *keeper = NULL;
    const void *bytes;
    size_t count;
    if (!tam_py_comm_enter(self, "Comm.allgather"))
        return NULL;
    PyObject *list = tam_py_bytes_borrow(data, &keeper, &bytes, &count)
                         ? py_allgather(self, bytes, count)
                         : bytes_fail_together(self);
    tam_py_comm_leave(self);
    Py_XDECREF(keeper);
    return list;
}

/* How many bytes the root gives. */
static tamis_status agree_on_length(tam_py_comm *self, uint32_t root, uint64_t own, uint64_t *out) {
    uint64_t *all = PyMem_Calloc(self->nranks, sizeof all[0]);
    tamis_status status = gather_bytes(self, all ? &own : NULL, sizeof own, all);
    *out = status == TAMIS_OK ? all[root] : 0;
    PyMem_Free(all);
    return status;
}

static PyObject *py_broadcast(tam_py_comm *self, uint32_t root, const void *data, size_t bytes) {
    uint64_t count;
    tamis_status status = agree_on_length(self, root, bytes, &count);
    if (status != TAMIS_OK)
        return tam_py_raise(status);
    PyObject *made = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)count);
    char *to = made ? PyBytes_AsString(made) : NULL;
    if (to && self->rank == root && count > 0)
        memcpy(to, data, bytes);
    status = broadcast_bytes(self, root, to, (size_t)count);
    if (!made || status == TAMIS_OK)
        return made;
    Py_DECREF(made);
    return tam_py_raise(status);
}

PyObject *tam_py_comm_broadcast(PyObject *object, PyObject *args, PyObject *keywords) {
    static char *names[] = {"data", "root", NULL};
    tam_py_comm *self = (tam_py_comm *)object;
    PyObject *data, *number = NULL, *keeper = NULL;
    const void *bytes;
    size_t count;
    uint32_t root = 0;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O|O:Comm.broadcast", names, &data, &number) ||
        (number && !tam_py_as_u32(number, "root", &root)))
        return NULL;
    if (root >= self->nranks)
        return tam_py_raise_own(TAMIS_E_ARGUMENT, "Give a rank of this Comm.",
                                "Comm.broadcast: root is %u, but there are %u ranks",
                                (unsigned)root, (unsigned)self->nranks);
    if (!tam_py_comm_enter(self, "Comm.broadcast"))
        return NULL;
    PyObject *made = tam_py_bytes_borrow(data, &keeper, &bytes, &count)
                         ? py_broadcast(self, root, bytes, count)
                         : bytes_fail_together(self);
    tam_py_comm_leave(self);
    Py_XDECREF(keeper);
    return made;
}
