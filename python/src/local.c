/* SPDX-License-Identifier: MIT
 *
 * tamis._core.Local: local steps above a Reducer, which it keeps alive and open. It holds the
 * parameters, so that a step that only counts costs one call.
 */
#include "core.h"

#include <tamis/local.h>

typedef struct local_object {
    PyObject_HEAD tamis_local *handle; /* NULL: closed */
    tam_py_reducer *reducer;
    PyObject *capsules; /* tuple: they keep the memory of the parameters */
    float **params;     /* [segments] */
} local_object;

static PyTypeObject *local_type;

static bool local_enter(local_object *self, tam_py_call kind, const char *call) {
    if (!self->handle) {
        tam_py_raise_own(TAMIS_E_STATE, "Create a new one.", "%s: this Local was closed", call);
        return false;
    }
    return tam_py_reducer_enter(self->reducer, kind, call);
}

/* -- making ----------------------------------------------------------------------------------- */

/* Replaces what was borrowed before, or changes nothing. */
static bool local_borrow(local_object *self, PyObject *tensors) {
    const tam_py_layout *layout = self->reducer->layout;
    Py_ssize_t given = PySequence_Size(tensors);
    if (given < 0)
        return false;
    if (given != (Py_ssize_t)layout->count) {
        tam_py_raise_own(TAMIS_E_ARGUMENT, NULL, "Local: %zd parameter(s) for %u segment(s)", given,
                         (unsigned)layout->count);
        return false;
    }
    PyObject **each = PyMem_Calloc(layout->count, sizeof each[0]);
    float **params = PyMem_Calloc(layout->count, sizeof params[0]);
    uint32_t made = 0;
    bool ok = each && params;
    if (!ok)
        PyErr_NoMemory();
    for (; ok && made < layout->count; made += ok) {
        PyObject *tensor = PySequence_GetItem(tensors, made);
        tam_py_want want = {"a parameter", TAMIS_DTYPE_FLOAT32, TAMIS_DEVICE_CPU, true,
                            layout->sizes[made]};
        void *data = NULL;
        ok = tensor && tam_py_tensor_borrow(tensor, &want, &each[made], &data);
        Py_XDECREF(tensor);
        params[made] = data;
    }
    PyObject *capsules = tam_py_tuple_take(each, made);
    PyMem_Free(each);
    ok = ok && capsules;
    PyObject *old = ok ? self->capsules : capsules;
    float **old_params = ok ? self->params : params;
    self->capsules = ok ? capsules : self->capsules;
    self->params = ok ? params : self->params;
    PyMem_Free(old_params);
    Py_XDECREF(old);
    return ok;
}

static bool local_create(local_object *self, const tamis_local_config *config) {
    tamis_status status;
    if (!tam_py_reducer_enter(self->reducer, TAM_PY_STEP, "Local()"))
        return false;
    Py_BEGIN_ALLOW_THREADS status = tamis_local_create(
        self->reducer->handle, (float *const *)self->params, config, &self->handle);
    Py_END_ALLOW_THREADS tam_py_reducer_leave(self->reducer, TAM_PY_STEP);
    if (status != TAMIS_OK)
        tam_py_raise(status);
    else
        self->reducer->locals++;
    return status == TAMIS_OK;
}

/* The format I of PyArg_Parse would wrap around. */
static bool read_counts(PyObject *const given[4], tamis_local_config *out) {
    static const char *const names[] = {"steps", "steps_max", "delay", "offset"};
    uint32_t *const fields[] = {&out->steps, &out->steps_max, &out->delay, &out->offset};
    for (int i = 0; i < 4; i++) {
        if (given[i] && !tam_py_as_u32(given[i], names[i], fields[i]))
            return false;
    }
    return true;
}

static PyObject *local_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    static char *names[] = {"reducer", "params", "steps",    "steps_max",  "delay",
                            "offset",  "lr",     "momentum", "wait_share", NULL};
    tamis_local_config c = TAMIS_LOCAL_CONFIG_INIT;
    PyObject *reducer, *params, *counts[4] = {NULL};
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O!O|$OOOOddd:Local", names,
                                     tam_py_reducer_type, &reducer, &params, &counts[0], &counts[1],
                                     &counts[2], &counts[3], &c.lr, &c.momentum, &c.wait_share) ||
        !read_counts(counts, &c))
        return NULL;
    local_object *self = (local_object *)PyType_GenericAlloc(type, 0);
    if (!self)
        return NULL;
    Py_INCREF(reducer);
    self->reducer = (tam_py_reducer *)reducer;
    if (!local_borrow(self, params) || !local_create(self, &c))
        Py_CLEAR(self);
    return (PyObject *)self;
}

/* -- the end ---------------------------------------------------------------------------------- */

/* Another thread is inside the communicator, so nobody may wait there for the exchange under way:
 * handle and reducer stay until the process ends. */
