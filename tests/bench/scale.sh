#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# test: long release
#
# scale.sh SCALE PYTHON [MPIRUN]: what tamis_scale says of 4 to 4096 ranks: messages and times on
# InfiniBand, dense beside them as another program has it, the formula against the simulated network;
# loss and jitter cost time, repeatably; what is no network is refused; over MPI as many bytes are sent as it
# predicts.
set -euo pipefail

scale=$1 python=$2 mpirun=${3:-}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
. "$(dirname "${BASH_SOURCE[0]}")/expect.sh"

records() { # name, options...
    "$scale" "${@:2}" --json "$dir/$1" >"$dir/table" || fail "$*"
}
check() { # Python over `r`, the records by ranks, of file $1
    "$python" - "$dir/$1" <<END || fail "$1: $(cat "$dir/$1")"
import json, sys
r = {}
for line in open(sys.argv[1]):
    record = json.loads(line)
    assert record["record"] in ("scale", "scale_passes")
    r[record["ranks"]] = record
$2
END
}

all=4,8,16,32,64,128,256,512,1024,2048,4096
records ib --net ib -n 25000000 -d 0.01 --ranks $all
# Dense: of a model in Python that was made for the design. 8x16x8 has 87 messages; 8x8x8x2, with 66, takes
# 0.2 % longer.
check ib '
assert r[1024]["simulated_us"] <= 250 and r[4096]["simulated_us"] <= 260
assert r[1024]["messages"] <= 87 and r[4096]["messages"] <= 84, (r[1024], r[4096])
assert r[4096]["plan"] == "8x8x8x8" and r[4096]["rounds"] == 11 and r[4096]["peers"] == 28
for p, us in ((4, 758.4), (64, 938.6), (256, 1045.7), (1024, 1114.0), (4096, 1182.3)):
    assert abs(r[p]["dense_us"] / us - 1) < 0.01, (p, r[p]["dense_us"])
assert r[1024]["usual_us"] <= 250 and r[4096]["usual_us"] <= 260
assert r[4096]["linear_us"] > 3000 > r[4096]["dense_us"] # what stages are for
assert r[4096]["memory_grows"] <= 8e6 and r[64]["memory_fixed"] < 16e6
# Every rank gets the packets of all others, and sends and gets its share of values twice; more only headers.
assert 0.8 * 3e6 < r[64]["rank_bytes"] < 1.05 * 3e6 and r[4]["node_bytes"] == 0
for p in r:
    assert 0.03 < r[p]["break_even"] < 0.2 and r[p]["speedup"] > 4, r[p]
'
for density in 0.01 0.001; do
    for net in ib tcp; do
        records "$net$density" --net $net -n 25000000 -d $density --ranks $all
        check "$net$density" '
for p in r:
    assert abs(r[p]["formula_us"] / r[p]["simulated_us"] - 1) < 0.1, r[p]
'
    done
done

# Values of few bits: the formula beside the simulated network; fewer bytes than floats; partial sums count.
for values in bfloat16 fp4 fp2; do
    records "few$values" --net ib -n 25000000 -d 0.01 --ranks 8,12,64,1024,4096 --values $values
    check "few$values" "floats = {json.loads(l)['ranks']: json.loads(l) for l in open('$dir/ib')}
for p in r:
    assert abs(r[p]['formula_us'] / r[p]['simulated_us'] - 1) < 0.1, r[p]
for p in (64, 1024, 4096):
    assert r[p]['rank_bytes'] < 0.8 * floats[p]['rank_bytes'] and r[p]['simulated_us'] < floats[p]['simulated_us']
# Lists there and back, of values and of sums, and 4 bytes of a value in an eighth of them.
each = {'bfloat16': 2 + 2 + 4 / 8, 'fp4': 0.508 + 1.008 + 4 / 8, 'fp2': 0.266 + 0.508 + 4 / 8}['$values']
assert abs(r[4096]['rank_bytes'] / (250000 * (each + 4)) - 1) < 0.15, r[4096]
"
done

