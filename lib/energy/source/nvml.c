/* SPDX-License-Identifier: MIT
 *
 * GPUs, over NVIDIA's management library, which is loaded when the source looks for them: no header
 * of it and no link to it, prototypes and numbers as in its documentation (NVML API 11 to 13).
 *
 * The counter of joules since the driver was loaded (Volta and newer), else power.
 *
 * One board has one counter, whatever its partitions (MIG) are: a domain is the physical GPU and
 * bears its UUID. Devices are asked for by UUID or PCI bus id, never by number:
 * CUDA_VISIBLE_DEVICES reorders.
 *
 * A module of GPU and CPU is seen by power being answered for the scope "module". Field 191 has a
 * counter for each scope, so that of the module is taken; but a driver that answers the same for
 * the GPU alone looks at no scope, and then the CPU is counted by others. Field 83 has no scope; on
 * such modules it covers all.
 */
#include "lib/contracts/energy_source.h"

#include <dlfcn.h>
#include <stdio.h>

#define POWER_PERIOD_S 0.05

/* -- the library ------------------------------------------------------------------------------ */

typedef struct nvml_gpu *nvml_device; /* opaque */

enum {
    NVML_OK = 0,
    NVML_NOT_SUPPORTED = 3,
    NVML_NO_PERMISSION = 4,
    NVML_NOT_FOUND = 6,
    NVML_NO_DRIVER = 9,
    NVML_NO_FUNCTION = 13,
    NVML_GPU_LOST = 15,

    NVML_FIELD_ENERGY = 83,         /* mJ, as nvmlDeviceGetTotalEnergyConsumption */
    NVML_FIELD_ENERGY_SCOPED = 191, /* mJ */
    NVML_FIELD_POWER = 186,         /* mW, instant */
    NVML_SCOPE_GPU = 0,
    NVML_SCOPE_MODULE = 1,
    NVML_TYPE_UINT = 1,
    NVML_TYPE_ULONG = 2,
    NVML_TYPE_ULLONG = 3,

    NVML_UUID_BYTES = 96
};

/* A value that is asked for by number. */
typedef struct nvml_field {
    uint32_t id, scope;
    int64_t stamp_us, latency_us;
    int32_t type, status;
    union {
        uint32_t u32;
        uint64_t u64;
    } value;
} nvml_field;

_Static_assert(sizeof(nvml_field) == 40, "as the library has it");

typedef struct nvml {
    void *library;
    bool begun; /* init has been called */

    int (*init)(void);
    int (*shutdown)(void);
    int (*count)(unsigned *count);
    int (*by_index)(unsigned index, nvml_device *device);
    int (*uuid)(nvml_device device, char *uuid, unsigned bytes);

    /* These may be NULL. */
    const char *(*error)(int code);
    int (*by_uuid)(const char *uuid, nvml_device *device);
    int (*by_bus)(const char *bus, nvml_device *device);
    int (*energy)(nvml_device device, unsigned long long *mj);
    int (*power)(nvml_device device, unsigned *mw);
    int (*fields)(nvml_device device, int count, nvml_field *fields);
    int (*is_mig)(nvml_device device, unsigned *mig);
    int (*parent)(nvml_device mig, nvml_device *device);
} nvml;

/* @return the name of a missing function that is needed; NULL: none is missing */
static const char *load_functions(nvml *self) {
    const struct {
        const char *name;
        void *out;
        bool needed;
    } functions[] = {
        {"nvmlInit_v2", &self->init, true},
        {"nvmlShutdown", &self->shutdown, true},
        {"nvmlDeviceGetCount_v2", &self->count, true},
        {"nvmlDeviceGetHandleByIndex_v2", &self->by_index, true},
        {"nvmlDeviceGetUUID", &self->uuid, true},
        {"nvmlErrorString", &self->error, false},
        {"nvmlDeviceGetHandleByUUID", &self->by_uuid, false},
        {"nvmlDeviceGetHandleByPciBusId_v2", &self->by_bus, false},
        {"nvmlDeviceGetTotalEnergyConsumption", &self->energy, false},
        {"nvmlDeviceGetPowerUsage", &self->power, false},
        {"nvmlDeviceGetFieldValues", &self->fields, false},
        {"nvmlDeviceIsMigDeviceHandle", &self->is_mig, false},
        {"nvmlDeviceGetDeviceHandleFromMigDeviceHandle", &self->parent, false},
    };
    for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++) {
        void *function = dlsym(self->library, functions[i].name);
        if (!function && functions[i].needed)
            return functions[i].name;
        memcpy(functions[i].out, &function, sizeof function);
    }
    return NULL;
}

