#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# test: slow release
#
# same_options.sh TRAIN PERF MPIRUN PYTHON [DRIFT]: ranks that were given other options or other data are told so before
# the first step, by the name of what differs, and replicas that differ end a run: no status is 0.
set -euo pipefail

train=$1 perf=$2 mpirun=$3 python=$4 drift=${5:-}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

. "$(dirname "${BASH_SOURCE[0]}")/expect.sh"
. "$(dirname "${BASH_SOURCE[0]}")/train_runs.sh"

one=("$train" "${mlp[@]}" --quiet --steps 20)
two() { # options of rank 1
    bash "$mpirun" 1 60 "${one[@]}" : -np 1 "${one[@]}" "$@"
}
expect 0 "replicas identical" two
differs() { # option, of rank 0, of rank 1, options of rank 1...
    local text="--$1 is $2 on rank 0, but $3 on rank 1; give all ranks the same ones"
    shift 3
    expect 2 "$text" two "$@"
    ! grep -q "train loss" "$dir/out" || fail "it has trained: $*"
}
differs lr "not given" 0.2 --lr 0.2
differs seed 1 2 --seed 2
differs batch 4 5 --batch 5
differs steps 20 30 --steps 30
differs scheme "not given" topk --scheme topk
differs optimizer sgd momentum --optimizer momentum
differs save "not given" given --save "$dir/saved"
[ ! -e "$dir/saved.rank1.state" ] || fail "a file was written"
expect 2 "rank 1 runs a different program than rank 0" \
    bash "$mpirun" 1 60 "${one[@]}" : -np 1 "$perf" -e 4M --iters 1

# A copy of the data in another folder is the same; other data are not.
mkdir "$dir/other"
cp "$dir"/*-ubyte "$dir/other"
expect 0 "replicas identical" two --data "$dir/other"
"$python" - "$dir/other" <<'END_OF_DATA'
import struct, sys
for kind, size in (("images-idx3", 784), ("labels-idx1", 1)):
    path = f"{sys.argv[1]}/train-{kind}-ubyte"
    data = bytearray(open(path, "rb").read()[:-40 * size])
    struct.pack_into(">I", data, 4, 60)
    open(path, "wb").write(data)
END_OF_DATA
expect 1 "rank 1: the ranks were given different data: this rank has 60 training" \
    two --data "$dir/other"

# Replicas that differ: rank 1 goes on from the file of another run.
save() { # name, learning rate
    bash "$mpirun" 2 60 "${one[@]}" --steps 10 --lr "$2" --save "$dir/$1" >"$dir/out" 2>&1 ||
        fail "status $?: $(tail -n 2 "$dir/out")"
}
save slow 0.01
save fast 0.2
cp "$dir/fast.rank1.state" "$dir/slow.rank1.state"
expect 1 "the replicas differ after step 10: .*rank" bash "$mpirun" 2 60 "${one[@]}" --load "$dir/slow"
! grep -q "train loss" "$dir/out" || fail "it has trained"

# Replicas that come apart in the fifth step: found by --check-every, and at the end in any case.
if [ -n "$drift" ]; then
    drifting() { # options
        bash "$mpirun" 2 60 env LD_PRELOAD="$drift" "${one[@]}" --optimizer momentum "$@"
    }
    expect 1 "the replicas differ after step 10: .* 1 differ" drifting --check-every 10
    ! grep -q "train loss" "$dir/out" || fail "it went on"
    expect 1 "the replicas differ after step 20: .* 1 differ" drifting
    grep -q "replicas NOT identical" "$dir/out" || fail "no result: $(cat "$dir/out")"
    expect 1 "the replicas differ after step 20" drifting --json "$dir/record"
    grep -q '"steps":20,.*"replicas_identical":false' "$dir/record" || fail "another record"
fi

# Where nothing can be measured the reason is that, and nothing of times.
mkdir -p "$dir/host/sys" "$dir/host/proc"
TAMIS_SYSFS_ROOT=$dir/host TAMIS_NVML_PATH=$dir/none/libnvidia-ml.so.1 TAMIS_ENERGY=nvml \
    bash "$mpirun" 2 60 "${one[@]}" --json "$dir/record" || fail "status $?"
grep -q '"energy_j":null,"energy_reason":"nvml: no library: ' "$dir/record" ||
    fail "another reason: $(tail -n 1 "$dir/record" | field energy_reason)"
echo "same_options: ok"
