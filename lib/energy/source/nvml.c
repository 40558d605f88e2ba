/* SPDX-License-Identifier: MIT
 *
 * GPUs: the counter of joules since the driver was loaded (Volta and newer), else power.
 *
 * One board has one counter, whatever its partitions (MIG) are: a domain is the physical GPU and
 * bears its UUID. On modules of GPU and CPU the counter covers the whole module; that is seen by
 * power being answered for the scope "module". Devices are asked for by UUID or PCI bus id, never
 * by number: CUDA_VISIBLE_DEVICES reorders.
 */
#include "lib/energy/source/gpu_api.h"
#include "lib/energy/source/source.h"

#include <dlfcn.h>
#include <stdio.h>

#define POWER_PERIOD_S 0.05

typedef struct nvml {
    nvml_api api;
    void *library;
    bool begun; /* init has been called */
} nvml;

typedef struct gpu {
    const nvml *library;
    nvml_device device;
    bool module, fields; /* the counter of the module is read as a field */
    bool power;
} gpu;

/* -- what a GPU can tell ---------------------------------------------------------------------- */

/* Of the whole module. @return a code of the library */
static int read_field(const gpu *g, uint32_t id, nvml_field *out) {
    *out = (nvml_field){.id = id, .scope = NVML_SCOPE_MODULE};
    if (!g->library->api.fields)
        return NVML_NO_FUNCTION;
    int code = g->library->api.fields(g->device, 1, out);
    return code == NVML_OK ? out->status : code;
}

static bool is_module(const gpu *g) {
    nvml_field power;
    return read_field(g, NVML_FIELD_POWER, &power) == NVML_OK && power.type == NVML_TYPE_UINT &&
           power.value.u32 > 0;
}

static int read_module(const gpu *g, unsigned long long *mj) {
    nvml_field field;
    int code = read_field(g, NVML_FIELD_ENERGY, &field);
    bool number = field.type == NVML_TYPE_ULLONG || field.type == NVML_TYPE_ULONG;
    *mj = field.value.u64;
    return code == NVML_OK && !number ? NVML_NOT_SUPPORTED : code;
}

static int read_energy(const gpu *g, unsigned long long *mj) {
    if (g->fields)
        return read_module(g, mj);
    return g->library->api.energy ? g->library->api.energy(g->device, mj) : NVML_NO_FUNCTION;
}

static int read_power(const gpu *g, unsigned *mw) {
    return g->library->api.power ? g->library->api.power(g->device, mw) : NVML_NO_FUNCTION;
}

static bool lacks(int code) {
    return code == NVML_NOT_SUPPORTED || code == NVML_NO_FUNCTION;
}

static void break_down(const nvml *self, tam_energy_place *place, int code, const char *what) {
    char reason[TAMIS_ENERGY_TEXT];
    tamis_energy_status status = tam_gpu_api_explain(&self->api, code, what, reason);
    tam_energy_break(place, status, "%s", reason);
}

/* The counter, else power, else why not. What fails otherwise may answer later: reading tells. */
static void probe(gpu *g, tam_energy_place *place) {
    unsigned long long mj;
    unsigned mw;
    g->fields = g->module && read_module(g, &mj) == NVML_OK;
    int energy = read_energy(g, &mj), power = lacks(energy) ? read_power(g, &mw) : NVML_OK;
    if (lacks(energy) && lacks(power)) {
        tam_energy_break(place, TAMIS_ENERGY_UNSUPPORTED,
                         "neither energy (nvmlDeviceGetTotalEnergyConsumption: %s) nor power "
                         "(nvmlDeviceGetPowerUsage: %s) of this GPU can be read",
                         g->library->api.energy ? "not supported" : "missing",
                         g->library->api.power ? "not supported" : "missing");
    } else if (energy == NVML_NO_PERMISSION || energy == NVML_GPU_LOST) {
        break_down(g->library, place, energy, "nvmlDeviceGetTotalEnergyConsumption");
    } else if (power == NVML_NO_PERMISSION || power == NVML_GPU_LOST) {
        break_down(g->library, place, power, "nvmlDeviceGetPowerUsage");
    } else if (lacks(energy)) {
        g->power = place->power = true;
        place->period_s = POWER_PERIOD_S;
        tam_log(TAM_INFO, "energy: %s has no counter; its power is integrated", place->id);
    }
}

/* -- which GPUs ------------------------------------------------------------------------------- */

/* One that cannot be read. */
static void add_failed(tam_energy_found *found, const char *name, int code, const char *what) {
    break_down(found->self, tam_energy_add(found, name, TAMIS_ENERGY_GPU, sizeof(gpu)), code, what);
}

