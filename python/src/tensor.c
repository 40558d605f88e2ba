/* SPDX-License-Identifier: MIT
 *
 * Foreign tensors, by DLPack. The capsule is never renamed and its deleter never called here: when
 * the last reference to the capsule is dropped, the tensor is released.
 */
#include "core.h"

#include "dlpack.h"

#define NEVER_COPIES "; nothing is copied implicitly"

/* Raise a refusal. Always false. */
#define REFUSE(remedy, ...) (tam_py_raise_own(TAMIS_E_ARGUMENT, remedy, __VA_ARGS__), false)

/* -- export ----------------------------------------------------------------------------------- */

/* Keywords for __dlpack__. Stream -1 asks for no synchronisation: the step itself names the stream
 * that makes the gradient. */
static PyObject *make_keywords(bool versioned, tamis_device device) {
    PyObject *keywords =
        versioned ? Py_BuildValue("{s(ii)sO}", "max_version", DLPACK_MAJOR, 0, "copy", Py_False)
                  : PyDict_New();
    PyObject *stream = device == TAMIS_DEVICE_CUDA ? PyLong_FromLong(-1) : NULL;
    if (stream && keywords && PyDict_SetItemString(keywords, "stream", stream) != 0)
        Py_CLEAR(keywords);
    Py_XDECREF(stream);
    return keywords;
}

static PyObject *export(PyObject *method, bool versioned, tamis_device device) {
    PyObject *keywords = make_keywords(versioned, device), *none = PyTuple_New(0);
    PyObject *capsule = keywords && none ? PyObject_Call(method, none, keywords) : NULL;
    Py_XDECREF(none);
    Py_XDECREF(keywords);
    return capsule;
}

/* Producers older than DLPack 1 do not know the keywords. */
static PyObject *export_either(PyObject *method, tamis_device device) {
    PyObject *capsule = export(method, true, device);
    if (capsule || !PyErr_ExceptionMatches(PyExc_TypeError))
        return capsule;
    PyErr_Clear();
    return export(method, false, device);
}

/* Checks only cases in which the export itself would fail with an unhelpful message. */
static bool check_device_first(PyObject *tensor, const tam_py_want *want) {
    if (want->device != TAMIS_DEVICE_CUDA)
        return true;
    PyObject *pair = PyObject_CallMethod(tensor, "__dlpack_device__", NULL);
    PyObject *first = pair ? PySequence_GetItem(pair, 0) : NULL;
    long type = first ? PyLong_AsLong(first) : -1;
    Py_XDECREF(first);
    Py_XDECREF(pair);
    if (PyErr_Occurred())
        return REFUSE(NULL, "%s does not report its device", want->what);
    if (type == DLPACK_CUDA || type == DLPACK_CUDA_MANAGED)
        return true;
    return REFUSE(
        "Move it to the reducer's CUDA device, or create the reducer with device=\"cpu\".",
        "%s is not in CUDA memory (DLPack device type %ld), but the reducer's device is "
        "cuda" NEVER_COPIES,
        want->what, type);
}

/* Raise our own message, with the producer's exception as the cause. */
static PyObject *explain_export(const tam_py_want *want) {
    PyObject *type, *value, *trace;
    if (PyErr_ExceptionMatches(PyExc_MemoryError) || !PyErr_ExceptionMatches(PyExc_Exception))
        return NULL;
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    PyObject *words = value ? PyObject_Str(value) : NULL;
    if (!words)
        PyErr_Clear();
    PyErr_Restore(type, value, trace);
    if (!words)
        return NULL;
    tam_py_raise_own(TAMIS_E_ARGUMENT,
                     "Pass a plain, writable tensor (torch: .detach() if it requires grad).",
                     "%s: its __dlpack__ failed: %U", want->what, words);
    Py_DECREF(words);
    return NULL;
}

