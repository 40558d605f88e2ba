/* SPDX-License-Identifier: MIT
 *
 * Steps of a reducer. Tensors lent to a step are held here until it has ended:
 *
 *     held      capsules and plans of the step under way
 *     before    CUDA: those of the last joined or accumulated step. The device may still work on
 *               them, so they stay until the next step has ended. Usually this is not needed:
 *               tensor libraries' allocators reuse memory in the order of the stream that used it,
 *               and the joined stream comes after the step. It only protects a caller that joined
 *               one stream and frees on another.
 */
#include "core.h"

#include <tamis/overlap.h>

/* -- what is held ----------------------------------------------------------------------------- */

void tam_py_reducer_release(tam_py_reducer *self) {
    while (self->nheld > 0) {
        PyObject *one = self->held[--self->nheld];
        self->held[self->nheld] = NULL;
        Py_DECREF(one);
    }
}

/* There is room: every object but start's, which is the last, marks a segment of its own. */
static void hold(tam_py_reducer *self, PyObject *one) {
    Py_INCREF(one);
    self->held[self->nheld++] = one;
}

static void let_go_last(tam_py_reducer *self) {
    PyObject *one = self->held[--self->nheld];
    self->held[self->nheld] = NULL;
    Py_DECREF(one);
}

/* `all`: a new reference or NULL. */
static void keep_before(tam_py_reducer *self, PyObject *all) {
    PyObject *old = self->before;
    self->before = all;
    Py_XDECREF(old);
}

static PyObject *held_as_tuple(const tam_py_reducer *self) {
    PyObject *all = PyTuple_New(self->nheld);
    for (uint32_t i = 0; all && i < self->nheld; i++) {
        Py_INCREF(self->held[i]);
        PyTuple_SetItem(all, i, self->held[i]);
    }
    return all;
}

/* A wait or join has returned; with STATE it had no effect. Foreign destructors run here, and no
 * exception may be set while they do. */
static PyObject *end_step(tam_py_reducer *self, tamis_status status, bool joined) {
    PyObject *answer = tam_py_reducer_answer(status);
    PyObject *type, *value, *trace;
    if (status == TAMIS_E_STATE || tam_py_comm_buffers_in_flight(self->comm))
        return answer;
    PyErr_Fetch(&type, &value, &trace);
    memset(self->marked, 0, self->layout->count * sizeof self->marked[0]);
    keep_before(self, joined && self->device == TAMIS_DEVICE_CUDA ? held_as_tuple(self) : NULL);
    tam_py_reducer_release(self);
    PyErr_Restore(type, value, trace);
    return answer;
}

/* -- gradients -------------------------------------------------------------------------------- */

/* @param format  what the tensor is, of a segment's name */
static bool borrow_segment(const tam_py_reducer *self, PyObject *tensor, uint32_t segment,
                           const char *format, bool writes, PyObject **out_capsule,
                           void **out_data) {
    PyObject *name = PyTuple_GetItem(self->layout->names, segment), *owner, *text;
    tam_py_want want = {
        .type = self->type,
        .device = self->device,
        .writable = writes,
        .length = self->layout->sizes[segment],
    };
    text = PyUnicode_FromFormat(format, name);
    if (!text || !tam_py_as_text(text, "name", &owner, &want.what)) {
        Py_XDECREF(text);
        return false;
    }
    bool ok = tam_py_tensor_borrow(tensor, &want, out_capsule, out_data);
    Py_DECREF(owner);
    Py_DECREF(text);
    return ok;
}

bool tam_py_gradient_borrow(const tam_py_reducer *self, PyObject *tensor, uint32_t segment,
                            PyObject **out_capsule, void **out_data) {
    return borrow_segment(self, tensor, segment, "the gradient of %U", self->writes, out_capsule,
                          out_data);
}

bool tam_py_before_borrow(const tam_py_reducer *self, PyObject *tensor, uint32_t segment,
                          PyObject **out_capsule, void **out_data) {
    return borrow_segment(self, tensor, segment, "what %U was before", false, out_capsule,
                          out_data);
}

