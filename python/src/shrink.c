/* SPDX-License-Identifier: MIT
 *
 * Comm.shrink: a communicator of the ranks that are left.
 */
#include "core.h"

#include <tamis/callback.h>
#include <tamis/elastic.h>

/* A list of ranks. `out` is to be freed. */
static bool read_ranks(PyObject *given, uint32_t **out, uint32_t *out_count) {
    PyObject *tuple = PySequence_Tuple(given);
    if (!tuple)
        return false;
    Py_ssize_t count = PyTuple_Size(tuple);
    uint32_t *ranks = PyMem_Calloc(count > 0 ? (size_t)count : 1, sizeof ranks[0]);
    bool ok = ranks != NULL;
    if (!ok)
        PyErr_NoMemory();
    for (Py_ssize_t i = 0; ok && i < count; i++)
        ok = tam_py_as_u32(PyTuple_GetItem(tuple, i), "a rank", &ranks[i]);
    Py_DECREF(tuple);
    if (!ok) {
        PyMem_Free(ranks);
        return false;
    }
    *out = ranks;
    *out_count = (uint32_t)count;
    return true;
}

static uint32_t shrink_new_rank_of(uint32_t rank, const tamis_shrink *how) {
    uint32_t at = 0;
    while (at < how->nranks && how->ranks[at] != rank)
        at++;
    return at < how->nranks ? at : 0; /* a list without the rank is refused by the library */
}

/* The new Comm exists before its handle: the library calls its all-gather to compare the lists. */
static PyObject *shrink(tam_py_comm *self, tamis_shrink *how, PyObject *allgather) {
    tamis_callbacks callbacks = TAMIS_CALLBACKS_INIT;
    tamis_comm *handle;
    tamis_status status;
    tam_py_comm *made = tam_py_comm_alloc(allgather);
    if (!made)
        return NULL;
    made->nranks = how->nranks;
    callbacks.rank = shrink_new_rank_of(self->rank, how);
    callbacks.nranks = how->nranks;
    callbacks.allgather = tam_py_callback;
    callbacks.context = made; /* outlives the handle */
    how->callbacks = allgather ? &callbacks : NULL;
    Py_BEGIN_ALLOW_THREADS status = tamis_comm_shrink(self->handle, how, &handle);
    Py_END_ALLOW_THREADS if (status != TAMIS_OK) {
        tam_py_raise(status);
        Py_DECREF((PyObject *)made);
        return NULL;
    }
    tam_py_comm_adopt(made, handle);
    if (made->mpi)
        tam_py_loader_mpi_opened();
    return (PyObject *)made;
}

PyObject *tam_py_comm_shrink(PyObject *object, PyObject *args, PyObject *keywords) {
    static char *names[] = {"ranks", "callbacks", NULL};
    tam_py_comm *self = (tam_py_comm *)object;
    PyObject *given = Py_None, *allgather = Py_None, *made = NULL;
    tamis_shrink how = TAMIS_SHRINK_INIT;
    uint32_t *ranks = NULL;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "|OO:Comm.shrink", names, &given, &allgather))
        return NULL;
    if (allgather != Py_None && !PyCallable_Check(allgather))
        return PyErr_Format(PyExc_TypeError, "callbacks is %R, not an all-gather to be called",
                            allgather);
    if (given != Py_None && !read_ranks(given, &ranks, &how.nranks))
        return NULL;
    how.ranks = ranks;
    if (tam_py_comm_enter(self, "Comm.shrink")) {
        made = shrink(self, &how, allgather == Py_None ? NULL : allgather);
        tam_py_comm_leave(self);
    }
    PyMem_Free(ranks);
    return made;
}

PyObject *tam_py_comm_rank_before(PyObject *object, PyObject *value) {
    const tam_py_comm *self = (tam_py_comm *)object;
    uint32_t rank;
    if (!tam_py_as_u32(value, "rank", &rank))
        return NULL;
    if (!self->handle)
        return tam_py_raise_own(TAMIS_E_STATE, "Create a new one.",
                                "Comm.rank_before: this Comm was closed");
    if (rank >= self->nranks)
        return tam_py_raise_own(TAMIS_E_ARGUMENT, "Give a rank of this Comm.",
                                "Comm.rank_before: rank %u of %u does not exist", (unsigned)rank,
                                (unsigned)self->nranks);
    return PyLong_FromUnsignedLong(tamis_comm_rank_before(self->handle, rank));
}
