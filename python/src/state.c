/* SPDX-License-Identifier: MIT
 *
 * Between the steps of a reducer: results, statistics, state.
 */
#include "core.h"

#include <tamis/elastic.h>
#include <tamis/overlap.h>
#include <tamis/state.h>
#include <tamis/stats.h>

/* -- results ---------------------------------------------------------------------------------- */

static PyObject *copy_result(const tamis_result *result) {
    Py_ssize_t count = (Py_ssize_t)result->count;
    if (count > 0 && !result->indices)
        return tam_py_raise_own(TAMIS_E_UNSUPPORTED, "Read the gradient itself.",
                                "Reducer.result: scheme dense has no list of entries");
    if (result->memory != TAMIS_DEVICE_CPU)
        return tam_py_raise_own(TAMIS_E_UNSUPPORTED, "Read the gradient itself.",
                                "Reducer.result: the entries are in CUDA memory");
    return Py_BuildValue("(y#y#)", result->indices ? (const char *)result->indices : "",
                         count * (Py_ssize_t)sizeof(uint32_t),
                         result->values ? (const char *)result->values : "",
                         count * (Py_ssize_t)sizeof(float));
}

PyObject *tam_py_state_result(PyObject *object, PyObject *none) {
    tam_py_reducer *self = (tam_py_reducer *)object;
    tamis_result result = TAMIS_RESULT_INIT;
    (void)none;
    if (!tam_py_reducer_enter(self, TAM_PY_LOOK, "Reducer.result"))
        return NULL;
    tamis_status status = tamis_reducer_result(self->handle, &result);
    PyObject *answer = status == TAMIS_OK ? copy_result(&result) : tam_py_raise(status);
    tam_py_reducer_leave(self, TAM_PY_LOOK);
    return answer;
}

/* -- state in memory -------------------------------------------------------------------------- */

tam_py_want tam_py_state_wanted(const tam_py_reducer *self, const char *what, bool writable) {
    return (tam_py_want){
        .what = what,
        .type = TAMIS_DTYPE_FLOAT32,
        .device = TAMIS_DEVICE_CPU,
        .writable = writable,
        .length = self->residual_length,
    };
}

PyObject *tam_py_state_residual(PyObject *object, PyObject *out) {
    tam_py_reducer *self = (tam_py_reducer *)object;
    tam_py_want want = tam_py_state_wanted(self, "the tensor for the residual", true);
    PyObject *capsule;
    void *data;
    tamis_status status;
    if (!tam_py_tensor_borrow(out, &want, &capsule, &data))
        return NULL;
    if (!tam_py_reducer_enter(self, TAM_PY_LOOK, "Reducer.residual")) {
        Py_DECREF(capsule);
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS status = tamis_reducer_save_residual(self->handle, data);
    Py_END_ALLOW_THREADS tam_py_reducer_leave(self, TAM_PY_LOOK);
    PyObject *answer = tam_py_reducer_answer(status);
    Py_DECREF(capsule);
    return answer;
}

static PyObject *save_control(tamis_reducer *handle) {
    size_t bytes;
    tamis_status status = tamis_reducer_control_bytes(handle, &bytes);
    if (status != TAMIS_OK)
        return tam_py_raise(status);
    PyObject *control = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)bytes);
    if (!control)
        return NULL;
    char *memory = PyBytes_AsString(control);
    Py_BEGIN_ALLOW_THREADS status = tamis_reducer_save_control(handle, memory, bytes);
    Py_END_ALLOW_THREADS if (status == TAMIS_OK) return control;
    tam_py_raise(status);
    Py_DECREF(control);
    return NULL;
}

PyObject *tam_py_state_control(PyObject *object, PyObject *none) {
    tam_py_reducer *self = (tam_py_reducer *)object;
    (void)none;
    if (!tam_py_reducer_enter(self, TAM_PY_LOOK, "Reducer.control"))
        return NULL;
    PyObject *control = save_control(self->handle);
    tam_py_reducer_leave(self, TAM_PY_LOOK);
    return control;
}

static PyObject *restore(tam_py_reducer *self, const char *control, Py_ssize_t bytes,
                         const float *residual) {
    tamis_status status;
    if (!tam_py_reducer_enter(self, TAM_PY_LOOK, "Reducer.restore"))
        return NULL;
    Py_BEGIN_ALLOW_THREADS status =
        tamis_reducer_load_memory(self->handle, control, (size_t)bytes, residual);
    Py_END_ALLOW_THREADS tam_py_reducer_leave(self, TAM_PY_LOOK);
    return tam_py_reducer_answer(status);
}

