/* SPDX-License-Identifier: MIT
 *
 * Reducer.move: a reducer goes on over the communicator of the ranks that are left. The old one is
 * closed by the caller; until then its state can be read.
 */
#include "core.h"

static bool may_move(const tam_py_reducer *self) {
    if (self->moved)
        tam_py_raise_own(TAMIS_E_STATE, "Move the one that it returned.",
                         "Reducer.move: this Reducer has moved already");
    else if (self->locals > 0)
        tam_py_raise_own(TAMIS_E_UNSUPPORTED,
                         "Save their states, close them, and make new ones on the moved Reducer.",
                         "Reducer.move: %u Local object(s) use it", self->locals);
    return !self->moved && self->locals == 0;
}

static PyObject *report_as_dict(const tamis_moved *found) {
    return Py_BuildValue("{sKsIsdsd}", "step", (unsigned long long)found->step, "gone",
                         (unsigned)found->gone, "kept_square", found->kept_square, "lost_square",
                         found->lost_square);
}

/* Both are entered. */
static PyObject *move(tam_py_reducer *self, tam_py_comm *smaller) {
    tamis_moved found = TAMIS_MOVED_INIT;
    tamis_reducer *handle;
    tamis_status status;
    tam_py_reducer *made = tam_py_reducer_like(self, smaller);
    if (!made)
        return NULL;
    Py_BEGIN_ALLOW_THREADS status =
        tamis_reducer_move(self->handle, smaller->handle, &found, &handle);
    Py_END_ALLOW_THREADS if (status != TAMIS_OK) {
        tam_py_raise(status);
        Py_DECREF((PyObject *)made);
        return NULL;
    }
    tam_py_reducer_adopt(made, handle);
    self->moved = true;
    PyObject *report = report_as_dict(&found);
    PyObject *pair = report ? PyTuple_Pack(2, (PyObject *)made, report) : NULL;
    Py_XDECREF(report);
    Py_DECREF((PyObject *)made);
    return pair;
}

PyObject *tam_py_reducer_move(PyObject *object, PyObject *comm) {
    tam_py_reducer *self = (tam_py_reducer *)object;
    PyObject *pair = NULL;
    if (!PyObject_TypeCheck(comm, tam_py_comm_type))
        return PyErr_Format(PyExc_TypeError, "Reducer.move takes a Comm, not %R", comm);
    tam_py_comm *smaller = (tam_py_comm *)comm;
    if (!tam_py_reducer_enter(self, TAM_PY_LOOK, "Reducer.move"))
        return NULL;
    if (may_move(self) && tam_py_comm_enter(smaller, "Reducer.move")) {
        pair = move(self, smaller);
        tam_py_comm_leave(smaller);
    }
    tam_py_reducer_leave(self, TAM_PY_LOOK);
    return pair;
}
