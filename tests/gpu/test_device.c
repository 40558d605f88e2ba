/* SPDX-License-Identifier: MIT
 *
 * On a GPU: the CUDA row of the device contract passes the tests of the contract and gives the bits
 * of the CPU's row. Skipped where there is no GPU.
 */
#include "kernels/cuda/cuda.h"
#include "tests/support/device_body.h"

#include <stdio.h>

enum { LONGEST = 400000, SKIPPED = 77 };

int main(void) {
    const char *reason = tam_cuda_reason();
    if (reason) {
        printf("skipped: %s\n", reason);
        return SKIPPED;
    }
    return device_body(&tam_device_cuda, LONGEST);
}
