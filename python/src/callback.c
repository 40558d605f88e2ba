/* SPDX-License-Identifier: MIT
 *
 * An all-gather in Python. It is called on the thread that called into the library, which has
 * released the GIL.
 */
#include "core.h"

#ifndef PyBUF_READ /* not in the limited API before 3.11 */
#define PyBUF_READ 0x100
#define PyBUF_WRITE 0x200
#endif

/* -- lending memory --------------------------------------------------------------------------- */

/* The library's memory as the callback sees it. Views and arrays made from `view` share its export
 * of `base`, but do not count as exports of `view` itself. So only releasing `base` shows whether
 * any of them is left. */
typedef struct loan {
    PyObject *base, *view; /* memoryviews */
} loan;

/* A memoryview of a memoryview would share the first one's owner; made through a PickleBuffer it
 * exports the first one. */
static PyObject *view_of(PyObject *base) {
    PyObject *module = PyImport_ImportModule("pickle");
    PyObject *buffer = module ? PyObject_CallMethod(module, "PickleBuffer", "O", base) : NULL;
    PyObject *view = buffer ? PyMemoryView_FromObject(buffer) : NULL;
    Py_XDECREF(buffer);
    Py_XDECREF(module);
    return view;
}

static bool lend(void *memory, size_t bytes, int flags, loan *out) {
    out->base = PyMemoryView_FromMemory(memory, (Py_ssize_t)bytes, flags);
    out->view = out->base ? view_of(out->base) : NULL;
    return out->view != NULL;
}

static bool callback_release(PyObject *view) {
    PyObject *none = PyObject_CallMethod(view, "release", NULL);
    if (!none)
        PyErr_Clear();
    Py_XDECREF(none);
    return none != NULL;
}

/* Invalidate the view, even if code kept it. @return false if an object made from it remains */
static bool recall(const loan *l) {
    callback_release(l->view);
    return callback_release(l->base);
}

static void callback_forget(loan *l) {
    Py_XDECREF(l->view);
    Py_XDECREF(l->base);
}

/* A callback that raised may hold arrays in the frames of its traceback. */
static bool recall_both(const loan *send, const loan *recv) {
    bool sent = recall(send), received = recall(recv);
    if (sent && received)
        return true;
    tam_py_cause_clear_frames();
    return (sent || recall(send)) && (received || recall(recv));
}

/* -- the call --------------------------------------------------------------------------------- */

static tamis_status py_call_allgather(const tam_py_comm *self, const loan *send, const loan *recv) {
    PyObject *answer = PyObject_CallFunctionObjArgs(self->allgather, send->view, recv->view, NULL);
    tamis_status status = TAMIS_OK;
    if (!answer) {
        status = PyErr_ExceptionMatches(PyExc_TimeoutError) ? TAMIS_E_TIMEOUT : TAMIS_E_TRANSPORT;
        tam_py_cause_keep();
    }
    Py_XDECREF(answer);
    if (recall_both(send, recv) || status != TAMIS_OK)
        return status;
    PyErr_SetString(PyExc_BufferError,
                    "allgather returned while an array or a view of its arguments still exists, "
                    "whose memory becomes invalid: copy what must be kept");
    tam_py_cause_keep();
    return TAMIS_E_TRANSPORT;
}

static tamis_status gather_with_gil(const tam_py_comm *self, const void *from, void *to,
                                    size_t bytes) {
    tamis_status status = TAMIS_E_TRANSPORT;
    loan send = {NULL, NULL}, recv = {NULL, NULL};
    if (lend((void *)(uintptr_t)from, bytes, PyBUF_READ, &send) &&
        lend(to, bytes * self->nranks, PyBUF_WRITE, &recv))
        status = py_call_allgather(self, &send, &recv);
    else
        tam_py_cause_keep();
    callback_forget(&recv);
    callback_forget(&send);
    return status;
}

tamis_status tam_py_callback(void *context, const void *send, void *recv, size_t bytes) {
    const tam_py_comm *self = context;
    tamis_status status = TAMIS_E_ABORTED; /* the garbage collector has taken the callable */
    PyGILState_STATE gil = PyGILState_Ensure();
    if (self->allgather)
        status = gather_with_gil(self, send, recv, bytes);
    PyGILState_Release(gil);
    return status;
}
