/* SPDX-License-Identifier: MIT
 *
 * Comm.grow and Comm.join_ucx: processes that join a job.
 */
#include "core.h"

#include <tamis/elastic.h>
#include <tamis/ucx.h>

PyObject *tam_py_comm_grow(PyObject *object, PyObject *args, PyObject *keywords) {
    static char *names[] = {"address", NULL};
    tam_py_comm *self = (tam_py_comm *)object;
    const char *address = NULL;
    tamis_comm *handle = NULL;
    tamis_status status;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "|z:Comm.grow", names, &address) ||
        !tam_py_comm_enter(self, "Comm.grow"))
        return NULL;
    Py_BEGIN_ALLOW_THREADS status = tamis_comm_grow(self->handle, address, &handle);
    Py_END_ALLOW_THREADS tam_py_comm_leave(self);
    if (status != TAMIS_OK)
        return tam_py_raise(status);
    if (!handle)
        Py_RETURN_NONE;
    return (PyObject *)tam_py_comm_wrap(handle);
}

#ifdef TAM_HAVE_UCX
PyObject *tam_py_comm_join_ucx(PyObject *none, PyObject *args, PyObject *keywords) {
    static char *names[] = {"address", "timeout_ms", NULL};
    const char *address = NULL;
    PyObject *timeout = NULL;
    tamis_comm_config config = TAMIS_COMM_CONFIG_INIT;
    tamis_comm *handle = NULL;
    tamis_status status;
    (void)none;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "|zO:Comm.join_ucx", names, &address,
                                     &timeout) ||
        (timeout && !tam_py_as_u32(timeout, "timeout_ms", &config.timeout_ms)))
        return NULL;
    Py_BEGIN_ALLOW_THREADS status = tamis_comm_join_ucx(address, &config, &handle);
    Py_END_ALLOW_THREADS if (status != TAMIS_OK) return tam_py_raise(status);
    return (PyObject *)tam_py_comm_wrap(handle);
}
#else
PyObject *tam_py_comm_join_ucx(PyObject *none, PyObject *args, PyObject *keywords) {
    (void)none, (void)args, (void)keywords;
    return tam_py_no_ucx("Comm.join_ucx");
}
#endif
