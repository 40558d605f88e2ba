/* SPDX-License-Identifier: MIT
 *
 * tamis.Reducer: its life cycle, and which calls may overlap. Steps are in step.c, the state in
 * state.c, the way to fewer ranks in migrate.c.
 */
#include "core.h"

#include <structmember.h>
#include <tamis/overlap.h>

PyTypeObject *tam_py_reducer_type;

/* -- calls in progress ------------------------------------------------------------------------ */

static bool reducer_refuse(const char *call, const char *other) {
    tam_py_raise_own(TAMIS_E_STATE,
                     "Use a Reducer from one thread at a time; only ready may overlap with wait.",
                     "%s: another call is in progress, %s", call, other);
    return false;
}

static bool enter_ready(tam_py_reducer *self, const char *call) {
    if (self->readying)
        return reducer_refuse(call, "Reducer.ready");
    if (self->inside && !self->waiting)
        return reducer_refuse(call, self->inside);
    self->readying = true;
    return true;
}

bool tam_py_reducer_enter(tam_py_reducer *self, tam_py_call kind, const char *call) {
    if (!self->handle) {
        tam_py_raise_own(TAMIS_E_STATE, "Create a new one.", "%s: this Reducer was closed", call);
        return false;
    }
    if (kind == TAM_PY_READY)
        return enter_ready(self, call);
    if (self->inside)
        return reducer_refuse(call, self->inside);
    if (self->readying && kind != TAM_PY_WAIT)
        return reducer_refuse(call, "Reducer.ready");
    if (kind != TAM_PY_LOOK && !tam_py_comm_enter(self->comm, call))
        return false;
    self->inside = call;
    self->waiting = kind == TAM_PY_WAIT;
    return true;
}

void tam_py_reducer_leave(tam_py_reducer *self, tam_py_call kind) {
    if (kind == TAM_PY_READY) {
        self->readying = false;
        return;
    }
    if (kind != TAM_PY_LOOK)
        tam_py_comm_leave(self->comm);
    self->inside = NULL;
    self->waiting = false;
}

PyObject *tam_py_reducer_answer(tamis_status status) {
    if (status != TAMIS_OK)
        return tam_py_raise(status);
    Py_RETURN_NONE;
}

/* -- making ----------------------------------------------------------------------------------- */

static bool alloc_arrays(tam_py_reducer *self) {
    size_t count = self->layout->count;
    self->grads = PyMem_Calloc(count, sizeof self->grads[0]);
    self->befores = PyMem_Calloc(count, sizeof self->befores[0]);
    self->rates = PyMem_Calloc(count, sizeof self->rates[0]);
    self->marked = PyMem_Calloc(count, sizeof self->marked[0]);
    self->held = PyMem_Calloc(count + 1, sizeof self->held[0]);
    if (self->grads && self->befores && self->rates && self->marked && self->held)
        return true;
    PyErr_NoMemory();
    return false;
}

static void hold_meter(tam_py_reducer *self, tam_py_meter *meter) {
    if (!meter)
        return;
    Py_INCREF((PyObject *)meter);
    meter->reducers++;
    self->meter = meter;
}

/* Send its phases to a meter, which then must stay open. */
static bool join_meter(tam_py_reducer *self, PyObject *object, tamis_reducer_config *config) {
    tam_py_meter *meter = (tam_py_meter *)object;
    if (!meter)
        return true;
    if (!meter->handle) {
        tam_py_raise_own(TAMIS_E_STATE, "Create a new one.", "Reducer(): this Meter was closed");
        return false;
    }
    hold_meter(self, meter);
    config->on_phase = tamis_energy_on_phase;
    config->on_phase_context = meter->handle;
    return true;
}

static void leave_meter(tam_py_reducer *self) {
    tam_py_meter *meter = self->meter;
    self->meter = NULL;
    if (!meter)
        return;
    meter->reducers--;
    Py_DECREF((PyObject *)meter);
}