/* @return a tuple of capsules; segments already marked ready keep their gradient */
static PyObject *borrow_segments(tam_py_reducer *self, PyObject *tensors) {
    uint32_t count = self->layout->count;
    Py_ssize_t given = PyTuple_Size(tensors);
    if (given != (Py_ssize_t)count)
        return tam_py_raise_own(TAMIS_E_ARGUMENT, "Pass one tensor for every segment.",
                                "%zd gradient(s) for a layout of %u segment(s)", given,
                                (unsigned)count);
    PyObject **capsules = PyMem_Calloc(count, sizeof capsules[0]), *tuple;
    if (!capsules)
        return PyErr_NoMemory();
    uint32_t made = 0;
    bool ok = true;
    for (; ok && made < count; made += ok) {
        void *data;
        ok = tam_py_gradient_borrow(self, PyTuple_GetItem(tensors, made), made, &capsules[made],
                                    &data);
        self->grads[made] = ok && !self->marked[made] ? data : self->grads[made];
    }
    tuple = tam_py_tuple_take(capsules, made);
    PyMem_Free(capsules);
    if (!ok)
        Py_CLEAR(tuple);
    return tuple;
}

static PyObject *borrow_flat(const tam_py_reducer *self, PyObject *tensor, void **out_data) {
    PyObject *capsule;
    tam_py_want want = {
        .what = "the gradient",
        .type = self->type,
        .device = self->device,
        .writable = self->writes,
        .length = tamis_layout_length(self->layout->handle),
    };
    return tam_py_tensor_borrow(tensor, &want, &capsule, out_data) ? capsule : NULL;
}

/* Borrow a tensor, or a sequence of them. @return an object that keeps them alive */
static PyObject *step_borrow(tam_py_reducer *self, PyObject *grad, tamis_step *step) {
    bool sequence = PyList_Check(grad) || PyTuple_Check(grad);
    if (!sequence && PyObject_HasAttrString(grad, "__dlpack__"))
        return borrow_flat(self, grad, &step->grad);
    PyObject *tensors = PySequence_Tuple(grad);
    if (!tensors) {
        PyErr_Clear();
        return tam_py_raise_own(
            TAMIS_E_ARGUMENT, "Pass one tensor of all elements, or a sequence of one per segment.",
            "the gradient is %R, which is neither a tensor nor a sequence of tensors",
            (PyObject *)Py_TYPE(grad));
    }
    PyObject *keeper = borrow_segments(self, tensors);
    step->grads = self->grads;
    Py_DECREF(tensors);
    return keeper;
}

/* -- arguments -------------------------------------------------------------------------------- */

static bool read_stream(const tam_py_reducer *self, PyObject *stream, void **out) {
    uint64_t handle = 0;
    if (stream && !tam_py_as_u64(stream, "stream", &handle))
        return false;
    *out = (void *)(uintptr_t)handle;
    if (handle == 0 || self->device == TAMIS_DEVICE_CUDA)
        return true;
    tam_py_raise_own(TAMIS_E_ARGUMENT, "Leave it out, or create the reducer with device=\"cuda\".",
                     "stream is %llu, but the reducer's device is cpu, which has no streams",
                     (unsigned long long)handle);
    return false;
}

/* The arguments of start and accumulate. `grad` is borrowed. */
static bool read_args(const tam_py_reducer *self, PyObject *args, PyObject *keywords,
                      const char *format, PyObject **grad, tamis_step *out) {
    static char *names[] = {"grad", "scale", "stream", NULL};
    PyObject *stream = NULL;
    double scale = 1.0;
    *out = (tamis_step)TAMIS_STEP_INIT;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, format, names, grad, &scale, &stream) ||
        !read_stream(self, stream, &out->stream))
        return false;
    out->scale = (float)scale;
    return true;
}

