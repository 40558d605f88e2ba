/* SPDX-License-Identifier: MIT
 *
 * The module: its types, and the library's description of itself.
 */
#include "core.h"
#include "lib/base/base.h"

#include <tamis/lists.h>

bool tam_py_type_open(PyObject *module, const char *name, PyType_Spec *spec, PyTypeObject **type) {
    if (!*type)
        *type = (PyTypeObject *)PyType_FromSpec(spec);
    if (!*type)
        return false;
    Py_INCREF(*type);
    if (PyModule_AddObject(module, name, (PyObject *)*type) == 0)
        return true;
    Py_DECREF(*type);
    return false;
}

/* -- the library's description ---------------------------------------------------------------- */

static PyObject *version(PyObject *module, PyObject *none) {
    int number = tamis_version();
    (void)module, (void)none;
    return Py_BuildValue("(iii)", number / 10000, number / 100 % 100, number % 100);
}

/* Takes over the reference to `item`. @return false if it is NULL or cannot be appended */
static bool module_append(PyObject *list, PyObject *item) {
    bool ok = item && PyList_Append(list, item) == 0;
    Py_XDECREF(item);
    return ok;
}

static PyObject *scheme_at(size_t index) {
    tamis_scheme_info s = TAMIS_SCHEME_INFO_INIT;
    if (!tamis_scheme_list(index, &s))
        return NULL;
    return Py_BuildValue("{sssssssssssz}", "name", s.name, "ownership", s.ownership, "budget",
                         s.budget, "threshold", s.threshold, "exchange", s.exchange, "source",
                         s.source);
}

static PyObject *feature_at(size_t index) {
    tamis_feature f = TAMIS_FEATURE_INIT;
    if (!tamis_feature_list(index, &f))
        return NULL;
    return Py_BuildValue("{sssOsz}", "name", f.name, "available", f.available ? Py_True : Py_False,
                         "reason", f.reason);
}

static PyObject *setting_at(size_t index) {
    tamis_setting s = TAMIS_SETTING_INIT;
    if (!tamis_setting_list(index, &s))
        return NULL;
    return Py_BuildValue("{szszszszszsz}", "name", s.name, "values", s.values, "fallback",
                         s.fallback, "help", s.help, "value", s.value, "origin", s.origin);
}

/* All rows of a table; NULL without an exception marks its end. */
static PyObject *list_all(PyObject *(*at)(size_t)) {
    PyObject *list = PyList_New(0), *item = NULL;
    for (size_t i = 0; list && (item = at(i)); i++) {
        if (!module_append(list, item))
            break;
    }
    if (PyErr_Occurred())
        Py_CLEAR(list);
    return list;
}

static PyObject *schemes(PyObject *module, PyObject *none) {
    (void)module, (void)none;
    return list_all(scheme_at);
}

static PyObject *features(PyObject *module, PyObject *none) {
    (void)module, (void)none;
    return list_all(feature_at);
}

static PyObject *settings(PyObject *module, PyObject *none) {
    (void)module, (void)none;
    return list_all(setting_at);
}

/* -- definition ------------------------------------------------------------------------------- */

static PyMethodDef functions[] = {
    {"version", version, METH_NOARGS, "version()\n--\n\n(major, minor, patch) of the library."},
    {"schemes", schemes, METH_NOARGS, "schemes()\n--\n\nThe presets: name, four policies, source."},
    {"features", features, METH_NOARGS,
     "features()\n--\n\nParts that may be missing: name, available, reason."},
    {"settings", settings, METH_NOARGS,
     "settings()\n--\n\nEnvironment variables that the library reads, and the values in effect."},
    {"check_equal", (PyCFunction)(void (*)(void))tam_py_check_equal, METH_VARARGS | METH_KEYWORDS,
     "check_equal(comm, data)\n--\n\n"
     "Error (MISMATCH) that names the ranks whose bytes differ. Collective, between steps. "
     "`data`:\n"
     "bytes, or a contiguous tensor of any type in host memory."},
    {"digest", tam_py_digest, METH_O,
     "digest(data)\n--\n\nXXH3, 64 bits, of what check_equal takes."},
    {"local_presets", tam_py_local_presets, METH_NOARGS,
     "local_presets()\n--\n\nPublished forms of local steps."},
    {"mpi_state", tam_py_loader_mpi_state, METH_NOARGS,
     "mpi_state()\n--\n\n\"absent\", \"foreign\", \"own\" or \"finalized\"."},
    {"mpi_finalize", tam_py_loader_mpi_finalize, METH_NOARGS,
     "mpi_finalize()\n--\n\nFinalise MPI if it is our own and every Comm over it was closed "
     "without error."},
    {NULL, NULL, 0, NULL},
};

/* The main interpreter has the number 0. */
static bool check_interpreter(void) {
    int64_t id = PyInterpreterState_GetID(PyInterpreterState_Get());
    if (id > 0)
        PyErr_SetString(PyExc_ImportError, "tamis works only in the main interpreter");
    return id == 0;
}

static int execute(PyObject *module) {
    tam_failures_are_raised();
    bool ok = check_interpreter() && tam_py_options_open() && tam_py_error_open(module) &&
              tam_py_comm_type_open(module) && tam_py_layout_type_open(module) &&
              tam_py_plan_type_open(module) && tam_py_meter_type_open(module) &&
              tam_py_governor_type_open(module) && tam_py_reducer_type_open(module) &&
              tam_py_local_type_open(module);
    return ok ? 0 : -1;
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, TAM_PY_SLOT(execute)},
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "tamis._core",
    .m_doc = "libtamis as Python sees it. Use tamis and tamis.torch, which wrap it.",
    .m_size = 0,
    .m_methods = functions,
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__core(void); /* Python.h declares none */

PyMODINIT_FUNC PyInit__core(void) {
    return PyModuleDef_Init(&definition);
}
