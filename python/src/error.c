/* SPDX-License-Identifier: MIT
 *
 * tamis.Error. Exceptions of callbacks bypass the library, thread by thread: the library knows only
 * that a callback failed, and its caller raises an Error with the exception as cause.
 */
#include "core.h"

#include <stdarg.h>

static PyObject *error_type;
static _Thread_local PyObject *kept; /* what a callback raised on this thread, or NULL */

static const char doc[] =
    "A library call failed. str() is the library's message and what to do about it.\n\nstatus   "
    "\"TAMIS_E_TIMEOUT\" and the like\nlost     \"nothing\": correct the call and retry; \"step\": "
    "continue with the next one;\n         \"comm\": save the state and exit, or go on with the "
    "ranks that are left (Comm.shrink)\nremedy   what to do "
    "about it";

bool tam_py_error_open(PyObject *module) {
    if (!error_type)
        error_type = PyErr_NewExceptionWithDoc("tamis.Error", doc, NULL, NULL);
    if (!error_type)
        return false;
    Py_INCREF(error_type);
    if (PyModule_AddObject(module, "Error", error_type) == 0)
        return true;
    Py_DECREF(error_type);
    return false;
}

/* -- the causes ------------------------------------------------------------------------------- */

/* The exception that is set, with its traceback, or NULL. */
static PyObject *take_exception(void) {
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    if (!type)
        return NULL;
    PyErr_NormalizeException(&type, &value, &trace);
    if (value && trace)
        PyException_SetTraceback(value, trace);
    Py_XDECREF(type);
    Py_XDECREF(trace);
    return value;
}

void tam_py_cause_keep(void) {
    PyObject *before = kept;
    kept = take_exception();
    Py_XDECREF(before);
}

void tam_py_cause_clear_frames(void) {
    PyObject *trace = kept ? PyException_GetTraceback(kept) : NULL;
    PyObject *module = trace ? PyImport_ImportModule("traceback") : NULL;
    PyObject *none = module ? PyObject_CallMethod(module, "clear_frames", "O", trace) : NULL;
    if (!none)
        PyErr_Clear();
    Py_XDECREF(none);
    Py_XDECREF(module);
    Py_XDECREF(trace);
}

void tam_py_cause_drop(void) {
    PyObject *before = kept;
    kept = NULL;
    Py_XDECREF(before);
}

/* -- raising ---------------------------------------------------------------------------------- */

static const char *name_loss(tamis_status status) {
    static const char *const names[] = {"nothing", "step", "comm"};
    return names[tamis_status_loss(status)];
}

static bool set_text(PyObject *error, const char *name, PyObject *text) {
    bool ok = text && PyObject_SetAttrString(error, name, text) == 0;
    Py_XDECREF(text);
    return ok;
}

/* "sentence. Remedy." */
static PyObject *make_error(tamis_status status, PyObject *sentence, const char *remedy) {
    PyObject *error = NULL, *text = PyUnicode_FromFormat("%U. %s", sentence, remedy);
    if (text)
        error = PyObject_CallFunctionObjArgs(error_type, text, NULL);
    Py_XDECREF(text);
    if (error && set_text(error, "status", PyUnicode_FromString(tamis_status_name(status))) &&
        set_text(error, "lost", PyUnicode_FromString(name_loss(status))) &&
        set_text(error, "remedy", PyUnicode_FromString(remedy)))
        return error;
    Py_XDECREF(error);
    return NULL;
}

/* Takes over the references to `sentence` and `cause`; `cause` may be NULL. */
static PyObject *raise_error(tamis_status status, PyObject *sentence, const char *remedy,
                             PyObject *cause) {
    PyObject *error = sentence ? make_error(status, sentence, remedy) : NULL;
    if (!error)
        Py_XDECREF(cause);
    else if (cause)
        PyException_SetCause(error, cause);
    if (error)
        PyErr_SetObject(error_type, error);
    Py_XDECREF(error);
    Py_XDECREF(sentence);
    return NULL;
}

/* What the library calls a field is a keyword here. */
static const char *without_struct(const char *sentence) {
    static const char *const structs[] = {"tamis_reducer_config.", "tamis_update.",
                                          "tamis_local_config.", "tamis_comm_config.",
                                          "tamis_step."};
    for (size_t i = 0; i < sizeof structs / sizeof structs[0]; i++) {
        size_t length = strlen(structs[i]);
        if (strncmp(sentence, structs[i], length) == 0)
            return sentence + length;
    }
    return sentence;
}

/* The library's sentence, and the words of what a callback raised, if any has. */
static PyObject *last_sentence(PyObject *cause) {
    const char *text = without_struct(tamis_last_error());
    PyObject *own = PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "replace");
    if (!own || !cause)
        return own;
    PyObject *whole = PyUnicode_FromFormat("%U: %S", own, cause);
    if (!whole) { /* its own text raises */
        PyErr_Clear();
        return own;
    }
    Py_DECREF(own);
    return whole;
}

PyObject *tam_py_raise(tamis_status status) {
    bool lost = tamis_status_loss(status) == TAMIS_LOST_COMM; /* as after a failed callback */
    PyObject *cause = lost ? kept : NULL;
    kept = lost ? NULL : kept;
    return raise_error(status, last_sentence(cause), tamis_status_remedy(status), cause);
}

PyObject *tam_py_raise_own(tamis_status status, const char *remedy, const char *format, ...) {
    va_list args;
    PyObject *cause = take_exception();
    va_start(args, format);
    PyObject *sentence = PyUnicode_FromFormatV(format, args);
    va_end(args);
    return raise_error(status, sentence, remedy ? remedy : tamis_status_remedy(status), cause);
}