/* Those of ready. `plan` and `rates`, which may be NULL, are borrowed. */
static bool read_ready(const tam_py_reducer *self, PyObject *args, PyObject *keywords,
                       PyObject **plan, PyObject **rates, tamis_step *out) {
    static char *names[] = {"plan", "scale", "stream", "rates", "agreed", NULL};
    PyObject *stream = NULL;
    unsigned long long agreed = 0;
    double scale = 1.0;
    *out = (tamis_step)TAMIS_STEP_INIT;
    *rates = NULL;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O|dOOK:Reducer.ready", names, plan, &scale,
                                     &stream, rates, &agreed) ||
        !read_stream(self, stream, &out->stream))
        return false;
    *rates = *rates == Py_None ? NULL : *rates;
    out->scale = (float)scale;
    out->agreed = agreed;
    return true;
}

/* -- start and accumulate --------------------------------------------------------------------- */

static tamis_status step_run(tamis_status (*call)(tamis_reducer *, const tamis_step *),
                             tamis_reducer *handle, const tamis_step *step) {
    tamis_status status;
    Py_BEGIN_ALLOW_THREADS status = call(handle, step);
    Py_END_ALLOW_THREADS return status;
}

/* Called with the call entered. Takes over the reference to `keeper`. */
static PyObject *start_with(tam_py_reducer *self, PyObject *keeper, const tamis_step *step) {
    tamis_status status = step_run(tamis_reducer_start, self->handle, step);
    bool lent = status == TAMIS_OK || tam_py_comm_buffers_in_flight(self->comm);
    PyObject *answer = tam_py_reducer_answer(status);
    if (status == TAMIS_OK)
        memset(self->marked, 1, self->layout->count * sizeof self->marked[0]);
    if (lent && self->nheld <= self->layout->count)
        hold(self, keeper);
    Py_DECREF(keeper);
    return answer;
}

PyObject *tam_py_step_start(PyObject *object, PyObject *args, PyObject *keywords) {
    tam_py_reducer *self = (tam_py_reducer *)object;
    PyObject *grad, *answer = NULL;
    tamis_step step;
    if (!read_args(self, args, keywords, "O|dO:Reducer.start", &grad, &step) ||
        !tam_py_reducer_enter(self, TAM_PY_STEP, "Reducer.start"))
        return NULL;
    PyObject *keeper = step_borrow(self, grad, &step);
    if (keeper)
        answer = start_with(self, keeper, &step);
    tam_py_reducer_leave(self, TAM_PY_STEP);
    return answer;
}

/* On the CPU the gradient has been read when the library returns; for CUDA see the top of the
 * file. Takes over the reference to `keeper`. */
static PyObject *accumulate_with(tam_py_reducer *self, PyObject *keeper, const tamis_step *step) {
    PyObject *answer =
        tam_py_reducer_answer(step_run(tamis_reducer_accumulate, self->handle, step));
    if (self->device == TAMIS_DEVICE_CUDA)
        keep_before(self, keeper);
    else
        Py_DECREF(keeper);
    return answer;
}

PyObject *tam_py_step_accumulate(PyObject *object, PyObject *args, PyObject *keywords) {
    tam_py_reducer *self = (tam_py_reducer *)object;
    PyObject *grad, *answer = NULL;
    tamis_step step;
    if (!read_args(self, args, keywords, "O|dO:Reducer.accumulate", &grad, &step) ||
        !tam_py_reducer_enter(self, TAM_PY_STEP, "Reducer.accumulate"))
        return NULL;
    PyObject *keeper = step_borrow(self, grad, &step);
    if (keeper)
        answer = accumulate_with(self, keeper, &step);
    tam_py_reducer_leave(self, TAM_PY_STEP);
    return answer;
}

/* -- ready ------------------------------------------------------------------------------------ */

/* The library reads the pointers of a step until it ends, so those of marked segments must not be
 * written. So a segment that is already marked is refused here, before the library would. */
