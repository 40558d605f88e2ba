/* SPDX-License-Identifier: MIT
 *
 * tamis._core.Meter: joules by phase; tamis.energy.Meter is made of it. Marks are made with the
 * GIL: they take less time than letting it go. So are the other calls but report and close, which
 * alone may block; what the library wants called one at a time therefore is.
 */
#include "core.h"

#include <tamis/stats.h>

PyTypeObject *tam_py_meter_type;

bool tam_py_meter_enter(tam_py_meter *self, const char *call) {
    if (!self->handle)
        tam_py_raise_own(TAMIS_E_STATE, "Create a new one.", "%s: this Meter was closed", call);
    else if (self->reporting)
        tam_py_raise_own(TAMIS_E_STATE, "Wait until it returns.",
                         "%s: another call is in progress, Meter.report", call);
    return self->handle && !self->reporting;
}

/* -- values ----------------------------------------------------------------------------------- */

static PyObject *none(void) {
    Py_RETURN_NONE;
}

static PyObject *real_if(bool known, double value) {
    return known && value == value ? PyFloat_FromDouble(value) : none();
}

static PyObject *joules_if(bool known, int64_t uj) {
    return real_if(known, (double)uj / 1e6);
}

static PyObject *text_of(const char *text) {
    return PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "replace");
}

/* The names of the phases that are bits of `group`. */
static PyObject *names_in(uint32_t group) {
    PyObject *list = PyList_New(0);
    for (uint32_t phase = 0; list && phase < TAMIS_ENERGY_PHASES; phase++) {
        PyObject *name = group >> phase & 1 ? text_of(tamis_energy_phase_name(phase)) : NULL;
        if (name && PyList_Append(list, name) != 0)
            Py_CLEAR(list);
        Py_XDECREF(name);
    }
    return list;
}

static PyObject *share_as_dict(const tamis_energy_share *s, uint32_t phase, bool measured) {
    bool known = measured && s->method != TAMIS_ENERGY_NONE;
    bool bounded = known && s->method != TAMIS_ENERGY_TIME_SHARE;
    return Py_BuildValue("{sNsNsNsdsssN}", "joules", joules_if(known, s->uj), "low",
                         joules_if(bounded, s->low_uj), "high", joules_if(bounded, s->high_uj),
                         "seconds", s->seconds, "method", tamis_energy_method_name(s->method),
                         "inseparable", names_in(s->group & ~(1u << phase)));
}

/* Those that took time. */
static PyObject *phases_as_dict(const tamis_energy_totals *t) {
    PyObject *dict = PyDict_New();
    for (uint32_t phase = 0; dict && phase < TAMIS_ENERGY_PHASES; phase++) {
        const tamis_energy_share *s = &t->shares[phase];
        if (!(s->seconds > 0.0) && s->uj == 0)
            continue;
        PyObject *share = share_as_dict(s, phase, t->known);
        if (!share || PyDict_SetItemString(dict, tamis_energy_phase_name(phase), share) != 0)
            Py_CLEAR(dict);
        Py_XDECREF(share);
    }
    return dict;
}

PyObject *tam_py_totals_as_dict(const tamis_energy_totals *t) {
    return Py_BuildValue("{sNsNsdsKsKsNsNsNsN}", "known", PyBool_FromLong(t->known), "joules",
                         joules_if(t->known, t->uj), "seconds", t->seconds, "steps",
                         (unsigned long long)t->steps, "wire_bytes",
                         (unsigned long long)t->wire_bytes, "phases", phases_as_dict(t),
                         "unattributed", joules_if(t->known, t->unattributed_uj), "grams",
                         real_if(t->known, t->grams), "missing", text_of(t->missing));
}

static PyObject *domain_as_dict(const tamis_energy_domain *d) {
    bool known = d->status == TAMIS_ENERGY_OK || d->uj > 0;
    return Py_BuildValue("{sNsNsssssNsNsNsIsIsNsNsN}", "id", text_of(d->id), "source",
                         text_of(d->source), "kind", tamis_energy_kind_name(d->kind), "status",
                         tamis_energy_status_name(d->status), "reason", text_of(d->reason),
                         "counted", PyBool_FromLong(d->counted), "joules",
                         joules_if(known, (int64_t)d->uj), "wraps", d->wraps, "resets", d->resets,
                         "tick_s", real_if(d->tick_s > 0.0, d->tick_s), "lag_s",
                         real_if(d->duty > 0.0, d->lag_s), "duty", real_if(d->duty > 0.0, d->duty));
}

/* -- making, closing -------------------------------------------------------------------------- */