static PyObject *take_capsule(PyObject *tensor, const tam_py_want *want) {
    PyObject *method = PyObject_GetAttrString(tensor, "__dlpack__");
    if (!method) {
        PyErr_Clear();
        return tam_py_raise_own(
            TAMIS_E_ARGUMENT,
            "Pass a torch tensor, a numpy array (1.22 or later), or any object with __dlpack__.",
            "%s is %R, which is not a tensor", want->what, (PyObject *)Py_TYPE(tensor));
    }
    PyObject *capsule = NULL;
    if (check_device_first(tensor, want)) {
        capsule = export_either(method, want->device);
        if (!capsule)
            explain_export(want);
    }
    Py_DECREF(method);
    return capsule;
}

/* -- checks ----------------------------------------------------------------------------------- */

static bool check_versioned(const dlpack_versioned *record, const tam_py_want *want) {
    if (record->major != DLPACK_MAJOR)
        return REFUSE("Use a version of the tensor library that supports DLPack 1.",
                      "%s uses DLPack %u.%u, but only major version %d is supported", want->what,
                      record->major, record->minor, DLPACK_MAJOR);
    if (want->writable && (record->flags & DLPACK_READ_ONLY))
        return REFUSE("Pass a writable tensor; only output=\"sparse\" accepts read-only gradients.",
                      "%s is read-only, but the result is written into it", want->what);
    if (record->flags & DLPACK_COPIED)
        return REFUSE("Pass a tensor that its library can export without a copy.",
                      "%s was copied by its __dlpack__, so the result would not reach it",
                      want->what);
    return true;
}

/* A capsule's tensor, or NULL. */
static const dlpack_tensor *open_capsule(PyObject *capsule, const tam_py_want *want) {
    if (PyCapsule_IsValid(capsule, "dltensor")) {
        const dlpack_legacy *record = PyCapsule_GetPointer(capsule, "dltensor");
        return &record->tensor;
    }
    if (PyCapsule_IsValid(capsule, "dltensor_versioned")) {
        const dlpack_versioned *record = PyCapsule_GetPointer(capsule, "dltensor_versioned");
        return check_versioned(record, want) ? &record->tensor : NULL;
    }
    tam_py_raise_own(
        TAMIS_E_ARGUMENT, "Call __dlpack__ again for every use.",
        "%s: its __dlpack__ returned %R, which is not a DLPack capsule or was already consumed",
        want->what, capsule);
    return NULL;
}

static bool check_device(const dlpack_tensor *t, const tam_py_want *want) {
    bool on_host = t->device_type == DLPACK_CPU || t->device_type == DLPACK_CUDA_HOST;
    bool on_cuda = t->device_type == DLPACK_CUDA || t->device_type == DLPACK_CUDA_MANAGED;
    if (want->device == TAMIS_DEVICE_CPU ? on_host : on_cuda)
        return true;
    if (on_cuda)
        return REFUSE(
            "Move it with .cpu(), or create the reducer with device=\"cuda\" (a build with "
            "-DTAMIS_CUDA=ON).",
            "%s is in CUDA memory (device %d), but the reducer's device is cpu" NEVER_COPIES,
            want->what, (int)t->device_id);
    return REFUSE(
        "Move it to the reducer's device.",
        "%s is in memory of DLPack device type %d, but the reducer's device is %s" NEVER_COPIES,
        want->what, (int)t->device_type, want->device == TAMIS_DEVICE_CPU ? "cpu" : "cuda");
}

static const char *name_code(uint8_t code) {
    static const char *const names[] = {"int",    "uint",    "float", "opaque",
                                        "bfloat", "complex", "bool"};
    return code < sizeof names / sizeof names[0] ? names[code] : "type ";
}

static bool check_type(const dlpack_tensor *t, const tam_py_want *want) {
    static const struct {
        uint8_t code, bits;
        const char *name;
    } types[] = {{DLPACK_FLOAT, 32, "float32"},
                 {DLPACK_FLOAT, 16, "float16"},
                 {DLPACK_BFLOAT, 16, "bfloat16"}};
    const char *name = types[want->type].name;
    if (t->lanes != 1)
        return REFUSE("Pass a tensor of plain elements.",
                      "%s has elements of %d lanes, not single numbers", want->what, (int)t->lanes);
    if (t->code == types[want->type].code && t->bits == types[want->type].bits)
        return true;
    if (t->code == DLPACK_FLOAT && t->bits == 64)
        return REFUSE(
            "Convert it to float32 (numpy: .astype(np.float32), torch: model.float()) and use the "
            "result from then on.",
            "%s has elements of float64, not %s, and float64 is not supported" NEVER_COPIES,
            want->what, name);
    return REFUSE("Pass a tensor of that type, or create the reducer with the tensor's dtype.",
                  "%s has elements of %s%d, not %s" NEVER_COPIES, want->what, name_code(t->code),
                  (int)t->bits, name);
}

