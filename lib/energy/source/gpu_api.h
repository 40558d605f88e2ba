/* SPDX-License-Identifier: MIT
 *
 * What is used of NVIDIA's management library, which is loaded when a meter is opened: no header of
 * it and no link to it. Prototypes and numbers as in its documentation (NVML API 11 to 13).
 */
#ifndef TAM_ENERGY_GPU_API_H
#define TAM_ENERGY_GPU_API_H

#include "lib/energy/source/source.h"

typedef struct nvml_gpu *nvml_device; /* opaque */

enum {
    NVML_OK = 0,
    NVML_NOT_SUPPORTED = 3,
    NVML_NO_PERMISSION = 4,
    NVML_NOT_FOUND = 6,
    NVML_NO_DRIVER = 9,
    NVML_NO_FUNCTION = 13,
    NVML_GPU_LOST = 15,

    NVML_FIELD_ENERGY = 83, /* mJ, as nvmlDeviceGetTotalEnergyConsumption */
    NVML_FIELD_POWER = 186, /* mW, instant */
    NVML_SCOPE_MODULE = 1,
    NVML_TYPE_UINT = 1,
    NVML_TYPE_ULONG = 2,
    NVML_TYPE_ULLONG = 3,

    NVML_UUID_BYTES = 96
};

/** A value that is asked for by number. */
typedef struct nvml_field {
    uint32_t id, scope;
    int64_t stamp_us; /* real time */
    int64_t latency_us;
    int32_t type, status;
    union {
        uint32_t u32;
        uint64_t u64;
    } value;
} nvml_field;

_Static_assert(sizeof(nvml_field) == 40, "as the library has it");

/** Functions; those of the second group may be NULL. */
typedef struct nvml_api {
    int (*init)(void);
    int (*shutdown)(void);
    int (*count)(unsigned *count);
    int (*by_index)(unsigned index, nvml_device *device);
    int (*uuid)(nvml_device device, char *uuid, unsigned bytes);

    const char *(*error)(int code);
    int (*by_uuid)(const char *uuid, nvml_device *device);
    int (*by_bus)(const char *bus, nvml_device *device);
    int (*energy)(nvml_device device, unsigned long long *mj);
    int (*power)(nvml_device device, unsigned *mw);
    int (*fields)(nvml_device device, int count, nvml_field *fields);
    int (*is_mig)(nvml_device device, unsigned *mig);
    int (*parent)(nvml_device mig, nvml_device *device);
} nvml_api;

/** Look the functions up. @return the name of a missing one of the first group; NULL: none is */
const char *tam_gpu_api_find(nvml_api *api, void *library);

/** What a code other than OK means, and what to do. @param what  the function that returned it */
tamis_energy_status tam_gpu_api_explain(const nvml_api *api, int code, const char *what,
                                        char reason[TAMIS_ENERGY_TEXT]);

#endif