static bool reducer_create(tam_py_reducer *self, const tamis_reducer_config *config) {
    tamis_status status;
    tam_py_comm *comm = self->comm;
    if (!tam_py_comm_enter(comm, "Reducer()"))
        return false;
    Py_BEGIN_ALLOW_THREADS status =
        tamis_reducer_create(comm->handle, self->layout->handle, config, &self->handle);
    Py_END_ALLOW_THREADS tam_py_comm_leave(comm);
    if (status == TAMIS_OK)
        comm->reducers++;
    else
        tam_py_raise(status);
    return status == TAMIS_OK;
}

static bool count_residual(tam_py_reducer *self, const tamis_reducer_config *config) {
    if (config->ranks_per_node <= 1) {
        self->residual_length = tamis_layout_length(self->layout->handle);
        return true;
    }
    for (uint32_t i = 0; i < tamis_reducer_nbuckets(self->handle); i++) {
        tamis_bucket b = TAMIS_BUCKET_INIT;
        tamis_status status = tamis_reducer_bucket_at(self->handle, i, &b);
        if (status != TAMIS_OK) {
            tam_py_raise(status);
            return false;
        }
        self->residual_length += b.residual_length;
    }
    return true;
}

/* Keep what other files here need, so that they need not ask the library. */
static bool keep_config(tam_py_reducer *self) {
    tamis_reducer_config own = TAMIS_REDUCER_CONFIG_INIT, *config = &own;
    self->update = (tamis_update)TAMIS_UPDATE_INIT;
    tamis_status status = tamis_reducer_options(self->handle, config, &self->update);
    if (status != TAMIS_OK) {
        tam_py_raise(status);
        return false;
    }
    self->device = config->device;
    self->type = config->grad_dtype;
    self->op = config->op;
    self->writes = config->output == TAMIS_OUTPUT_DENSE;
    self->density = config->density;
    self->residual_decay = config->residual_decay;
    self->updates = config->update != NULL;
    return count_residual(self, config);
}

static tam_py_reducer *alloc(PyTypeObject *type, tam_py_comm *comm, tam_py_layout *layout) {
    static uint64_t serials;
    tam_py_reducer *self = (tam_py_reducer *)PyType_GenericAlloc(type, 0);
    if (!self)
        return NULL;
    Py_INCREF((PyObject *)comm);
    Py_INCREF((PyObject *)layout);
    self->comm = comm;
    self->layout = layout;
    self->serial = ++serials;
    return self;
}

static tam_py_reducer *reducer_make(PyTypeObject *type, PyObject *comm, PyObject *layout,
                                    tam_py_options *options) {
    tamis_reducer_config *config = &options->config;
    tam_py_reducer *self = alloc(type, (tam_py_comm *)comm, (tam_py_layout *)layout);
    if (!self)
        return NULL;
    if (!alloc_arrays(self) || !join_meter(self, options->meter, config) ||
        !reducer_create(self, config) || !keep_config(self))
        Py_CLEAR(self);
    return self;
}

tam_py_reducer *tam_py_reducer_like(const tam_py_reducer *other, tam_py_comm *comm) {
    tam_py_reducer *self = alloc(tam_py_reducer_type, comm, other->layout);
    if (!self || !alloc_arrays(self)) {
        Py_XDECREF((PyObject *)self);
        return NULL;
    }
    self->device = other->device;
    self->type = other->type;
    self->op = other->op;
    self->writes = other->writes;
    self->density = other->density;
    self->residual_decay = other->residual_decay;
    self->updates = other->updates;
    self->update = other->update;
    self->residual_length = other->residual_length;
    hold_meter(self, other->meter);
    return self;
}

void tam_py_reducer_adopt(tam_py_reducer *self, tamis_reducer *handle) {
    self->handle = handle;
    self->comm->reducers++;
}

/* Moves comm and layout, if they were given by name, out of a copy of the keywords. */
static bool reducer_split(PyObject *args, PyObject *keywords, PyObject **comm, PyObject **layout) {
    static char *names[] = {"comm", "layout", NULL};
    PyObject *own = PyDict_New();
    bool ok = own != NULL;
    for (int i = 0; ok && keywords && names[i]; i++) {
        PyObject *value = PyDict_GetItemString(keywords, names[i]);
        if (value)
            ok = PyDict_SetItemString(own, names[i], value) == 0 &&
                 PyDict_DelItemString(keywords, names[i]) == 0;
    }
    ok = ok && PyArg_ParseTupleAndKeywords(args, own, "O!O!:Reducer", names, tam_py_comm_type, comm,
                                           tam_py_layout_type, layout);
    if (ok) {
        Py_INCREF(*comm);
        Py_INCREF(*layout);
    }
    Py_XDECREF(own);
    return ok;
}

