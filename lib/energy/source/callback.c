/* SPDX-License-Identifier: MIT
 *
 * A counter of the application: joules of a rack's meter, of a network card, of a simulation.
 */
#include "lib/contracts/energy_source.h"

typedef struct callback {
    tamis_status (*call)(void *context, uint64_t *out_uj);
    void *context;
} callback;

static void find_callback(const tamis_energy_config *config, tam_energy_found *found) {
    const char *name =
        config->callback_name && config->callback_name[0] ? config->callback_name : "0";
    if (!config->callback)
        return;
    tam_energy_sensor *sensor =
        tam_energy_add(found, name, tam_energy_kind_of(name), sizeof(callback));
    if (sensor)
        *(callback *)sensor->own = (callback){config->callback, config->callback_context};
}

static void read_callback(void *own, tam_energy_reading *out) {
    callback *self = own;
    tamis_status status = self->call(self->context, &out->value);
    if (status == TAMIS_OK)
        return;
    out->status = TAMIS_ENERGY_FAILED;
    tam_energy_say(out->reason, "the application's callback returned %s",
                   tamis_status_name(status));
}

const tam_energy_source tam_source_callback = {
    .name = "callback",
    .period_s = 0.05,
    .find = find_callback,
    .read = read_callback,
};