static bool left_behind(local_object *self) {
    tamis_local_stats stats = TAMIS_LOCAL_STATS_INIT;
    if (!self->reducer->comm->inside || tamis_local_stats_read(self->handle, &stats) != TAMIS_OK ||
        !stats.under_way)
        return false;
    Py_INCREF((PyObject *)self->reducer);
    self->handle = NULL;
    return true;
}

/* The caller has entered, or holds the last reference. */
static void local_destroy(local_object *self) {
    tamis_local *handle = self->handle;
    self->handle = NULL;
    Py_BEGIN_ALLOW_THREADS tamis_local_destroy(handle);
    Py_END_ALLOW_THREADS self->reducer->locals--;
    PyMem_Free(self->params);
    self->params = NULL;
    Py_CLEAR(self->capsules);
}

static PyObject *local_close(PyObject *object, PyObject *none) {
    local_object *self = (local_object *)object;
    (void)none;
    if (!self->handle)
        Py_RETURN_NONE;
    if (!local_enter(self, TAM_PY_STEP, "Local.close"))
        return NULL;
    local_destroy(self);
    tam_py_reducer_leave(self->reducer, TAM_PY_STEP);
    Py_RETURN_NONE;
}

static int local_traverse(PyObject *object, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(object));
    Py_VISIT((PyObject *)((local_object *)object)->reducer);
    Py_VISIT(((local_object *)object)->capsules);
    return 0;
}

static void local_dealloc(PyObject *object) {
    local_object *self = (local_object *)object;
    PyTypeObject *type = Py_TYPE(object);
    PyObject *error, *value, *trace;
    PyObject_GC_UnTrack(object);
    PyErr_Fetch(&error, &value, &trace);
    if (self->handle && !left_behind(self))
        local_destroy(self);
    PyMem_Free(self->params);
    Py_XDECREF(self->capsules);
    Py_XDECREF((PyObject *)self->reducer);
    PyErr_Restore(error, value, trace);
    PyObject_GC_Del(object);
    Py_DECREF(type);
}

/* -- steps ------------------------------------------------------------------------------------ */

static PyObject *local_step(PyObject *object, PyObject *none) {
    local_object *self = (local_object *)object;
    tamis_status status;
    (void)none;
    if (!local_enter(self, TAM_PY_STEP, "Local.step"))
        return NULL;
    Py_BEGIN_ALLOW_THREADS status = tamis_local_step(self->handle, self->params);
    Py_END_ALLOW_THREADS tam_py_reducer_leave(self->reducer, TAM_PY_STEP);
    return tam_py_reducer_answer(status);
}

static PyObject *local_rebind(PyObject *object, PyObject *tensors) {
    local_object *self = (local_object *)object;
    if (!local_enter(self, TAM_PY_LOOK, "Local.rebind"))
        return NULL;
    bool ok = local_borrow(self, tensors);
    tam_py_reducer_leave(self->reducer, TAM_PY_LOOK);
    return ok ? tam_py_reducer_answer(TAMIS_OK) : NULL;
}

static PyObject *local_set_steps(PyObject *object, PyObject *value) {
    local_object *self = (local_object *)object;
    uint32_t steps;
    if (!tam_py_as_u32(value, "steps", &steps) ||
        !local_enter(self, TAM_PY_LOOK, "Local.set_steps"))
        return NULL;
    tamis_status status = tamis_local_set_steps(self->handle, steps);
    tam_py_reducer_leave(self->reducer, TAM_PY_LOOK);
    return tam_py_reducer_answer(status);
}

static PyObject *copy_base(local_object *self, float *out) {
    const float *base = NULL;
    uint64_t n = tamis_layout_length(self->reducer->layout->handle);
    tamis_status status = tamis_local_base(self->handle, &base);
    for (uint64_t i = 0; status == TAMIS_OK && i < n; i++)
        out[i] = base[i];
    return tam_py_reducer_answer(status);
}

static PyObject *local_base(PyObject *object, PyObject *out) {
    local_object *self = (local_object *)object;
    PyObject *capsule;
    void *data;
    if (!local_enter(self, TAM_PY_LOOK, "Local.base"))
        return NULL;
    tam_py_want want = {"the tensor for the base", TAMIS_DTYPE_FLOAT32, TAMIS_DEVICE_CPU, true,
                        tamis_layout_length(self->reducer->layout->handle)};
    PyObject *answer = NULL;
    if (tam_py_tensor_borrow(out, &want, &capsule, &data)) {
        answer = copy_base(self, data);
        Py_DECREF(capsule);
    }
    tam_py_reducer_leave(self->reducer, TAM_PY_LOOK);
    return answer;
}

/* -- state ------------------------------------------------------------------------------------ */

static PyObject *local_save(local_object *self) {
    size_t bytes;
    tamis_status status = tamis_local_bytes(self->handle, &bytes);
    if (status != TAMIS_OK)
        return tam_py_raise(status);
    PyObject *state = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)bytes);
    if (!state)
        return NULL;
    char *memory = PyBytes_AsString(state);
    Py_BEGIN_ALLOW_THREADS status = tamis_local_save(self->handle, memory, bytes);
    Py_END_ALLOW_THREADS if (status == TAMIS_OK) return state;
    tam_py_raise(status);
    Py_DECREF(state);
    return NULL;
}

