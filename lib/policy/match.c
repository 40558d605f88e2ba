/* SPDX-License-Identifier: MIT */
#include "lib/policy/match.h"

static bool is_square(double x) {
    return x >= 0.0 && x <= DBL_MAX;
}

bool tam_match_valid(tam_match match) {
    return is_square(match.own) && is_square(match.applied) && is_square(match.last) &&
           match.weight >= 0.0 && match.weight <= 1.0;
}