/* Numbers that need a look. NULL: the default. */
static bool read_numbers(PyObject *rank, PyObject *nranks, tamis_energy_config *out) {
    return (!rank || tam_py_as_u32(rank, "rank", &out->rank)) &&
           (!nranks || tam_py_as_u32(nranks, "nranks", &out->nranks));
}

static PyObject *meter_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    static char *names[] = {"sources", "sysfs_root", "nvml_path", "gpus",     "files",
                            "json",    "run",        "intensity", "window_s", "settle_s",
                            "pue",     "g_per_kwh",  "rank",      "nranks",   NULL};
    tamis_energy_config c = TAMIS_ENERGY_CONFIG_INIT;
    PyObject *rank = NULL, *nranks = NULL;
    tamis_energy *handle;
    tamis_status status;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "|$zzzzzzzzddddOO:Meter", names, &c.sources,
                                     &c.sysfs_root, &c.nvml_path, &c.gpus, &c.files, &c.json,
                                     &c.run, &c.intensity, &c.window_s, &c.settle_s, &c.pue,
                                     &c.g_per_kwh, &rank, &nranks) ||
        !read_numbers(rank, nranks, &c))
        return NULL;
    Py_BEGIN_ALLOW_THREADS status = tamis_energy_create(&c, &handle);
    Py_END_ALLOW_THREADS if (status != TAMIS_OK) return tam_py_raise(status);
    tam_py_meter *self = (tam_py_meter *)PyType_GenericAlloc(type, 0);
    if (self)
        self->handle = handle;
    else
        tamis_energy_destroy(handle);
    return (PyObject *)self;
}

static void meter_close_handle(tam_py_meter *self) {
    tamis_energy *handle = self->handle;
    self->handle = NULL;
    Py_BEGIN_ALLOW_THREADS tamis_energy_destroy(handle);
    Py_END_ALLOW_THREADS
}

static PyObject *meter_close(PyObject *object, PyObject *unused) {
    tam_py_meter *self = (tam_py_meter *)object;
    (void)unused;
    if (!self->handle)
        Py_RETURN_NONE;
    if (!tam_py_meter_enter(self, "Meter.close"))
        return NULL;
    if (self->reducers > 0)
        return tam_py_raise_own(TAMIS_E_STATE, "Close its reducers first.",
                                "Meter.close: %u reducer(s) still use it", self->reducers);
    meter_close_handle(self);
    Py_RETURN_NONE;
}

/* Reducers hold a reference, so none is left here. The type may be one made in Python, whose memory
 * is its own. */
static void meter_dealloc(PyObject *object) {
    tam_py_meter *self = (tam_py_meter *)object;
    PyTypeObject *type = Py_TYPE(object);
    freefunc release = (freefunc)(uintptr_t)PyType_GetSlot(type, Py_tp_free);
    PyObject *error, *value, *trace;
    PyErr_Fetch(&error, &value, &trace);
    if (self->handle)
        meter_close_handle(self);
    PyErr_Restore(error, value, trace);
    release(object);
    Py_DECREF(type);
}

/* -- marks ------------------------------------------------------------------------------------ */

static bool find_phase(PyObject *name, uint32_t *out) {
    for (uint32_t phase = 0; PyUnicode_Check(name) && phase < TAMIS_ENERGY_IDLE; phase++) {
        const char *known = tamis_energy_phase_name(phase);
        if (known[0] && PyUnicode_CompareWithASCIIString(name, known) == 0) {
            *out = phase;
            return true;
        }
    }
    tam_py_raise_own(TAMIS_E_ARGUMENT,
                     "Use compute, forward, backward, optimizer, input or user0 to user9.",
                     "unknown phase %R", name);
    return false;
}

static PyObject *meter_mark(PyObject *object, PyObject *name,
                            void (*with)(tamis_energy *, uint32_t)) {
    tam_py_meter *self = (tam_py_meter *)object;
    uint32_t phase;
    if (!find_phase(name, &phase))
        return NULL;
    if (!self->handle)
        return tam_py_raise_own(TAMIS_E_STATE, "Create a new one.", "this Meter was closed");
    with(self->handle, phase);
    Py_RETURN_NONE;
}

static PyObject *meter_begin(PyObject *self, PyObject *phase) {
    return meter_mark(self, phase, tamis_energy_begin);
}

static PyObject *meter_end(PyObject *self, PyObject *phase) {
    return meter_mark(self, phase, tamis_energy_end);
}

static PyObject *meter_step(PyObject *object, PyObject *stats) {
    tam_py_meter *self = (tam_py_meter *)object;
    tamis_stats own = TAMIS_STATS_INIT;
    if (!tam_py_stats_read(stats, &own) || !tam_py_meter_enter(self, "Meter.step"))
        return NULL;
    tamis_energy_step(self->handle, &own);
    Py_RETURN_NONE;
}

