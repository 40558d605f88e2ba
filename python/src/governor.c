/* SPDX-License-Identifier: MIT
 *
 * tamis._core.Governor: watts and CO2 of a run; tamis.energy.Governor is made of it. All calls take
 * microseconds and keep the GIL, so one is made at a time.
 */
#include "core.h"

#include <math.h>
#include <tamis/governor.h>

typedef struct governor {
    PyObject_HEAD tamis_governor *handle;
    tamis_carbon *carbon;
    bool decided;
    tamis_governor_window window;     /* the last one */
    tamis_governor_decision decision; /* and what was decided */
} governor;

static PyTypeObject *governor_type;

/* -- tables of keywords ----------------------------------------------------------------------- */

typedef struct knob {
    const char *name;
    enum { KNOB_REAL, KNOB_U64, KNOB_U32 } kind; /* a real one that is NAN is None */
    size_t offset;
} knob;

#define KNOB(of, kind, name)                                                                       \
    { #name, KNOB_##kind, offsetof(of, name) }
#define CONFIG(kind, name) KNOB(tamis_governor_config, kind, name)
#define WINDOW(kind, name) KNOB(tamis_governor_window, kind, name)
#define DECISION(kind, name) KNOB(tamis_governor_decision, kind, name)

static const knob config_knobs[] = {
    CONFIG(REAL, budget_w),     CONFIG(REAL, budget_g_per_h), CONFIG(REAL, pue),
    CONFIG(REAL, slowdown),     CONFIG(REAL, slowdown_most),  CONFIG(REAL, threshold_g_per_kwh),
    CONFIG(REAL, density_min),  CONFIG(REAL, density_max),    CONFIG(REAL, residual_max),
    CONFIG(REAL, pace_max_s),   CONFIG(REAL, cap_min_w),      CONFIG(REAL, cap_max_w),
    CONFIG(U32, allow_cap),     CONFIG(U32, devices),         CONFIG(REAL, dead_band),
    CONFIG(REAL, ramp_w_per_s), CONFIG(U64, lead_steps),      {0},
};

static const knob window_knobs[] = {
    WINDOW(U64, step),
    WINDOW(U64, steps),
    WINDOW(REAL, seconds),
    WINDOW(REAL, density),
    WINDOW(REAL, pace_s),
    WINDOW(REAL, cap_w),
    WINDOW(REAL, residual_norm),
    WINDOW(REAL, intensity_g_per_kwh),
    WINDOW(REAL, outlook_g_per_kwh),
    WINDOW(REAL, outlook_low_g_per_kwh),
    {0},
};

static const knob decision_knobs[] = {
    DECISION(U64, step),      DECISION(REAL, density),    DECISION(REAL, pace_s),
    DECISION(REAL, cap_w),    DECISION(U32, changed),     DECISION(REAL, watts),
    DECISION(REAL, budget_w), DECISION(REAL, expected_w), DECISION(REAL, slowdown),
    DECISION(REAL, low_w),    DECISION(REAL, high_w),     {0},
};

static bool knob_write(const knob *k, PyObject *value, void *base) {
    void *field = (char *)base + k->offset;
    if (k->kind == KNOB_U64)
        return tam_py_as_u64(value, k->name, field);
    if (k->kind == KNOB_U32)
        return tam_py_as_u32(value, k->name, field);
    return value == Py_None || tam_py_as_real(value, k->name, field);
}

static PyObject *real_or_none(double real) {
    if (real == real)
        return PyFloat_FromDouble(real);
    Py_RETURN_NONE;
}

static PyObject *knob_read(const knob *k, const void *base) {
    const void *field = (const char *)base + k->offset;
    if (k->kind == KNOB_U64)
        return PyLong_FromUnsignedLongLong(*(const uint64_t *)field);
    if (k->kind == KNOB_U32)
        return PyLong_FromUnsignedLong(*(const uint32_t *)field);
    return real_or_none(*(const double *)field);
}

static const knob *knob_find(const knob *k, PyObject *name) {
    while (k->name && PyUnicode_CompareWithASCIIString(name, k->name) != 0)
        k++;
    return k->name ? k : NULL;
}

/* Keywords that no row knows are left to `others`, which answers whether it does. */
static bool knobs_write(const knob *rows, PyObject *keywords, void *base,
                        bool (*others)(PyObject *name, PyObject *value, void *base)) {
    PyObject *name, *value;
    Py_ssize_t at = 0;
    while (keywords && PyDict_Next(keywords, &at, &name, &value)) {
        const knob *k = knob_find(rows, name);
        if (!(k ? knob_write(k, value, base) : others(name, value, base)))
            return false;
    }
    return true;
}

static bool knobs_read(const knob *k, const void *base, PyObject *dict) {
    bool ok = true;
    for (; ok && k->name; k++) {
        PyObject *value = knob_read(k, base);
        ok = value && PyDict_SetItemString(dict, k->name, value) == 0;
        Py_XDECREF(value);
    }
    return ok;
}

static bool refuse_keyword(const char *call, PyObject *name) {
    PyErr_Format(PyExc_TypeError, "%s has no option %R; help(tamis.energy.Governor) lists them",
                 call, name);
    return false;
}

static bool no_positions(PyObject *args, const char *call) {
    if (PyTuple_Size(args) == 0)
        return true;
    PyErr_Format(PyExc_TypeError, "%s takes options by name alone", call);
    return false;
}

/* -- making ----------------------------------------------------------------------------------- */

typedef struct governor_options {
    tamis_governor_config config; /* first: rows give offsets in it */
    const char *intensity;
    double g_per_kwh;
    PyObject *policy_owner, *intensity_owner;
} governor_options;

static bool read_other_option(PyObject *name, PyObject *value, void *base) {
    governor_options *o = base;
    if (PyUnicode_CompareWithASCIIString(name, "policy") == 0)
        return tam_py_as_text(value, "policy", &o->policy_owner, &o->config.policy);
    if (PyUnicode_CompareWithASCIIString(name, "intensity") == 0)
        return tam_py_as_text(value, "intensity", &o->intensity_owner, &o->intensity);
    if (PyUnicode_CompareWithASCIIString(name, "g_per_kwh") == 0)
        return tam_py_as_real(value, "g_per_kwh", &o->g_per_kwh);
    return refuse_keyword("Governor", name);
}

static tamis_status open_handles(const governor_options *o, governor *self) {
    tamis_status status = tamis_carbon_open(o->intensity, o->g_per_kwh, &self->carbon);
    return status == TAMIS_OK ? tamis_governor_create(&o->config, &self->handle) : status;
}

static PyObject *governor_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    governor_options o = {.config = TAMIS_GOVERNOR_CONFIG_INIT, .g_per_kwh = NAN};
    governor *self = NULL;
    tamis_status status = TAMIS_OK;
    if (no_positions(args, "Governor") &&
        knobs_write(config_knobs, keywords, &o, read_other_option))
        self = (governor *)PyType_GenericAlloc(type, 0);
    if (self)
        status = open_handles(&o, self);
    if (status != TAMIS_OK) {
        tam_py_raise(status);
        Py_CLEAR(self);
    }
    Py_XDECREF(o.policy_owner);
    Py_XDECREF(o.intensity_owner);
    return (PyObject *)self;
}

