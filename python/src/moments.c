/* SPDX-License-Identifier: MIT
 *
 * Update mode of a reducer: its options, and its moments as part of the state.
 */
#include "core.h"

#include <tamis/state.h>

/* Tensors or None. Capsules are new references or NULL. */
typedef struct vectors {
    PyObject *capsules[2];
    void *data[2];
} vectors;

static void moments_give_back(vectors *v) {
    Py_XDECREF(v->capsules[0]);
    Py_XDECREF(v->capsules[1]);
}

static bool moments_borrow(const tam_py_reducer *self, PyObject *tensors[2], bool writable,
                           vectors *out) {
    static const char *const names[] = {"the first moments", "the second moments"};
    *out = (vectors){{NULL, NULL}, {NULL, NULL}};
    for (int i = 0; i < 2; i++) {
        tam_py_want want = tam_py_state_wanted(self, names[i], writable);
        if (tensors[i] == Py_None ||
            tam_py_tensor_borrow(tensors[i], &want, &out->capsules[i], &out->data[i]))
            continue;
        moments_give_back(out);
        return false;
    }
    return true;
}

PyObject *tam_py_moments_save(PyObject *object, PyObject *args, PyObject *keywords) {
    static char *names[] = {"first", "second", NULL};
    tam_py_reducer *self = (tam_py_reducer *)object;
    PyObject *tensors[2];
    vectors v;
    tamis_status status;
    uint64_t passes;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "OO:Reducer.moments", names, &tensors[0],
                                     &tensors[1]) ||
        !moments_borrow(self, tensors, true, &v))
        return NULL;
    if (!tam_py_reducer_enter(self, TAM_PY_LOOK, "Reducer.moments")) {
        moments_give_back(&v);
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS status =
        tamis_reducer_save_moments(self->handle, v.data[0], v.data[1], &passes);
    Py_END_ALLOW_THREADS tam_py_reducer_leave(self, TAM_PY_LOOK);
    PyObject *answer =
        status == TAMIS_OK ? PyLong_FromUnsignedLongLong(passes) : tam_py_raise(status);
    moments_give_back(&v);
    return answer;
}

PyObject *tam_py_moments_restore(PyObject *object, PyObject *args, PyObject *keywords) {
    static char *names[] = {"first", "second", "passes", NULL};
    tam_py_reducer *self = (tam_py_reducer *)object;
    PyObject *tensors[2], *number;
    vectors v;
    tamis_status status;
    uint64_t passes;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "OOO:Reducer.restore_moments", names,
                                     &tensors[0], &tensors[1], &number) ||
        !tam_py_as_u64(number, "passes", &passes) || !moments_borrow(self, tensors, false, &v))
        return NULL;
    if (!tam_py_reducer_enter(self, TAM_PY_LOOK, "Reducer.restore_moments")) {
        moments_give_back(&v);
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS status =
        tamis_reducer_load_moments(self->handle, v.data[0], v.data[1], passes);
    Py_END_ALLOW_THREADS tam_py_reducer_leave(self, TAM_PY_LOOK);
    PyObject *answer = tam_py_reducer_answer(status);
    moments_give_back(&v);
    return answer;
}

PyObject *tam_py_moments_update(PyObject *object, void *none) {
    const tam_py_reducer *self = (tam_py_reducer *)object;
    static const char *const names[] = {"adam", "momentum", "step"};
    const tamis_update *u = &self->update;
    (void)none;
    if (!self->updates)
        Py_RETURN_NONE;
    return Py_BuildValue("{sssdsdsdsdsd}", "rule", names[u->rule], "beta1", u->beta1, "beta2",
                         u->beta2, "epsilon", u->epsilon, "scale", u->scale, "norm_matching",
                         u->norm_matching);
}
