/* SPDX-License-Identifier: MIT */
#include "harness.h"

int main(int argc, char **argv) {
#include "step.body"
    end_well("step", comm, layout, red);
    return 0;
}
