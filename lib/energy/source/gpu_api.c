/* SPDX-License-Identifier: MIT */
#include "lib/energy/source/gpu_api.h"

#include <dlfcn.h>

const char *tam_gpu_api_find(nvml_api *api, void *library) {
    const struct {
        const char *name;
        void *out;
        bool needed;
    } functions[] = {
        {"nvmlInit_v2", &api->init, true},
        {"nvmlShutdown", &api->shutdown, true},
        {"nvmlDeviceGetCount_v2", &api->count, true},
        {"nvmlDeviceGetHandleByIndex_v2", &api->by_index, true},
        {"nvmlDeviceGetUUID", &api->uuid, true},
        {"nvmlErrorString", &api->error, false},
        {"nvmlDeviceGetHandleByUUID", &api->by_uuid, false},
        {"nvmlDeviceGetHandleByPciBusId_v2", &api->by_bus, false},
        {"nvmlDeviceGetTotalEnergyConsumption", &api->energy, false},
        {"nvmlDeviceGetPowerUsage", &api->power, false},
        {"nvmlDeviceGetFieldValues", &api->fields, false},
        {"nvmlDeviceIsMigDeviceHandle", &api->is_mig, false},
        {"nvmlDeviceGetDeviceHandleFromMigDeviceHandle", &api->parent, false},
    };
    for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++) {
        void *function = dlsym(library, functions[i].name);
        if (!function && functions[i].needed)
            return functions[i].name;
        memcpy(functions[i].out, &function, sizeof function);
    }
    return NULL;
}

tamis_energy_status tam_gpu_api_explain(const nvml_api *api, int code, const char *what,
                                        char reason[TAMIS_ENERGY_TEXT]) {
    static const struct {
        int code;
        tamis_energy_status status;
        const char *remedy;
    } rows[] = {
        {NVML_NO_DRIVER, TAMIS_ENERGY_ABSENT, "the driver is not loaded: modprobe nvidia"},
        {NVML_NOT_SUPPORTED, TAMIS_ENERGY_UNSUPPORTED, "this GPU or driver does not support it"},
        {NVML_NO_FUNCTION, TAMIS_ENERGY_UNSUPPORTED, "the driver is older than its library"},
        {NVML_NO_PERMISSION, TAMIS_ENERGY_DENIED,
         "permission denied: the user or container must have access to the device"},
        {NVML_NOT_FOUND, TAMIS_ENERGY_ABSENT, "no such GPU; nvidia-smi -L lists them"},
        {NVML_GPU_LOST, TAMIS_ENERGY_LOST, "the GPU has fallen off the bus: see dmesg for Xid"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (rows[i].code != code)
            continue;
        tam_energy_say(reason, "%s (NVML %d from %s)", rows[i].remedy, code, what);
        return rows[i].status;
    }
    tam_energy_say(reason, "NVML error %d from %s: %s", code, what,
                   api->error ? api->error(code) : "it has no words for it");
    return TAMIS_ENERGY_FAILED;
}
