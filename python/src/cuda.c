/* SPDX-License-Identifier: MIT
 *
 * The device CUDA in _core: loads _cuda.so, which lies beside it, when CUDA is first asked for, and
 * passes calls on. So _core needs no CUDA.
 */
#include "device_calls.h"
#include "lib/base/base.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static pthread_once_t once = PTHREAD_ONCE_INIT;
static const tam_python_cuda *cuda; /* NULL: not loaded */
static char missing[512];           /* then why */

static bool find_file(char *path, size_t size) {
    Dl_info self;
    const char *name = "_cuda.so", *slash;
    if (!dladdr(&once, &self) || !(slash = strrchr(self.dli_fname, '/')))
        return false;
    int folder = (int)(slash - self.dli_fname);
    int length = snprintf(path, size, "%.*s/%s", folder, self.dli_fname, name);
    return length > 0 && (size_t)length < size && access(path, R_OK) == 0;
}

static void cuda_load(void) {
    char path[4096];
    if (!find_file(path, sizeof path)) {
        snprintf(missing, sizeof missing, "_cuda.so is not beside _core: install tamis again");
        return;
    }
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    const tam_python_cuda *table = handle ? dlsym(handle, TAM_PYTHON_CUDA_SYMBOL) : NULL;
    if (!table) {
        const char *words = dlerror();
        snprintf(missing, sizeof missing, "_cuda.so could not be loaded: %.400s",
                 words ? words : path);
    } else if (table->size != sizeof *table || table->version != tamis_version()) {
        snprintf(
            missing, sizeof missing,
            "%.400s was built from a different version of tamis than _core: install tamis again",
            path);
    } else {
        cuda = table;
    }
}

static bool loaded(void) {
    pthread_once(&once, cuda_load);
    return cuda != NULL;
}

const char *tam_cuda_reason(void) {
    return loaded() ? cuda->reason() : missing;
}

const char *tam_cuda_version(void) {
    return loaded() ? cuda->tam_cuda_version() : missing;
}

const char *tam_cuda_find(const tam_device **out) {
    const char *reason = tam_cuda_reason();
    *out = reason ? NULL : cuda->row;
    return reason;
}

/* The others are called with what a loaded module made. */
void tam_cuda_step_close(tam_cuda_step *step) {
    if (cuda)
        cuda->tam_cuda_step_close(step);
}

#define PASS_ON(result, name, parameters, arguments)                                               \
    result name parameters {                                                                       \
        return cuda->name arguments;                                                               \
    }
TAM_CUDA_CALLS(PASS_ON)