static bool check_plan(const tam_py_reducer *self, const tam_py_plan *plan) {
    if (plan->owner != self->serial) {
        tam_py_raise_own(TAMIS_E_ARGUMENT, "Create it with the reducer that uses it.",
                         "Reducer.ready: the plan was created by another reducer");
        return false;
    }
    for (uint32_t i = 0; i < plan->count; i++) {
        if (!self->marked[plan->index[i]])
            continue;
        tam_py_raise_own(TAMIS_E_STATE, "Call wait or join before the next step begins.",
                         "Reducer.ready: the gradient of %U was already marked ready in this step, "
                         "which has not been waited for",
                         PyTuple_GetItem(self->layout->names, plan->index[i]));
        return false;
    }
    return true;
}

/* One a segment. Those of marked segments stay as they are. */
static bool read_rates(tam_py_reducer *self, const tam_py_plan *plan, PyObject *given) {
    PyObject *rates = PySequence_Tuple(given);
    if (!rates)
        return false;
    bool fits = PyTuple_Size(rates) == (Py_ssize_t)plan->count;
    if (!fits)
        tam_py_raise_own(TAMIS_E_ARGUMENT, NULL, "Reducer.ready: %zd rate(s) for %u segment(s)",
                         PyTuple_Size(rates), (unsigned)plan->count);
    for (uint32_t i = 0; fits && i < plan->count; i++) {
        double rate = PyFloat_AsDouble(PyTuple_GetItem(rates, i));
        fits = rate != -1.0 || !PyErr_Occurred();
        self->rates[plan->index[i]] = (float)rate;
    }
    Py_DECREF(rates);
    return fits;
}

static bool take_rates(tam_py_reducer *self, const tam_py_plan *plan, PyObject *rates) {
    if (!rates == !plan->befores)
        return !rates || read_rates(self, plan, rates);
    tam_py_raise_own(TAMIS_E_ARGUMENT, "Give rates with a plan that has `before`, and only then.",
                     "Reducer.ready: the plan %s `before`, and rates are %s",
                     rates ? "has no" : "has", rates ? "given" : "missing");
    return false;
}

static void py_step_mark(tam_py_reducer *self, const tam_py_plan *plan) {
    for (uint32_t i = 0; i < plan->count; i++) {
        self->grads[plan->index[i]] = plan->data[i];
        self->befores[plan->index[i]] = plan->befores ? plan->befores[i] : NULL;
        self->marked[plan->index[i]] = true;
    }
}

/* Runs without the GIL. @return how many were marked */
static uint32_t py_step_mark_ready(tamis_reducer *handle, const tam_py_plan *plan,
                                   const tamis_step *step, tamis_status *status) {
    for (uint32_t i = 0; i < plan->count; i++) {
        *status = tamis_reducer_ready(handle, plan->index[i], step);
        if (*status != TAMIS_OK)
            return i;
    }
    return plan->count;
}

/* A wait in another thread may already have ended the step; then nothing of it is held or marked
 * any more. */
static PyObject *ready_failed(tam_py_reducer *self, const tam_py_plan *plan, uint32_t done,
                              tamis_status status) {
    bool lost = tamis_status_loss(status) == TAMIS_LOST_COMM;
    PyObject *answer = tam_py_raise(status);
    for (uint32_t i = done; i < plan->count && !lost; i++)
        self->marked[plan->index[i]] = false;
    if (done == 0 && !lost && self->nheld > 0 &&
        self->held[self->nheld - 1] == (const PyObject *)plan)
        let_go_last(self);
    return answer;
}

static PyObject *ready_with(tam_py_reducer *self, tam_py_plan *plan, PyObject *rates,
                            tamis_step *step) {
    tamis_reducer *handle = self->handle;
    tamis_status status = TAMIS_OK;
    uint32_t done;
    if (!check_plan(self, plan) || !take_rates(self, plan, rates))
        return NULL;
    step->grads = self->grads;
    step->before = plan->befores ? self->befores : NULL;
    step->rates = plan->befores ? self->rates : NULL;
    py_step_mark(self, plan);
    hold(self, (PyObject *)plan);
    Py_BEGIN_ALLOW_THREADS done = py_step_mark_ready(handle, plan, step, &status);
    Py_END_ALLOW_THREADS if (status != TAMIS_OK) return ready_failed(self, plan, done, status);
    Py_RETURN_NONE;
}

