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
#include <time.h>

/* A call takes a lock of the driver, which launches need too. */
#define PERIOD_S 0.025
#define POWER_PERIOD_S 0.05

enum { GPUS_MOST = 256 };

typedef struct gpu {
    tam_energy_place place;
    nvml_device device;
    uint32_t scope;
    bool fields; /* the counter is read as a field: it has a time stamp or another scope */
    uint64_t last_mj;
    int64_t last_us;
    bool believed; /* value and time stamp stood still together */
    bool callers;  /* its time stamp is that of the call */
} gpu;

typedef struct nvml {
    tam_energy_clock clock;
    nvml_api api;
    void *library;
    bool begun; /* init has been called */
    uint32_t count;
    gpu *gpus;
} nvml;

/* -- what a GPU can tell ---------------------------------------------------------------------- */

/* @return a code of the library */
static int read_field(const nvml *self, const gpu *g, uint32_t id, uint32_t scope,
                      nvml_field *out) {
    *out = (nvml_field){.id = id, .scope = scope};
    if (!self->api.fields)
        return NVML_NO_FUNCTION;
    int code = self->api.fields(g->device, 1, out);
    return code == NVML_OK ? out->status : code;
}

static int read_energy_field(const nvml *self, const gpu *g, nvml_field *out) {
    int code = read_field(self, g, NVML_FIELD_ENERGY, g->scope, out);
    bool number = out->type == NVML_TYPE_ULLONG || out->type == NVML_TYPE_ULONG;
    return code == NVML_OK && !number ? NVML_NOT_SUPPORTED : code;
}

static bool is_module(const nvml *self, const gpu *g) {
    nvml_field power;
    return read_field(self, g, NVML_FIELD_POWER, NVML_SCOPE_MODULE, &power) == NVML_OK &&
           power.type == NVML_TYPE_UINT && power.value.u32 > 0;
}

static int probe_energy(const nvml *self, const gpu *g) {
    unsigned long long mj;
    return self->api.energy ? self->api.energy(g->device, &mj) : NVML_NO_FUNCTION;
}

static int probe_power(const nvml *self, const gpu *g) {
    unsigned mw;
    return self->api.power ? self->api.power(g->device, &mw) : NVML_NO_FUNCTION;
}

static bool lacks(int code) {
    return code == NVML_NOT_SUPPORTED || code == NVML_NO_FUNCTION;
}

/* The counter, else power, else why not. What fails otherwise may answer later: reading tells. */
static void probe(const nvml *self, gpu *g) {
    nvml_field field;
    int energy = probe_energy(self, g), power = NVML_OK;
    if (energy == NVML_OK) {
        g->fields = read_energy_field(self, g, &field) == NVML_OK;
        return;
    }
    if (lacks(energy))
        power = probe_power(self, g);
    if (lacks(energy) && lacks(power)) {
        g->place.status = TAMIS_ENERGY_UNSUPPORTED;
        tam_energy_say(g->place.reason,
                       "neither energy (nvmlDeviceGetTotalEnergyConsumption: %s) nor power "
                       "(nvmlDeviceGetPowerUsage: %s) of this GPU can be read",
                       self->api.energy ? "not supported" : "missing",
                       self->api.power ? "not supported" : "missing");
    } else if (energy == NVML_NO_PERMISSION || energy == NVML_GPU_LOST) {
        g->place.status = tam_gpu_api_explain(
            &self->api, energy, "nvmlDeviceGetTotalEnergyConsumption", g->place.reason);
    } else if (power == NVML_NO_PERMISSION || power == NVML_GPU_LOST) {
        g->place.status =
            tam_gpu_api_explain(&self->api, power, "nvmlDeviceGetPowerUsage", g->place.reason);
    } else if (lacks(energy)) {
        g->place.power = true;
        g->place.period_s = POWER_PERIOD_S;
        tam_log(TAM_INFO, "energy: %s has no counter; its power is integrated", g->place.id);
    }
}

/* -- which GPUs ------------------------------------------------------------------------------- */

/* A domain that cannot be read. */
static void add_broken(nvml *self, const char *name, tamis_energy_status status,
                       const char *reason) {
    if (self->count == GPUS_MOST)
        return;
    gpu *g = &self->gpus[self->count++];
    *g = (gpu){0};
    tam_energy_place_init(&g->place, "nvml", name, TAMIS_ENERGY_GPU, PERIOD_S);
    g->place.status = status;
    tam_energy_say(g->place.reason, "%s", reason);
}