static void governor_dealloc(PyObject *object) {
    governor *self = (governor *)object;
    PyTypeObject *type = Py_TYPE(object);
    freefunc release = (freefunc)(uintptr_t)PyType_GetSlot(type, Py_tp_free);
    tamis_governor_destroy(self->handle);
    tamis_carbon_close(self->carbon);
    release(object);
    Py_DECREF(type);
}

/* -- calls ------------------------------------------------------------------------------------ */

/* uj: a whole number, or None where joules are unknown. */
static bool read_joules(PyObject *name, PyObject *value, void *base) {
    tamis_governor_window *w = base;
    if (PyUnicode_CompareWithASCIIString(name, "uj") != 0)
        return refuse_keyword("Governor.decide", name);
    w->known = value != Py_None;
    w->uj = w->known ? PyLong_AsLongLong(value) : 0;
    return !PyErr_Occurred();
}

static PyObject *decision_as_dict(const tamis_governor_decision *d) {
    PyObject *dict = PyDict_New();
    PyObject *reason = PyUnicode_FromString(tamis_governor_reason_name(d->reason));
    if (!dict || !reason || PyDict_SetItemString(dict, "reason", reason) != 0 ||
        !knobs_read(decision_knobs, d, dict))
        Py_CLEAR(dict);
    Py_XDECREF(reason);
    return dict;
}