static PyObject *reducer_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    PyObject *comm, *layout, *own = keywords ? PyDict_Copy(keywords) : NULL;
    tam_py_options options;
    tam_py_reducer *self = NULL;
    if (keywords && !own)
        return NULL;
    if (reducer_split(args, own, &comm, &layout)) {
        if (tam_py_options_read(own, &options)) {
            self = reducer_make(type, comm, layout, &options);
            Py_XDECREF(options.owner);
        }
        Py_DECREF(layout);
        Py_DECREF(comm);
    }
    Py_XDECREF(own);
    return (PyObject *)self;
}

/* -- the end ---------------------------------------------------------------------------------- */

/* The caller has entered, or holds the last reference. */
static void reducer_destroy(tam_py_reducer *self) {
    tamis_reducer *handle = self->handle;
    self->handle = NULL;
    Py_BEGIN_ALLOW_THREADS tamis_reducer_destroy(handle);
    Py_END_ALLOW_THREADS tam_py_cause_drop();
    self->comm->reducers--;
    leave_meter(self);
    if (tam_py_comm_buffers_in_flight(self->comm))
        self->nheld = 0; /* leak it on purpose */
    tam_py_reducer_release(self);
    Py_CLEAR(self->before);
}

static PyObject *reducer_close(PyObject *object, PyObject *none) {
    tam_py_reducer *self = (tam_py_reducer *)object;
    (void)none;
    if (!self->handle)
        Py_RETURN_NONE;
    if (self->locals > 0)
        return tam_py_raise_own(TAMIS_E_STATE, "Close those first.",
                                "Reducer.close: %u Local object(s) use it", self->locals);
    if (!tam_py_reducer_enter(self, TAM_PY_STEP, "Reducer.close"))
        return NULL;
    reducer_destroy(self);
    tam_py_reducer_leave(self, TAM_PY_STEP);
    Py_RETURN_NONE;
}

/* A step under way must end first, which needs the communicator. If another reducer uses that just
 * now in another thread, this reducer and the communicator stay in memory for good. */
static void end_of_life(tam_py_reducer *self) {
    if (!self->handle)
        return;
    if (self->nheld > 0 && self->comm->inside) {
        Py_INCREF((PyObject *)self->comm);
        self->meter = NULL; /* the meter stays, too */
        self->handle = NULL;
        self->nheld = 0;
        return;
    }
    reducer_destroy(self);
}

static int reducer_traverse(PyObject *object, visitproc visit, void *arg) {
    const tam_py_reducer *self = (tam_py_reducer *)object;
    Py_VISIT(Py_TYPE(object));
    Py_VISIT((PyObject *)self->comm);
    Py_VISIT(self->before);
    Py_VISIT((PyObject *)self->meter);
    for (uint32_t i = 0; i < self->nheld; i++)
        Py_VISIT(self->held[i]);
    return 0;
}

/* Keeps comm: its handle must outlive ours. Objects above it end first, and then this one. */
static int reducer_clear(PyObject *object) {
    tam_py_reducer *self = (tam_py_reducer *)object;
    if (self->locals == 0)
        end_of_life(self);
    return 0;
}

static void reducer_dealloc(PyObject *object) {
    tam_py_reducer *self = (tam_py_reducer *)object;
    PyTypeObject *type = Py_TYPE(object);
    PyObject *error, *value, *trace;
    PyObject_GC_UnTrack(object);
    PyErr_Fetch(&error, &value, &trace);
    if (self->weak)
        PyObject_ClearWeakRefs(object);
    end_of_life(self);
    leave_meter(self); /* if the reducer was never made */
    PyMem_Free(self->grads);
    PyMem_Free((void *)self->befores);
    PyMem_Free(self->rates);
    PyMem_Free(self->marked);
    PyMem_Free(self->held);
    Py_XDECREF((PyObject *)self->layout);
    Py_XDECREF((PyObject *)self->comm);
    PyErr_Restore(error, value, trace);
    PyObject_GC_Del(object);
    Py_DECREF(type);
}

