/* SPDX-License-Identifier: MIT
 *
 * tamis.Layout: immutable.
 */
#include "core.h"

PyTypeObject *tam_py_layout_type;

/* Read a pair (name, length) as a segment, whose name lives as long as the tuple `owners`. */
static bool read_pair(PyObject *pair, Py_ssize_t at, PyObject *owners, tamis_segment *out) {
    PyObject *name, *length, *owner;
    Py_ssize_t size = PyTuple_Check(pair) ? PyTuple_Size(pair) : 0;
    if (size != 2 && size != 3) {
        PyErr_Format(
            PyExc_TypeError,
            "segments[%zd] is %R, not a tuple (name, length) or (name, length, row_length)", at,
            pair);
        return false;
    }
    name = PyTuple_GetItem(pair, 0);
    length = PyTuple_GetItem(pair, 1);
    if (!tam_py_as_text(name, "the name of a segment", &owner, &out->name))
        return false;
    PyTuple_SetItem(owners, at, owner);
    return tam_py_as_u64(length, out->name, &out->length);
}

static bool record_pair(tam_py_layout *self, uint32_t at, PyObject *pair, uint64_t length) {
    PyObject *name = PyTuple_GetItem(pair, 0), *number = PyLong_FromUnsignedLongLong(length);
    Py_INCREF(name);
    self->sizes[at] = length;
    PyTuple_SetItem(self->names, at, name);
    PyTuple_SetItem(self->lengths, at, number);
    return number != NULL;
}

static bool make_handle(tam_py_layout *self, const tamis_segment *segments) {
    tamis_status status = tamis_layout_create(segments, self->count, &self->handle);
    if (status != TAMIS_OK)
        tam_py_raise(status);
    return status == TAMIS_OK;
}

/* Set the row length from the tuple's third item, if it has one. */
static bool set_rows(tam_py_layout *self, PyObject *pair, uint32_t at) {
    uint64_t row_length;
    if (PyTuple_Size(pair) == 2)
        return true;
    if (!tam_py_as_u64(PyTuple_GetItem(pair, 2), "row_length", &row_length))
        return false;
    tamis_status status = tamis_layout_set_rows(self->handle, at, row_length);
    if (status != TAMIS_OK)
        tam_py_raise(status);
    return status == TAMIS_OK;
}

static bool set_all_rows(tam_py_layout *self, PyObject *pairs) {
    bool ok = true;
    for (Py_ssize_t i = 0; ok && i < PyTuple_Size(pairs); i++)
        ok = set_rows(self, PyTuple_GetItem(pairs, i), (uint32_t)i);
    return ok;
}

/* `pairs` is a tuple. */
static bool layout_fill(tam_py_layout *self, PyObject *pairs, PyObject *owners,
                        tamis_segment *segments) {
    for (Py_ssize_t i = 0; i < PyTuple_Size(pairs); i++) {
        PyObject *pair = PyTuple_GetItem(pairs, i);
        if (!read_pair(pair, i, owners, &segments[i]) ||
            !record_pair(self, (uint32_t)i, pair, segments[i].length))
            return false;
    }
    return make_handle(self, segments) && set_all_rows(self, pairs);
}

static bool read_segments(tam_py_layout *self, PyObject *pairs) {
    Py_ssize_t count = PyTuple_Size(pairs);
    if (count > INT32_MAX) {
        PyErr_SetString(PyExc_OverflowError, "a layout of so many segments");
        return false;
    }
    size_t places = count > 0 ? (size_t)count : 1;
    self->count = (uint32_t)count;
    self->names = PyTuple_New(count);
    self->lengths = PyTuple_New(count);
    self->sizes = PyMem_Calloc(places, sizeof self->sizes[0]);
    PyObject *owners = PyTuple_New(count);
    tamis_segment *segments = PyMem_Calloc(places, sizeof segments[0]);
    bool ok = self->names && self->lengths && owners;
    if (ok && (!self->sizes || !segments)) {
        PyErr_NoMemory();
        ok = false;
    }
    ok = ok && layout_fill(self, pairs, owners, segments);
    PyMem_Free(segments);
    Py_XDECREF(owners);
    return ok;
}

static PyObject *layout_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    static char *names[] = {"segments", NULL};
    PyObject *segments;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O:Layout", names, &segments))
        return NULL;
    PyObject *pairs = PySequence_Tuple(segments);
    tam_py_layout *self = pairs ? (tam_py_layout *)PyType_GenericAlloc(type, 0) : NULL;
    if (self && !read_segments(self, pairs))
        Py_CLEAR(self);
    Py_XDECREF(pairs);
    return (PyObject *)self;
}

static void layout_dealloc(PyObject *object) {
    tam_py_layout *self = (tam_py_layout *)object;
    PyTypeObject *type = Py_TYPE(object);
    tamis_layout_destroy(self->handle);
    PyMem_Free(self->sizes);
    Py_CLEAR(self->names);
    Py_CLEAR(self->lengths);
    PyObject_Free(object);
    Py_DECREF(type);
}

static PyObject *get_length(PyObject *object, void *none) {
    (void)none;
    return PyLong_FromUnsignedLongLong(tamis_layout_length(((tam_py_layout *)object)->handle));
}

static PyObject *get_names(PyObject *object, void *none) {
    PyObject *names = ((tam_py_layout *)object)->names;
    (void)none;
    Py_INCREF(names);
    return names;
}

static PyObject *get_lengths(PyObject *object, void *none) {
    PyObject *lengths = ((tam_py_layout *)object)->lengths;
    (void)none;
    Py_INCREF(lengths);
    return lengths;
}

static PyObject *layout_repr(PyObject *object) {
    const tam_py_layout *self = (tam_py_layout *)object;
    return PyUnicode_FromFormat("<tamis.Layout: %u segment(s), %llu elements>",
                                (unsigned)self->count,
                                (unsigned long long)tamis_layout_length(self->handle));
}

static PyGetSetDef getters[] = {
    {"length", get_length, NULL, "elements of the whole gradient", NULL},
    {"names", get_names, NULL, "of the segments", NULL},
    {"lengths", get_lengths, NULL, "of the segments, elements", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc,
     "Layout(segments)\n--\n\nThe segments of the gradient: runs of elements, one after another, "
     "as (name, length), or (name, length, row_length) if only touched rows are sent."},
    {Py_tp_new, TAM_PY_SLOT(layout_new)},
    {Py_tp_dealloc, TAM_PY_SLOT(layout_dealloc)},
    {Py_tp_repr, TAM_PY_SLOT(layout_repr)},
    {Py_tp_getset, getters},
    {0, NULL},
};

static PyType_Spec spec = {
    .name = "tamis._core.Layout",
    .basicsize = sizeof(tam_py_layout),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = slots,
};

bool tam_py_layout_type_open(PyObject *module) {
    return tam_py_type_open(module, "Layout", &spec, &tam_py_layout_type);
}
