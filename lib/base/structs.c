/* SPDX-License-Identifier: MIT */
#include "lib/base/base.h"

#include <tamis/lists.h>

tamis_status tam_struct_copy(const char *name, void *ours, size_t our_size, size_t required,
                             const void *theirs) {
    size_t size;
    memcpy(&size, theirs, sizeof size);
    if (size < required || size > 65536)
        return tam_fail(
            TAMIS_E_ARGUMENT,
            "%s.size is %zu, must be at least %zu: initialise the struct with its _INIT macro",
            name, size, required);
    const unsigned char *bytes = theirs;
    for (size_t i = our_size; i < size; i++) {
        if (bytes[i] != 0)
            return tam_fail(TAMIS_E_UNSUPPORTED,
                            "%s sets a field at byte %zu that version %d.%d does not know", name, i,
                            TAMIS_VERSION_MAJOR, TAMIS_VERSION_MINOR);
    }
    memcpy(ours, theirs, size < our_size ? size : our_size);
    memcpy(ours, &our_size, sizeof our_size);
    return TAMIS_OK;
}

tamis_status tam_struct_return(const char *name, const void *ours, size_t our_size, void *theirs) {
    return tam_struct_return_part(name, ours, our_size, our_size, theirs);
}

tamis_status tam_struct_return_part(const char *name, const void *ours, size_t our_size,
                                    size_t required, void *theirs) {
    size_t size;
    memcpy(&size, theirs, sizeof size);
    if (size < required || size > 65536)
        return tam_fail(TAMIS_E_ARGUMENT,
                        "%s.size is %zu: initialise the struct with its _INIT macro", name, size);
    memset(theirs, 0, size);
    memcpy(theirs, ours, size < our_size ? size : our_size);
    memcpy(theirs, &size, sizeof size);
    return TAMIS_OK;
}

int tam_struct_list(const char *name, const void *ours, size_t our_size, void *theirs) {
    return tam_struct_return(name, ours, our_size, theirs) == TAMIS_OK;
}

int tamis_setting_list(size_t index, tamis_setting *out) {
    tamis_setting own;
    return out && tam_setting_at(index, &own) &&
           tam_struct_list("tamis_setting", &own, sizeof own, out);
}
