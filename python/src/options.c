/* SPDX-License-Identifier: MIT
 *
 * Values of Python as values of C, and the keywords of Reducer() as a tamis_reducer_config.
 */
#include "core.h"

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

static bool as_real(PyObject *value, const char *what, double *out) {
    double real = PyFloat_AsDouble(value);
    if (real == -1.0 && PyErr_Occurred()) {
        PyErr_Clear();
        PyErr_Format(PyExc_TypeError, "%s is %R, not a number", what, value);
        return false;
    }
    *out = real;
    return true;
}

/* -- keywords --------------------------------------------------------------------------------- */

typedef enum kind { TEXT, REAL, U32, U64, WORD } kind;

typedef struct option {
    const char *name;
    kind kind;
    size_t offset;
    const char *const *words;
} option;

static tam_py_words outputs = {"dense", "sparse", NULL};
static tam_py_words averages = {"mean", "sum", NULL};
static tam_py_words nonfinites = {"error", "skip", "drop", NULL};
static tam_py_words devices = {"cpu", "cuda", NULL};
static tam_py_words types = {"float32", "float16", "bfloat16", NULL};
static tam_py_words shares = {"norm", "length", NULL};
static tam_py_words workers = {"caller", "thread", NULL};
static tam_py_words formats = {"auto", "u32", "block16", "gap8", "bitmap", NULL};

#define FIELD(name) offsetof(tamis_reducer_config, name)

static const option options[] = {
    {"scheme", TEXT, FIELD(scheme), NULL},
    {"density", REAL, FIELD(density), NULL},
    {"dtype", WORD, FIELD(grad_type), types},
    {"device", WORD, FIELD(device), devices},
    {"output", WORD, FIELD(output), outputs},
    {"average", WORD, FIELD(average), averages},
    {"nonfinite", WORD, FIELD(nonfinite), nonfinites},
    {"bucket_length", U64, FIELD(bucket_length), NULL},
    {"share", WORD, FIELD(share), shares},
    {"worker", WORD, FIELD(worker), workers},
    {"block", U32, FIELD(block), NULL},
    {"over", REAL, FIELD(over), NULL},
    {"capacity", REAL, FIELD(capacity), NULL},
    {"threshold", REAL, FIELD(threshold), NULL},
    {"threads", U32, FIELD(threads), NULL},
    {"density_max", REAL, FIELD(density_max), NULL},
    {"link_latency_us", REAL, FIELD(link_latency_us), NULL},
    {"link_gbit", REAL, FIELD(link_gbit), NULL},
    {"index_format", WORD, FIELD(index_format), formats},
    {"wire_type", WORD, FIELD(wire_type), types},
    {"residual_decay", REAL, FIELD(residual_decay), NULL},
};

enum { OPTIONS = sizeof options / sizeof options[0] };

_Static_assert(sizeof(tamis_type) == sizeof(int) && sizeof(tamis_worker) == sizeof(int) &&
                   sizeof(tamis_index_format) == sizeof(int),
               "words are stored as int");

static const option *find(PyObject *name) {
    for (size_t i = 0; i < OPTIONS; i++) {
        if (PyUnicode_CompareWithASCIIString(name, options[i].name) == 0)
            return &options[i];
    }
    return NULL;
}

static bool refuse_name(PyObject *name) {
    PyObject *list = PyUnicode_FromString(options[0].name);
    for (size_t i = 1; list && i < OPTIONS; i++) {
        PyObject *longer = PyUnicode_FromFormat("%U, %s", list, options[i].name);
        Py_DECREF(list);
        list = longer;
    }
    if (list)
        PyErr_Format(PyExc_TypeError, "Reducer() has no option %R; it has: %U", name, list);
    Py_XDECREF(list);
    return false;
}

static bool is_planned(const option *o, PyObject *value) {
    return o->offset == FIELD(bucket_length) && PyUnicode_Check(value) &&
           PyUnicode_CompareWithASCIIString(value, "planned") == 0;
}

static bool read_option(const option *o, PyObject *value, tamis_reducer_config *config,
                        PyObject **out_owner) {
    void *field = (char *)config + o->offset;
    switch (o->kind) {
    case TEXT:
        return tam_py_as_text(value, o->name, out_owner, field);
    case REAL:
        return as_real(value, o->name, field);
    case U32:
        return tam_py_as_u32(value, o->name, field);
    case WORD:
        return tam_py_as_word(value, o->name, o->words, field);
    case U64:
        break;
    }
    if (!is_planned(o, value))
        return tam_py_as_u64(value, o->name, field);
    *(uint64_t *)field = TAMIS_BUCKETS_PLANNED;
    return true;
}

bool tam_py_options_read(PyObject *keywords, tamis_reducer_config *out, PyObject **out_owner) {
    PyObject *name, *value;
    Py_ssize_t at = 0;
    *out_owner = NULL;
    while (keywords && PyDict_Next(keywords, &at, &name, &value)) {
        const option *o = find(name);
        if (!o ? refuse_name(name) : read_option(o, value, out, out_owner))
            continue;
        Py_XDECREF(*out_owner);
        *out_owner = NULL;
        return false;
    }
    return true;
}
