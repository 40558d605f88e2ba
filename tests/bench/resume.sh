#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# test: release
#
# resume.sh TRAIN PYTHON: a run that is saved and goes on ends with the bits of one without a stop, and
# saving changes none; files of something else, and such as are damaged, are refused.
set -euo pipefail

train=$1 python=$2
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

. "$(dirname "${BASH_SOURCE[0]}")/expect.sh"
. "$(dirname "${BASH_SOURCE[0]}")/train_runs.sh"

again() { # options
    rm -f "$dir"/part.*
    run "$dir/once.json" "$@" --steps 12 --save "$dir/once"
    run "$dir/part.json" "$@" --steps 12 --save "$dir/part" --save-every 5
    same once part "saving changes the run: $*"
    [ "$(find "$dir" -name 'part.step*' | wc -l)" = $((2 * ranks)) ] || fail "other files: $(ls "$dir"/part.*)"
    run "$dir/then.json" "$@" --steps 12 --load "$dir/part.step5" --save "$dir/then"
    same once then "gone on, but elsewhere: $*"
    [ "$(tail -n 1 "$dir/then.json" | field steps)" = 7 ] || fail "not from step 5: $*"
    [ "$(tail -n 1 "$dir/then.json" | field model_hash)" = "$(tail -n 1 "$dir/once.json" | field model_hash)" ] ||
        fail "another model_hash: $*"
}
again "${lm[@]}"
again "${lm[@]}" --reduce update --scheme topk
again "${lm[@]}" --reduce update --beta1 0
again "${lm[@]}" --micro-batches 2 --warm-up 8 --lr-decay cosine --set value_codec=bfloat16
again "${lm[@]}" --reduce update --density-warm-up 8 --scheme micro
again "${lm[@]}" --density-warm-up 3 --density-end 0.2 --bucket-length 500
again "${cnn[@]}" --scheme deft --overlap on
again "${cnn[@]}" --reduce update
expect 1 "its --reduce differs" "$train" "${cnn[@]}" --ranks 2 --load "$dir/once" --steps 20
again "${cnn[@]}" --overlap on --bucket-length 1000
for scheme in dense topk cltk threshold sage deft micro exdyna oktopk; do
    again "${mlp[@]}" --optimizer momentum --scheme "$scheme"
done
again "${mlp[@]}" --optimizer adamw --density 0.05
again "${mlp[@]}" --optimizer adamw --local-steps 3 --scheme dense
again "${mlp[@]}" --optimizer adamw --local-steps 4 --local-delay 2 --set value_codec=fp4 --outer-lr 1
again "${mlp[@]}" --local-steps 4 --local-delay 4 --scheme quantized --set value_codec=fp2
for scheme in micro deft oktopk; do
    again "${mlp[@]}" --optimizer adamw --scheme "$scheme" --reduce update
done
again "${mlp[@]}" --optimizer sgd
again "${cnn[@]}" --optimizer sgd
expect 1 "its --workload differs" "$train" "${mlp[@]}" --ranks 2 --load "$dir/once" --steps 20
sed 's/sieve/SIEVE/g' "$dir/text" >"$dir/other"
again "${lm[@]}"
expect 1 "it belongs to other data: to .text. with data_hash [0-9a-f]*, but --data is .other. with" \
    "$train" "${lm[@]}" --data "$dir/other" --ranks 2 --load "$dir/once" --steps 20
expect 1 "its model has another shape" "$train" "${lm[@]}" --width 8 --ranks 2 --load "$dir/once" --steps 20
expect 1 "keep other vectors" "$train" "${lm[@]}" --scheme dense --ranks 2 --load "$dir/once" --steps 20
expect 1 "scheme is " "$train" "${lm[@]}" --scheme topk --ranks 2 --load "$dir/once" --steps 20

# What is not of this run, or not whole.
load() { # options: from files of 4 ranks with --batch 3
    "$train" "${mlp[@]}" --optimizer adamw --quiet --steps 20 --ranks 4 --batch 3 "$@"
}
ranks=4 run "$dir/four" "${mlp[@]}" --optimizer adamw --batch 3 --steps 4 --save "$dir/four"
[ -z "$(find "$dir" -name 'four.rank*' ! -perm 600)" ] || fail "others may read states"
[ -z "$(find "$dir" -name '*.part')" ] || fail "parts are left"
expect 1 "is of rank [01] of 4 with --batch 3; go on with as many" load --ranks 2 --load "$dir/four"
expect 1 "of 4 with --batch 3; go on with as many" load --batch 6 --load "$dir/four"
expect 1 "its --seed differs" load --load "$dir/four" --seed 7
expect 1 "its --optimizer differs" load --load "$dir/four" --optimizer momentum
expect 1 "none.rank[0-3].state: No such file" load --load "$dir/none"
expect 2 "save-every needs --save" load --save-every 5
cp "$dir/four.rank3.state" "$dir/kept"
damaged() { # what is said of what comes on standard input in place of rank 3's file
    cat >"$dir/four.rank3.state"
    expect 1 "rank3.state: $1" load --load "$dir/four"
}
head -c 100 "$dir/kept" | damaged "it is truncated"
head -c -1 "$dir/kept" | damaged "it is truncated"
{ head -c -1 "$dir/kept" && printf x; } | damaged "it is damaged"
{ printf TAMTRN4 && tail -c +8 "$dir/kept"; } | damaged "it was written by another version"
{ printf TEXTRN7 && tail -c +8 "$dir/kept"; } | damaged "it is not the state of a run"
cat "$dir/four.rank2.state" | damaged "it is of rank 2 of 4"
rm "$dir/four.rank3.state"
expect 1 "rank3.state: No such file" load --load "$dir/four"
ranks=4 run "$dir/five" "${mlp[@]}" --optimizer adamw --batch 3 --steps 5 --save "$dir/five"
cp "$dir/five.rank3.state" "$dir/four.rank3.state"
expect 1 "files of .*/four are of different steps" load --load "$dir/four"
cp "$dir/kept" "$dir/four.rank3.state"
expect 0 "" load --load "$dir/four"
echo "resume: ok"