static PyObject *governor_decide(PyObject *object, PyObject *args, PyObject *keywords) {
    governor *self = (governor *)object;
    tamis_governor_window window = TAMIS_GOVERNOR_WINDOW_INIT;
    tamis_governor_decision decision = TAMIS_GOVERNOR_DECISION_INIT;
    if (!no_positions(args, "Governor.decide") ||
        !knobs_write(window_knobs, keywords, &window, read_joules))
        return NULL;
    tamis_status status = tamis_governor_decide(self->handle, &window, &decision);
    if (status != TAMIS_OK)
        return tam_py_raise(status);
    self->window = window;
    self->decision = decision;
    self->decided = true;
    return decision_as_dict(&decision);
}

static PyObject *governor_set_budget(PyObject *object, PyObject *args, PyObject *keywords) {
    static char *names[] = {"watts", "g_per_h", "until_step", NULL};
    double watts = 0.0, grams = 0.0;
    PyObject *until = NULL;
    uint64_t step = 0;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "|ddO:Governor.set_budget", names, &watts,
                                     &grams, &until) ||
        (until && !tam_py_as_u64(until, "until_step", &step)))
        return NULL;
    return tam_py_reducer_answer(
        tamis_governor_set_budget(((governor *)object)->handle, watts, grams, step));
}

static PyObject *governor_line(PyObject *object, PyObject *unused) {
    governor *self = (governor *)object;
    char text[TAMIS_GOVERNOR_LINE_BYTES];
    (void)unused;
    if (!self->decided)
        return tam_py_raise_own(TAMIS_E_STATE, "Call decide first.",
                                "Governor.line: nothing has been decided");
    tamis_status status = tamis_governor_line(&self->window, &self->decision, text, sizeof text);
    return status == TAMIS_OK ? PyUnicode_FromString(text) : tam_py_raise(status);
}

static PyObject *governor_outlook(PyObject *object, PyObject *args) {
    governor *self = (governor *)object;
    tamis_carbon_outlook ahead = TAMIS_CARBON_OUTLOOK_INIT;
    double unix_s, horizon_s;
    if (!PyArg_ParseTuple(args, "dd:Governor.outlook", &unix_s, &horizon_s))
        return NULL;
    tamis_status status = tamis_carbon_look(self->carbon, unix_s, horizon_s, &ahead);
    if (status != TAMIS_OK)
        return tam_py_raise(status);
    double now = tamis_carbon_intensity(self->carbon, unix_s);
    return Py_BuildValue("{sNsNsN}", "intensity_g_per_kwh", real_or_none(now), "outlook_g_per_kwh",
                         real_or_none(ahead.mean), "outlook_low_g_per_kwh",
                         real_or_none(ahead.low));
}

/* -- type ------------------------------------------------------------------------------------- */

static PyMethodDef governor_methods[] = {
    {"decide", (PyCFunction)(void (*)(void))governor_decide, METH_VARARGS | METH_KEYWORDS,
     "decide(**window)\n--\n\nLearn from a window of steps, then decide."},
    {"set_budget", (PyCFunction)(void (*)(void))governor_set_budget, METH_VARARGS | METH_KEYWORDS,
     "set_budget(watts=0.0, g_per_h=0.0, until_step=0)\n--\n\nReplace the configured budget."},
    {"line", governor_line, METH_NOARGS,
     "line()\n--\n\nThe last decision and its window as a line of a log."},
    {"outlook", governor_outlook, METH_VARARGS,
     "outlook(unix_s, horizon_s)\n--\n\nIntensity now, and its mean and least in the time ahead."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot governor_slots[] = {
    {Py_tp_doc, "Watts and CO2 of a run. Use tamis.energy.Governor."},
    {Py_tp_new, TAM_PY_SLOT(governor_new)},
    {Py_tp_dealloc, TAM_PY_SLOT(governor_dealloc)},
    {Py_tp_methods, governor_methods},
    {0, NULL},
};

static PyType_Spec governor_spec = {
    .name = "tamis._core.Governor",
    .basicsize = sizeof(governor),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .slots = governor_slots,
};

bool tam_py_governor_type_open(PyObject *module) {
    return tam_py_type_open(module, "Governor", &governor_spec, &governor_type);
}