/* A partition's handle becomes that of its board. */
static int to_board(const nvml *self, nvml_device *device) {
    unsigned mig = 0;
    if (!self->api.is_mig || !self->api.parent || self->api.is_mig(*device, &mig) != NVML_OK ||
        !mig)
        return NVML_OK;
    return self->api.parent(*device, device);
}

/* @param  name  what it was asked for as */
static void add_gpu(tam_energy_found *found, const char *name, nvml_device device) {
    const nvml *self = found->self;
    char uuid[NVML_UUID_BYTES] = "";
    int code = to_board(self, &device);
    if (code != NVML_OK) {
        add_failed(found, name, code, "nvmlDeviceGetDeviceHandleFromMigDeviceHandle");
        return;
    }
    code = self->api.uuid(device, uuid, sizeof uuid);
    if (code != NVML_OK) {
        add_failed(found, name, code, "nvmlDeviceGetUUID");
        return;
    }
    uuid[sizeof uuid - 1] = '\0';
    if (tam_energy_find_place(found, uuid))
        return;
    gpu g = {.library = self, .device = device};
    g.module = is_module(&g);
    tam_energy_place *place =
        tam_energy_add(found, uuid, g.module ? TAMIS_ENERGY_MODULE : TAMIS_ENERGY_GPU, sizeof g);
    if (!place)
        return;
    probe(&g, place);
    *(gpu *)place->own = g;
}

static void add_all(tam_energy_found *found) {
    const nvml *self = found->self;
    unsigned count = 0;
    char name[24];
    int code = self->api.count(&count);
    if (code != NVML_OK) {
        add_failed(found, "", code, "nvmlDeviceGetCount_v2");
        return;
    }
    if (count == 0)
        tam_energy_break(tam_energy_add(found, "", TAMIS_ENERGY_GPU, sizeof(gpu)),
                         TAMIS_ENERGY_ABSENT,
                         "the driver is loaded and shows no GPU: is the container given one?");
    for (unsigned i = 0; i < count; i++) {
        nvml_device device;
        snprintf(name, sizeof name, "index-%u", i);
        code = self->api.by_index(i, &device);
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
    int (*find)(const char *, nvml_device *) = uuid ? self->api.by_uuid : self->api.by_bus;
    nvml_device device;
    int code = find ? find(name, &device) : NVML_NO_FUNCTION;
    if (code == NVML_OK)
        add_gpu(found, name, device);
    else if (!tam_energy_find_place(found, name))
        add_failed(found, name, code, what);
}

static void add_list(tam_energy_found *found, const char *list) {
    char name[NVML_UUID_BYTES];
    while (*list) {
        size_t length = strcspn(list, ",");
        snprintf(name, sizeof name, "%.*s", (int)length, list);
        if (length > 0)
            add_named(found, name);
        list += length + (list[length] == ',');
    }
}

/* -- the source ------------------------------------------------------------------------------- */

static void add_nothing(tam_energy_found *found, tamis_energy_status status, const char *what,
                        const char *text) {
    tam_energy_break(tam_energy_add(found, "", TAMIS_ENERGY_GPU, sizeof(gpu)), status, "%s%s", what,
                     text);
}

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
        add_nothing(found, TAMIS_ENERGY_ABSENT, "no library: ", why ? why : path);
        return;
    }
    const char *missing = tam_gpu_api_find(&self->api, self->library);
    if (missing) {
        add_nothing(found, TAMIS_ENERGY_UNSUPPORTED, "the library has no function ", missing);
        return;
    }
    int code = self->api.init();
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
        self->api.shutdown();
    if (self->library)
        dlclose(self->library);
}

static void read_nvml(void *own, tam_energy_reading *out) {
    const gpu *g = own;
    unsigned long long mj = 0;
    unsigned mw = 0;
    int code = g->power ? read_power(g, &mw) : read_energy(g, &mj);
    const char *what = g->power    ? "nvmlDeviceGetPowerUsage"
                       : g->fields ? "nvmlDeviceGetFieldValues"
                                   : "nvmlDeviceGetTotalEnergyConsumption";
    if (code != NVML_OK) {
        out->status = tam_gpu_api_explain(&g->library->api, code, what, out->reason);
    } else if (__builtin_mul_overflow(g->power ? mw : (uint64_t)mj, 1000u, &out->value)) {
        out->status = TAMIS_ENERGY_GARBLED;
        tam_energy_say(out->reason, "%llu mJ is no count of a GPU", mj);
    }
}

const tam_energy_source tam_source_nvml = {
    .name = "nvml",
    .period_s = 0.025, /* a call takes a lock of the driver, which launches need too */
    .find = find_nvml,
    .read = read_nvml,
    .close = close_nvml,
};