/* What a code other than OK means, and what to do. @param what  the function that returned it */
static tamis_energy_status nvml_explain(const nvml *self, int code, const char *what,
                                        char reason[TAMIS_ENERGY_TEXT]) {
    static const struct {
        int code;
        tamis_energy_status status;
        const char *remedy;
    } rows[] = {
        {NVML_NO_DRIVER, TAMIS_ENERGY_ABSENT, "the driver is not loaded: modprobe nvidia"},
        {NVML_NOT_SUPPORTED, TAMIS_ENERGY_UNSUPPORTED, "this GPU or driver does not support it"},
        {NVML_NO_FUNCTION, TAMIS_ENERGY_UNSUPPORTED, "the driver is older than the library"},
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
                   self->error ? self->error(code) : "no description available");
    return TAMIS_ENERGY_FAILED;
}

typedef struct gpu {
    const nvml *nvml;
    nvml_device device;
    bool module;
    uint32_t field; /* of the module's counter; 0: it is not read as a field */
    bool power;
} gpu;

/* -- what a GPU can tell ---------------------------------------------------------------------- */

/* @return a code of the library */
static int read_field(const gpu *g, uint32_t id, uint32_t scope, nvml_field *out) {
    *out = (nvml_field){.id = id, .scope = scope};
    if (!g->nvml->fields)
        return NVML_NO_FUNCTION;
    int code = g->nvml->fields(g->device, 1, out);
    return code == NVML_OK ? out->status : code;
}

static bool is_module(const gpu *g) {
    nvml_field power;
    return read_field(g, NVML_FIELD_POWER, NVML_SCOPE_MODULE, &power) == NVML_OK &&
           power.type == NVML_TYPE_UINT && power.value.u32 > 0;
}

static int read_counter(const gpu *g, uint32_t id, uint32_t scope, unsigned long long *mj) {
    nvml_field field;
    int code = read_field(g, id, scope, &field);
    bool number = field.type == NVML_TYPE_ULLONG || field.type == NVML_TYPE_ULONG;
    *mj = field.value.u64;
    return code == NVML_OK && !number ? NVML_NOT_SUPPORTED : code;
}

/* What the counter of a module is read as; or it is none for whose CPU there is a counter. */
static void find_module(gpu *g, const char *name) {
    unsigned long long mj, own_mj;
    if (read_counter(g, NVML_FIELD_ENERGY_SCOPED, NVML_SCOPE_MODULE, &mj) != NVML_OK) {
        if (read_counter(g, NVML_FIELD_ENERGY, NVML_SCOPE_MODULE, &mj) == NVML_OK)
            g->field = NVML_FIELD_ENERGY;
        return;
    }
    g->field = NVML_FIELD_ENERGY_SCOPED;
    if (read_counter(g, g->field, NVML_SCOPE_GPU, &own_mj) != NVML_OK || own_mj < mj)
        return;
    g->module = false;
    g->field = 0;
    tam_log(TAM_INFO,
            "energy: nvml:%s: the driver shows no more joules for the module than for its GPU, so "
            "it counts as a GPU",
            name);
}

static int read_energy(const gpu *g, unsigned long long *mj) {
    if (g->field)
        return read_counter(g, g->field, NVML_SCOPE_MODULE, mj);
    return g->nvml->energy ? g->nvml->energy(g->device, mj) : NVML_NO_FUNCTION;
}

static int read_power(const gpu *g, unsigned *mw) {
    return g->nvml->power ? g->nvml->power(g->device, mw) : NVML_NO_FUNCTION;
}