static bool check_contiguous(const dlpack_tensor *t, const tam_py_want *want) {
    int64_t expected = 1;
    for (int32_t axis = t->ndim; t->strides && axis-- > 0;) {
        if (t->shape[axis] != 1 && t->strides[axis] != expected)
            return REFUSE(
                "Make it contiguous (torch: .contiguous(), numpy: ascontiguousarray) and use the "
                "result from then on.",
                "%s is not contiguous: axis %d of %d has stride %lld, not %lld" NEVER_COPIES,
                want->what, (int)axis, (int)t->ndim, (long long)t->strides[axis],
                (long long)expected);
        expected *= t->shape[axis];
    }
    return true;
}

static bool count_elements(const dlpack_tensor *t, const tam_py_want *want, uint64_t *out) {
    uint64_t length = 1;
    for (int32_t axis = 0; axis < t->ndim; axis++) {
        if (t->shape[axis] < 0 || __builtin_mul_overflow(length, (uint64_t)t->shape[axis], &length))
            return REFUSE(NULL, "%s has an invalid extent (%lld) on axis %d", want->what,
                          (long long)t->shape[axis], (int)axis);
    }
    *out = length;
    return true;
}

static bool check_length(const dlpack_tensor *t, const tam_py_want *want) {
    uint64_t length;
    if (!count_elements(t, want, &length))
        return false;
    if (length == want->length)
        return true;
    return REFUSE("Pass the tensor that the layout names there.",
                  "%s has %llu elements, not %llu as the layout says", want->what,
                  (unsigned long long)length, (unsigned long long)want->length);
}

static bool tensor_check(const dlpack_tensor *t, const tam_py_want *want) {
    return check_device(t, want) && check_type(t, want) && check_length(t, want) &&
           check_contiguous(t, want);
}

bool tam_py_tensor_borrow(PyObject *tensor, const tam_py_want *want, PyObject **out_capsule,
                          void **out_data) {
    PyObject *capsule = take_capsule(tensor, want);
    const dlpack_tensor *t = capsule ? open_capsule(capsule, want) : NULL;
    if (!t || !tensor_check(t, want)) {
        Py_XDECREF(capsule);
        return false;
    }
    *out_capsule = capsule;
    *out_data = (char *)t->data + t->byte_offset;
    return true;
}

/* Code of Python runs while capsules are made. It may hold every tuple that there is already, as
 * gc.get_objects does, and such a tuple can no longer be filled. */
PyObject *tam_py_tuple_take(PyObject **items, Py_ssize_t count) {
    PyObject *tuple = PyTuple_New(count);
    for (Py_ssize_t i = 0; i < count; i++) {
        if (tuple)
            PyTuple_SetItem(tuple, i, items[i]);
        else
            Py_DECREF(items[i]);
    }
    return tuple;
}

bool tam_py_tensor_bytes(PyObject *tensor, const char *what, PyObject **out_capsule,
                         const void **out_data, size_t *out_bytes) {
    const tam_py_want want = {.what = what, .device = TAMIS_DEVICE_CPU};
    PyObject *capsule = take_capsule(tensor, &want);
    const dlpack_tensor *t = capsule ? open_capsule(capsule, &want) : NULL;
    uint64_t length = 0;
    if (!t || !check_device(t, &want) || !count_elements(t, &want, &length) ||
        !check_contiguous(t, &want)) {
        Py_XDECREF(capsule);
        return false;
    }
    *out_capsule = capsule;
    *out_data = (const char *)t->data + t->byte_offset;
    *out_bytes = (size_t)length * (((size_t)t->bits * t->lanes + 7) / 8);
    return true;
}