/* -- type ------------------------------------------------------------------------------------- */

static PyObject *get_comm(PyObject *object, void *none) {
    PyObject *comm = (PyObject *)((tam_py_reducer *)object)->comm;
    (void)none;
    Py_INCREF(comm);
    return comm;
}

static PyObject *get_layout(PyObject *object, void *none) {
    PyObject *layout = (PyObject *)((tam_py_reducer *)object)->layout;
    (void)none;
    Py_INCREF(layout);
    return layout;
}

static PyObject *get_op(PyObject *object, void *none) {
    (void)none;
    return PyUnicode_FromString(((tam_py_reducer *)object)->op == TAMIS_OP_MEAN ? "mean" : "sum");
}

/* As it was made, if it is closed. */
static PyObject *get_density(PyObject *object, void *none) {
    const tam_py_reducer *self = (const tam_py_reducer *)object;
    (void)none;
    return PyFloat_FromDouble(self->handle ? tamis_reducer_density(self->handle) : self->density);
}

static PyObject *get_residual_decay(PyObject *object, void *none) {
    (void)none;
    return PyFloat_FromDouble(((tam_py_reducer *)object)->residual_decay);
}

static PyObject *get_residual_length(PyObject *object, void *none) {
    (void)none;
    return PyLong_FromUnsignedLongLong(((tam_py_reducer *)object)->residual_length);
}

/* Works on a closed reducer, too, of which nothing is known. */
static PyObject *get_driver(PyObject *object, void *none) {
    const char *why, *who = tamis_reducer_driver(((tam_py_reducer *)object)->handle, &why);
    (void)none;
    return Py_BuildValue("(ss)", who, why);
}

static PyObject *reducer_repr(PyObject *object) {
    const tam_py_reducer *self = (tam_py_reducer *)object;
    return PyUnicode_FromFormat("<tamis.Reducer: %R over %R%s>", (PyObject *)self->layout,
                                (PyObject *)self->comm, self->handle ? "" : ", closed");
}

#define WITH_KEYWORDS(call) (PyCFunction)(void (*)(void)) call, METH_VARARGS | METH_KEYWORDS