static void add_failed(nvml *self, const char *name, int code, const char *what) {
    char reason[TAMIS_ENERGY_TEXT];
    tamis_energy_status status = tam_gpu_api_explain(&self->api, code, what, reason);
    add_broken(self, name, status, reason);
}

static bool is_listed(const nvml *self, const char *uuid) {
    for (uint32_t i = 0; i < self->count; i++) {
        if (strcmp(self->gpus[i].place.id + strlen("nvml:"), uuid) == 0)
            return true;
    }
    return false;
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
static void add_gpu(nvml *self, const char *name, nvml_device device) {
    char uuid[NVML_UUID_BYTES] = "";
    int code = to_board(self, &device);
    if (code != NVML_OK) {
        add_failed(self, name, code, "nvmlDeviceGetDeviceHandleFromMigDeviceHandle");
        return;
    }
    code = self->api.uuid(device, uuid, sizeof uuid);
    if (code != NVML_OK) {
        add_failed(self, name, code, "nvmlDeviceGetUUID");
        return;
    }
    uuid[sizeof uuid - 1] = '\0';
    if (is_listed(self, uuid) || self->count == GPUS_MOST)
        return;
    gpu *g = &self->gpus[self->count++];
    *g = (gpu){.device = device};
    g->scope = is_module(self, g) ? NVML_SCOPE_MODULE : NVML_SCOPE_GPU;
    tam_energy_place_init(&g->place, "nvml", uuid,
                          g->scope == NVML_SCOPE_MODULE ? TAMIS_ENERGY_MODULE : TAMIS_ENERGY_GPU,
                          PERIOD_S);
    probe(self, g);
}

static void add_all(nvml *self) {
    unsigned count = 0;
    char name[24];
    int code = self->api.count(&count);
    if (code != NVML_OK) {
        add_failed(self, "", code, "nvmlDeviceGetCount_v2");
        return;
    }
    if (count == 0)
        add_broken(self, "", TAMIS_ENERGY_ABSENT,
                   "the driver is loaded and shows no GPU: is the container given one?");
    for (unsigned i = 0; i < count; i++) {
        nvml_device device;
        snprintf(name, sizeof name, "index-%u", i);
        code = self->api.by_index(i, &device);
        if (code == NVML_OK)
            add_gpu(self, name, device);
        else
            add_failed(self, name, code, "nvmlDeviceGetHandleByIndex_v2");
    }
}

/* "GPU-..." and "MIG-..." are UUIDs, others PCI bus ids. */
static void add_named(nvml *self, const char *name) {
    bool uuid = strncmp(name, "GPU-", 4) == 0 || strncmp(name, "MIG-", 4) == 0;
    const char *what = uuid ? "nvmlDeviceGetHandleByUUID" : "nvmlDeviceGetHandleByPciBusId_v2";
    int (*find)(const char *, nvml_device *) = uuid ? self->api.by_uuid : self->api.by_bus;
    nvml_device device;
    int code = find ? find(name, &device) : NVML_NO_FUNCTION;
    if (code == NVML_OK)
        add_gpu(self, name, device);
    else if (!is_listed(self, name))
        add_failed(self, name, code, what);
}

static void add_list(nvml *self, const char *list) {
    char name[NVML_UUID_BYTES];
    while (*list) {
        size_t length = strcspn(list, ",");
        snprintf(name, sizeof name, "%.*s", (int)length, list);
        if (length > 0)
            add_named(self, name);
        list += length + (list[length] == ',');
    }
}

/* -- the source ------------------------------------------------------------------------------- */

static void find_gpus(nvml *self, const tam_energy_setup *setup, const char *path) {
    char reason[TAMIS_ENERGY_TEXT];
    self->library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!self->library) {
        const char *why = dlerror();
        tam_energy_say(reason, "no library: %s", why ? why : path);
        add_broken(self, "", TAMIS_ENERGY_ABSENT, reason);
        return;
    }
    const char *missing = tam_gpu_api_find(&self->api, self->library);
    if (missing) {
        tam_energy_say(reason, "the library has no function %s: %s", missing, path);
        add_broken(self, "", TAMIS_ENERGY_UNSUPPORTED, reason);
        return;
    }
    int code = self->api.init();
    self->begun = code == NVML_OK;
    if (code != NVML_OK)
        add_failed(self, "", code, "nvmlInit_v2");
    else if (setup->gpus && setup->gpus[0])
        add_list(self, setup->gpus);
    else
        add_all(self);
}

