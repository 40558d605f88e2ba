#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# test: release
#
# outputs.sh TRAIN PYTHON PROGRAM...: a file that cannot be written is an error with a sentence, before
# the first step where that can be known, and no status 0 ever. A full disk is /dev/full.
set -euo pipefail

train=$1 python=$2
shift 2
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

. "$(dirname "${BASH_SOURCE[0]}")/expect.sh"
. "$(dirname "${BASH_SOURCE[0]}")/train_runs.sh"

if [ ! -c /dev/full ]; then
    echo "skipped: no /dev/full"
    exit 77
fi

small=("$train" "${mlp[@]}" --transport local --ranks 2 --quiet --steps 20)

# A script in an allocation is one process, whatever the allocation has.
expect 0 "replicas identical" env SLURM_NTASKS=4 SLURM_PROCID=0 "${small[@]}"

# Found when it is written.
expect 1 "^/dev/full cannot be written: No space left on device; records are missing" \
    "${small[@]}" --json /dev/full
expect 1 "^rank 0: the trace could not be written: No space left on device" \
    "${small[@]}" --trace /dev/full
expect 1 "^rank 0: a decision could not be written: No space left on device" \
    "${small[@]}" --steps 100 --budget 50 --decisions /dev/full
full() { # command...: with nowhere to print
    "$@" 2>&1 >/dev/full
}
expect 1 "^stdout cannot be written: No space left on device" full "${small[@]}"
expect 1 "^stdout cannot be written: No space left on device" full "${small[@]}" --json -
for program in "$@"; do
    case $(basename "$program") in
    tamis_info) run=("$program") ;;
    tamis_perf) run=("$program" --elements 1000 -n 1 -w 0 --json /dev/full) ;;
    tamis_auto_bench) run=("$program" -n 100 -d 0.1 -r 5 --seconds 0.01 --json /dev/full) ;;
    tamis_wait_bench) run=("$program" --ranks 2 --late-ms 0 -n 1 -w 0 --json /dev/full) ;;
    tamis_replay) run=("$program" --simulate --hours 0.1 --json /dev/full) ;;
    tamis_scale) run=("$program" --ranks 4 --json /dev/full) ;;
    tamis_schemes) run=("$program" --elements 1000 --ranks 2 --steps 2 --schemes topk --json /dev/full) ;;
    esac
    expect 1 "cannot be written: No space left on device" full "${run[@]}"
done

# Found before the first step, of 10^12.
for way in "2 --json" "2 --trace" "2 --budget 50 --decisions" "1 --energy-log" "1 --save" "1 --record"; do
    read -r status option <<<"$way"
    expect "$status" "$dir/none/.*: No such file or directory" \
        timeout 20 "${small[@]}" --steps 1000000000000 --record-every 1000000000000 \
        $option "$dir/none/file"
done
expect 1 "energy log '/dev/full' could not be written: No space left on device" \
    "${small[@]}" --energy-log /dev/full
expect 1 "^rank [01]: /dev/full cannot be written: Invalid argument" "${small[@]}" --record /dev/full
expect 1 "No such file or directory" "${small[@]}" --intensity "$dir/none/file"
expect 1 "cannot read $dir/none/file.rank[01].state: No such file" "${small[@]}" --load "$dir/none/file"

# A disk that fills up later: files end after some KiB. What is there of a state is not taken for one.
limited() { # KiB, command...
    (
        ulimit -f "$1"
        trap '' XFSZ
        exec "${@:2}"
    )
}
expect 1 "cannot write $dir/state.rank[01].state: File too large" \
    limited 8 "${small[@]}" --save "$dir/state"
[ ! -e "$dir/state.rank0.state" ] || fail "a part of a state goes by its name"
expect 1 "a gradient could not be written: File too large\|cannot be written: File too large" \
    limited 8 "${small[@]}" --record "$dir/recording"
expect 1 "^$dir/records cannot be written: File too large; records are missing" \
    limited 8 "${small[@]}" --steps 100 --eval-every 1 --json "$dir/records"
expect 1 "energy log $dir/energy.* lacks lines" limited 2 "${small[@]}" --energy-log "$dir/energy"
echo "outputs: ok"