/* -- figures ---------------------------------------------------------------------------------- */

static PyObject *meter_read(PyObject *object, PyObject *unused) {
    tam_py_meter *self = (tam_py_meter *)object;
    tamis_energy_totals totals = TAMIS_ENERGY_TOTALS_INIT;
    (void)unused;
    if (!tam_py_meter_enter(self, "Meter.read"))
        return NULL;
    tamis_status status = tamis_energy_read(self->handle, &totals);
    return status == TAMIS_OK ? tam_py_totals_as_dict(&totals) : tam_py_raise(status);
}

static PyObject *domain_at(tam_py_meter *self, uint32_t index) {
    tamis_energy_domain domain = TAMIS_ENERGY_DOMAIN_INIT;
    tamis_status status = tamis_energy_domain_at(self->handle, index, &domain);
    return status == TAMIS_OK ? domain_as_dict(&domain) : tam_py_raise(status);
}

static PyObject *meter_domains(PyObject *object, PyObject *unused) {
    tam_py_meter *self = (tam_py_meter *)object;
    (void)unused;
    if (!tam_py_meter_enter(self, "Meter.domains"))
        return NULL;
    uint32_t count = tamis_energy_ndomains(self->handle);
    PyObject *list = PyList_New(count);
    for (uint32_t i = 0; list && i < count; i++) {
        PyObject *one = domain_at(self, i);
        if (one)
            PyList_SetItem(list, i, one);
        else
            Py_CLEAR(list);
    }
    return list;
}

static PyObject *meter_report(PyObject *object, PyObject *comm) {
    tam_py_meter *self = (tam_py_meter *)object;
    tamis_energy_totals totals = TAMIS_ENERGY_TOTALS_INIT;
    tamis_status status;
    if (!PyObject_TypeCheck(comm, tam_py_comm_type))
        return PyErr_Format(PyExc_TypeError, "Meter.report takes a Comm, not %R", comm);
    tam_py_comm *over = (tam_py_comm *)comm;
    if (!tam_py_meter_enter(self, "Meter.report") || !tam_py_comm_enter(over, "Meter.report"))
        return NULL;
    self->reporting = true;
    Py_BEGIN_ALLOW_THREADS status = tamis_energy_report(self->handle, over->handle, &totals);
    Py_END_ALLOW_THREADS self->reporting = false;
    tam_py_comm_leave(over);
    return status == TAMIS_OK ? tam_py_totals_as_dict(&totals) : tam_py_raise(status);
}

/* -- type ------------------------------------------------------------------------------------- */

static PyMethodDef methods[] = {
    {"begin", meter_begin, METH_O, "begin(phase)\n--\n\nMark the begin of a phase on this thread."},
    {"end", meter_end, METH_O, "end(phase)\n--\n\nMark the end of a phase on this thread."},
    {"step", meter_step, METH_O,
     "step(stats)\n--\n\nCount a finished step, with its figures as Reducer.stats() returns them."},
    {"read", meter_read, METH_NOARGS, "read()\n--\n\nJoules of this process until now."},
    {"domains", meter_domains, METH_NOARGS,
     "domains()\n--\n\nWhat is measured, and why the rest is not."},
    {"report", meter_report, METH_O,
     "report(comm)\n--\n\nLike read, for all ranks together, each counter once. Collective."},
    {"_window_begin", tam_py_window_begin, METH_O,
     "_window_begin(name)\n--\n\nBegin a window. Returns its number."},
    {"_window_end", tam_py_window_end, METH_O, "_window_end(window)\n--\n\nIt ends now."},
    {"_window_result", tam_py_window_result, METH_O,
     "_window_result(window)\n--\n\nLike read, of the window, and close it; None: not known yet."},
    {"_window_drop", tam_py_window_drop, METH_O, "_window_drop(window)\n--\n\nGive it up."},
    {"close", meter_close, METH_NOARGS,
     "close()\n--\n\nClose it, and write the end of the file. Error (STATE) while reducers use "
     "it."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, "Joules by phase. Use tamis.energy.Meter."},
    {Py_tp_new, TAM_PY_SLOT(meter_new)},
    {Py_tp_dealloc, TAM_PY_SLOT(meter_dealloc)},
    {Py_tp_methods, methods},
    {0, NULL},
};

static PyType_Spec spec = {
    .name = "tamis._core.Meter",
    .basicsize = sizeof(tam_py_meter),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .slots = slots,
};

bool tam_py_meter_type_open(PyObject *module) {
    return tam_py_type_open(module, "Meter", &spec, &tam_py_meter_type);
}