static void close_nvml(void *opaque) {
    nvml *self = opaque;
    if (self->begun)
        self->api.shutdown();
    if (self->library)
        dlclose(self->library);
    tam_free(self->gpus);
    tam_free(self);
}

static tamis_status open_nvml(const tam_energy_setup *setup, void **out) {
    const char *path = setup->nvml_path;
    nvml *self = tam_alloc(sizeof *self);
    gpu *gpus = tam_alloc_array(GPUS_MOST, sizeof *gpus);
    if (!self || !gpus) {
        tam_free(gpus);
        tam_free(self);
        return tam_fail(TAMIS_E_NOMEM, "no memory for the energy source nvml");
    }
    if (!path || !path[0])
        path = tam_setting_text(TAM_SETTING_NVML_PATH);
    self->gpus = gpus;
    self->clock = tam_energy_clock_of(setup);
    find_gpus(self, setup, path[0] ? path : "libnvidia-ml.so.1");
    *out = self;
    return TAMIS_OK;
}

static uint32_t count_nvml(const void *self) {
    return ((const nvml *)self)->count;
}

static void place_nvml(const void *self, uint32_t index, tam_energy_place *out) {
    *out = ((const nvml *)self)->gpus[index].place;
}

/* -- reading ---------------------------------------------------------------------------------- */

/* How long ago the field got its value; the real time clock may have been set since. */
static bool age_of(const nvml_field *field, uint64_t *age_ns) {
    struct timespec real;
    clock_gettime(CLOCK_REALTIME, &real);
    int64_t age_us = (int64_t)real.tv_sec * 1000000 + real.tv_nsec / 1000 - field->stamp_us;
    *age_ns = (uint64_t)age_us * 1000u;
    return age_us >= 0 && age_us < 1000000;
}

/* Some drivers stamp a value with the time of the call: that says nothing of the counter. A stamp
 * is believed when it has stood still with the value for a while. */
static void date_field(gpu *g, const nvml_field *field, uint64_t end_ns, tam_energy_reading *out) {
    enum { WHILE_NS = 5000000 };
    uint64_t age_ns;
    bool usable = age_of(field, &age_ns) && age_ns < end_ns;
    if (field->value.u64 == g->last_mj && g->last_us != 0) {
        g->callers = field->stamp_us != g->last_us;
        g->believed = g->believed || (usable && age_ns > WHILE_NS);
    }
    g->last_mj = field->value.u64;
    g->last_us = field->stamp_us;
    if (g->callers || !g->believed || !usable)
        return;
    out->stamped = true;
    out->at_ns = end_ns - age_ns;
}

static int read_counter(nvml *self, gpu *g, nvml_field *field, tam_energy_reading *out) {
    unsigned long long mj = 0;
    int code;
    if (g->fields) {
        code = read_energy_field(self, g, field);
        mj = field->value.u64;
    } else {
        code = self->api.energy(g->device, &mj);
    }
    if (code == NVML_OK && __builtin_mul_overflow((uint64_t)mj, 1000u, &out->value)) {
        out->status = TAMIS_ENERGY_GARBLED;
        tam_energy_say(out->reason, "%llu mJ is no count of a GPU", mj);
    }
    return code;
}

static int read_power(const nvml *self, const gpu *g, tam_energy_reading *out) {
    unsigned mw = 0;
    int code = self->api.power(g->device, &mw);
    out->value = (uint64_t)mw * 1000u;
    return code;
}

static void read_nvml(void *opaque, uint32_t index, tam_energy_reading *out) {
    nvml *self = opaque;
    gpu *g = &self->gpus[index];
    nvml_field field = {0};
    *out = (tam_energy_reading){0};
    uint64_t begin_ns = tam_energy_now(&self->clock);
    int code = g->place.power ? read_power(self, g, out) : read_counter(self, g, &field, out);
    uint64_t end_ns = tam_energy_now(&self->clock);
    tam_energy_reading_time(out, begin_ns, end_ns);
    if (code != NVML_OK)
        out->status = tam_gpu_api_explain(&self->api, code,
                                          g->place.power ? "nvmlDeviceGetPowerUsage"
                                          : g->fields    ? "nvmlDeviceGetFieldValues"
                                                         : "nvmlDeviceGetTotalEnergyConsumption",
                                          out->reason);
    else if (g->fields && !g->callers)
        date_field(g, &field, end_ns, out);
}

const tam_energy_source tam_source_nvml = {
    .name = "nvml",
    .open = open_nvml,
    .count = count_nvml,
    .place = place_nvml,
    .read = read_nvml,
    .close = close_nvml,
};
