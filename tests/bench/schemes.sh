#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# test: release
#
# schemes.sh SCHEMES TRAIN PYTHON REPORT: every preset of the library runs on recorded and on
# synthetic gradients and has its row in the report; a record with a wrong count, a wrong entry,
# replicas that differ, or none at all makes the report end with status 1; a damaged recording is
# refused.
set -euo pipefail

schemes=$1 train=$2 python=$3 report=$4
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
export OPENBLAS_NUM_THREADS=1

. "$(dirname "${BASH_SOURCE[0]}")/expect.sh"

# Images of noise: 64 to train, 64 to test.
"$python" - "$dir" <<'END_OF_DATA'
import random, struct, sys
random.seed(1)
for name in ("train", "t10k"):
    with open(f"{sys.argv[1]}/{name}-images-idx3-ubyte", "wb") as out:
        out.write(struct.pack(">IIII", 0x803, 64, 28, 28))
        out.write(bytes(random.randrange(256) for _ in range(64 * 784)))
    with open(f"{sys.argv[1]}/{name}-labels-idx1-ubyte", "wb") as out:
        out.write(struct.pack(">II", 0x801, 64) + bytes(i % 10 for i in range(64)))
END_OF_DATA
training=("$train" --data "$dir" --transport local --ranks 3 --batch 4 --hidden 8 --quiet)
expect 0 "replicas identical" "${training[@]}" --scheme dense --steps 9 --record "$dir/gradients" \
    --record-every 2
expect 2 "--record needs" "${training[@]}" --steps 2 --record "$dir/x" --overlap on
expect 0 "replicas identical" "${training[@]}" --scheme tamis --steps 4

# Ranks that are threads write one record for all.
"${training[@]}" --scheme tamis --steps 6 --eval-every 2 --json "$dir/train"
[ "$(grep -c '"record":"step"' "$dir/train")" -eq 3 ] || fail "not a record for each test run"

# Records of a step: 5 of steps 0, 2, ..., 8; 784 * 8 + 8 + 8 * 10 + 10 parameters; 4 segments.
bytes=$(stat -c %s "$dir/gradients")
[ "$bytes" -eq $((256 + 5 * 3 * 6370 * 4)) ] || fail "the recording has $bytes bytes"

presets=$("$schemes" --list | paste -sd, -)
count=$("$schemes" --list | wc -l)
[ "$count" -ge 9 ] || fail "only $count presets"
expect 0 "tamis .*follows all rules" "$schemes" --input "$dir/gradients" --steps 5 --checks 5 \
    --json "$dir/recorded"
expect 0 "tamis .*follows all rules" "$schemes" --ranks 1,4 --elements 3000 --segments 5 --steps 8 \
    --checks 4 --json "$dir/synthetic"
[ "$(wc -l <"$dir/recorded")" -eq "$count" ] || fail "not a record for each preset"
[ "$(wc -l <"$dir/synthetic")" -eq $((2 * count)) ] || fail "not a record for each preset and P"
expect 0 'preset "nothing" is not in this library' "$schemes" --schemes tamis,nothing --steps 2 \
    --elements 1000

# The generator gives the same gradients in every run. What auto does with them depends on times that
# it measures.
traces() { grep -v '"scheme":"auto"' "$1" | sed -E 's/"cpu_[a-z_]*us":\{[^}]*\}//g'; }
expect 0 "follows" "$schemes" --ranks 1,4 --elements 3000 --segments 5 --steps 8 --checks 4 --json "$dir/again"
[ "$(traces "$dir/synthetic")" = "$(traces "$dir/again")" ] || fail "two runs differ"

make_report() { # records...
    "$python" "$report" --no-plots --out "$dir" --presets "$presets" "$@"
}
expect 0 "Wrote" make_report "$dir/recorded" "$dir/synthetic"
for word in 'replicas_identical' '| tamis | cyclic + norm + predict + union | exactly k | 0 % | 0 |' \
    '### Recorded gradients: n = 6,370, 3 ranks, 5 steps' 'captured' \
    '| preset | 1 ranks | 4 ranks |' '### select'; do
    grep -qF -- "$word" "$dir/schemes.md" || fail "the report has no \"$word\""
done
for preset in ${presets//,/ }; do
    grep -q "^| $preset | .* | true | 3 |" "$dir/schemes.md" || fail "no row of $preset"
done

# Damage: a count, an entry, replicas, a preset without records.
damage() { # sed expression, what must be said
    sed -E "$1" "$dir/synthetic" >"$dir/damaged"
    cmp -s "$dir/synthetic" "$dir/damaged" && fail "nothing was changed by $1"
    expect 1 "$2" make_report "$dir/recorded" "$dir/damaged"
}
damage '1s/"selected_max":[0-9.]+/"selected_max":31.0/' 'broken: tamis .*promised were 30'
damage '2s/"wrong":0.0/"wrong":1.0/' 'broken: dense .*1 entries'
damage '3s/"replicas_identical":true/"replicas_identical":false/' 'broken: topk .*replicas differ'
sed '1d' "$dir/recorded" >"$dir/damaged"
expect 1 'broken: tamis: there is no record' make_report "$dir/damaged"

# A recording that is cut off, or is something else.
head -c $((bytes - 1)) "$dir/gradients" >"$dir/cut"
expect 1 "not a recording of gradients" "$schemes" --input "$dir/cut"
expect 1 "not a recording of gradients" "$schemes" --input "$dir/synthetic"
expect 1 "cannot be read" "$schemes" --input "$dir/nothing"
echo "all presets side by side: $presets"
