/* SPDX-License-Identifier: MIT
 *
 * Windows of a Meter. Nothing here waits: tamis.energy asks again until a deadline, and other
 * threads run meanwhile.
 */
#include "core.h"

PyObject *tam_py_window_begin(PyObject *object, PyObject *name) {
    tam_py_meter *self = (tam_py_meter *)object;
    PyObject *owner;
    const char *text;
    uint32_t window;
    if (!tam_py_as_text(name, "the name of a window", &owner, &text))
        return NULL;
    tamis_status status = TAMIS_OK;
    bool open = tam_py_meter_enter(self, "Meter._window_begin");
    if (open)
        status = tamis_energy_window_begin(self->handle, text, &window);
    Py_DECREF(owner);
    if (!open)
        return NULL;
    return status == TAMIS_OK ? PyLong_FromUnsignedLong(window) : tam_py_raise(status);
}

static tamis_status drop_window(tamis_energy *energy, uint32_t window) {
    return tamis_energy_window_result(energy, window, 0, NULL);
}

static PyObject *with_window(PyObject *object, PyObject *number, const char *call,
                             tamis_status (*with)(tamis_energy *, uint32_t)) {
    tam_py_meter *self = (tam_py_meter *)object;
    uint32_t window;
    if (!tam_py_as_u32(number, "window", &window) || !tam_py_meter_enter(self, call))
        return NULL;
    return tam_py_reducer_answer(with(self->handle, window));
}

PyObject *tam_py_window_end(PyObject *object, PyObject *window) {
    return with_window(object, window, "Meter._window_end", tamis_energy_window_end);
}

PyObject *tam_py_window_drop(PyObject *object, PyObject *window) {
    return with_window(object, window, "Meter._window_drop", drop_window);
}

PyObject *tam_py_window_result(PyObject *object, PyObject *number) {
    tam_py_meter *self = (tam_py_meter *)object;
    tamis_energy_totals totals = TAMIS_ENERGY_TOTALS_INIT;
    uint32_t window;
    if (!tam_py_as_u32(number, "window", &window) ||
        !tam_py_meter_enter(self, "Meter._window_result"))
        return NULL;
    tamis_status status = tamis_energy_window_result(self->handle, window, 0, &totals);
    if (status == TAMIS_E_STATE)
        Py_RETURN_NONE;
    return status == TAMIS_OK ? tam_py_totals_as_dict(&totals) : tam_py_raise(status);
}