PyObject *tam_py_state_restore(PyObject *object, PyObject *args, PyObject *keywords) {
    static char *names[] = {"control", "residual", NULL};
    tam_py_reducer *self = (tam_py_reducer *)object;
    tam_py_want want = tam_py_state_wanted(self, "the residual", false);
    PyObject *control, *tensor, *capsule = NULL;
    char *bytes = NULL;
    Py_ssize_t nbytes = 0;
    void *data = NULL;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "OO:Reducer.restore", names, &control,
                                     &tensor))
        return NULL;
    if (control != Py_None && PyBytes_AsStringAndSize(control, &bytes, &nbytes) != 0)
        return NULL;
    if (tensor != Py_None && !tam_py_tensor_borrow(tensor, &want, &capsule, &data))
        return NULL;
    PyObject *answer = restore(self, bytes, nbytes, data);
    Py_XDECREF(capsule);
    return answer;
}

/* -- state files ------------------------------------------------------------------------------ */

static PyObject *with_path(tam_py_reducer *self, PyObject *path, const char *name,
                           tamis_status (*call)(tamis_reducer *, const char *)) {
    PyObject *encoded;
    tamis_status status;
    if (!PyUnicode_FSConverter(path, &encoded))
        return NULL;
    if (!tam_py_reducer_enter(self, TAM_PY_LOOK, name)) {
        Py_DECREF(encoded);
        return NULL;
    }
    const char *text = PyBytes_AsString(encoded);
    Py_BEGIN_ALLOW_THREADS status = call(self->handle, text);
    Py_END_ALLOW_THREADS tam_py_reducer_leave(self, TAM_PY_LOOK);
    Py_DECREF(encoded);
    return tam_py_reducer_answer(status);
}

PyObject *tam_py_state_save(PyObject *object, PyObject *path) {
    return with_path((tam_py_reducer *)object, path, "Reducer.save", tamis_reducer_save);
}

PyObject *tam_py_state_load(PyObject *object, PyObject *path) {
    return with_path((tam_py_reducer *)object, path, "Reducer.load", tamis_reducer_load);
}

PyObject *tam_py_state_resync(PyObject *object, PyObject *none) {
    tam_py_reducer *self = (tam_py_reducer *)object;
    uint64_t step = 0;
    tamis_status status;
    (void)none;
    if (!tam_py_reducer_enter(self, TAM_PY_STEP, "Reducer.resync"))
        return NULL;
    Py_BEGIN_ALLOW_THREADS status = tamis_reducer_resync(self->handle, &step);
    Py_END_ALLOW_THREADS tam_py_reducer_leave(self, TAM_PY_STEP);
    return status == TAMIS_OK ? PyLong_FromUnsignedLongLong(step) : tam_py_raise(status);
}

/* -- figures ---------------------------------------------------------------------------------- */

PyObject *tam_py_state_set_density(PyObject *object, PyObject *value) {
    tam_py_reducer *self = (tam_py_reducer *)object;
    double density = PyFloat_AsDouble(value);
    tamis_status status;
    if (density == -1.0 && PyErr_Occurred())
        return NULL;
    if (!tam_py_reducer_enter(self, TAM_PY_LOOK, "Reducer.set_density"))
        return NULL;
    Py_BEGIN_ALLOW_THREADS status = tamis_reducer_set_density(self->handle, density);
    Py_END_ALLOW_THREADS if (status == TAMIS_OK) { /* what norms and scale are open follows */
        tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
        status = tamis_reducer_options(self->handle, &config, &self->update);
    }
    tam_py_reducer_leave(self, TAM_PY_LOOK);
    return tam_py_reducer_answer(status);
}

typedef struct figure {
    const char *name;
    enum { REAL, U64, U32 } kind;
    size_t offset;
} figure;

