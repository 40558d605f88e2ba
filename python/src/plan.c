/* SPDX-License-Identifier: MIT
 *
 * tamis.Plan: where the gradients of some segments lie, or parameters after a step and before it,
 * checked once. The capsules keep the memory alive, so the addresses stay valid.
 */
#include "core.h"

PyTypeObject *tam_py_plan_type;

static PyObject *plan_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    (void)type, (void)args, (void)keywords;
    PyErr_SetString(PyExc_TypeError, "create a Plan with Reducer.plan");
    return NULL;
}

static int plan_traverse(PyObject *object, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(((tam_py_plan *)object)->capsules);
    return 0;
}

static void plan_dealloc(PyObject *object) {
    tam_py_plan *self = (tam_py_plan *)object;
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    Py_CLEAR(self->capsules);
    Py_CLEAR(self->segments);
    PyMem_Free(self->index);
    PyMem_Free(self->data);
    PyMem_Free(self->befores);
    PyObject_GC_Del(object);
    Py_DECREF(type);
}

static PyObject *get_segments(PyObject *object, void *none) {
    PyObject *segments = ((tam_py_plan *)object)->segments;
    (void)none;
    Py_INCREF(segments);
    return segments;
}

static PyObject *plan_repr(PyObject *object) {
    return PyUnicode_FromFormat("<tamis.Plan: segments %R>", ((tam_py_plan *)object)->segments);
}

static PyGetSetDef getters[] = {
    {"segments", get_segments, NULL, "their numbers, in the order that they were given", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, "The places of some segments' gradients, checked once. Keeps their memory alive."},
    {Py_tp_new, TAM_PY_SLOT(plan_new)},
    {Py_tp_dealloc, TAM_PY_SLOT(plan_dealloc)},
    {Py_tp_traverse, TAM_PY_SLOT(plan_traverse)},
    {Py_tp_repr, TAM_PY_SLOT(plan_repr)},
    {Py_tp_getset, getters},
    {0, NULL},
};

static PyType_Spec spec = {
    .name = "tamis._core.Plan",
    .basicsize = sizeof(tam_py_plan),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .slots = slots,
};

bool tam_py_plan_type_open(PyObject *module) {
    return tam_py_type_open(module, "Plan", &spec, &tam_py_plan_type);
}

/* -- making ----------------------------------------------------------------------------------- */

static bool read_indices(tam_py_plan *plan, const tam_py_reducer *r) {
    bool *seen = PyMem_Calloc(r->layout->count, sizeof seen[0]);
    bool ok = seen != NULL;
    if (!ok)
        PyErr_NoMemory();
    for (uint32_t i = 0; ok && i < plan->count; i++) {
        uint32_t *segment = &plan->index[i];
        ok = tam_py_as_u32(PyTuple_GetItem(plan->segments, i), "segment", segment);
        if (!ok || (*segment < r->layout->count && !seen[*segment])) {
            if (ok)
                seen[*segment] = true;
            continue;
        }
        tam_py_raise_own(TAMIS_E_ARGUMENT, NULL,
                         *segment < r->layout->count
                             ? "Reducer.plan: segment %u was given twice"
                             : "Reducer.plan: segment %u is out of range: there are %u",
                         (unsigned)*segment, (unsigned)r->layout->count);
        ok = false;
    }
    PyMem_Free(seen);
    return ok;
}

static bool check_count(const tam_py_plan *plan, PyObject *tensors, const char *what) {
    Py_ssize_t given = PyTuple_Size(tensors);
    if (plan->count > 0 && given == (Py_ssize_t)plan->count)
        return true;
    tam_py_raise_own(TAMIS_E_ARGUMENT, NULL, "Reducer.plan: %u segment(s) and %zd %s",
                     (unsigned)plan->count, given, what);
    return false;
}

typedef bool (*borrower)(const tam_py_reducer *r, PyObject *tensor, uint32_t segment,
                         PyObject **out_capsule, void **out_data);

/* Adds to the `made` capsules. @param tensors  a tuple, one for each segment. @return their data */
static void **borrow_each(const tam_py_plan *plan, const tam_py_reducer *r, PyObject *tensors,
                          borrower borrow, PyObject **capsules, uint32_t *made) {
    void **data = PyMem_Calloc(plan->count, sizeof data[0]);
    bool ok = data != NULL;
    if (!ok)
        PyErr_NoMemory();
    for (uint32_t i = 0; ok && i < plan->count; i++) {
        ok = borrow(r, PyTuple_GetItem(tensors, i), plan->index[i], &capsules[*made], &data[i]);
        *made += ok;
    }
    if (!ok) {
        PyMem_Free(data);
        data = NULL;
    }
    return data;
}

/* `tensors` is a tuple; `before` is one, or NULL. */
static bool borrow_all(tam_py_plan *plan, const tam_py_reducer *r, PyObject *tensors,
                       PyObject *before) {
    PyObject **capsules = PyMem_Calloc(2 * (size_t)plan->count, sizeof capsules[0]);
    uint32_t made = 0;
    plan->index = PyMem_Calloc(plan->count, sizeof plan->index[0]);
    bool ok = capsules && plan->index;
    if (!ok)
        PyErr_NoMemory();
    ok = ok && read_indices(plan, r);
    if (ok)
        plan->data = borrow_each(plan, r, tensors, tam_py_gradient_borrow, capsules, &made);
    ok = ok && plan->data;
    if (ok && before)
        plan->befores = borrow_each(plan, r, before, tam_py_before_borrow, capsules, &made);
    ok = ok && (plan->befores || !before);
    plan->capsules = tam_py_tuple_take(capsules, made);
    PyMem_Free(capsules);
    return ok && plan->capsules;
}

/* `segments` and `tensors` are tuples; `before` is one, or NULL. */
static PyObject *make_plan(const tam_py_reducer *r, PyObject *segments, PyObject *tensors,
                           PyObject *before) {
    tam_py_plan *plan = (tam_py_plan *)PyType_GenericAlloc(tam_py_plan_type, 0);
    if (!plan)
        return NULL;
    plan->owner = r->serial;
    plan->count = (uint32_t)PyTuple_Size(segments);
    Py_INCREF(segments);
    plan->segments = segments;
    if (!check_count(plan, tensors, "tensor(s)") ||
        (before && !check_count(plan, before, "tensor(s) before")) ||
        !borrow_all(plan, r, tensors, before))
        Py_CLEAR(plan);
    return (PyObject *)plan;
}

/* Does not touch the handle, so it may be called at any time. */
PyObject *tam_py_plan_make(PyObject *reducer, PyObject *args, PyObject *keywords) {
    static char *names[] = {"segments", "tensors", "before", NULL};
    PyObject *segments, *tensors, *before = Py_None, *plan = NULL;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "OO|O:Reducer.plan", names, &segments,
                                     &tensors, &before))
        return NULL;
    bool moved = before != Py_None;
    segments = PySequence_Tuple(segments);
    tensors = segments ? PySequence_Tuple(tensors) : NULL;
    before = tensors && moved ? PySequence_Tuple(before) : NULL;
    if (tensors && (before || !moved))
        plan = make_plan((tam_py_reducer *)reducer, segments, tensors, before);
    Py_XDECREF(before);
    Py_XDECREF(tensors);
    Py_XDECREF(segments);
    return plan;
}
