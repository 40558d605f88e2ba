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

/* -- tables ----------------------------------------------------------------------------------- */

typedef enum kind { TEXT, REAL, ADVISED, U32, U64, WORD, UPDATE } kind; /* advised: or None */

typedef struct option {
    const char *name;
    kind kind;
    size_t offset;
    const char *const *words;
} option;

typedef struct table {
    const char *whose;
    const option *rows; /* ends with a name that is NULL */
} table;

static tam_py_words outputs = {"dense", "sparse", NULL};
static tam_py_words averages = {"mean", "sum", NULL};
static tam_py_words nonfinites = {"error", "skip", "drop", NULL};
static tam_py_words devices = {"cpu", "cuda", NULL};
static tam_py_words types = {"float32", "float16", "bfloat16", NULL};
static tam_py_words shares = {"norm", "length", NULL};
static tam_py_words workers = {"caller", "thread", NULL};
static tam_py_words formats = {"auto", "u32", "block16", "gap8", "bitmap", NULL};
static tam_py_words rules = {"adam", "momentum", NULL};

#define FIELD(name) offsetof(tam_py_options, config.name)

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
    {"ranks_per_node", U32, FIELD(ranks_per_node), NULL},
    {"residual_decay", ADVISED, FIELD(residual_decay), NULL},
    {"update", UPDATE, offsetof(tam_py_options, update), NULL},
    {NULL, TEXT, 0, NULL},
};

static const option updates[] = {
    {"rule", WORD, offsetof(tamis_update, rule), rules},
    {"beta1", REAL, offsetof(tamis_update, beta1), NULL},
    {"beta2", REAL, offsetof(tamis_update, beta2), NULL},
    {"epsilon", REAL, offsetof(tamis_update, epsilon), NULL},
    {"scale", ADVISED, offsetof(tamis_update, scale), NULL},
    {NULL, TEXT, 0, NULL},
};

static const table of_reducer = {"Reducer()", options};
static const table of_update = {"update", updates};

_Static_assert(sizeof(tamis_type) == sizeof(int) && sizeof(tamis_worker) == sizeof(int) &&
                   sizeof(tamis_index_format) == sizeof(int) &&
                   sizeof(tamis_update_rule) == sizeof(int),
               "words are stored as int");

static const option *find(const table *t, PyObject *name) {
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
        PyErr_Format(PyExc_TypeError, "%s has no option %R; it has: %U", t->whose, name, list);
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

/* A copy is read, for the words of a value may be code that changes the caller's. */
static bool read_update_dict(PyObject *dict, tamis_update *out) {
    PyObject *own = PyDict_Copy(dict);
    bool ok = own && read_table(&of_update, own, out, NULL);
    Py_XDECREF(own);
    return ok;
}

/* The name of a rule, or a dict. */
static bool read_update(const option *o, PyObject *value, tamis_update *out) {
    int rule = 0;
    if (PyDict_Check(value))
        return read_update_dict(value, out);
    if (value != Py_None && !tam_py_as_word(value, o->name, rules, &rule))
        return false;
    out->rule = (tamis_update_rule)rule;
    return true;
}

static bool read_option(const option *o, PyObject *value, void *base, PyObject **owner) {
    void *field = (char *)base + o->offset;
    switch (o->kind) {
    case TEXT:
        return tam_py_as_text(value, o->name, owner, field);
    case REAL:
        return as_real(value, o->name, field);
    case ADVISED:
        return value == Py_None || as_real(value, o->name, field);
    case U32:
        return tam_py_as_u32(value, o->name, field);
    case U64:
        return read_length(o, value, field);
    case WORD:
        return tam_py_as_word(value, o->name, o->words, field);
    case UPDATE:
        break;
    }
    return read_update(o, value, field);
}

static bool read_table(const table *t, PyObject *dict, void *base, PyObject **owner) {
    PyObject *name, *value;
    Py_ssize_t at = 0;
    while (dict && PyDict_Next(dict, &at, &name, &value)) {
        const option *o = find(t, name);
        if (!o ? !refuse_name(t, name) : !read_option(o, value, base, owner))
            return false;
    }
    return true;
}

/* Borrowed; NULL: left out, or None. */
static PyObject *given(PyObject *dict, const char *name) {
    PyObject *value = dict && PyDict_Check(dict) ? PyDict_GetItemString(dict, name) : NULL;
    return value == Py_None ? NULL : value;
}

/* What was not given of an update is what the library advises. It is set here, so that it can be
 * read. */
static bool complete(PyObject *keywords, tam_py_options *out) {
    PyObject *update = given(keywords, "update");
    tamis_update advised = out->update;
    double decay;
    if (!update && !given(keywords, "residual_decay"))
        out->config.residual_decay = 1.0;
    if (!update)
        return true;
    out->config.update = &out->update;
    tamis_status status = tamis_update_advise(out->config.density, &advised, &decay);
    if (status != TAMIS_OK) {
        tam_py_raise(status);
        return false;
    }
    out->update.beta1 = advised.beta1;
    if (!given(update, "scale"))
        out->update.scale = advised.scale;
    if (!given(keywords, "residual_decay"))
        out->config.residual_decay = decay;
    return true;
}

bool tam_py_options_read(PyObject *keywords, tam_py_options *out) {
    *out = (tam_py_options){TAMIS_REDUCER_CONFIG_INIT, TAMIS_UPDATE_INIT, NULL};
    if (read_table(&of_reducer, keywords, out, &out->owner) && complete(keywords, out))
        return true;
    Py_CLEAR(out->owner);
    return false;
}
