#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# rate.sh CLUSTER_SH CLUSTER_LINK: MPI between two hosts gets what the cable is set to, and more
# without a limit. Exit 77: not permitted here.
set -u

cluster=$1 link=$2

once() { # Mbit/s, one way, median, of messages of 2 MiB
    "$cluster" run 2 50 "$link" 2097152 |
        sed -n 's/.*"ranks_per_host": 1,.*"one_way": {[^}]*"median": \([0-9.e+-]*\).*/\1/p' |
        awk '{ print int(1000 * $1) }'
}

reached() { # LEAST: the greatest of at most four, or the first that is enough: others slow it down
    local found most=0 i
    for i in 1 2 3 4; do
        found=$(once)
        [ "${found:-0}" -le "$most" ] || most=$found
        [ "$most" -lt "$1" ] || break
    done
    echo "$most"
}

if [ "${3:-}" = inside ]; then
    reached 70
    "$cluster" rate 100mbit
    reached 40
    "$cluster" rate none
    reached 300
    exit
fi

"$cluster" check || exit
mapfile -t mbit < <("$cluster" with 2 200mbit bash "${BASH_SOURCE[0]}" "$@" inside)
echo "at 200 Mbit/s: ${mbit[0]-}, at 100 Mbit/s: ${mbit[1]-}, without a limit: ${mbit[2]-}"
[ ${#mbit[@]} -eq 3 ] || exit 1

# Pauses fill the buckets, but one holds a hundredth of a message.
[ "${mbit[0]}" -le 210 ] && [ "${mbit[0]}" -ge 70 ] &&
    [ "${mbit[1]}" -le 105 ] && [ "${mbit[1]}" -ge 40 ] && [ "${mbit[2]}" -ge 300 ]