/* It may wait for an exchange under way. */
static PyObject *local_state(PyObject *object, PyObject *none) {
    local_object *self = (local_object *)object;
    (void)none;
    if (!local_enter(self, TAM_PY_STEP, "Local.state"))
        return NULL;
    PyObject *state = local_save(self);
    tam_py_reducer_leave(self->reducer, TAM_PY_STEP);
    return state;
}

static PyObject *local_restore(PyObject *object, PyObject *state) {
    local_object *self = (local_object *)object;
    tamis_status status;
    char *bytes;
    Py_ssize_t size;
    if (PyBytes_AsStringAndSize(state, &bytes, &size) != 0 ||
        !local_enter(self, TAM_PY_LOOK, "Local.restore"))
        return NULL;
    Py_BEGIN_ALLOW_THREADS status = tamis_local_load(self->handle, bytes, (size_t)size);
    Py_END_ALLOW_THREADS tam_py_reducer_leave(self->reducer, TAM_PY_LOOK);
    return tam_py_reducer_answer(status);
}

static PyObject *local_stats(PyObject *object, PyObject *none) {
    local_object *self = (local_object *)object;
    tamis_local_stats s = TAMIS_LOCAL_STATS_INIT;
    (void)none;
    if (!local_enter(self, TAM_PY_LOOK, "Local.stats"))
        return NULL;
    tamis_status status = tamis_local_stats_read(self->handle, &s);
    tam_py_reducer_leave(self->reducer, TAM_PY_LOOK);
    if (status != TAMIS_OK)
        return tam_py_raise(status);
#define WHOLE(name) #name, (unsigned long long)s.name
#define REAL(name) #name, s.name
    return Py_BuildValue("{sKsKsKsKsKsKsdsdsdsdsdsd}", WHOLE(rounds), WHOLE(lost_rounds),
                         WHOLE(steps), WHOLE(position), WHOLE(under_way), WHOLE(wire_bytes_total),
                         REAL(density), REAL(outer_norm), REAL(drift_norm), REAL(step_s),
                         REAL(wait_s), REAL(waiting_share));
#undef REAL
#undef WHOLE
}

PyObject *tam_py_local_presets(PyObject *module, PyObject *none) {
    tamis_local_preset_info p = TAMIS_LOCAL_PRESET_INFO_INIT;
    PyObject *list = PyList_New(0);
    (void)module, (void)none;
    for (size_t i = 0; list && tamis_local_preset_list(i, &p); i++) {
        PyObject *one = Py_BuildValue("{sssIsdsdsssdsisdss}", "name", p.name, "steps", p.steps,
                                      "lr", p.lr, "momentum", p.momentum, "scheme", p.scheme,
                                      "density", p.density, "value_codec", (int)p.value_codec,
                                      "residual_decay", p.residual_decay, "source", p.source);
        if (!one || PyList_Append(list, one) != 0)
            Py_CLEAR(list);
        Py_XDECREF(one);
    }
    return list;
}

/* -- type ------------------------------------------------------------------------------------- */

static PyMethodDef methods[] = {
    {"step", local_step, METH_NOARGS,
     "step()\n--\n\nThe optimizer has made a step. Every H-th call exchanges."},
    {"rebind", local_rebind, METH_O,
     "rebind(params)\n--\n\nThe parameters lie in other memory from here on."},
    {"set_steps", local_set_steps, METH_O, "set_steps(steps)\n--\n\nChange H, on all ranks."},
    {"base", local_base, METH_O,
     "base(out)\n--\n\nCopy what all ranks have in common: float32, layout.length elements."},
    {"state", local_state, METH_NOARGS,
     "state()\n--\n\nThe state, as bytes. Waits for an exchange under way."},
    {"restore", local_restore, METH_O, "restore(state)\n--\n\nRestore what state() returned."},
    {"stats", local_stats, METH_NOARGS, "stats()\n--\n\nFigures, by name."},
    {"close", local_close, METH_NOARGS, "close()\n--\n\nClose it, before its Reducer."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, "Local(reducer, params, *, steps=16, steps_max=0, delay=0, offset=0, lr=0.7, "
                "momentum=0.9, wait_share=0.0)\n--\n\nLocal steps: see tamis/local.h. `params`: a "
                "tensor per segment, float32, in host memory."},
    {Py_tp_new, TAM_PY_SLOT(local_new)},
    {Py_tp_dealloc, TAM_PY_SLOT(local_dealloc)},
    {Py_tp_traverse, TAM_PY_SLOT(local_traverse)},
    {Py_tp_methods, methods},
    {0, NULL},
};

static PyType_Spec spec = {
    .name = "tamis._core.Local",
    .basicsize = sizeof(local_object),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .slots = slots,
};

bool tam_py_local_type_open(PyObject *module) {
    return tam_py_type_open(module, "Local", &spec, &local_type);
}
