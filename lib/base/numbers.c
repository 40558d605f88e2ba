/* SPDX-License-Identifier: MIT
 *
 * log2 and exp2 that give the same bits everywhere. Thresholds computed from them are equal on
 * all ranks even if the processors, and so the variants that libm picks, differ.
 */
#include "lib/base/base.h"

static const double LN2 = 0.69314718055994530942;

static double power_of_two(int exponent) {
    uint64_t bits = (uint64_t)(exponent + 1023) << 52;
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

double tam_log2(double x) {
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    int exponent = (int)(bits >> 52) - 1023;
    if (exponent == -1023) /* subnormal */
        return tam_log2(x * 18014398509481984.0) - 54.0;
    double m = x / power_of_two(exponent); /* [1, 2) */
    /* ln m = 2 atanh(z), z = (m - 1) / (m + 1) <= 1/3 */
    double z = (m - 1.0) / (m + 1.0), z2 = z * z, power = z, sum = 0.0;
    for (int i = 1; i < 20; i += 2) {
        sum += power / i;
        power *= z2;
    }
    return exponent + 2.0 * sum / LN2;
}

double tam_exp2(double x) {
    int whole = (int)x - ((int)x > x);                   /* floor */
    double y = (x - whole) * LN2, term = 1.0, sum = 1.0; /* y in [0, ln 2] */
    for (int i = 1; i < 14; i++) {
        term *= y / i;
        sum += term;
    }
    return sum * power_of_two(whole);
}