#define FIGURE(kind, name)                                                                         \
    { #name, kind, offsetof(tamis_stats, name) }

static const figure figures[] = {
    FIGURE(U64, steps),          FIGURE(U64, length),     FIGURE(U64, target),
    FIGURE(U64, selected),       FIGURE(U64, sent),       FIGURE(U64, sent_max),
    FIGURE(U64, deferred),       FIGURE(U64, candidates), FIGURE(U64, rescans),
    FIGURE(U64, rescans_total),  FIGURE(U64, nonfinite),  FIGURE(U64, skipped),
    FIGURE(REAL, density),       FIGURE(REAL, threshold), FIGURE(REAL, acc_norm),
    FIGURE(REAL, residual_norm), FIGURE(U64, wire_bytes), FIGURE(U64, wire_bytes_total),
    FIGURE(REAL, accumulate_s),  FIGURE(REAL, select_s),  FIGURE(REAL, exchange_s),
    FIGURE(REAL, apply_s),       FIGURE(REAL, wait_s),    FIGURE(REAL, exchange_s_total),
    FIGURE(REAL, lag_s),         FIGURE(U32, straggler),  FIGURE(REAL, skew_s),
    FIGURE(REAL, update_scale),
};

/* A new field must get a row in the table. */
_Static_assert(sizeof(tamis_stats) == offsetof(tamis_stats, update_scale) + sizeof(double),
               "tamis_stats has grown");

static PyObject *read_figure(const tamis_stats *stats, const figure *f) {
    const void *field = (const char *)stats + f->offset;
    if (f->kind == REAL)
        return PyFloat_FromDouble(*(const double *)field);
    if (f->kind == U32)
        return PyLong_FromUnsignedLong(*(const uint32_t *)field);
    return PyLong_FromUnsignedLongLong(*(const uint64_t *)field);
}

static PyObject *stats_as_dict(const tamis_stats *stats) {
    PyObject *dict = PyDict_New();
    for (size_t i = 0; dict && i < sizeof figures / sizeof figures[0]; i++) {
        PyObject *value = read_figure(stats, &figures[i]);
        if (!value || PyDict_SetItemString(dict, figures[i].name, value) != 0)
            Py_CLEAR(dict);
        Py_XDECREF(value);
    }
    return dict;
}

static bool write_figure(PyObject *value, const figure *f, tamis_stats *out) {
    void *field = (char *)out + f->offset;
    if (f->kind == U32)
        return tam_py_as_u32(value, f->name, field);
    if (f->kind == U64)
        return tam_py_as_u64(value, f->name, field);
    *(double *)field = PyFloat_AsDouble(value);
    return !PyErr_Occurred();
}

bool tam_py_stats_read(PyObject *dict, tamis_stats *out) {
    if (!PyDict_Check(dict)) {
        PyErr_Format(PyExc_TypeError, "stats is %R, not the dict that Reducer.stats() gives", dict);
        return false;
    }
    for (size_t i = 0; i < sizeof figures / sizeof figures[0]; i++) {
        PyObject *value = PyDict_GetItemString(dict, figures[i].name);
        if (value && !write_figure(value, &figures[i], out))
            return false;
    }
    return true;
}

PyObject *tam_py_state_stats(PyObject *object, PyObject *none) {
    tam_py_reducer *self = (tam_py_reducer *)object;
    tamis_stats stats = TAMIS_STATS_INIT;
    tamis_status status;
    (void)none;
    if (!tam_py_reducer_enter(self, TAM_PY_LOOK, "Reducer.stats"))
        return NULL;
    Py_BEGIN_ALLOW_THREADS status = tamis_reducer_stats(self->handle, &stats);
    Py_END_ALLOW_THREADS tam_py_reducer_leave(self, TAM_PY_LOOK);
    return status == TAMIS_OK ? stats_as_dict(&stats) : tam_py_raise(status);
}

static PyObject *bucket_as_dict(const tamis_reducer *handle, uint32_t index) {
    tamis_bucket b = TAMIS_BUCKET_INIT;
    tamis_status status = tamis_reducer_bucket_at(handle, index, &b);
    if (status != TAMIS_OK)
        return tam_py_raise(status);
#define WHOLE(name) #name, (unsigned long long)b.name
    return Py_BuildValue("{sKsKsKsKsKszszsdsKsKsKsKsK}", WHOLE(first_segment), WHOLE(nsegments),
                         WHOLE(begin), WHOLE(length), WHOLE(target), "index_codec", b.index_codec,
                         "exchange", b.exchange, "predicted_us", b.predicted_us,
                         WHOLE(residual_length), WHOLE(residual_begin), WHOLE(shard_first),
                         WHOLE(shard_run), WHOLE(shard_stride));
#undef WHOLE
}

PyObject *tam_py_state_buckets(PyObject *object, PyObject *none) {
    tam_py_reducer *self = (tam_py_reducer *)object;
    (void)none;
    if (!tam_py_reducer_enter(self, TAM_PY_LOOK, "Reducer.buckets"))
        return NULL;
    uint32_t count = tamis_reducer_nbuckets(self->handle);
    PyObject *list = PyList_New(count);
    for (uint32_t i = 0; list && i < count; i++) {
        PyObject *one = bucket_as_dict(self->handle, i);
        if (one)
            PyList_SetItem(list, i, one);
        else
            Py_CLEAR(list);
    }
    tam_py_reducer_leave(self, TAM_PY_LOOK);
    return list;
}
