/* SPDX-License-Identifier: MIT
 *
 * Converts Python values to C, and the keywords of Reducer() to a tamis_reducer_config.
 */
#include "core.h"

#include <stdio.h>
#include <string.h>
#include <tamis/lists.h>

/* -- values ----------------------------------------------------------------------------------- */

bool tam_py_as_text(PyObject *value, const char *what, PyObject **out_owner, const char **out) {
    if (!PyUnicode_Check(value)) {
        PyErr_Format(PyExc_TypeError, "%s is %R, not a str", what, value);
        return false;
    }
    PyObject *owner = PyUnicode_AsUTF8String(value);
    char *text;
    if (!owner || PyBytes_AsStringAndSize(owner, &text, NULL) != 0) {
        Py_XDECREF(owner);
        return false;
    }
    *out_owner = owner;
    *out = text;
    return true;
}

/* "a, b or c" */
static PyObject *list_words(const char *const *words) {
    PyObject *list = PyUnicode_FromFormat("\"%s\"", words[0]);
    for (int i = 1; list && words[i]; i++) {
        PyObject *longer =
            PyUnicode_FromFormat("%U%s\"%s\"", list, words[i + 1] ? ", " : " or ", words[i]);
        Py_DECREF(list);
        list = longer;
    }
    return list;
}

bool tam_py_as_word(PyObject *value, const char *what, const char *const *words, int *out) {
    for (int i = 0; PyUnicode_Check(value) && words[i]; i++) {
        if (PyUnicode_CompareWithASCIIString(value, words[i]) == 0) {
            *out = i;
            return true;
        }
    }
    PyObject *list = list_words(words);
    if (list)
        tam_py_raise_own(TAMIS_E_ARGUMENT, NULL, "%s is %R, not %U", what, value, list);
    Py_XDECREF(list);
    return false;
}

static bool as_whole(PyObject *value, const char *what, uint64_t most, uint64_t *out) {
    PyObject *number = PyNumber_Index(value);
    if (!number) {
        PyErr_Clear();
        PyErr_Format(PyExc_TypeError, "%s is %R, not a whole number", what, value);
        return false;
    }
    unsigned long long whole = PyLong_AsUnsignedLongLong(number);
    Py_DECREF(number);
    bool failed = PyErr_Occurred() != NULL; /* negative, or far too large */
    PyErr_Clear();
    if (failed || whole > most) {
        tam_py_raise_own(TAMIS_E_ARGUMENT, NULL, "%s is %R, not a number from 0 to %llu", what,
                         value, (unsigned long long)most);
        return false;
    }
    *out = whole;
    return true;
}

bool tam_py_as_u32(PyObject *value, const char *what, uint32_t *out) {
    uint64_t whole;
    if (!as_whole(value, what, UINT32_MAX, &whole))
        return false;
    *out = (uint32_t)whole;
    return true;
}

bool tam_py_as_u64(PyObject *value, const char *what, uint64_t *out) {
    return as_whole(value, what, UINT64_MAX, out);
}

bool tam_py_as_real(PyObject *value, const char *what, double *out) {
    double real = PyFloat_AsDouble(value);
    if (real == -1.0 && PyErr_Occurred()) {
        PyErr_Clear();
        PyErr_Format(PyExc_TypeError, "%s is %R, not a number", what, value);
        return false;
    }
    *out = real;
    return true;
}

/* -- tables ----------------------------------------------------------------------------------- */

typedef enum kind {
    TEXT,
    REAL,
    OPEN,
    U32,
    U64,
    WORD,
    UPDATE,
    METER
} kind; /* what is left open may be None */

enum { OPTIONS_MAX = 48, WORDS_MAX = 16, WORDS_BYTES = 128 };

typedef struct option {
    const char *name;
    kind kind;
    size_t offset;
    const char *words[WORDS_MAX + 1];
    char text[WORDS_BYTES]; /* of the words */
} option;

typedef struct table {
    const char *whose;
    option rows[OPTIONS_MAX]; /* ends with a name that is NULL */
} table;

/* Filled from the library's lists when the module is loaded. */
static table of_reducer = {.whose = "Reducer()"}, of_update = {.whose = "update"};

/* "a|b|c" */
static bool split_words(const char *range, option *o) {
    int length = snprintf(o->text, sizeof o->text, "%s", range), count = 0;
    char *at = o->text;
    for (; at && count < WORDS_MAX; count++) {
        o->words[count] = at;
        at = strchr(at, '|');
        if (at)
            *at++ = '\0';
    }
    return !at && length < (int)sizeof o->text;
}

static kind kind_of(const tamis_option *o) {
    if (strcmp(o->kind, "word") == 0)
        return WORD;
    if (strcmp(o->kind, "double") == 0)
        return strstr(o->range, "(open)") ? OPEN : REAL;
    return strcmp(o->kind, "uint32_t") == 0 ? U32 : U64;
}

static bool options_add_row(table *t, const char *name, kind as, size_t offset, const char *range) {
    int i = 0;
    while (t->rows[i].name)
        i++;
    if (i == OPTIONS_MAX - 1)
        return false;
    t->rows[i] = (option){.name = name, .kind = as, .offset = offset};
    return as != WORD || split_words(range, &t->rows[i]);
}

/* `dtype` is the name that torch and NumPy use. */
static const char *options_name_of(const tamis_option *o) {
    return strcmp(o->name, "grad_dtype") == 0 ? "dtype" : o->name;
}

