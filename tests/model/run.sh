#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# Models of what threads share, with all their states, by Spin: the barrier of local communicators
# (hub.pml), and a job between its caller and the thread of a communicator (job.pml). Then each with a
# line of the code left out, which Spin must find. The last line is "N passed, N failed".
#
#     bash tests/model/run.sh
set -u

top=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cd "$top" || exit 1
. tests/support/packages.sh
. tests/support/counts.sh
need_packages spin gcc libc6-dev || exit 1
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT

# Prints what Spin found.
explore() { # model, definition...
    local model=$top/tests/model/$1
    shift
    (cd "$dir" && spin -a "${@/#/-D}" "$model" && gcc -O2 -DSAFETY -DCOLLAPSE -o pan pan.c &&
        ./pan -m1000000) 2>&1
}

count() { # 0: as it should be, what
    if [ "$1" -eq 0 ]; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
    echo "$([ "$1" -eq 0 ] && echo PASS || echo FAIL)  $2"
}

holds() { # model, definition...
    local out states
    out=$(explore "$@")
    states=$(sed -n 's/^ *\([0-9]*\) states, stored.*/\1/p' <<<"$out")
    grep -q 'errors: 0$' <<<"$out" && ! grep -q 'max search depth too small\|out of memory' <<<"$out"
    count $? "$*: all of ${states:-no} states"
}

finds() { # model, definition...
    grep -Eq 'assertion violated|invalid end state \(' <<<"$(explore "$@")"
    count $? "$*: found"
}

holds hub.pml RANKS=2 CALLS=3
holds hub.pml RANKS=3 CALLS=2
holds job.pml JOBS=4
finds hub.pml FAULT=1
finds hub.pml FAULT=2
for fault in 1 2 3; do
    finds job.pml FAULT=$fault
done
finish
