/* SPDX-License-Identifier: MIT */
#include "tests/faults/attempt.h"

#include <math.h>
#include <string.h>

static const fault_config configs[] = {
    {"tamis", "tamis", TAMIS_VALUE_AUTO, 0, false},
    {"topk", "topk", TAMIS_VALUE_AUTO, 0, false},
    {"dense", "dense", TAMIS_VALUE_AUTO, 0, false},
    {"tamis-fp4", "tamis", TAMIS_VALUE_FP4, 0, false},
    {"tamis-fp2", "tamis", TAMIS_VALUE_FP2, 0, false},
    {"topk-int8", "topk", TAMIS_VALUE_INT8, 0, false},
    {"topk-bfloat16", "topk", TAMIS_VALUE_BFLOAT16, 0, false},
    {"quantized", "quantized", TAMIS_VALUE_FP4, 0, false},
    {"quantized-fp2", "quantized", TAMIS_VALUE_FP2, 0, false},
    {"oktopk", "oktopk", TAMIS_VALUE_AUTO, 0, false},
    {"micro", "micro", TAMIS_VALUE_AUTO, 0, false},
    {"pairs", "all+global+exact+pairs", TAMIS_VALUE_AUTO, 0, false},
    {"exdyna", "exdyna", TAMIS_VALUE_AUTO, 0, false},
    {"buckets", "tamis", TAMIS_VALUE_AUTO, 150, false},
    {"rows", "tamis", TAMIS_VALUE_AUTO, 0, true},
    {"rows-dense", "dense", TAMIS_VALUE_AUTO, 0, true},
};

const fault_config *fault_config_at(size_t index) {
    return index < sizeof configs / sizeof configs[0] ? &configs[index] : NULL;
}

const fault_config *fault_config_find(const char *name) {
    const fault_config *config;
    for (size_t i = 0; (config = fault_config_at(i)); i++) {
        if (strcmp(config->name, name) == 0)
            return config;
    }
    return NULL;
}

/* With whole numbers nothing may be missing. What is rounded on the wire leaves fractions in the
 * residual, whose sums are not exact: a part of 2^-24 of some 10^5, a few times. */
bool attempt_adds_up(const fault_config *config, double residuals, double params, double given) {
    bool whole = config->value_codec == TAMIS_VALUE_AUTO;
    return fabs(residuals + params - given) <= (whole ? 0.0 : 0.5);
}
