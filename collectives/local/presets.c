/* SPDX-License-Identifier: MIT
 *
 * Published forms of local steps.
 */
#include "collectives/local/local.h"

#include <stdio.h>

static const tamis_local_preset_info presets[] = {
    {sizeof presets[0], "diloco", 500, 0.7, 0.9, "dense", 1.0, TAMIS_VALUE_AUTO, -1.0,
     "arXiv 2311.08105"},
    {sizeof presets[0], "sparseloco", 30, 1.0, 0.0, "topk", 0.03, TAMIS_VALUE_FP2, 0.95,
     "arXiv 2508.15706"},
};

enum { PRESETS = sizeof presets / sizeof presets[0] };

int tamis_local_preset_list(size_t index, tamis_local_preset_info *out) {
    if (!out || index >= PRESETS)
        return 0;
    return tam_struct_list("tamis_local_preset_info", &presets[index], sizeof presets[index], out);
}

static tamis_status find_preset(const char *name, const tamis_local_preset_info **out) {
    char names[128] = "";
    for (size_t i = 0; i < PRESETS; i++) {
        if (strcmp(presets[i].name, name) == 0) {
            *out = &presets[i];
            return TAMIS_OK;
        }
        size_t at = strlen(names);
        snprintf(names + at, sizeof names - at, "%s%s", i > 0 ? ", " : "", presets[i].name);
    }
    return tam_fail(TAMIS_E_ARGUMENT, "tamis_local_preset: there is no preset '%s'; there are %s",
                    name, names);
}

tamis_status tamis_local_preset(const char *name, tamis_reducer_config *reducer,
                                tamis_local_config *local) {
    const tamis_local_preset_info *preset = NULL;
    tamis_reducer_config r = TAMIS_REDUCER_CONFIG_INIT;
    tamis_local_config l = TAMIS_LOCAL_CONFIG_INIT;
    if (!name || !reducer || !local)
        return tam_fail(TAMIS_E_ARGUMENT, "tamis_local_preset: %s is NULL",
                        !name      ? "name"
                        : !reducer ? "reducer"
                                   : "local");
    TAM_TRY(find_preset(name, &preset));
    TAM_TRY(tam_struct_copy("tamis_reducer_config", &r, sizeof r, sizeof r, reducer));
    TAM_TRY(tam_struct_copy("tamis_local_config", &l, sizeof l, sizeof l, local));
    l.steps = preset->steps;
    l.lr = preset->lr;
    l.momentum = preset->momentum;
    r.scheme = preset->scheme;
    r.density = preset->density;
    r.value_codec = preset->value_codec;
    r.residual_decay = preset->residual_decay;
    TAM_TRY(tam_struct_return("tamis_reducer_config", &r, sizeof r, reducer));
    return tam_struct_return("tamis_local_config", &l, sizeof l, local);
}
