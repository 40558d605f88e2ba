/* SPDX-License-Identifier: MIT
 *
 * Update mode: the moments of a state in memory.
 */
#include "collectives/state/state.h"
#include "lib/base/fenv.h"

#include <math.h>
#include <tamis/state.h>

static tamis_status check_moments(const tamis_reducer *r, const void *first, const void *second,
                                  const char *call) {
    if (!r)
        return tam_fail(TAMIS_E_ARGUMENT, "%s: reducer is NULL", call);
    if (!r->config.update)
        return tam_fail(TAMIS_E_UNSUPPORTED,
                        "%s: the residual accumulates gradients, so there are no moments", call);
    if (!first == !r->first && !second == !r->second)
        return TAMIS_OK;
    bool about_first = !first != !r->first;
    return tam_fail(TAMIS_E_ARGUMENT, "%s: %s is %s NULL: the rule %s", call,
                    about_first ? "first" : "second", (about_first ? first : second) ? "not" : "",
                    (about_first ? r->first : r->second) ? "has this moment"
                                                         : "does not have this moment");
}

tamis_status tamis_reducer_save_moments(tamis_reducer *r, float *first, float *second,
                                        uint64_t *passes) {
    static const char call[] = "tamis_reducer_save_moments";
    TAM_TRY(check_moments(r, first, second, call));
    if (!passes)
        return tam_fail(TAMIS_E_ARGUMENT, "%s: passes is NULL", call);
    TAM_TRY(tam_state_quiesce(r, call));
    if (first)
        TAM_TRY(tam_state_copy(r, r->first, first));
    if (second)
        TAM_TRY(tam_state_copy(r, r->second, second));
    *passes = r->passes;
    return TAMIS_OK;
}

static tamis_status state_moments_check_values(const tamis_reducer *r, const float *values,
                                               bool positive, const char *which) {
    for (uint64_t i = 0; values && i < r->layout->length; i++) {
        if (!isfinite(values[i]) || (positive && values[i] < 0.0f))
            return tam_fail(TAMIS_E_ARGUMENT,
                            "tamis_reducer_load_moments: element %llu of %s is %g",
                            (unsigned long long)i, which, (double)values[i]);
    }
    return TAMIS_OK;
}

tamis_status tamis_reducer_load_moments(tamis_reducer *r, const float *first, const float *second,
                                        uint64_t passes) {
    TAM_FENV_HELD();
    static const char call[] = "tamis_reducer_load_moments";
    TAM_TRY(check_moments(r, first, second, call));
    TAM_TRY(tam_state_quiesce_to_load(r, call));
    if (passes == UINT64_MAX)
        return tam_fail(TAMIS_E_ARGUMENT, "%s: passes is %llu, after which no more can be counted",
                        call, (unsigned long long)passes);
    TAM_TRY(state_moments_check_values(r, first, false, "first"));
    TAM_TRY(state_moments_check_values(r, second, true, "second"));
    TAM_TRY(tam_state_take_moments(r, first, second));
    r->passes = passes;
    return TAMIS_OK;
}