static bool is_unsupported(int code) {
    return code == NVML_NOT_SUPPORTED || code == NVML_NO_FUNCTION;
}

static void mark_broken(const nvml *self, tam_energy_sensor *sensor, int code, const char *what) {
    char reason[TAMIS_ENERGY_TEXT];
    tamis_energy_status status = nvml_explain(self, code, what, reason);
    tam_energy_break(sensor, status, "%s", reason);
}

/* The counter, else power, else why not. What fails otherwise may answer later: reading tells. */
static void nvml_try_sensor(gpu *g, tam_energy_sensor *sensor) {
    unsigned long long mj;
    unsigned mw;
    int energy = read_energy(g, &mj), power = is_unsupported(energy) ? read_power(g, &mw) : NVML_OK;
    if (is_unsupported(energy) && is_unsupported(power)) {
        tam_energy_break(sensor, TAMIS_ENERGY_UNSUPPORTED,
                         "neither energy (nvmlDeviceGetTotalEnergyConsumption: %s) nor power "
                         "(nvmlDeviceGetPowerUsage: %s) of this GPU can be read",
                         g->nvml->energy ? "not supported" : "missing",
                         g->nvml->power ? "not supported" : "missing");
    } else if (energy == NVML_NO_PERMISSION || energy == NVML_GPU_LOST) {
        mark_broken(g->nvml, sensor, energy, "nvmlDeviceGetTotalEnergyConsumption");
    } else if (power == NVML_NO_PERMISSION || power == NVML_GPU_LOST) {
        mark_broken(g->nvml, sensor, power, "nvmlDeviceGetPowerUsage");
    } else if (is_unsupported(energy)) {
        g->power = sensor->power = true;
        sensor->period_s = POWER_PERIOD_S;
        tam_log(TAM_INFO, "energy: %s has no energy counter; integrating its power", sensor->id);
    }
}

/* -- which GPUs ------------------------------------------------------------------------------- */

/* The one domain that says what is wrong with all. */
static tam_energy_sensor *nvml_add_nothing(tam_energy_found *found) {
    return tam_energy_add(found, "", TAMIS_ENERGY_GPU, sizeof(gpu));
}

/* One that cannot be read. */
static void add_failed(tam_energy_found *found, const char *name, int code, const char *what) {
    mark_broken(found->self, tam_energy_add(found, name, TAMIS_ENERGY_GPU, sizeof(gpu)), code,
                what);
}

/* A partition's handle becomes that of its board. */
static int use_parent_gpu(const nvml *self, nvml_device *device) {
    unsigned mig = 0;
    if (!self->is_mig || !self->parent || self->is_mig(*device, &mig) != NVML_OK || !mig)
        return NVML_OK;
    return self->parent(*device, device);
}

/* @param  name  what it was asked for as */
static void add_gpu(tam_energy_found *found, const char *name, nvml_device device) {
    const nvml *self = found->self;
    char uuid[NVML_UUID_BYTES] = "";
    const char *what = "nvmlDeviceGetDeviceHandleFromMigDeviceHandle";
    int code = use_parent_gpu(self, &device);
    if (code == NVML_OK) {
        what = "nvmlDeviceGetUUID";
        code = self->uuid(device, uuid, sizeof uuid);
    }
    if (code != NVML_OK) {
        add_failed(found, name, code, what);
        return;
    }
    uuid[sizeof uuid - 1] = '\0';
    if (tam_energy_find_sensor(found, uuid))
        return;
    gpu g = {.nvml = self, .device = device};
    g.module = is_module(&g);
    if (g.module)
        find_module(&g, uuid);
    tam_energy_sensor *sensor =
        tam_energy_add(found, uuid, g.module ? TAMIS_ENERGY_MODULE : TAMIS_ENERGY_GPU, sizeof g);
    if (!sensor)
        return;
    nvml_try_sensor(&g, sensor);
    *(gpu *)sensor->own = g;
}

