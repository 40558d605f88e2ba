#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# The long tests, after those of tests/run.sh --all: for a release. Every part ends with a line of
# counts; the last line is their sum, "N passed, N failed[, N skipped]".
#
#     bash tests/full.sh [PART...]
#
#     fresh        both commands of the README on a machine that has nothing (tests/fresh.sh)
#     slow         all tests that are marked `slow`, in release and dev; among them faults.sweep,
#                  faults in the MPI calls of ranks, and what nvcc made of the kernels
#     mpis         what goes over MPI, with other MPIs than Debian's (tests/mpis.sh)
#     newest       tamis.torch with the newest torch of the package index (tests/newest.sh)
#     packages     packages built and used where nothing else is (tests/packages.sh)
#     arm64        tests for 64-bit Arm under qemu; the same bits from all kernels (tests/arm64.sh)
#     properties   random cases of everything, for 60 s (tests/fuzz/properties.sh)
#     model        models of what threads share, with all their states (tests/model/run.sh)
set -u

cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
exec </dev/null
. tests/support/counts.sh

parts=(fresh slow mpis newest packages arm64 properties model)
for name in "${@:-${parts[@]}}"; do
    case $name in
        fresh) part fresh bash tests/fresh.sh ;;
        slow) part slow env TEST_WHOLE=1 bash tests/run.sh --all --slow ;;
        mpis) part mpis bash tests/mpis.sh ;;
        newest) part newest bash tests/newest.sh ;;
        packages) part packages bash tests/packages.sh ;;
        arm64) part arm64 bash tests/arm64.sh ;;
        properties) part properties bash tests/fuzz/properties.sh 60 ;;
        model) part model bash tests/model/run.sh ;;
        *) echo "usage: bash tests/full.sh [${parts[*]}]" >&2; exit 2 ;;
    esac
done
finish