PyObject *tam_py_step_ready(PyObject *object, PyObject *args, PyObject *keywords) {
    tam_py_reducer *self = (tam_py_reducer *)object;
    PyObject *plan, *rates, *answer;
    tamis_step step;
    if (!read_ready(self, args, keywords, &plan, &rates, &step))
        return NULL;
    if (Py_TYPE(plan) != tam_py_plan_type)
        return PyErr_Format(PyExc_TypeError, "plan is %R, not a Plan created by Reducer.plan",
                            (PyObject *)Py_TYPE(plan));
    if (!tam_py_reducer_enter(self, TAM_PY_READY, "Reducer.ready"))
        return NULL;
    answer = ready_with(self, (tam_py_plan *)plan, rates, &step);
    tam_py_reducer_leave(self, TAM_PY_READY);
    return answer;
}

/* -- the end of a step ------------------------------------------------------------------------ */

PyObject *tam_py_step_test(PyObject *object, PyObject *none) {
    tam_py_reducer *self = (tam_py_reducer *)object;
    tamis_status status;
    int done;
    (void)none;
    if (!tam_py_reducer_enter(self, TAM_PY_STEP, "Reducer.test"))
        return NULL;
    Py_BEGIN_ALLOW_THREADS status = tamis_reducer_test(self->handle, &done);
    Py_END_ALLOW_THREADS tam_py_reducer_leave(self, TAM_PY_STEP);
    return status == TAMIS_OK ? PyBool_FromLong(done) : tam_py_raise(status);
}

PyObject *tam_py_step_wait(PyObject *object, PyObject *none) {
    tam_py_reducer *self = (tam_py_reducer *)object;
    tamis_status status;
    (void)none;
    if (!tam_py_reducer_enter(self, TAM_PY_WAIT, "Reducer.wait"))
        return NULL;
    Py_BEGIN_ALLOW_THREADS status = tamis_reducer_wait(self->handle);
    Py_END_ALLOW_THREADS PyObject *answer = end_step(self, status, false);
    tam_py_reducer_leave(self, TAM_PY_WAIT);
    return answer;
}

PyObject *tam_py_step_join(PyObject *object, PyObject *args, PyObject *keywords) {
    static char *names[] = {"stream", NULL};
    tam_py_reducer *self = (tam_py_reducer *)object;
    PyObject *given = NULL;
    void *stream;
    tamis_status status;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "|O:Reducer.join", names, &given) ||
        !read_stream(self, given, &stream) ||
        !tam_py_reducer_enter(self, TAM_PY_STEP, "Reducer.join"))
        return NULL;
    Py_BEGIN_ALLOW_THREADS status = tamis_reducer_join(self->handle, stream);
    Py_END_ALLOW_THREADS PyObject *answer = end_step(self, status, true);
    tam_py_reducer_leave(self, TAM_PY_STEP);
    return answer;
}

PyObject *tam_py_step_outcome(PyObject *object, PyObject *args, PyObject *keywords) {
    static char *names[] = {"back", NULL};
    tam_py_reducer *self = (tam_py_reducer *)object;
    PyObject *given = NULL;
    uint32_t back = 0;
    int applied;
    tamis_status status;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "|O:Reducer.outcome", names, &given) ||
        (given && !tam_py_as_u32(given, "back", &back)) ||
        !tam_py_reducer_enter(self, TAM_PY_STEP, "Reducer.outcome"))
        return NULL;
    Py_BEGIN_ALLOW_THREADS status = tamis_reducer_outcome(self->handle, back, &applied);
    Py_END_ALLOW_THREADS tam_py_reducer_leave(self, TAM_PY_STEP);
    return status == TAMIS_OK ? PyBool_FromLong(applied) : tam_py_raise(status);
}
