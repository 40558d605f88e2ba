/* SPDX-License-Identifier: MIT
 *
 * Kernels on the CPU: the CUDA row of the device contract, in the emulation and on the fake runtime,
 * passes the tests of the contract and gives the bits of the CPU's row.
 */
#include "kernels/cuda/cuda.h"
#include "tests/support/device_body.h"

enum { LONGEST = 5000 }; /* the emulation is some hundred times slower than the CPU */

int main(void) {
    return device_body(&tam_device_cuda, LONGEST);
}