static PyMethodDef methods[] = {
    {"start", WITH_KEYWORDS(tam_py_step_start),
     "start(grad, scale=1.0, stream=0)\n--\n\n"
     "Begin a step. `grad`: one tensor of layout.length elements, or a sequence of one per\n"
     "segment; written in place, and held until the step has ended."},
    {"plan", WITH_KEYWORDS(tam_py_plan_make),
     "plan(segments, tensors, before=None)\n--\n\nCheck the gradients of some segments once, for "
     "all steps in which they keep their\nplace; with `before`, parameters after and before a step "
     "of an optimizer."},
    {"ready", WITH_KEYWORDS(tam_py_step_ready),
     "ready(plan, scale=1.0, stream=0, rates=None, agreed=0)\n--\n\n"
     "The gradients of a plan are complete. Scale, stream and `agreed` must not change within a "
     "step.\n`rates`: one per segment of a plan that has `before`; `agreed`: a number, the same on "
     "all ranks."},
    {"accumulate", WITH_KEYWORDS(tam_py_step_accumulate),
     "accumulate(grad, scale=1.0, stream=0)\n--\n\n"
     "Add a gradient to the residual and exchange nothing: one micro-batch of several."},
    {"test", tam_py_step_test, METH_NOARGS, "test()\n--\n\nWhether wait would return at once."},
    {"wait", tam_py_step_wait, METH_NOARGS, "wait()\n--\n\nFinish the step that start began."},
    {"join", WITH_KEYWORDS(tam_py_step_join),
     "join(stream=0)\n--\n\nFinish the step in the order of a CUDA stream."},
    {"outcome", WITH_KEYWORDS(tam_py_step_outcome),
     "outcome(back=0)\n--\n\nWait for the joined step that is `back` before the last one. Returns "
     "whether it was\napplied, or raises what happened."},
    {"result", tam_py_state_result, METH_NOARGS,
     "result()\n--\n\nIndices (uint32) and values (float32) of the last step, as bytes."},
    {"residual", tam_py_state_residual, METH_O,
     "residual(out)\n--\n\n"
     "Copy the residual into `out`: float32, residual_length elements, in host memory."},
    {"control", tam_py_state_control, METH_NOARGS,
     "control()\n--\n\nThe rest of the state, as bytes: thresholds, step number."},
    {"restore", WITH_KEYWORDS(tam_py_state_restore),
     "restore(control, residual)\n--\n\nRestore what control() and residual() returned. A part "
     "that is None stays unchanged."},
    {"moments", WITH_KEYWORDS(tam_py_moments_save),
     "moments(first, second)\n--\n\nCopy the moments of update mode, as residual does. None for "
     "one that the rule lacks.\nReturns the passes that made them."},
    {"restore_moments", WITH_KEYWORDS(tam_py_moments_restore),
     "restore_moments(first, second, passes)\n--\n\nSet the moments, whatever their source; all "
     "else stays."},
    {"save", tam_py_state_save, METH_O, "save(path)\n--\n\nWrite the state of this rank."},
    {"load", tam_py_state_load, METH_O, "load(path)\n--\n\nLoad the state of this rank."},
    {"resync", tam_py_state_resync, METH_NOARGS,
     "resync()\n--\n\nAfter loading, on all ranks: ranks that are one step ahead roll it back. "
     "Returns "
     "the next step."},
    {"migrate", tam_py_reducer_migrate, METH_O,
     "migrate(smaller)\n--\n\nGo on over a Comm from Comm.shrink. Returns the reducer that does, "
     "and "
     "what was found, by name."},
    {"set_density", tam_py_state_set_density, METH_O,
     "set_density(density)\n--\n\nSet the density from the next step on, at most density_max."},
    {"stats", tam_py_state_stats, METH_NOARGS,
     "stats()\n--\n\nFigures of the last finished step, by name."},
    {"buckets", tam_py_state_buckets, METH_NOARGS,
     "buckets()\n--\n\nThe buckets in the order of the exchange."},
    {"close", reducer_close, METH_NOARGS,
     "close()\n--\n\nClose it. Error (STATE) while another thread is inside one of its calls."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef getters[] = {
    {"comm", get_comm, NULL, "the ranks that take part", NULL},
    {"layout", get_layout, NULL, "the segments of the gradient", NULL},
    {"driver", get_driver, NULL, "who drives the steps, \"device\" or \"host\", and why", NULL},
    {"op", get_op, NULL, "\"mean\" or \"sum\"", NULL},
    {"update", tam_py_moments_update, NULL, "the update, or None: residuals hold gradients", NULL},
    {"density", get_density, NULL, "the share of the entries that the next step sends", NULL},
    {"residual_decay", get_residual_decay, NULL, "factor on residuals in every step", NULL},
    {"residual_length", get_residual_length, NULL, "elements of the residual", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef members[] = {
    {"__weaklistoffset__", T_PYSSIZET, offsetof(tam_py_reducer, weak), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, "Reducer(comm, layout, **options)\n--\n\nExchanges gradients and keeps the state. "
                "The options are named as the fields of\ntamis_reducer_config, with dtype for "
                "grad_dtype, and meter: a tamis.energy.Meter."},
    {Py_tp_new, TAM_PY_SLOT(reducer_new)},
    {Py_tp_dealloc, TAM_PY_SLOT(reducer_dealloc)},
    {Py_tp_traverse, TAM_PY_SLOT(reducer_traverse)},
    {Py_tp_clear, TAM_PY_SLOT(reducer_clear)},
    {Py_tp_repr, TAM_PY_SLOT(reducer_repr)},
    {Py_tp_methods, methods},
    {Py_tp_getset, getters},
    {Py_tp_members, members},
    {0, NULL},
};

static PyType_Spec spec = {
    .name = "tamis._core.Reducer",
    .basicsize = sizeof(tam_py_reducer),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .slots = slots,
};

bool tam_py_reducer_type_open(PyObject *module) {
    return tam_py_type_open(module, "Reducer", &spec, &tam_py_reducer_type);
}
