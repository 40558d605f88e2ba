/* SPDX-License-Identifier: MIT
 *
 * Reducer.migrate: a reducer goes on over the communicator of the ranks that are left. The old one
 * is closed by the caller; until then its state can be read.
 */
#include "core.h"

#include <tamis/elastic.h>

static bool may_migrate(const tam_py_reducer *self) {
    if (self->migrated)
        tam_py_raise_own(TAMIS_E_STATE, "Migrate the one that it returned.",
                         "Reducer.migrate: this Reducer has migrated already");
    else if (self->locals > 0)
        tam_py_raise_own(
            TAMIS_E_UNSUPPORTED,
            "Save their states, close them, and make new ones on the migrated Reducer.",
            "Reducer.migrate: %u Local object(s) use it", self->locals);
    return !self->migrated && self->locals == 0;
}

static PyObject *report_as_dict(const tamis_migration *found) {
    return Py_BuildValue("{sKsIsdsd}", "step", (unsigned long long)found->step, "gone",
                         (unsigned)found->gone, "kept_square", found->kept_square, "lost_square",
                         found->lost_square);
}

/* Both are entered. */
static PyObject *py_migrate(tam_py_reducer *self, tam_py_comm *smaller) {
    tamis_migration found = TAMIS_MIGRATION_INIT;
    tamis_reducer *handle;
    tamis_status status;
    tam_py_reducer *made = tam_py_reducer_like(self, smaller);
    if (!made)
        return NULL;
    Py_BEGIN_ALLOW_THREADS status =
        tamis_reducer_migrate(self->handle, smaller->handle, &found, &handle);
    Py_END_ALLOW_THREADS if (status != TAMIS_OK) {
        tam_py_raise(status);
        Py_DECREF((PyObject *)made);
        return NULL;
    }
    tam_py_reducer_adopt(made, handle);
    self->migrated = true;
    PyObject *report = report_as_dict(&found);
    PyObject *pair = report ? PyTuple_Pack(2, (PyObject *)made, report) : NULL;
    Py_XDECREF(report);
    Py_DECREF((PyObject *)made);
    return pair;
}

PyObject *tam_py_reducer_migrate(PyObject *object, PyObject *comm) {
    tam_py_reducer *self = (tam_py_reducer *)object;
    PyObject *pair = NULL;
    if (!PyObject_TypeCheck(comm, tam_py_comm_type))
        return PyErr_Format(PyExc_TypeError, "Reducer.migrate takes a Comm, not %R", comm);
    tam_py_comm *smaller = (tam_py_comm *)comm;
    if (!tam_py_reducer_enter(self, TAM_PY_LOOK, "Reducer.migrate"))
        return NULL;
    if (may_migrate(self) && tam_py_comm_enter(smaller, "Reducer.migrate")) {
        pair = py_migrate(self, smaller);
        tam_py_comm_leave(smaller);
    }
    tam_py_reducer_leave(self, TAM_PY_LOOK);
    return pair;
}
