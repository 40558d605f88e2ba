/* SPDX-License-Identifier: MIT
 *
 * Kernels on the CPU: the CUDA row of the device contract, in the emulation and on the fake
 * runtime, passes the tests of the contract and gives the bits of the CPU's row.
 */
#include "kernels/cuda/cuda.h"
#include "tests/support/device_body.h"
#include "tests/support/ranks.h"

/* The emulation is some hundred times slower than the CPU, and slower still under a sanitizer. */
enum { LONGEST = 5000, LONGEST_SANITIZED = 1500 };

int main(void) {
    return device_body(&tam_device_cuda, test_stride(2) > 1 ? LONGEST_SANITIZED : LONGEST);
}