static void add_all(tam_energy_found *found) {
    const nvml *self = found->self;
    unsigned count = 0;
    char name[24];
    int code = self->count(&count);
    if (code != NVML_OK) {
        add_failed(found, "", code, "nvmlDeviceGetCount_v2");
        return;
    }
    if (count == 0)
        tam_energy_break(nvml_add_nothing(found), TAMIS_ENERGY_ABSENT,
                         "the driver is loaded but shows no GPU: was one given to the container?");
    for (unsigned i = 0; i < count; i++) {
        nvml_device device;
        snprintf(name, sizeof name, "index-%u", i);
        code = self->by_index(i, &device);
        if (code == NVML_OK)
            add_gpu(found, name, device);
        else
            add_failed(found, name, code, "nvmlDeviceGetHandleByIndex_v2");
    }
}

/* "GPU-..." and "MIG-..." are UUIDs, others PCI bus ids. */
static void add_named(tam_energy_found *found, const char *name) {
    const nvml *self = found->self;
    bool uuid = strncmp(name, "GPU-", 4) == 0 || strncmp(name, "MIG-", 4) == 0;
    const char *what = uuid ? "nvmlDeviceGetHandleByUUID" : "nvmlDeviceGetHandleByPciBusId_v2";
    int (*find)(const char *, nvml_device *) = uuid ? self->by_uuid : self->by_bus;
    nvml_device device;
    int code = find ? find(name, &device) : NVML_NO_FUNCTION;
    if (code == NVML_OK)
        add_gpu(found, name, device);
    else if (!tam_energy_find_sensor(found, name))
        add_failed(found, name, code, what);
}

static void add_list(tam_energy_found *found, const char *list) {
    char name[NVML_UUID_BYTES];
    while (list) {
        list = tam_energy_item(list, name, sizeof name);
        if (name[0])
            add_named(found, name);
    }
}

/* -- the source ------------------------------------------------------------------------------- */

static void find_nvml(const tamis_energy_config *config, tam_energy_found *found) {
    const char *path =
        config->nvml_path && config->nvml_path[0] ? config->nvml_path : "libnvidia-ml.so.1";
    nvml *self = found->self = tam_alloc(sizeof *self);
    found->lacking = !self;
    if (!self)
        return;
    self->library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!self->library) {
        const char *why = dlerror();
        tam_energy_break(nvml_add_nothing(found), TAMIS_ENERGY_ABSENT, "no library: %s",
                         why ? why : path);
        return;
    }
    const char *missing = load_functions(self);
    if (missing) {
        tam_energy_break(nvml_add_nothing(found), TAMIS_ENERGY_UNSUPPORTED,
                         "the library has no function %s: %s", missing, path);
        return;
    }
    int code = self->init();
    self->begun = code == NVML_OK;
    if (code != NVML_OK)
        add_failed(found, "", code, "nvmlInit_v2");
    else if (config->gpus && config->gpus[0])
        add_list(found, config->gpus);
    else
        add_all(found);
}

static void close_nvml(void *opaque) {
    nvml *self = opaque;
    if (self->begun)
        self->shutdown();
    if (self->library)
        dlclose(self->library);
}

static void read_nvml(void *own, tam_energy_reading *out) {
    const gpu *g = own;
    unsigned long long mj = 0;
    unsigned mw = 0;
    int code = g->power ? read_power(g, &mw) : read_energy(g, &mj);
    const char *what = g->power   ? "nvmlDeviceGetPowerUsage"
                       : g->field ? "nvmlDeviceGetFieldValues"
                                  : "nvmlDeviceGetTotalEnergyConsumption";
    if (code != NVML_OK) {
        out->status = nvml_explain(g->nvml, code, what, out->reason);
    } else if (__builtin_mul_overflow(g->power ? mw : (uint64_t)mj, 1000u, &out->value)) {
        out->status = TAMIS_ENERGY_GARBLED;
        tam_energy_say(out->reason, "%llu mJ is not a plausible count of a GPU", mj);
    }
}

const tam_energy_source tam_source_nvml = {
    .name = "nvml",
    .period_s = 0.025, /* a call takes a lock of the driver, which launches need too */
    .find = find_nvml,
    .read = read_nvml,
    .close = close_nvml,
};
