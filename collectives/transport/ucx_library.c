/* SPDX-License-Identifier: MIT */
#include "collectives/transport/ucx_library.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>

static const char file[] = "libucp.so.0";

static pthread_mutex_t load_lock = PTHREAD_MUTEX_INITIALIZER;
static tam_ucx_library loaded;
static bool is_loaded;

static _Thread_local unsigned inside;

void tam_ucx_enter(void) {
    inside++;
}

void tam_ucx_exit(void) {
    inside--;
}

/* A peer that is gone is an error to UCX, but the sentence about it is ours. */
static ucs_log_func_rc_t log_handler(const char *source, unsigned line, const char *function,
                                     ucs_log_level_t level, const ucs_log_component_config_t *who,
                                     const char *message, va_list arguments) {
    char text[400];
    (void)source, (void)line, (void)function, (void)who;
    if (!inside)
        return UCS_LOG_FUNC_RC_CONTINUE;
    vsnprintf(text, sizeof text, message, arguments);
    tam_log(level == UCS_LOG_LEVEL_FATAL ? TAM_ERROR : TAM_INFO, "UCX: %s", text);
    return UCS_LOG_FUNC_RC_STOP;
}

static const char *find_functions(void *library) {
#define LOAD(name)                                                                                 \
    {                                                                                              \
        void *function = dlsym(library, #name);                                                    \
        if (!function)                                                                             \
            return #name;                                                                          \
        memcpy(&loaded.name, &function, sizeof function);                                          \
    }
    TAM_UCX_FUNCTIONS(LOAD)
#undef LOAD
    return NULL;
}

/* Its constructor takes over the signals of crashes, which are the program's; not if somebody else
 * has loaded it, who may want that. */
static tamis_status load(void) {
    void *before = dlopen("libucs.so.0", RTLD_NOW | RTLD_NOLOAD);
    void *library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        const char *why = dlerror();
        return tam_fail(TAMIS_E_UNSUPPORTED,
                        "tamis_comm_create_ucx: UCX cannot be loaded (%s); install it (Debian: "
                        "libucx0; PyPI: libucx-cu13 or libucx-cu12)",
                        why ? why : file);
    }
    const char *missing = find_functions(library);
    if (missing)
        return tam_fail(TAMIS_E_UNSUPPORTED,
                        "tamis_comm_create_ucx: %s has no function %s; it needs UCX 1.13 or later",
                        file, missing);
    if (!before)
        loaded.ucs_debug_disable_signals();
    loaded.ucs_log_push_handler(log_handler);
    is_loaded = true;
    return TAMIS_OK;
}

tamis_status tam_ucx_load(const tam_ucx_library **out) {
    pthread_mutex_lock(&load_lock);
    tamis_status status = is_loaded ? TAMIS_OK : load();
    pthread_mutex_unlock(&load_lock);
    *out = &loaded;
    return status;
}
