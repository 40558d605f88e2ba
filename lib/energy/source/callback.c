/* SPDX-License-Identifier: MIT
 *
 * A counter of the application: joules of a rack's meter, of a network card, of a simulation.
 */
#include "lib/energy/source/source.h"

#include <stdio.h>

typedef struct callback {
    tamis_status (*call)(void *context, uint64_t *out_uj);
    void *context;
    tam_energy_clock clock;
    tam_energy_place place;
} callback;

static tamis_status open_callback(const tam_energy_setup *setup, void **out) {
    callback *self = tam_alloc(sizeof *self);
    if (!self)
        return tam_fail(TAMIS_E_NOMEM, "no memory for the energy source callback");
    const char *name = setup->callback_name && setup->callback_name[0] ? setup->callback_name : "0";
    self->call = setup->callback;
    self->context = setup->callback_context;
    self->clock = tam_energy_clock_of(setup);
    tam_energy_place_init(&self->place, "callback", name, tam_energy_kind_of(name), 0.05);
    *out = self;
    return TAMIS_OK;
}

static uint32_t count_callback(const void *self) {
    return ((const callback *)self)->call != NULL;
}

static void place_callback(const void *self, uint32_t index, tam_energy_place *out) {
    (void)index;
    *out = ((const callback *)self)->place;
}

static void read_callback(void *opaque, uint32_t index, tam_energy_reading *out) {
    callback *self = opaque;
    (void)index;
    *out = (tam_energy_reading){0};
    uint64_t begin_ns = tam_energy_now(&self->clock);
    tamis_status status = self->call(self->context, &out->value);
    tam_energy_reading_time(out, begin_ns, tam_energy_now(&self->clock));
    if (status == TAMIS_OK)
        return;
    out->status = TAMIS_ENERGY_FAILED;
    tam_energy_say(out->reason, "the application's callback returned %s",
                   tamis_status_name(status));
}

static void close_callback(void *self) {
    tam_free(self);
}

const tam_energy_source tam_source_callback = {
    .name = "callback",
    .open = open_callback,
    .count = count_callback,
    .place = place_callback,
    .read = read_callback,
    .close = close_callback,
};