records tcp1024 --net tcp -n 25000000 -d 0.001 --ranks 1024
check tcp1024 '
assert r[1024]["plan"] == "8x8x8x2" and r[1024]["messages"] <= 66, r[1024]
'

# Any number of ranks. A step is a part of it if local steps share it.
records odd --net 20,5,25,1,80,25,10 --ranks 2,3,24,100,1000 -n 1000000 --ranks-per-node 8 --local-steps 100
check odd '
assert sorted(r) == [2, 3, 24, 100, 1000] and r[2]["messages"] == 3
for p in (3, 24, 100, 1000):
    assert abs(r[p]["local_step_us"] * 100 / r[p]["simulated_us"] - 1) < 1e-6
    assert r[p]["messages"] >= 3 and r[p]["ranks_per_node"] == min(8, p)
'
records calm --net wan --ranks 64 -n 1000000
records lossy --net wan --ranks 64 -n 1000000 --loss 0.2 --resend 1e6 --jitter 0.5
records again --net wan --ranks 64 -n 1000000 --loss 0.2 --resend 1e6 --jitter 0.5
check calm "calm = json.loads(open('$dir/calm').readline()); lossy = json.loads(open('$dir/lossy').readline())
again = json.loads(open('$dir/again').readline())
assert lossy['simulated_us'] > calm['simulated_us'] + 1e6 and lossy['simulated_us'] == again['simulated_us']
assert lossy['formula_us'] == calm['formula_us']"
records formula --net ib --ranks 4096 --simulate 0
check formula 'assert r[4096]["simulated_us"] is None and r[4096]["local_step_us"] == r[4096]["formula_us"]'

# Without latency of the processor all with all is the best, and too much to simulate.
records linear --net 1000,0,100 --ranks 1024
check linear 'assert r[1024]["plan"] == "1024" and r[1024]["simulated_us"] is None'

# One rank's own passes, in the divisions of so many ranks: 512 elements are the least block while a
# rank has 8 of them, and no rank adds tiles in proportion.
records passes --passes --ranks 4,64 -n 1000000
check passes 'assert r[4]["block"] == 2048 and r[64]["block"] == 512, r
assert 1e6 / 512 <= r[64]["tiles"] < 1e6 / 512 + 300
assert all(r[p][t] > 0 for p in (4, 64) for t in ("accumulate_min_ms", "union_min_ms"))'

for net in lan 1,2 1,2,0 1,2,3,4 1,2,3,4,0 1,x,3 1,2,3, 1,2,nan -1,2,3 1,2,3,4,5,6,7,8 ""; do
    expect 2 "^tamis_scale: --net $net is no network: needs ib|.*FAR_US" "$scale" --net "$net"
done
expect 2 "^tamis_scale: --ranks needs whole numbers\|^tamis_scale: --ranks needs numbers" "$scale" --ranks 4,x
expect 2 "^tamis_scale: --ranks 1,2: one rank exchanges nothing" "$scale" --ranks 1,2
expect 2 "^tamis_scale: --density 0 is out of range" "$scale" --density 0
expect 2 "^tamis_scale: --index-bytes 0 is out of range" "$scale" --index-bytes 0
expect 2 "^tamis_scale: --loss 1 is out of range" "$scale" --loss 1
expect 2 "^tamis_scale: --verify needs ranks: start it with mpirun" "$scale" --verify
expect 0 "400 Gbit/s a rank" "$scale" --net ib --ranks 4

if [ -n "$mpirun" ]; then
    for ranks in 2 3 4; do
        expect 0 "bytes of rank 0 in a step: sent" \
            "$mpirun" $ranks 100 "$scale" --verify -n 100000 -d 0.01 --steps 3
    done
    expect 0 "indices block16" "$mpirun" 3 100 "$scale" --verify -n 100000 -d 0.01 --steps 3 --index-bytes 2
    expect 0 "us by the formula for net 5,0.4,80" \
        "$mpirun" 2 100 "$scale" --verify -n 100000 -d 0.01 --steps 3 --net 5,0.4,80
fi
echo "scale: ok"
