/* SPDX-License-Identifier: MIT
 *
 * tamis.check_equal: whether all ranks hold the same bytes; and a digest of some.
 */
#include "core.h"

bool tam_py_bytes_borrow(PyObject *data, PyObject **out_keeper, const void **out,
                         size_t *out_bytes) {
    char *text;
    Py_ssize_t length;
    if (!PyBytes_Check(data))
        return tam_py_tensor_bytes(data, "the data", out_keeper, out, out_bytes);
    if (PyBytes_AsStringAndSize(data, &text, &length) != 0)
        return false;
    Py_INCREF(data);
    *out_keeper = data;
    *out = text;
    *out_bytes = (size_t)length;
    return true;
}

static tamis_status call(tam_py_comm *comm, const void *data, size_t bytes) {
    tamis_status status;
    Py_BEGIN_ALLOW_THREADS status = tamis_comm_check_equal(comm->handle, data, bytes);
    Py_END_ALLOW_THREADS return status;
}

/* The other ranks are in the call, or will be. NULL shows them that this rank has no data; this
 * rank then raises its own exception, whatever the call returns. */
static void abort_others(tam_py_comm *comm) {
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    if (call(comm, NULL, 1) != TAMIS_E_ARGUMENT)
        tam_py_cause_drop();
    PyErr_Restore(type, value, trace);
}

PyObject *tam_py_check_equal(PyObject *module, PyObject *args, PyObject *keywords) {
    static char *names[] = {"comm", "data", NULL};
    PyObject *given, *data, *keeper = NULL;
    const void *bytes = NULL;
    size_t count = 0;
    tamis_status status = TAMIS_E_ARGUMENT;
    (void)module;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O!O:check_equal", names, tam_py_comm_type,
                                     &given, &data))
        return NULL;
    tam_py_comm *comm = (tam_py_comm *)given;
    if (!tam_py_comm_enter(comm, "check_equal"))
        return NULL;
    bool ok = tam_py_bytes_borrow(data, &keeper, &bytes, &count);
    if (ok)
        status = call(comm, bytes, count);
    else
        abort_others(comm);
    tam_py_comm_leave(comm);
    Py_XDECREF(keeper);
    return ok ? tam_py_reducer_answer(status) : NULL;
}

PyObject *tam_py_digest(PyObject *module, PyObject *data) {
    PyObject *keeper = NULL;
    const void *bytes = NULL;
    size_t count = 0;
    uint64_t digest;
    (void)module;
    if (!tam_py_bytes_borrow(data, &keeper, &bytes, &count))
        return NULL;
    Py_BEGIN_ALLOW_THREADS digest = tamis_hash(bytes, count);
    Py_END_ALLOW_THREADS Py_DECREF(keeper);
    return PyLong_FromUnsignedLongLong(digest);
}