bool tam_py_options_open(void) {
    tamis_option o = TAMIS_OPTION_INIT;
    bool ok = true;
    if (of_reducer.rows[0].name)
        return true;
    ok =
        options_add_row(&of_reducer, "scheme", TEXT, offsetof(tam_py_options, config.scheme), NULL);
    for (size_t i = 0; ok && tamis_option_list(i, &o); i++) {
        bool of_config = strcmp(o.of, "config") == 0;
        size_t offset = of_config ? offsetof(tam_py_options, config) + o.offset : o.offset;
        ok = options_add_row(of_config ? &of_reducer : &of_update, options_name_of(&o), kind_of(&o),
                             offset, o.range);
    }
    ok = ok &&
         options_add_row(&of_reducer, "update", UPDATE, offsetof(tam_py_options, update), NULL) &&
         options_add_row(&of_reducer, "meter", METER, offsetof(tam_py_options, meter), NULL);
    if (!ok)
        PyErr_SetString(PyExc_SystemError,
                        "tamis: the library has more options than this table holds");
    return ok;
}

static const char *const *words_of(const char *name) {
    for (const option *o = of_update.rows; o->name; o++) {
        if (strcmp(o->name, name) == 0)
            return o->words;
    }
    return NULL;
}

_Static_assert(sizeof(tamis_dtype) == sizeof(int) && sizeof(tamis_worker) == sizeof(int) &&
                   sizeof(tamis_index_codec) == sizeof(int) &&
                   sizeof(tamis_update_rule) == sizeof(int),
               "words are stored as int");

static const option *options_find(const table *t, PyObject *name) {
    for (const option *o = t->rows; PyUnicode_Check(name) && o->name; o++) {
        if (PyUnicode_CompareWithASCIIString(name, o->name) == 0)
            return o;
    }
    return NULL;
}

static bool refuse_name(const table *t, PyObject *name) {
    PyObject *list = PyUnicode_FromString(t->rows[0].name);
    for (const option *o = t->rows + 1; list && o->name; o++) {
        PyObject *longer = PyUnicode_FromFormat("%U, %s", list, o->name);
        Py_DECREF(list);
        list = longer;
    }
    if (list)
        PyErr_Format(PyExc_TypeError, "%s has no option %R; options are: %U", t->whose, name, list);
    Py_XDECREF(list);
    return false;
}

/* -- keywords --------------------------------------------------------------------------------- */

static bool read_table(const table *t, PyObject *dict, void *base, PyObject **owner);

static bool read_length(const option *o, PyObject *value, uint64_t *out) {
    if (!PyUnicode_Check(value) || PyUnicode_CompareWithASCIIString(value, "planned") != 0)
        return tam_py_as_u64(value, o->name, out);
    *out = TAMIS_BUCKETS_PLANNED;
    return true;
}

/* Reads a copy, for converting a value may run code that changes the caller's dict. */
static bool read_update_dict(PyObject *dict, tamis_update *out) {
    PyObject *own = PyDict_Copy(dict);
    bool ok = own && read_table(&of_update, own, out, NULL);
    Py_XDECREF(own);
    return ok;
}

/* The name of a rule, or a dict. */
static bool options_read_update(const option *o, PyObject *value, tamis_update *out) {
    int rule = 0;
    if (PyDict_Check(value))
        return read_update_dict(value, out);
    if (value != Py_None && !tam_py_as_word(value, o->name, words_of("rule"), &rule))
        return false;
    out->rule = (tamis_update_rule)rule;
    return true;
}

static bool read_meter(PyObject *value, PyObject **out) {
    if (value != Py_None && !PyObject_TypeCheck(value, tam_py_meter_type)) {
        PyErr_Format(PyExc_TypeError, "meter is %R, not a tamis.energy.Meter", value);
        return false;
    }
    *out = value == Py_None ? NULL : value;
    return true;
}

static bool read_option(const option *o, PyObject *value, void *base, PyObject **owner) {
    void *field = (char *)base + o->offset;
    switch (o->kind) {
    case TEXT:
        return tam_py_as_text(value, o->name, owner, field);
    case REAL:
        return tam_py_as_real(value, o->name, field);
    case OPEN:
        return value == Py_None || tam_py_as_real(value, o->name, field);
    case U32:
        return tam_py_as_u32(value, o->name, field);
    case U64:
        return read_length(o, value, field);
    case WORD:
        return tam_py_as_word(value, o->name, o->words, field);
    case METER:
        return read_meter(value, field);
    case UPDATE:
        break;
    }
    return options_read_update(o, value, field);
}

static bool read_table(const table *t, PyObject *dict, void *base, PyObject **owner) {
    PyObject *name, *value;
    Py_ssize_t at = 0;
    while (dict && PyDict_Next(dict, &at, &name, &value)) {
        const option *o = options_find(t, name);
        if (!o ? !refuse_name(t, name) : !read_option(o, value, base, owner))
            return false;
    }
    return true;
}

/* A borrowed reference; NULL if left out or None. */
static PyObject *given(PyObject *dict, const char *name) {
    PyObject *value = dict && PyDict_Check(dict) ? PyDict_GetItemString(dict, name) : NULL;
    return value == Py_None ? NULL : value;
}

bool tam_py_options_read(PyObject *keywords, tam_py_options *out) {
    *out = (tam_py_options){TAMIS_REDUCER_CONFIG_INIT, TAMIS_UPDATE_INIT, NULL, NULL};
    if (read_table(&of_reducer, keywords, out, &out->owner)) {
        out->config.update = given(keywords, "update") ? &out->update : NULL;
        return true;
    }
    Py_CLEAR(out->owner);
    return false;
}
