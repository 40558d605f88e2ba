/* SPDX-License-Identifier: MIT */
#include "lib/policy/norm_matching.h"

static bool is_square(double x) {
    return x >= 0.0 && x <= DBL_MAX;
}

bool tam_norm_matching_valid(tam_norm_matching norm_matching) {
    return is_square(norm_matching.own) && is_square(norm_matching.applied) &&
           is_square(norm_matching.last) && norm_matching.weight >= 0.0 &&
           norm_matching.weight <= 1.0;
}
